//! The instances everybody picks from.

use std::net::{Ipv4Addr, SocketAddr};

/// The sizes every picking benchmark runs at.
pub const SIZES: [usize; 4] = [10, 100, 1_000, 10_000];

/// One instance, as much of it as a rival understands.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    /// Distinct per member.
    pub address: SocketAddr,
    /// 1 to 5, uneven as in real fleets; small, because pingora stores each instance as often as its weight says, 65,535 in all.
    pub weight: u32,
}

/// `n` members with distinct addresses in 10.0.0.0/8.
pub fn members(n: usize) -> Vec<Member> {
    (0..n)
        .map(|i| Member {
            address: SocketAddr::from((Ipv4Addr::new(10, (i >> 16) as u8, (i >> 8) as u8, i as u8), 8080)),
            weight: 1 + (i % 5) as u32,
        })
        .collect()
}
