//! Loopback ports for servers that cannot be told "port 0".
//!
//! Asking the kernel for a free port and closing the socket leaves a gap in which anybody's outgoing connection may take it. So ports
//! come from below Linux's ephemeral range (32768 and up by default), and a lock file per port keeps other test binaries away
//! for as long as the [`Port`] lives, restarts of the server included.

use std::fmt;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// First port handed out and how many follow it.
const RANGE: (u16, u16) = (20_000, 10_000);

/// A port on 127.0.0.1 reserved for this process until dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// Holds the lock; the kernel releases it even if the process is killed.
    _lock: File,
}

impl Port {
    /// The first port that is ever reserved.
    pub const FIRST: u16 = RANGE.0;

    /// Reserves a port on which nothing listens.
    ///
    /// # Panics
    /// No port of the whole range is free, or the lock folder cannot be written.
    pub fn reserve() -> Self {
        Self::reserve_if(|_| true)
    }

    /// Reserves a port and the one `offset` above it, for servers whose second port follows from the first.
    ///
    /// # Panics
    /// As [`reserve`](Self::reserve).
    pub fn reserve_pair(offset: u16) -> (Self, Self) {
        let mut second = None;
        let first = Self::reserve_if(|number| {
            second = number.checked_add(offset).and_then(Self::try_reserve);
            second.is_some()
        });
        (first, second.expect("the first one was taken because the second is there"))
    }

    fn reserve_if(mut accepted: impl FnMut(u16) -> bool) -> Self {
        // Different processes start at different places, so that they rarely meet.
        let start = std::process::id().wrapping_mul(977);
        for step in 0..u32::from(RANGE.1) {
            let offset = start.wrapping_add(step) % u32::from(RANGE.1);
            let number = RANGE.0 + offset as u16;
            if let Some(port) = Self::try_reserve(number)
                && accepted(number)
            {
                return port;
            }
        }
        panic!("no free port between {} and {}", RANGE.0, u32::from(RANGE.0) + u32::from(RANGE.1) - 1);
    }

    fn try_reserve(number: u16) -> Option<Self> {
        let dir = std::env::temp_dir().join("metaroute-ports");
        fs::create_dir_all(&dir).expect("the temporary folder is writable");
        let lock = File::create(dir.join(number.to_string())).ok()?;
        lock.try_lock().ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self { number, _lock: lock })
    }

    /// The port number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// `127.0.0.1` with this port.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_pair_keeps_its_distance_and_both_are_held() {
        let (first, second) = Port::reserve_pair(1000);
        assert_eq!(second.number(), first.number() + 1000);
        assert!(Port::try_reserve(first.number()).is_none() && Port::try_reserve(second.number()).is_none());
    }

    #[test]
    fn ports_held_at_once_differ_and_can_be_bound() {
        let ports: Vec<Port> = (0..20).map(|_| Port::reserve()).collect();
        let distinct: HashSet<u16> = ports.iter().map(Port::number).collect();
        assert_eq!(distinct.len(), ports.len());
        for port in &ports {
            TcpListener::bind(port.address()).expect("a reserved port is free");
        }
    }
}
