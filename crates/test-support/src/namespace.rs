//! A network of its own for servers that cannot be told to listen on loopback only.
//!
//! Some Java servers bind all interfaces and refuse a loopback address as their own. Inside a network namespace "all interfaces" is
//! one end of a virtual cable, whose other end is on this machine and leads nowhere else. What such a server must reach
//! here is lent to it with [`Namespace::lend`].

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::{Missing, Port, Proxy, program};

/// A network namespace with one address, removed on drop. Making one takes root.
#[derive(Debug)]
pub struct Namespace {
    ip: PathBuf,
    name: String,
    /// Ours and the namespace's end.
    ends: (Ipv4Addr, Ipv4Addr),
    /// Its number is ours alone, and so are the name and the addresses made from it.
    _port: Port,
}

impl Namespace {
    /// Makes a namespace.
    ///
    /// # Errors
    /// [`Missing`] if `ip` is not on the machine or may not make one.
    pub fn new() -> Result<Self, Missing> {
        let ip = program("ip")?;
        let port = Port::reserve();
        // 10.255.0.0/16 in pieces of four addresses: our end is the first usable one, theirs the second.
        let number = port.number() - Port::FIRST;
        let [high, low] = (number * 4).to_be_bytes();
        let ends = (Ipv4Addr::new(10, 255, high, low + 1), Ipv4Addr::new(10, 255, high, low + 2));
        let namespace = Self { ip, name: format!("metaroute-{number}"), ends, _port: port };
        let (name, link) = (namespace.name.clone(), format!("mr{number}"));
        // One that a killed test left behind; the number is ours now.
        namespace.run(&["netns", "del", &name]);
        namespace.run(&["link", "del", &link]);
        let made = namespace.run(&["netns", "add", &name])
            && namespace.run(&["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &name])
            && namespace.run(&["addr", "add", &format!("{}/30", ends.0), "dev", &link])
            && namespace.run(&["link", "set", &link, "up"])
            && namespace.run(&["-n", &name, "addr", "add", &format!("{}/30", ends.1), "dev", "eth0"])
            && namespace.run(&["-n", &name, "link", "set", "eth0", "up"])
            && namespace.run(&["-n", &name, "link", "set", "lo", "up"]);
        if made {
            return Ok(namespace);
        }
        Err(Missing { what: "a network namespace".to_owned(), remedy: "making one takes root on Linux".to_owned() })
    }

    /// Runs `ip`; whether it succeeded.
    fn run(&self, arguments: &[&str]) -> bool {
        let mut command = Command::new(&self.ip);
        let status = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    /// The namespace's address: what listens in there on all interfaces is reached here.
    pub fn address(&self) -> Ipv4Addr {
        self.ends.1
    }

    /// The same command, inside. The process is the command's own, since `ip` becomes it.
    pub fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new(&self.ip);
        inside.args(["netns", "exec", &self.name]).arg(command.get_program()).args(command.get_args());
        inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        if let Some(folder) = command.get_current_dir() {
            inside.current_dir(folder);
        }
        inside
    }

    /// A way from inside to a server on this machine.
    pub fn lend(&self, server: SocketAddr) -> Proxy {
        Proxy::start_at(IpAddr::V4(self.ends.0), server)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The cable goes with it.
        self.run(&["netns", "del", &self.name]);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;
    use crate::{require, wait_until};

    #[test]
    fn what_listens_inside_is_reached_from_here_and_the_other_way_round() {
        let namespace = require!(Namespace::new());
        let python = require!(program("python3"));
        let here = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let lent = namespace.lend(here.local_addr().expect("bound"));
        let script = format!(
            "import socket\nlisten = socket.create_server(('', 7000))\nlisten.accept()\n\
             socket.create_connection(('{}', {})).sendall(b'hello')",
            lent.address().ip(),
            lent.address().port()
        );
        let mut python_command = Command::new(python);
        python_command.args(["-c", &script]);
        let mut child = namespace.inside(&python_command).spawn().expect("it starts");
        let inside = SocketAddr::from((namespace.address(), 7000));
        let reached = wait_until(Duration::from_secs(20), || {
            TcpStream::connect_timeout(&inside, Duration::from_millis(500)).is_ok()
        });
        let answered = here.accept().map(|(mut stream, _)| {
            let mut text = String::new();
            stream.read_to_string(&mut text).map(|_| text)
        });
        child.wait().expect("it ends");
        assert!(reached);
        assert_eq!(answered.expect("a connection").expect("text"), "hello");
    }
}
