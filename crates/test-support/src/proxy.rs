//! A network that can be broken on purpose, between a client and a real server.
//!
//! A [`Proxy`] passes bytes of TCP connections on, and can do to them what networks do: end them ([`cut`](Proxy::cut)),
//! go silent while they stay open ([`hold`](Proxy::hold), a half-open connection), or be slow ([`delay`](Proxy::delay)).

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::Port;

/// A way to a server that can be broken and mended. Dropping it ends every connection.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _port: Option<Port>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    mode: Mutex<Mode>,
    changed: Condvar,
    open: Mutex<HashMap<u64, [TcpStream; 2]>>,
    accepted: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Flow(Duration),
    Hold,
    Cut,
    Ended,
}

impl Proxy {
    /// A way to `target` on a port of its own, whole.
    ///
    /// # Panics
    /// When no loopback port can be had.
    pub fn start(target: SocketAddr) -> Self {
        let port = Port::reserve();
        let listener = TcpListener::bind(port.address()).expect("a reserved port is free");
        Self::listening(listener, target, Some(port))
    }

    /// A way to `target` on any port of another address of this machine.
    ///
    /// # Panics
    /// When the address cannot be bound.
    pub fn start_at(address: IpAddr, target: SocketAddr) -> Self {
        let listener = TcpListener::bind((address, 0)).expect("an address of this machine");
        Self::listening(listener, target, None)
    }

    fn listening(listener: TcpListener, target: SocketAddr, port: Option<Port>) -> Self {
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            target,
            mode: Mutex::new(Mode::Flow(Duration::ZERO)),
            changed: Condvar::new(),
            open: Mutex::default(),
            accepted: AtomicU64::new(0),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || accept(&listener, &accepting));
        Self { address, shared, _port: port }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections were made so far, those that were cut at once included: the attempts of a client.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Ends every connection; new ones end at once.
    pub fn cut(&self) {
        self.shared.set(Mode::Cut);
        self.shared.end_all();
    }

    /// Passes nothing on while all connections stay open; new ones open and stay silent too. What was sent meanwhile
    /// arrives after [`heal`](Self::heal).
    pub fn hold(&self) {
        self.shared.set(Mode::Hold);
    }

    /// Passes everything on, each piece later by `delay`.
    pub fn delay(&self, delay: Duration) {
        self.shared.set(Mode::Flow(delay));
    }

    /// Mends everything. Connections that were cut stay ended.
    pub fn heal(&self) {
        self.shared.set(Mode::Flow(Duration::ZERO));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.set(Mode::Ended);
        self.shared.end_all();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn set(&self, mode: Mode) {
        *locked(&self.mode) = mode;
        self.changed.notify_all();
    }

    fn end_all(&self) {
        for [client, server] in locked(&self.open).values() {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    }

    /// Waits while nothing may pass; gives the delay, or `None` when the connection must end.
    fn may_pass(&self) -> Option<Duration> {
        let mut mode = locked(&self.mode);
        loop {
            match *mode {
                Mode::Flow(delay) => return Some(delay),
                Mode::Hold => mode = self.changed.wait(mode).unwrap_or_else(PoisonError::into_inner),
                Mode::Cut | Mode::Ended => return None,
            }
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if *locked(&shared.mode) == Mode::Ended {
            return;
        }
        let Ok(client) = client else { continue };
        let number = shared.accepted.fetch_add(1, Ordering::SeqCst);
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            // A held connection reaches the server only when it may.
            let Some(_) = shared.may_pass() else { return };
            let Ok(server) = TcpStream::connect(shared.target) else { return };
            // Small messages must not wait for more.
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let clone = |stream: &TcpStream| stream.try_clone().expect("file descriptors suffice in a test");
            locked(&shared.open).insert(number, [clone(&client), clone(&server)]);
            // It may have been cut between the look above and the entry.
            if shared.may_pass().is_some() {
                thread::scope(|scope| {
                    scope.spawn(|| pass(clone(&client), clone(&server), &shared));
                    pass(clone(&server), clone(&client), &shared);
                });
            }
            locked(&shared.open).remove(&number);
        });
    }
}

/// Passes bytes one way until either side ends or the proxy cuts.
fn pass(mut from: TcpStream, mut to: TcpStream, shared: &Shared) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer);
        let Some(delay) = shared.may_pass() else { break };
        if !delay.is_zero() {
            thread::sleep(delay);
        }
        match read {
            Ok(0) => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            Ok(len) if to.write_all(&buffer[..len]).is_ok() => {}
            _ => break,
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// A server that sends everything back.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                thread::spawn(move || {
                    let mut reader = stream.try_clone().expect("a clone");
                    let _ = std::io::copy(&mut reader, &mut stream);
                });
            }
        });
        address
    }

    fn connect(proxy: &Proxy) -> TcpStream {
        TcpStream::connect(proxy.address()).expect("the proxy listens")
    }

    fn ask(stream: &mut TcpStream) -> std::io::Result<[u8; 4]> {
        stream.write_all(b"ping")?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    }

    #[test]
    fn it_passes_holds_heals_and_cuts() {
        let proxy = Proxy::start(echo());
        let mut stream = connect(&proxy);
        assert_eq!(&ask(&mut stream).expect("flows"), b"ping");

        proxy.hold();
        stream.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
        assert!(ask(&mut stream).is_err(), "nothing passes while it holds");
        stream.set_read_timeout(None).expect("no timeout");
        proxy.heal();
        let mut late = [0; 4];
        stream.read_exact(&mut late).expect("what was held arrives");

        proxy.cut();
        assert!(ask(&mut stream).is_err(), "a cut connection has ended");
        assert!(ask(&mut connect(&proxy)).is_err(), "new connections end too");
        proxy.heal();
        assert_eq!(&ask(&mut connect(&proxy)).expect("healed"), b"ping");
        assert_eq!(proxy.accepted(), 3);
    }

    #[test]
    fn it_is_slow_on_demand() {
        let proxy = Proxy::start(echo());
        let mut stream = connect(&proxy);
        proxy.delay(Duration::from_millis(50));
        let start = Instant::now();
        ask(&mut stream).expect("slow, not broken");
        assert!(start.elapsed() >= Duration::from_millis(100), "both ways");
    }
}
