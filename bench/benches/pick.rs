//! One pick: ours beside pingora, volo and tower, per balancer and fleet size.
//!
//! The rivals choose among everything they were given; ours has a rule on metadata that keeps all instances, so that everybody
//! chooses among the same ones. Hash balancers take the next of 1,024 keys per pick.

use std::hint::black_box;

use std::sync::Barrier;
use std::time::Duration;

use cpu_time::ThreadTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use metaroute_bench::clock::ProcessorTime;
use metaroute_bench::fleet::{Member, SIZES, members};
use metaroute_bench::ours::{LANES, NOW, by_request, instances, keeps_all, selector};
use metaroute_bench::rivals::{
    PingoraBare, PingoraConsistent, PingoraRandom, PingoraRoundRobin, TowerP2c, VoloConsistent, VoloRandom,
    with_request_info,
};
use metaroute_core::rules::Balance;
use metaroute_core::{Context, Outcome, Picker, RequestSlot, Selector};
use pingora_load_balancing::selection;

fn measure<T>(group: &mut BenchmarkGroup<'_, ProcessorTime>, name: &str, n: usize, mut pick: impl FnMut() -> T) {
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

/// A request that is nothing but its key.
struct Key([u8; 8]);

impl Context for Key {
    fn get(&self, _: RequestSlot) -> Option<&str> {
        None
    }

    fn key(&self) -> Option<&[u8]> {
        Some(&self.0)
    }
}

fn ours(balance: Balance, members: &[Member]) -> Selector {
    let selector = selector(keeps_all(balance), instances(members));
    let shares = selector.distribution(&()).shares;
    assert!(
        shares.len() == members.len() && shares.iter().all(|(_, share)| *share > 0.0),
        "the rule keeps every instance"
    );
    selector
}

/// The chosen instance, by address in memory: the choice is made, nothing is copied.
fn pick<C: Context>(picker: &mut Picker, request: &C) -> usize {
    let pick = picker.pick(request).expect("something can be picked");
    std::ptr::from_ref(pick.instance()).addr()
}

fn select<C: Context>(selector: &Selector, request: &C) -> usize {
    let pick = selector.select(request).expect("something can be picked");
    std::ptr::from_ref(pick.instance()).addr()
}

fn weighted_random(c: &mut Criterion<ProcessorTime>) {
    let mut group = c.benchmark_group("pick: weighted random");
    for n in SIZES {
        let members = members(n);
        let ours = ours(Balance::WeightedRandom, &members);
        let mut picker = ours.picker();
        measure(&mut group, "metaroute, Picker", n, || pick(&mut picker, &()));
        measure(&mut group, "metaroute, Selector::select", n, || select(&ours, &()));
        let pingora = PingoraRandom::new(&members);
        measure(&mut group, "pingora, select", n, || pingora.pick(b""));
        let bare = PingoraBare::<selection::Random>::new(&members);
        measure(&mut group, "pingora, bare selection", n, || bare.pick(b""));
        let volo = VoloRandom::new(&members);
        measure(&mut group, "volo", n, || volo.pick());
    }
    group.finish();
}

fn round_robin(c: &mut Criterion<ProcessorTime>) {
    let mut group = c.benchmark_group("pick: round robin");
    for n in SIZES {
        let members = members(n);
        for (name, balance) in [
            ("metaroute, round robin", Balance::RoundRobin),
            ("metaroute, smooth weighted", Balance::SmoothWeightedRoundRobin),
        ] {
            let mut picker = ours(balance, &members).picker();
            measure(&mut group, name, n, || pick(&mut picker, &()));
        }
        let pingora = PingoraRoundRobin::new(&members);
        measure(&mut group, "pingora, select", n, || pingora.pick(b""));
        let bare = PingoraBare::<selection::RoundRobin>::new(&members);
        measure(&mut group, "pingora, bare selection", n, || bare.pick(b""));
    }
    group.finish();
}

fn by_key(c: &mut Criterion<ProcessorTime>) {
    let mut group = c.benchmark_group("pick: by key");
    for n in SIZES {
        let members = members(n);
        for (name, balance) in [
            ("metaroute, maglev", Balance::Maglev),
            ("metaroute, ring", Balance::ConsistentHash),
            ("metaroute, rendezvous", Balance::Rendezvous),
        ] {
            let mut picker = ours(balance, &members).picker();
            let mut key = keys();
            measure(&mut group, name, n, || pick(&mut picker, &Key(key())));
        }
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

fn by_load(c: &mut Criterion<ProcessorTime>) {
    let mut group = c.benchmark_group("pick: two choices by load");
    for n in SIZES {
        let members = members(n);
        for (name, balance) in
            [("metaroute, least active", Balance::LeastActive), ("metaroute, peak EWMA", Balance::PeakEwma)]
        {
            let mut picker = ours(balance, &members).picker();
            measure(&mut group, name, n, || {
                let pick = picker.pick(&()).expect("something can be picked");
                let chosen = std::ptr::from_ref(pick.instance()).addr();
                pick.complete(Outcome::Success, Duration::from_millis(1));
                chosen
            });
        }
        let mut tower = TowerP2c::new(&members);
        measure(&mut group, "tower, p2c by pending requests", n, || tower.pick());
    }
    group.finish();
}

fn by_request_value(c: &mut Criterion<ProcessorTime>) {
    let mut group = c.benchmark_group("pick: rule on the request, answer remembered");
    for n in SIZES {
        let ours = selector(by_request(), instances(&members(n)));
        let requests: Vec<_> =
            (0..LANES).map(|lane| ours.request([("lane", format!("lane-{lane}").as_str())])).collect();
        let mut picker = ours.picker();
        for request in &requests {
            pick(&mut picker, request);
        }
        // Answers are built off the pick path.
        ours.tick(NOW);
        assert!(!ours.wants_tick(), "every answer is built");
        let mut i = 0;
        let mut next = || {
            i = (i + 1) % LANES;
            &requests[i]
        };
        measure(&mut group, "metaroute, Picker", n, || pick(&mut picker, next()));
        measure(&mut group, "metaroute, Selector::select", n, || select(&ours, next()));
        assert!(!ours.wants_tick(), "no answer was missed");
    }
    group.finish();
}

/// Processor time per pick, of the slower thread, when two threads pick at once: contention shows as work repeated or cache lines fetched.
fn two_threads<P: FnMut() -> T, T>(
    group: &mut BenchmarkGroup<'_, ProcessorTime>,
    name: &str,
    n: usize,
    pick: impl Fn() -> P + Sync,
) {
    group.bench_function(BenchmarkId::new(name, n), |b| {
        b.iter_custom(|iterations| {
            let barrier = Barrier::new(2);
            let work = || {
                let mut pick = pick();
                barrier.wait();
                let started = ThreadTime::now();
                for _ in 0..iterations {
                    black_box(pick());
                }
                started.elapsed()
            };
            std::thread::scope(|scope| {
                let other = scope.spawn(work);
                let mine = work();
                mine.max(other.join().expect("picking does not panic"))
            })
        });
    });
}

fn threads(c: &mut Criterion<ProcessorTime>) {
    let mut group = c.benchmark_group("pick: weighted random, two threads at once");
    for n in SIZES {
        let members = members(n);
        let ours = ours(Balance::WeightedRandom, &members);
        two_threads(&mut group, "metaroute, a Picker each", n, || {
            let mut picker = ours.picker();
            move || pick(&mut picker, &())
        });
        two_threads(&mut group, "metaroute, one Selector::select", n, || || select(&ours, &()));
        let pingora = PingoraRandom::new(&members);
        two_threads(&mut group, "pingora, select", n, || || pingora.pick(b""));
        let volo = VoloRandom::new(&members);
        two_threads(&mut group, "volo", n, || || volo.pick());
    }
    group.finish();
}

/// Eighty measurements: short ones, or the machine changes under them.
fn config() -> Criterion<ProcessorTime> {
    Criterion::default()
        .with_measurement(ProcessorTime)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_millis(1500))
        .sample_size(60)
}

criterion_group! {
    name = benches;
    config = config();
    targets = weighted_random, round_robin, by_key, by_load, by_request_value, threads
}
criterion_main!(benches);
