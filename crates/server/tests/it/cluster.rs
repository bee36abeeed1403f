//! A small cluster in this process: shards over stores, a router, the HTTP API, and faults where a test wants them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use metaroute_cluster::Router;
use metaroute_cluster::client::{LocalShards, ShardClient};
use metaroute_cluster::cursor::CursorKeys;
use metaroute_cluster::protocol::{
    BoxFuture, ReadRequest, ReadStream, ShardError, ShardErrorKind, ShardId, ShardState, WorkBudget, WriteAnswer,
    WriteRequest,
};
use metaroute_cluster::replicas::{self, Replicas};
use metaroute_cluster::router::{RouterOptions, Stamps};
use metaroute_cluster::topology::{Document, FileStore, Topology, Watcher};
use metaroute_core::{Instance, Update};
use metaroute_server::shard::ShardHost;
use metaroute_server::{Service, ServiceOptions, api, stores};
use metaroute_store::{OpenOptions, PoolSize, Schema};
use serde_json::Value;
use tower::ServiceExt;

/// What is wrong with a shard.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// It cannot be reached.
    Down,
    /// It answers late.
    Slow(Duration),
}

/// Local shards, with faults.
#[derive(Clone, Default)]
pub(crate) struct Faulty {
    shards: LocalShards,
    faults: Arc<Mutex<HashMap<ShardId, Fault>>>,
}

impl Faulty {
    fn fault(&self, shard: &ShardId) -> Option<Fault> {
        self.faults.lock().expect("no panic").get(shard).copied()
    }
}

impl ShardClient for Faulty {
    fn reads_on_demand(&self) -> bool {
        self.shards.reads_on_demand()
    }

    fn read(&self, replica: &Instance, request: ReadRequest, deadline: Instant) -> ReadStream {
        match self.fault(&request.shard) {
            None => self.shards.read(replica, request, deadline),
            Some(Fault::Down) => {
                let down = ShardError::new(ShardErrorKind::Unavailable, "connection refused");
                Box::pin(futures_util::stream::once(async { Err(down) }))
            }
            Some(Fault::Slow(pause)) => {
                use futures_util::FutureExt;
                let (shards, replica) = (self.shards.clone(), replica.clone());
                let late = tokio::time::sleep(pause).map(move |()| shards.read(&replica, request, deadline));
                Box::pin(late.flatten_stream())
            }
        }
    }

    fn write(
        &self,
        replica: &Instance,
        request: WriteRequest,
        deadline: Instant,
    ) -> BoxFuture<Result<WriteAnswer, ShardError>> {
        match self.fault(&request.shard) {
            None | Some(Fault::Slow(_)) => self.shards.write(replica, request, deadline),
            Some(Fault::Down) => {
                Box::pin(async { Err(ShardError::new(ShardErrorKind::Unavailable, "connection refused")) })
            }
        }
    }
}

/// What a test's cluster looks like.
pub(crate) struct Plan {
    pub(crate) groups: u32,
    pub(crate) shards: u32,
    /// Copies of each shard, all of them the same store.
    pub(crate) copies: u32,
    pub(crate) stores: Vec<Arc<Schema>>,
    pub(crate) router: RouterOptions,
    pub(crate) service: ServiceOptions,
    /// Changes the topology the shards know.
    pub(crate) shard_topology: Option<fn(&mut Document)>,
    /// Changes the topology everybody knows.
    pub(crate) topology: Option<fn(&mut Document)>,
    /// Without shards only what needs none works.
    pub(crate) open: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            groups: 1,
            shards: 3,
            copies: 1,
            stores: stores::with_built_in(Vec::new()),
            router: RouterOptions::default(),
            service: ServiceOptions::default(),
            shard_topology: None,
            topology: None,
            open: true,
        }
    }
}

impl Plan {
    pub(crate) fn of(groups: u32, shards: u32) -> Plan {
        Plan { groups, shards, ..Plan::default() }
    }

    pub(crate) fn entries(entries: u64) -> RouterOptions {
        RouterOptions { budget: WorkBudget { entries, ..WorkBudget::default() }, ..RouterOptions::default() }
    }
}

pub(crate) struct Cluster {
    pub(crate) hosts: Vec<ShardHost>,
    pub(crate) service: Arc<Service>,
    pub(crate) http: axum::Router,
    client: Faulty,
    _folder: tempfile::TempDir,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Asserts a problem and returns its document.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16, code: &str) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let document = self.json();
        assert_eq!(document["code"], code, "{self:?}");
        document
    }

    /// Asserts an answer and returns its document.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// The ids of a page.
    #[track_caller]
    pub(crate) fn ids(&self) -> Vec<u64> {
        ids(&self.ok())
    }
}

#[track_caller]
pub(crate) fn ids(page: &Value) -> Vec<u64> {
    let rows = page["rows"].as_array().expect("rows");
    rows.iter().map(|row| row["file_id"].as_str().expect("a string").parse().expect("a number")).collect()
}

impl Cluster {
    pub(crate) async fn new(plan: Plan) -> Cluster {
        let folder = tempfile::tempdir().expect("a folder");
        let mut document = Topology::initial(plan.groups, plan.shards).expect("legal").document().clone();
        if let Some(change) = plan.topology {
            change(&mut document);
        }
        let topology = Topology::with_gaps(document.clone()).expect("valid");
        let watcher = Watcher::fixed(topology.clone());
        let of_shards = match plan.shard_topology {
            None => watcher.clone(),
            Some(change) => {
                change(&mut document);
                Watcher::fixed(Topology::with_gaps(document).expect("valid"))
            }
        };
        let client = Faulty::default();
        let mut hosts = Vec::new();
        let mut instances = Vec::new();
        for shard in topology.shards().filter(|_| plan.open) {
            let host = ShardHost::new(shard.id.clone(), of_shards.clone());
            let path = folder.path().join(&*shard.id.group).join(&*shard.id.shard);
            let options = OpenOptions {
                cache_bytes: 8 << 20,
                points: PoolSize { threads: 1, queue: 1_024 },
                scans: PoolSize { threads: 1, queue: 1_024 },
                ..OpenOptions::default()
            };
            host.open(path, options, &plan.stores).await.expect("a new store opens");
            for _ in 0..plan.copies {
                let port = 7_000 + instances.len();
                let address = format!("127.0.0.1:{port}").parse().expect("an address");
                let instance = replicas::instance(address, &shard.id, ShardState::Ready, None);
                client.shards.insert(instance.id.clone(), Arc::new(host.clone()));
                instances.push(instance);
            }
            hosts.push(host);
        }
        let copies = Replicas::new(None, 1);
        copies.apply(Update::Snapshot(instances));
        let clock = metaroute_cluster::versions::HybridClock::new(0, |_| Ok::<_, String>(()));
        let stamps: Stamps = Arc::new(move |count| clock.next(count));
        let options = RouterOptions { stamps: Some(stamps), ..plan.router };
        let keys = CursorKeys::single([7; 32]);
        let router = Router::new(watcher, copies, Arc::new(client.clone()), keys, options);
        let kept = FileStore::new(folder.path().join("topology"));
        let service = Service::new(router, plan.stores, Arc::new(kept), None, plan.service);
        let http = api::standalone(Arc::clone(&service), api::Beside::default());
        Cluster { hosts, service, http, client, _folder: folder }
    }

    /// Breaks a shard of group `g0`, or repairs it.
    pub(crate) fn fault(&self, shard: &str, fault: Option<Fault>) {
        let id = ShardId::new("g0", shard);
        let mut faults = self.client.faults.lock().expect("no panic");
        match fault {
            Some(fault) => faults.insert(id, fault),
            None => faults.remove(&id),
        };
    }

    pub(crate) fn host(&self, shard: &str) -> &ShardHost {
        self.hosts.iter().find(|host| *host.id() == ShardId::new("g0", shard)).expect("there is such a shard")
    }

    pub(crate) async fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        call(&self.http, method, path, headers, body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, &[], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.call("POST", path, &[], &body.to_string()).await
    }

    pub(crate) async fn query(&self, body: Value) -> Answer {
        self.post("/v1/file_metadata/query", body).await
    }

    /// Writes rows of file id, tenant, and seconds of `created_at`.
    pub(crate) async fn write(&self, rows: &[(u64, u64, u64)]) {
        let rows: Vec<Value> = rows.iter().map(|&(id, tenant, second)| row(id, tenant, second)).collect();
        let answer = self.post("/v1/file_metadata/rows", serde_json::json!({ "rows": rows })).await;
        assert_eq!(answer.ok()["written"], rows.len(), "{answer:?}");
    }

    /// Sub-requests being worked on, over all shards.
    pub(crate) fn in_flight(&self) -> usize {
        self.hosts.iter().map(ShardHost::in_flight).sum()
    }
}

pub(crate) fn row(id: u64, tenant: u64, second: u64) -> Value {
    let at = format!("2024-01-01T{:02}:{:02}:{:02}Z", second / 3_600, second / 60 % 60, second % 60);
    serde_json::json!({"file_id": id, "user_id": tenant, "path": format!("/{id}"), "size": id % 100, "created_at": at})
}

pub(crate) async fn call(
    http: &axum::Router,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body.to_owned())).expect("a legal request");
    let response = http.clone().oneshot(request).await.expect("a router never fails");
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, 256 << 20).await.expect("the whole body");
    let text = String::from_utf8(body.to_vec()).expect("UTF-8");
    Answer { status: parts.status.as_u16(), headers: parts.headers, text }
}
