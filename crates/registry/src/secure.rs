//! TLS as an address asks for it, put on a connection that is there already: for programs that look at a server beside
//! the registry's own protocol.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::url::RegistryUrl;

/// What bytes go over.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// Speaks TLS with the roots and the certificate of an address.
///
/// # Errors
/// When the address's files are no good, the server is not trusted or does not speak TLS, or this build has no TLS.
pub async fn over(url: &RegistryUrl, host: &str, stream: TcpStream) -> io::Result<Box<dyn Wire>> {
    #[cfg(feature = "tls")]
    {
        let wrong = |error: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidInput, error.to_string());
        let tls = crate::tls::Tls::of(&mut crate::backend::Params::of(url), true).map_err(|error| wrong(&error))?;
        let config = tls.config().map_err(|error| wrong(&error))?;
        let name = rustls::pki_types::ServerName::try_from(host.to_owned()).map_err(|error| wrong(&error))?;
        let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
        Ok(Box::new(connector.connect(name, stream).await?))
    }
    #[cfg(not(feature = "tls"))]
    {
        let _ = (url, host, stream);
        Err(io::Error::new(io::ErrorKind::Unsupported, "this build has no TLS"))
    }
}
