//! A TCP connection, with TLS where that is asked for: what the protocol of a back end is spoken over.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::backend::bad;
use crate::registry::ConnectError;
use crate::tls::Tls;
use crate::url::Host;

/// How long connecting may take, TLS included.
const CONNECT: Duration = Duration::from_secs(3);

/// Where to connect, and how.
#[derive(Clone)]
pub(crate) struct Socket {
    host: Arc<str>,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// What bytes go over.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Stream for T {}

impl Socket {
    /// A way to a server. `alpn` names the protocol where TLS says it.
    pub(crate) fn new(host: &Host, port: u16, tls: &Tls, alpn: Option<&str>) -> Result<Self, ConnectError> {
        let tls = if tls.on {
            let name = ServerName::try_from(host.name.to_string())
                .map_err(|_| bad(format!("bad server `{host}`: neither a host name nor an IP address")))?;
            let mut config = tls.config()?;
            config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
            Some((TlsConnector::from(Arc::new(config)), name))
        } else {
            None
        };
        Ok(Self { host: (&*host.name).into(), port: host.port.unwrap_or(port), tls })
    }

    /// `host:port`, for messages and addresses.
    pub(crate) fn name(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Connects.
    ///
    /// # Errors
    /// Refused, no such host, no trust, or not in time.
    pub(crate) async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let connect = async {
            let stream = TcpStream::connect((&*self.host, self.port)).await?;
            stream.set_nodelay(true)?;
            Ok::<Box<dyn Stream>, io::Error>(match self.tls.clone() {
                None => Box::new(stream),
                Some((tls, name)) => Box::new(tls.connect(name, stream).await?),
            })
        };
        timeout(CONNECT, connect)
            .await
            .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no connection in time")))
    }
}
