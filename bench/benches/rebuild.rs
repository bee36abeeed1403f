//! What a change of the fleet costs: a full push and a change of 50 instances, at 10,000 instances and 50 rules.
//!
//! pingora is the rival that rebuilds a table as well; it has neither rules nor metadata, and no deltas.

use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use metaroute_bench::clock::ProcessorTime;
use metaroute_bench::fleet::members;
use metaroute_bench::ours::{NOW, instances, many, selector};
use metaroute_bench::rivals::PingoraRebuild;
use metaroute_core::{RuleSet, Update};

const INSTANCES: usize = 10_000;
const RULES: usize = 50;
const CHANGED: usize = 50;

fn rebuild(c: &mut Criterion<ProcessorTime>) {
    let members = members(INSTANCES);
    let fleet = instances(&members);

    let mut group = c.benchmark_group("rebuild: full push, by number of instances");
    for (name, rules) in [("metaroute, 50 rules", many(RULES)), ("metaroute, no rule", RuleSet::default())] {
        let selector = selector(rules, fleet.clone());
        // Every weight changes, or the second push would be the first one again.
        let mut round = 0.0;
        group.bench_function(BenchmarkId::new(name, INSTANCES), |b| {
            b.iter_batched(
                || {
                    round += 1.0;
                    fleet.iter().map(|instance| instance.clone().with_weight(instance.weight + round)).collect()
                },
                |list| selector.apply(Update::Snapshot(list), NOW),
                BatchSize::PerIteration,
            );
        });
    }
    let pingora = PingoraRebuild::new(&members);
    let mut members = members;
    group.bench_function(BenchmarkId::new("pingora, update", INSTANCES), |b| {
        b.iter_batched(
            || {
                for member in &mut members {
                    member.weight = 1 + member.weight % 5;
                }
                pingora.change(&members);
            },
            |()| pingora.update(),
            BatchSize::PerIteration,
        );
    });
    group.finish();

    let mut group = c.benchmark_group("rebuild: 50 instances changed, by number of instances");
    for (name, rules) in [("metaroute, 50 rules", many(RULES)), ("metaroute, no rule", RuleSet::default())] {
        let selector = selector(rules, fleet.clone());
        let mut round = 0usize;
        group.bench_function(BenchmarkId::new(name, INSTANCES), |b| {
            b.iter_batched(
                || {
                    round += 1;
                    let upsert = (0..CHANGED)
                        .map(|i| {
                            let instance = fleet[(i * INSTANCES / CHANGED + round) % INSTANCES].clone();
                            instance
                                .with_meta("build", format!("b{}", round % 100))
                                .with_weight(1.0 + (round % 9) as f64)
                        })
                        .collect();
                    Update::Delta { upsert, remove: Vec::new() }
                },
                |update| selector.apply(update, NOW),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

fn config() -> Criterion<ProcessorTime> {
    Criterion::default()
        .with_measurement(ProcessorTime)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(5))
        .sample_size(50)
}

criterion_group! { name = benches; config = config(); targets = rebuild }
criterion_main!(benches);
