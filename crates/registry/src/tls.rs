//! TLS as an address asks for it, one way for all back ends: `?tls=true&ca=FILE&cert=FILE&key=FILE`.
//!
//! The roots are those of the system, or the certificates of `ca` alone. `cert` and `key` (PEM) are a client certificate.
//! There is no switch that skips verification.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::backend::{Params, bad};
use crate::registry::ConnectError;

/// What an address says about TLS.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tls {
    pub(crate) on: bool,
    ca: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Reads `tls`, `ca`, `cert` and `key`. `on` is what the scheme says already.
    pub(crate) fn of(params: &mut Params<'_>, on: bool) -> Result<Self, ConnectError> {
        let on = params.switch("tls", on)?;
        let ca = params.path("ca");
        let identity = match (params.path("cert"), params.path("key")) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(bad("`cert` and `key` go together")),
        };
        if !on && (ca.is_some() || identity.is_some()) {
            return Err(bad("`ca`, `cert` and `key` need `tls=true`"));
        }
        Ok(Self { on, ca, identity })
    }

    /// Whether there is a client certificate.
    pub(crate) fn has_identity(&self) -> bool {
        self.identity.is_some()
    }

    /// The configuration for rustls, with ring as its cryptography.
    pub(crate) fn config(&self) -> Result<ClientConfig, ConnectError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| bad(error.to_string()))?
            .with_root_certificates(self.roots()?);
        match &self.identity {
            None => Ok(builder.with_no_client_auth()),
            Some((cert, key)) => {
                let chain = certificates(cert)?;
                let key_der = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| bad(format!("client key `{}`: {error}", key.display())))?;
                builder
                    .with_client_auth_cert(chain, key_der)
                    .map_err(|error| bad(format!("client certificate `{}`: {error}", cert.display())))
            }
        }
    }

    fn roots(&self) -> Result<RootCertStore, ConnectError> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(path) => {
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|error| bad(format!("`ca={}`: {error}", path.display())))?;
                }
            }
            None => {
                // A broken one among the system's certificates is not ours to complain about, as long as others work.
                let found = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(found.certs);
                if roots.is_empty() && self.on {
                    return Err(bad("this system has no trusted certificates; give them with `ca=FILE`"));
                }
            }
        }
        Ok(roots)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let wrong = |error: rustls::pki_types::pem::Error| bad(format!("certificates `{}`: {error}", path.display()));
    let found: Vec<_> = CertificateDer::pem_file_iter(path).map_err(wrong)?.collect::<Result<_, _>>().map_err(wrong)?;
    if found.is_empty() {
        return Err(bad(format!("certificates `{}`: the file holds none", path.display())));
    }
    Ok(found)
}
