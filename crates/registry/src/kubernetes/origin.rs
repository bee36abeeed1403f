//! Which cluster, and who we are there: read from the address, from a kubeconfig as `kubectl` does, or from what a pod is given.

use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine;
use hyper::Uri;
use kube::Config;
use kube::client::{AuthError, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use secrecy::ExposeSecret;

use crate::driver::{DriverError, ErrorKind};
use crate::tls::Tls;
use crate::url::Secret;

/// Where it is said which cluster is meant.
#[derive(Clone)]
pub(super) enum Origin {
    /// In a kubeconfig if there is one, else by the cluster that runs this process.
    Found,
    /// In a kubeconfig: this file, or the usual ones; this context, or the current one.
    Kubeconfig { file: Option<PathBuf>, context: Option<String> },
    /// In the address.
    Server { base: Uri, tls: Tls, token: Option<Secret> },
}

/// Everything that is read from files, environment and programs.
pub(super) struct Configuration {
    pub(super) config: Config,
    pub(super) tls: ClientConfig,
    pub(super) auth: Option<kube::client::middleware::AuthLayer>,
    pub(super) token: Option<Secret>,
    pub(super) server_name: Option<ServerName<'static>>,
}

pub(super) fn configuration(origin: &Origin) -> Result<Configuration, DriverError> {
    let mut config = match origin {
        Origin::Server { base, tls, token } => {
            let config = Config::new(base.clone());
            let tls = tls.config().map_err(|error| invalid(error.to_string()))?;
            return Ok(Configuration { config, tls, auth: None, token: token.clone(), server_name: None });
        }
        Origin::Kubeconfig { file, context } => kubeconfig(file.as_ref(), context.clone())?,
        Origin::Found => match usual_kubeconfig()? {
            Some(found) => from_kubeconfig(found, None)?,
            None => Config::incluster().map_err(|error| {
                invalid(
                    "there is neither a kubeconfig (`KUBECONFIG`, `~/.kube/config`) nor a cluster that runs this process; \
                     name a file with `kubeconfig=` or a server in the address",
                )
                .because(error)
            })?,
        },
    };
    let environment = ["HTTPS_PROXY", "https_proxy"].into_iter().find_map(|name| std::env::var(name).ok());
    let from_environment = environment.and_then(|text| text.parse::<Uri>().ok());
    if config.proxy_url.is_some() && config.proxy_url != from_environment {
        return Err(invalid("the kubeconfig wants a proxy (`proxy-url`), which is not supported"));
    }
    // Read for every request instead of once a minute, and without the end of its line.
    let token = match (&config.auth_info.token, config.auth_info.token_file.take()) {
        (None, Some(file)) => Some(Secret::new(&format!("file:{file}"))),
        _ => None,
    };
    let tls = tls_of(&config)?;
    let server_name =
        config.tls_server_name.clone().map(ServerName::try_from).transpose().map_err(|error| {
            invalid("the `tls-server-name` of the kubeconfig is no name of a server").because(error)
        })?;
    let auth = match config.auth_layer() {
        Ok(auth) => auth,
        Err(kube::Error::Auth(error)) => return Err(auth_error(&error)),
        Err(error) => return Err(denied("the credentials of the kubeconfig cannot be used").because(error)),
    };
    Ok(Configuration { config, tls, auth, token, server_name })
}

/// The kubeconfig that `kubectl` would take; `None` where there is none.
fn usual_kubeconfig() -> Result<Option<Kubeconfig>, DriverError> {
    match Kubeconfig::read() {
        Ok(found) => Ok(Some(found)),
        Err(KubeconfigError::FindPath) => Ok(None),
        // Only the usual place may be empty; a file that is named must be there.
        Err(KubeconfigError::ReadConfig(error, _))
            if error.kind() == std::io::ErrorKind::NotFound && std::env::var_os("KUBECONFIG").is_none() =>
        {
            Ok(None)
        }
        Err(error) => Err(kubeconfig_error(error)),
    }
}

fn kubeconfig(file: Option<&PathBuf>, context: Option<String>) -> Result<Config, DriverError> {
    let read = match file {
        Some(file) => Kubeconfig::read_from(file).map_err(kubeconfig_error)?,
        None => {
            usual_kubeconfig()?.ok_or_else(|| invalid("there is no kubeconfig (`KUBECONFIG`, `~/.kube/config`)"))?
        }
    };
    from_kubeconfig(read, context)
}

fn from_kubeconfig(read: Kubeconfig, context: Option<String>) -> Result<Config, DriverError> {
    let known: Vec<String> = read.contexts.iter().map(|context| context.name.clone()).collect();
    if let Some(context) = context.as_ref().filter(|context| !known.contains(context)) {
        return Err(invalid(format!("the kubeconfig has no context `{context}`; it has {}", known.join(", "))));
    }
    let options = KubeConfigOptions { context, cluster: None, user: None };
    // Nothing is waited for in it, it only is written so.
    let runtime = tokio::runtime::Handle::current();
    runtime.block_on(Config::from_custom_kubeconfig(read, &options)).map_err(kubeconfig_error)
}

/// A text that does not parse may hold secrets, so the parser's own message, which may show it, is not passed on.
fn kubeconfig_error(error: KubeconfigError) -> DriverError {
    match error {
        KubeconfigError::Parse(_) => invalid("the kubeconfig cannot be read: it is not the YAML of one"),
        KubeconfigError::ReadConfig(error, file) => {
            invalid(format!("the kubeconfig `{}` cannot be read: {error}", file.display()))
        }
        KubeconfigError::CurrentContextNotSet => {
            invalid("the kubeconfig has no current context; name one with `context=`")
        }
        error => invalid("the kubeconfig cannot be used").because(error),
    }
}

/// What a program printed may be a token, so it is not passed on.
pub(super) fn auth_error(error: &AuthError) -> DriverError {
    match error {
        AuthError::AuthExecRun { out, .. } => {
            denied(format!("the program for credentials of the kubeconfig ended with {}", out.status))
        }
        AuthError::AuthExecStart(error) => {
            denied(format!("the program for credentials of the kubeconfig cannot be run: {error}"))
        }
        AuthError::ReadTokenFile(error, file) => {
            denied(format!("the token `{}` cannot be read: {error}", file.display()))
        }
        AuthError::AuthExec(message) => denied(message.as_str()),
        _ => denied("the credentials of the kubeconfig cannot be used"),
    }
}

/// TLS as a kubeconfig or the cluster wants it, with ring as its cryptography and no process-wide state.
fn tls_of(config: &Config) -> Result<ClientConfig, DriverError> {
    let secure = config.cluster_url.scheme_str() == Some("https");
    if secure && config.accept_invalid_certs {
        return Err(invalid(
            "the kubeconfig does not verify the server (`insecure-skip-tls-verify`), which is not done here; \
             give the cluster's `certificate-authority`",
        ));
    }
    let mut roots = RootCertStore::empty();
    match &config.root_cert {
        Some(all) => {
            for one in all {
                roots
                    .add(CertificateDer::from(one.clone()))
                    .map_err(|error| invalid("the cluster's certificate authority cannot be used").because(error))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid("TLS cannot be set up").because(error))?
        .with_root_certificates(roots);
    let user = &config.auth_info;
    let key_data = user.client_key_data.as_ref().map(ExposeSecret::expose_secret);
    let certificate =
        pem("client-certificate", user.client_certificate_data.as_deref(), user.client_certificate.as_deref())?;
    let key = pem("client-key", key_data, user.client_key.as_deref())?;
    let wrong = |what: &str, error: rustls::pki_types::pem::Error| {
        invalid(format!("the {what} of the kubeconfig cannot be used: {error}"))
    };
    match (certificate, key) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(certificate), Some(key)) => {
            let chain: Vec<_> = CertificateDer::pem_slice_iter(&certificate)
                .collect::<Result<_, _>>()
                .map_err(|error| wrong("client-certificate", error))?;
            let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| wrong("client-key", error))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| invalid("the client-certificate of the kubeconfig cannot be used").because(error))
        }
        _ => Err(invalid("the kubeconfig has only one of client-certificate and client-key")),
    }
}

/// Text of a kubeconfig that is PEM in base64, or in a file.
fn pem(what: &str, data: Option<&str>, file: Option<&str>) -> Result<Option<Vec<u8>>, DriverError> {
    match (data, file) {
        (Some(data), _) if !data.is_empty() => base64::engine::general_purpose::STANDARD
            .decode(data)
            .map(Some)
            .map_err(|_| invalid(format!("the `{what}-data` of the kubeconfig is not base64"))),
        (_, Some(file)) if !file.is_empty() => std::fs::read(file)
            .map(Some)
            .map_err(|error| invalid(format!("the {what} `{file}` of the kubeconfig cannot be read: {error}"))),
        _ => Ok(None),
    }
}

pub(super) fn invalid(message: impl Into<String>) -> DriverError {
    DriverError::new(ErrorKind::Invalid, message)
}

pub(super) fn denied(message: impl Into<String>) -> DriverError {
    DriverError::new(ErrorKind::Denied, message)
}
