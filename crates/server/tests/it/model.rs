//! Random histories over HTTP against a model in memory: every path equals the model, pages concatenate to the whole,
//! and no answer with status 200 misses anything, whatever shards are doing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use metaroute_server::role::Standalone;
use metaroute_server::{LocalOptions, ServiceOptions, WantedShape, api};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::cluster::{call, row};

/// Id → tenant and second.
type Model = BTreeMap<u64, (u64, u64)>;

const TENANTS: u64 = 6;
const IDS: u64 = 60;

struct Run {
    folder: tempfile::TempDir,
    standalone: Standalone,
    http: axum::Router,
    model: Model,
    random: SmallRng,
}

async fn open(folder: &std::path::Path) -> (Standalone, axum::Router) {
    let shape = WantedShape { groups: Some(3), shards: Some(2) };
    let options = LocalOptions { shape, ..LocalOptions::new(folder) };
    let standalone = Standalone::open(options, ServiceOptions::default()).await.expect("opens");
    standalone.local().opened().await.expect("all shards open");
    let http = api::standalone(standalone.service().clone(), api::Beside::default());
    (standalone, http)
}

impl Run {
    async fn new(seed: u64) -> Run {
        let folder = tempfile::tempdir().expect("a folder");
        let (standalone, http) = open(folder.path()).await;
        Run { folder, standalone, http, model: Model::new(), random: SmallRng::seed_from_u64(seed) }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.random_range(0..n)
    }

    async fn step(&mut self) {
        match self.below(100) {
            0..50 => self.write().await,
            50..65 => self.delete().await,
            65..70 => self.shard_restart().await,
            70..72 => self.process_restart().await,
            _ => self.check().await,
        }
    }

    /// Writes a few rows; some move to another tenant, some occur twice in one request.
    async fn write(&mut self) {
        let count = 1 + self.below(8);
        let mut rows = Vec::new();
        for _ in 0..count {
            let (id, tenant, second) = (self.below(IDS), self.below(TENANTS), self.below(20));
            rows.push(row(id, tenant, second));
            self.model.insert(id, (tenant, second));
        }
        let lines = self.below(2) == 0;
        let (kind, body) = if lines {
            let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
            ("application/x-ndjson", lines.join("\n"))
        } else {
            ("application/json", json!({ "rows": rows }).to_string())
        };
        let answer = call(&self.http, "POST", "/v1/file_metadata/rows", &[("content-type", kind)], &body).await.ok();
        assert!(answer["written"].as_u64().is_some_and(|written| written <= count), "{answer}");
    }

    async fn delete(&mut self) {
        let (id, tenant) = (self.below(IDS), self.below(TENANTS));
        let there = self.model.get(&id).is_some_and(|(of, _)| *of == tenant);
        let path = format!("/v1/file_metadata/rows/{id}?user_id={tenant}");
        let answer = call(&self.http, "DELETE", &path, &[], "").await.ok();
        assert_eq!(answer["deleted"], u64::from(there), "row {id} of {tenant}");
        if there {
            self.model.remove(&id);
        }
    }

    /// A shard goes and comes back; while it is away answers are refused, never short.
    async fn shard_restart(&mut self) {
        let hosts = self.standalone.local().hosts();
        let at = self.below(hosts.len() as u64) as usize;
        let host = hosts[at].clone();
        host.drain(Instant::now() + Duration::from_secs(5)).await;
        for tenant in 0..TENANTS {
            let body = json!({"user_id": tenant, "limit": 1_000}).to_string();
            let answer = call(&self.http, "POST", "/v1/file_metadata/query", &[], &body).await;
            if answer.status == 200 {
                assert_eq!(answer.ids(), self.of_tenant(tenant), "a 200 is whole");
            } else {
                answer.problem(503, "not_ready");
            }
        }
        let all = json!({"allow": "global"}).to_string();
        call(&self.http, "POST", "/v1/file_metadata/query", &[], &all).await.problem(503, "not_ready");
        let path = self.folder.path().join("shards").join(&*host.id().group).join(&*host.id().shard);
        let stores = self.standalone.local().stores().to_vec();
        host.open(path, metaroute_store::OpenOptions::default(), &stores).await.expect("opens again");
        // The router learns of it a moment later; until then it refuses, and never answers short.
        let end = Instant::now() + Duration::from_secs(30);
        while call(&self.http, "POST", "/v1/file_metadata/query", &[], &all).await.status != 200 {
            assert!(Instant::now() < end, "the shard is back");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.check().await;
    }

    async fn process_restart(&mut self) {
        self.standalone.shutdown(Duration::from_secs(5)).await;
        // The folder is unlocked with the last handle.
        self.http = axum::Router::new();
        let empty = tempfile::tempdir().expect("a folder");
        let placeholder = Standalone::open(LocalOptions::new(empty.path()), ServiceOptions::default());
        self.standalone = placeholder.await.expect("opens");
        let begun = Instant::now();
        let (standalone, http) = loop {
            let shape = WantedShape { groups: Some(3), shards: Some(2) };
            let options = LocalOptions { shape, ..LocalOptions::new(self.folder.path()) };
            match Standalone::open(options, ServiceOptions::default()).await {
                Ok(standalone) => {
                    standalone.local().opened().await.expect("all shards open");
                    let http = api::standalone(standalone.service().clone(), api::Beside::default());
                    break (standalone, http);
                }
                Err(error) => {
                    assert!(begun.elapsed() < Duration::from_secs(30), "{error}");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        };
        let placeholder = std::mem::replace(&mut self.standalone, standalone);
        placeholder.shutdown(Duration::from_secs(5)).await;
        self.http = http;
        self.check().await;
    }

    fn of_tenant(&self, tenant: u64) -> Vec<u64> {
        let mut rows: Vec<(u64, u64)> =
            self.model.iter().filter(|(_, (of, _))| *of == tenant).map(|(id, (_, second))| (*second, *id)).collect();
        rows.sort_unstable_by(|a, b| b.cmp(a));
        rows.into_iter().map(|(_, id)| id).collect()
    }

    async fn pages(&mut self, mut body: Value) -> Vec<u64> {
        let mut found = Vec::new();
        loop {
            // The size of a page may change from page to page.
            body["limit"] = (1 + self.below(9)).into();
            let page = call(&self.http, "POST", "/v1/file_metadata/query", &[], &body.to_string()).await;
            found.extend(page.ids());
            match page.ok()["next"].as_str() {
                None => return found,
                Some(next) => body["cursor"] = next.into(),
            }
        }
    }

    async fn check(&mut self) {
        let all: Vec<u64> = self.model.keys().copied().collect();
        // C.
        assert_eq!(self.pages(json!({"allow": "global"})).await, all);
        // B, in both directions, with a filter and bounds.
        let tenant = self.below(TENANTS);
        let listed = self.of_tenant(tenant);
        assert_eq!(self.pages(json!({"user_id": tenant})).await, listed);
        let mut ascending = listed.clone();
        ascending.reverse();
        assert_eq!(self.pages(json!({"user_id": tenant, "order": "created_at:asc"})).await, ascending);
        let small: Vec<u64> = listed.iter().copied().filter(|id| id % 100 < 30).collect();
        assert_eq!(self.pages(json!({"user_id": tenant, "where": "size < 30"})).await, small);
        let late: Vec<u64> = listed.iter().copied().filter(|id| (5..15).contains(&self.model[id].1)).collect();
        let bounds = json!({"user_id": tenant, "from": "2024-01-01T00:00:05Z", "to": "2024-01-01T00:00:15Z"});
        assert_eq!(self.pages(bounds).await, late);
        // A, AB and CI.
        let id = self.below(IDS);
        let path = format!("/v1/file_metadata/rows/{id}?user_id={tenant}");
        let row = call(&self.http, "GET", &path, &[], "").await;
        assert_eq!(row.status == 200, listed.contains(&id), "{row:?}");
        let some: Vec<u64> = (0..6).map(|_| self.below(IDS)).collect();
        let mut wanted: Vec<u64> = some.iter().copied().filter(|id| listed.contains(id)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        assert_eq!(self.pages(json!({"user_id": tenant, "ids": some})).await, wanted);
        let mut wanted: Vec<u64> = some.iter().copied().filter(|id| self.model.contains_key(id)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        assert_eq!(self.pages(json!({"ids": some, "allow": "global"})).await, wanted);
        // Counts and sums.
        let body = json!({"user_id": tenant, "sum": "size"}).to_string();
        let count = call(&self.http, "POST", "/v1/file_metadata/count", &[], &body).await.ok();
        let sum: u64 = listed.iter().map(|id| id % 100).sum();
        assert_eq!((&count["count"], &count["sum"]), (&json!(listed.len()), &json!(sum.to_string())));
        let count = call(&self.http, "POST", "/v1/file_metadata/count", &[], "{\"allow\": \"global\"}").await.ok();
        assert_eq!(count["count"], all.len());
        // Export.
        let export = call(&self.http, "POST", "/v1/file_metadata/export", &[], "{\"allow\": \"global\"}").await;
        assert_eq!(export.text.lines().count(), all.len() + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_equal_the_model() {
    for seed in [1, 2] {
        let mut run = Run::new(seed).await;
        for _ in 0..120 {
            run.step().await;
        }
        run.check().await;
        run.standalone.shutdown(Duration::from_secs(5)).await;
    }
}

/// Writers and readers at once: what was acknowledged is read, and every page is in order.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_rows_are_read_by_everybody() {
    let folder = tempfile::tempdir().expect("a folder");
    let (standalone, http) = open(folder.path()).await;
    let mut writers = Vec::new();
    for writer in 0..4_u64 {
        let http = http.clone();
        writers.push(tokio::spawn(async move {
            let mut random = SmallRng::seed_from_u64(writer);
            for n in 0..60_u64 {
                let id = writer * 1_000 + n;
                let tenant = random.next_u64() % TENANTS;
                let body = json!({"rows": [row(id, tenant, n)]}).to_string();
                call(&http, "POST", "/v1/file_metadata/rows", &[], &body).await.ok();
                let read = call(&http, "GET", &format!("/v1/file_metadata/rows/{id}?user_id={tenant}"), &[], "").await;
                assert_eq!(read.ok()["row"]["file_id"], id.to_string(), "read your own write");
            }
        }));
    }
    for writer in writers {
        writer.await.expect("no assertion failed");
    }
    let count = call(&http, "POST", "/v1/file_metadata/count", &[], "{\"allow\": \"global\"}").await.ok();
    assert_eq!(count["count"], 240);
    standalone.shutdown(Duration::from_secs(5)).await;
}
