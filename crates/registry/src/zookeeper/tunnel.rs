//! TLS under a client that has none of it: a port on loopback for each server, whose connections go on to it over TLS.
//!
//! The client crate opens its sockets itself, and its own TLS would bring a second cryptography library into every
//! program. So its connections lead to a port of this very process, and from there on with our TLS.
//!
//! Other programs of the machine can connect to that port, too, and would be let in with our client certificate. So a
//! connection has to prove that it is ours: the client logs in with a scheme of ours and a random secret that never leaves
//! this process. That login is taken out and answered here, no server sees it; whoever cannot say it is turned away
//! before anything is sent on.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::socket::Socket;

/// The scheme of the login that opens the way.
pub(super) const SCHEME: &str = "metaroute-tunnel";
/// How long a new connection may take to say whose it is.
const HELLO: Duration = Duration::from_secs(5);
/// How long a session may take to end after its owner let go of the tunnel.
const GOODBYE: Duration = Duration::from_secs(5);
/// Connections at once; a client has one, the others are strangers about to be turned away.
const CONNECTIONS: usize = 64;
/// Longest first message: a few numbers and a password of 16 bytes.
const GREETING_BYTES: usize = 4096;
/// The code of a login in ZooKeeper's protocol.
const LOGIN: i32 = 100;

/// The ports, for as long as it is kept.
pub(super) struct Tunnel {
    ports: Vec<SocketAddr>,
    secret: [u8; 32],
    failure: Failure,
    /// Dropped with this; the tasks behind the ports end when they hear of it.
    _alive: watch::Sender<()>,
}

/// Why the last connection to a server did not come about.
type Failure = Arc<Mutex<Option<Arc<io::Error>>>>;

impl Tunnel {
    /// Opens a port for each server.
    pub(super) async fn open(servers: &[Socket]) -> io::Result<Self> {
        let (alive, _) = watch::channel(());
        let secret = rand::random();
        let failure = Failure::default();
        let mut ports = Vec::new();
        for server in servers {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            ports.push(listener.local_addr()?);
            let way = Way { server: server.clone(), secret, failure: Arc::clone(&failure) };
            tokio::spawn(serve(listener, way, alive.subscribe()));
        }
        Ok(Self { ports, secret, failure, _alive: alive })
    }

    /// The ports, as the client wants its servers.
    pub(super) fn servers(&self) -> String {
        let ports: Vec<String> = self.ports.iter().map(ToString::to_string).collect();
        ports.join(",")
    }

    /// What a client has to log in with, before any other login.
    pub(super) fn secret(&self) -> &[u8] {
        &self.secret
    }

    /// Why there is no connection.
    pub(super) fn failure(&self) -> Option<Arc<io::Error>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Clone)]
struct Way {
    server: Socket,
    secret: [u8; 32],
    failure: Failure,
}

async fn serve(listener: TcpListener, way: Way, mut alive: watch::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if connections.len() < CONNECTIONS => {
                    connections.spawn(relay(stream, way.clone()));
                }
                Ok(_) => {}
                // Out of file handles, most likely.
                Err(_) => sleep(Duration::from_millis(100)).await,
            },
            Some(_) = connections.join_next() => {}
            // Nothing is ever sent: it is over.
            _ = alive.changed() => break,
        }
    }
    drop(listener);
    // A client that was let go says goodbye to its server. What is left after that is ended with the set.
    let _ = timeout(GOODBYE, async { while connections.join_next().await.is_some() {} }).await;
}

async fn relay(mut client: TcpStream, way: Way) {
    let hello = timeout(HELLO, async { io::Result::Ok((frame(&mut client).await?, frame(&mut client).await?)) });
    let Ok(Ok((greeting, login))) = hello.await else { return };
    let Some(xid) = ours(&login, &way.secret) else {
        tracing::warn!("another program of this machine tried to use our way to ZooKeeper");
        return;
    };
    let failed = |error: Option<io::Error>| {
        *way.failure.lock().unwrap_or_else(PoisonError::into_inner) = error.map(Arc::new);
    };
    let first = async {
        client.set_nodelay(true)?;
        let mut server = way.server.connect().await?;
        server.write_all(&greeting).await?;
        server.flush().await?;
        // A client certificate that is refused is heard of here only.
        let answer = frame(&mut server).await?;
        io::Result::Ok((server, answer))
    };
    let (server, mut answer) = match first.await {
        Ok(first) => first,
        Err(error) => return failed(Some(error)),
    };
    failed(None);
    answer.extend_from_slice(&accepted(xid));
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let (mut from_client, mut to_client) = client.split();
    if to_client.write_all(&answer).await.is_err() {
        return;
    }
    // Whichever side ends, so does the other.
    tokio::select! {
        _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
    }
    let _ = to_server.shutdown().await;
}

/// The next message, with its length before it.
async fn frame(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let length = stream.read_u32().await?;
    let bytes = usize::try_from(length).ok().filter(|bytes| *bytes <= GREETING_BYTES);
    let bytes = bytes.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "this is not ZooKeeper's protocol"))?;
    let mut out = vec![0; 4 + bytes];
    out[..4].copy_from_slice(&length.to_be_bytes());
    stream.read_exact(&mut out[4..]).await?;
    Ok(out)
}

/// The number of a login that knows the secret.
fn ours(login: &[u8], secret: &[u8]) -> Option<[u8; 4]> {
    let mut wanted = Vec::new();
    for number in [LOGIN, 0] {
        wanted.extend_from_slice(&number.to_be_bytes());
    }
    for text in [SCHEME.as_bytes(), secret] {
        wanted.extend_from_slice(&u32::try_from(text.len()).ok()?.to_be_bytes());
        wanted.extend_from_slice(text);
    }
    let (head, rest) = login.split_at_checked(8)?;
    // In the same time wherever they differ.
    let differs = rest.len() != wanted.len() || rest.iter().zip(&wanted).fold(0, |sum, (a, b)| sum | (a ^ b)) != 0;
    if differs { None } else { head[4..].try_into().ok() }
}

/// The answer to a login.
fn accepted(xid: [u8; 4]) -> Vec<u8> {
    [&16_u32.to_be_bytes()[..], &xid, &[0; 12]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::Tls;
    use crate::url::Host;

    fn message(body: &[u8]) -> Vec<u8> {
        [&u32::try_from(body.len()).expect("short").to_be_bytes()[..], body].concat()
    }

    fn login(xid: i32, secret: &[u8]) -> Vec<u8> {
        let length = |text: &[u8]| u32::try_from(text.len()).expect("short").to_be_bytes();
        let numbers = [xid, LOGIN, 0].map(i32::to_be_bytes).concat();
        let parts = [&numbers[..], &length(SCHEME.as_bytes()), SCHEME.as_bytes(), &length(secret), secret];
        message(&parts.concat())
    }

    async fn behind() -> (TcpListener, Tunnel) {
        let server = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = server.local_addr().expect("bound").port();
        let host = Host { name: "127.0.0.1".into(), port: Some(port) };
        let socket = Socket::new(&host, 0, &Tls::default(), None).expect("a way");
        let tunnel = Tunnel::open(&[socket]).await.expect("open");
        (server, tunnel)
    }

    async fn end(stream: &mut TcpStream) -> Vec<u8> {
        let mut rest = Vec::new();
        // Cut off with something unread is an error and an end, too.
        let _ = timeout(Duration::from_secs(10), stream.read_to_end(&mut rest)).await.expect("it ends");
        rest
    }

    #[tokio::test]
    async fn who_knows_the_secret_gets_through_and_the_server_does_not_see_it() {
        let (server, tunnel) = behind().await;
        let mut client = TcpStream::connect(tunnel.servers()).await.expect("connected");
        let said = [message(b"greeting"), login(7, tunnel.secret()), message(b"more")].concat();
        client.write_all(&said).await.expect("sent");
        let (mut there, _) = server.accept().await.expect("somebody");
        let mut heard = vec![0; 12];
        there.read_exact(&mut heard).await.expect("the greeting");
        assert_eq!(heard, message(b"greeting"));
        there.write_all(&message(b"welcome")).await.expect("sent");
        let mut heard = vec![0; 8];
        there.read_exact(&mut heard).await.expect("what follows");
        assert_eq!(heard, message(b"more"));
        let mut answers = vec![0; 11 + 20];
        client.read_exact(&mut answers).await.expect("answers");
        assert_eq!(answers, [message(b"welcome"), accepted(7_i32.to_be_bytes())].concat());
        // Without its owner the listener goes at once, the connection when one side ends it.
        let port = tunnel.servers();
        drop(tunnel);
        drop(there);
        assert_eq!(end(&mut client).await, b"");
        for _ in 0..100 {
            if TcpStream::connect(&port).await.is_err() {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
        panic!("the port is still open");
    }

    #[tokio::test]
    async fn strangers_are_turned_away_before_the_server_hears_of_them() {
        let (server, tunnel) = behind().await;
        let nearly = {
            let mut nearly = tunnel.secret().to_vec();
            nearly[31] ^= 1;
            nearly
        };
        for said in [
            [message(b"greeting"), login(1, &nearly)].concat(),
            [message(b"greeting"), login(1, b"")].concat(),
            [message(b"greeting"), message(b"no login")].concat(),
            [message(b"greeting"), message(b"")].concat(),
            b"ruok\n".to_vec(),
        ] {
            let mut stranger = TcpStream::connect(tunnel.servers()).await.expect("connected");
            stranger.write_all(&said).await.expect("sent");
            assert_eq!(end(&mut stranger).await, b"");
        }
        assert!(timeout(Duration::from_millis(200), server.accept()).await.is_err(), "nobody came");
        assert!(tunnel.failure().is_none());
    }

    #[tokio::test]
    async fn why_there_is_no_connection_is_told() {
        let (server, tunnel) = behind().await;
        drop(server);
        let mut client = TcpStream::connect(tunnel.servers()).await.expect("connected");
        client.write_all(&[message(b"greeting"), login(7, tunnel.secret())].concat()).await.expect("sent");
        assert_eq!(end(&mut client).await, b"");
        assert_eq!(tunnel.failure().expect("a reason").kind(), io::ErrorKind::ConnectionRefused);
    }
}
