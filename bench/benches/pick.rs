//! One pick: ours beside pingora, volo and tower, per balancer and fleet size.
//!
//! The rivals choose among everything they were given; ours has a rule on metadata that keeps all instances, so that everybody
//! chooses among the same ones. Hash balancers take the next of 1,024 keys per pick.

use std::hint::black_box;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use metaroute_bench::fleet::{SIZES, members};
use metaroute_bench::rivals::{
    PingoraBare, PingoraConsistent, PingoraRandom, PingoraRoundRobin, TowerP2c, VoloConsistent, VoloRandom,
    with_request_info,
};
use pingora_load_balancing::selection;

fn measure<T>(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, n: usize, mut pick: impl FnMut() -> T) {
    group.bench_function(BenchmarkId::new(name, n), |b| b.iter(|| black_box(pick())));
}

/// 1,024 keys of eight bytes, one after the other, for ever.
fn keys() -> impl FnMut() -> [u8; 8] {
    let mut i = 0u64;
    move || {
        i = (i + 1) % 1024;
        // Spread over the whole word, as user ids and hashes are.
        i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
    }
}

fn weighted_random(c: &mut Criterion) {
    let mut group = c.benchmark_group("pick: weighted random");
    for n in SIZES {
        let members = members(n);
        let pingora = PingoraRandom::new(&members);
        measure(&mut group, "pingora, select", n, || pingora.pick(b""));
        let bare = PingoraBare::<selection::Random>::new(&members);
        measure(&mut group, "pingora, bare selection", n, || bare.pick(b""));
        let volo = VoloRandom::new(&members);
        measure(&mut group, "volo", n, || volo.pick());
    }
    group.finish();
}

fn round_robin(c: &mut Criterion) {
    let mut group = c.benchmark_group("pick: round robin");
    for n in SIZES {
        let members = members(n);
        let pingora = PingoraRoundRobin::new(&members);
        measure(&mut group, "pingora, select", n, || pingora.pick(b""));
        let bare = PingoraBare::<selection::RoundRobin>::new(&members);
        measure(&mut group, "pingora, bare selection", n, || bare.pick(b""));
    }
    group.finish();
}

fn by_key(c: &mut Criterion) {
    let mut group = c.benchmark_group("pick: by key");
    for n in SIZES {
        let members = members(n);
        let pingora = PingoraConsistent::new(&members);
        let mut key = keys();
        measure(&mut group, "pingora, ketama", n, || pingora.pick(&key()));
        let bare = PingoraBare::<selection::Consistent>::new(&members);
        let mut key = keys();
        measure(&mut group, "pingora, bare ketama", n, || bare.pick(&key()));
        with_request_info(|| {
            let volo = VoloConsistent::new(&members);
            let mut key = keys();
            measure(&mut group, "volo, consistent hash", n, || volo.pick(u64::from_be_bytes(key())));
        });
    }
    group.finish();
}

fn by_load(c: &mut Criterion) {
    let mut group = c.benchmark_group("pick: two choices by load");
    for n in SIZES {
        let members = members(n);
        let mut tower = TowerP2c::new(&members);
        measure(&mut group, "tower, p2c by pending requests", n, || tower.pick());
    }
    group.finish();
}

criterion_group!(benches, weighted_random, round_robin, by_key, by_load);
criterion_main!(benches);
