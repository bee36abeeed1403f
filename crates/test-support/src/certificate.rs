//! A certificate for a server on loopback, signed by an authority of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Missing, program};

/// A server certificate for 127.0.0.1, its key, and the authority that signed it, all PEM files.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority.
    pub ca: PathBuf,
}

impl Certificate {
    /// Makes a new authority and a certificate of it in a folder, valid for a day.
    ///
    /// # Errors
    /// [`Missing`] if there is no `openssl`.
    ///
    /// # Panics
    /// `openssl` fails.
    pub fn issue(folder: &Path) -> Result<Self, Missing> {
        let openssl = program("openssl")?;
        let [cert, key, ca, ca_key, request, names] =
            ["cert.pem", "key.pem", "ca.pem", "ca-key.pem", "request.pem", "names"].map(|name| folder.join(name));
        let run = |arguments: &[&str], files: &[(&str, &Path)]| {
            let mut command = Command::new(&openssl);
            command.args(arguments);
            for (option, file) in files {
                command.arg(option).arg(file);
            }
            let output = command.output().unwrap_or_else(|error| panic!("cannot run openssl: {error}"));
            assert!(output.status.success(), "openssl failed:\n{}", String::from_utf8_lossy(&output.stderr));
        };
        let new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
        run(
            &[&["req", "-x509", "-days", "1", "-subj", "/CN=test authority"], &new_key[..]].concat(),
            &[("-keyout", &ca_key), ("-out", &ca)],
        );
        run(&[&["req", "-subj", "/CN=127.0.0.1"], &new_key[..]].concat(), &[("-keyout", &key), ("-out", &request)]);
        std::fs::write(&names, "subjectAltName=IP:127.0.0.1,DNS:localhost\n").expect("the folder is writable");
        run(
            &["x509", "-req", "-days", "1", "-CAcreateserial"],
            &[("-in", &request), ("-CA", &ca), ("-CAkey", &ca_key), ("-out", &cert), ("-extfile", &names)],
        );
        Ok(Self { cert, key, ca })
    }
}
