//! Random writes, deletes, moves between users and queries on all paths against a map: all paths equal the model, pages
//! concatenate to the whole, no row comes twice.

use std::collections::BTreeMap;

use metaroute_cluster::query::QueryRequest;
use metaroute_store::{TimeKey, Value};
use proptest::prelude::*;

use crate::sim::{Shape, Sim, call, everything, file, ids, of_user, writable};

#[derive(Clone, Debug)]
enum Op {
    Write(Vec<(u64, u64, Option<i64>, u64)>),
    Delete(u64, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let row = (0..40_u64, 0..6_u64, prop::option::of(0..8_i64), 0..5_u64);
    prop_oneof![
        4 => prop::collection::vec(row, 1..12).prop_map(Op::Write),
        1 => (0..6_u64, 0..40_u64).prop_map(|(user, id)| Op::Delete(user, id)),
    ]
}

type Model = BTreeMap<u64, (u64, Option<i64>, u64)>;

/// What a query must return.
fn expected(
    model: &Model,
    request: &QueryRequest,
    least_size: Option<u64>,
    bounds: (Option<i64>, Option<i64>),
) -> Vec<u64> {
    let mut found: Vec<(Option<i64>, u64)> = model
        .iter()
        .filter(|(_, (user, _, _))| request.tenant.is_none_or(|tenant| tenant == *user))
        .filter(|(id, _)| request.ids.as_ref().is_none_or(|ids| ids.contains(id)))
        .filter(|(_, (_, _, size))| least_size.is_none_or(|least| *size >= least))
        .filter(|(_, (_, time, _))| {
            bounds.0.is_none_or(|from| time.is_some_and(|time| time >= from))
                && bounds.1.is_none_or(|to| time.is_some_and(|time| time < to))
        })
        .map(|(id, (_, time, _))| (*time, *id))
        .collect();
    if request.tenant.is_some() && request.ids.is_none() {
        found.sort_by_key(|(time, id)| (time.map(|time| TimeKey::of(Value::Timestamp(time).as_ref())), *id));
        if request.order.as_deref() != Some("created_at:asc") {
            found.reverse();
        }
    } else {
        found.sort_by_key(|(_, id)| *id);
        if request.order.as_deref() == Some("file_id:desc") {
            found.reverse();
        }
    }
    found.into_iter().map(|(_, id)| id).collect()
}

async fn check(
    shape: (u32, u32, usize, bool),
    budget: u64,
    limit: u64,
    ops: Vec<Op>,
    probe: (u64, Vec<u64>, u64, i64, i64),
) {
    let (groups, shards, copies, far) = shape;
    let mut options = writable();
    options.budget.entries = budget;
    let sim = Sim::of(Shape { copies, options, far, ..Shape::of(groups, shards) });
    let mut model = Model::new();
    for op in ops {
        match op {
            Op::Write(rows) => {
                let values = rows.iter().map(|(id, user, time, size)| file(*id, *user, *time, *size)).collect();
                sim.write(values).await;
                model.extend(rows.into_iter().map(|(id, user, time, size)| (id, (user, time, size))));
            }
            Op::Delete(user, id) => {
                let deleted = sim.router.delete(&sim.schema, user, id, &call()).await.expect("deleted");
                let there = model.get(&id).is_some_and(|(owner, _, _)| *owner == user);
                assert_eq!(deleted, there);
                if there {
                    model.remove(&id);
                }
            }
        }
    }
    let (user, wanted, least, from, to) = probe;
    let ids_of = |request: QueryRequest| QueryRequest { ids: Some(wanted.clone()), ..request };
    let ordered = |order: &str, request: QueryRequest| QueryRequest { order: Some(order.to_owned()), ..request };
    let mut requests = vec![
        of_user(user),
        ordered("created_at:asc", of_user(user)),
        ids_of(of_user(user)),
        QueryRequest { ids: Some(vec![wanted[0]]), ..of_user(user) },
        ids_of(everything()),
        ordered("file_id:desc", ids_of(everything())),
        everything(),
        ordered("file_id:desc", everything()),
    ];
    requests.extend(requests.clone().into_iter().map(|request| QueryRequest {
        from: Some(Value::Timestamp(from)),
        to: Some(Value::Timestamp(to)),
        filter: Some(format!("size >= {least}")),
        ..request
    }));
    for request in requests {
        let filtered = request.filter.is_some();
        let bounds = if filtered { (Some(from), Some(to)) } else { (None, None) };
        let want = expected(&model, &request, filtered.then_some(least), bounds);
        let (rows, _) = sim.walk(QueryRequest { limit: Some(limit), ..request.clone() }).await;
        assert_eq!(ids(&rows), want, "{request:?}");
        let mut export = sim.router.export(&sim.query(request.clone()), &call()).await.expect("begun");
        let mut exported = Vec::new();
        while let Some(rows) = export.next().await.expect("goes on") {
            exported.extend(ids(&rows));
        }
        assert_eq!(exported, want, "export of {request:?}");
        assert!(export.finish().expect("finished").complete);
        let count = sim.router.count(&sim.query(request.clone()), &[], &call()).await.expect("counted");
        assert_eq!(count.rows, want.len() as u64, "count of {request:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn all_paths_equal_the_model(
        groups in 1u32..4,
        shards in 1u32..5,
        copies in 1usize..3,
        far: bool,
        budget in 3u64..60,
        limit in 1u64..12,
        ops in prop::collection::vec(op(), 0..25),
        user in 0..7_u64,
        wanted in prop::collection::vec(0..45_u64, 1..12),
        least in 0..5_u64,
        from in 0..8_i64,
        length in 0..8_i64,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let probe = (user, wanted, least, from, from + length);
        runtime.block_on(check((groups, shards, copies, far), budget, limit, ops, probe));
    }
}
