//! A service as it is now, and waiting until it is something else. Redis has no history: what was seen is compared by a hash, and a
//! message on a channel is a reason to look again, as is the time since the last look.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::{RedisResult, Value};
use tokio::time::Instant;

use super::link::{self, Link, STEP};
use super::plain::{self, Keys};
use super::seata::{self, Said};
use super::{Layout, Redis};
use crate::carrier;
use crate::driver::{Cursor, DriverError, ErrorKind, Seen, SeenState, Snapshot};

/// Messages that come together are looked at together.
const SETTLE: Duration = Duration::from_millis(10);

/// What messages said that keys do not say yet, or no longer.
#[derive(Default)]
pub(super) struct Rumours {
    /// Addresses that were announced, which a scan may not have found yet.
    came: HashSet<Box<str>>,
    /// Addresses that said goodbye, and when: their keys may go on for a while.
    left: HashMap<Box<str>, Instant>,
}

/// What a look found: the state, and a number that is another one when anything is different.
pub(super) struct Look {
    pub(super) snapshot: Snapshot,
    known: bool,
    mark: u64,
}

impl Redis {
    fn rumours(&self) -> MutexGuard<'_, HashMap<Box<str>, Rumours>> {
        // What is lost of it is found by the next look.
        self.rumours.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All live keys of Seata's layout as they were after `since`, or at some later moment.
    pub(super) async fn scan(&self, link: &Link, since: Instant) -> Result<Arc<HashSet<String>>, DriverError> {
        // Held while scanning: whoever comes meanwhile gets the same answer.
        let mut last = link.scanned.lock().await;
        if let Some((_, keys)) = last.as_ref().filter(|(at, _)| *at >= since) {
            return Ok(Arc::clone(keys));
        }
        let at = Instant::now();
        let keys = Arc::new(link.scan_strings(seata::PATTERN).await?);
        *last = Some((at, Arc::clone(&keys)));
        Ok(keys)
    }

    /// A service as it is now; what had to be searched for, as it was after `since`.
    pub(super) async fn look(&self, link: &Link, service: &str, since: Instant) -> Result<Look, DriverError> {
        match &self.layout {
            Layout::Seata => self.look_seata(link, service, since).await,
            Layout::Plain { prefix } => self.look_plain(link, service, prefix).await,
        }
    }

    async fn look_seata(&self, link: &Link, service: &str, since: Instant) -> Result<Look, DriverError> {
        let keys = self.scan(link, since).await?;
        let mut addresses: BTreeSet<Box<str>> = keys
            .iter()
            .filter_map(|key| seata::split(key))
            .filter(|(cluster, _)| *cluster == service)
            .map(|(_, address)| address.into())
            .collect();
        let hidden = {
            let mut rumours = self.rumours();
            let rumours = rumours.entry(service.into()).or_default();
            for text in link.heard(&seata::channel(service)) {
                match Said::read(&text) {
                    Some(Said::Registered(address)) => {
                        rumours.left.remove(address);
                        rumours.came.insert(address.into());
                    }
                    Some(Said::Unregistered(address)) => {
                        rumours.came.remove(address);
                        rumours.left.insert(address.into(), Instant::now());
                    }
                    None => {}
                }
            }
            // A goodbye is believed until its key would have run out.
            let memory = self.ttl + Duration::from_secs(1);
            rumours.left.retain(|_, at| at.elapsed() < memory);
            addresses.extend(rumours.came.iter().cloned());
            rumours.left.clone()
        };
        let addresses: Vec<_> = addresses.into_iter().filter(|address| !hidden.contains_key(address)).collect();
        let mut out = Snapshot::default();
        let mut hash = DefaultHasher::new();
        let mut gone = Vec::new();
        for chunk in addresses.chunks(STEP) {
            let mut ask = ::redis::pipe();
            ask.ignore_errors();
            for address in chunk {
                ask.cmd("GET").arg(seata::live_key(service, address));
                ask.cmd("HGETALL").arg(seata::meta_key(service, address));
            }
            let answers: Vec<RedisResult<Value>> = link.ask_all(&ask).await?;
            for (address, pair) in chunk.iter().zip(answers.chunks(2)) {
                let owner = match pair.first() {
                    Some(Ok(Value::Nil)) => {
                        gone.push(address.clone());
                        continue;
                    }
                    Some(Ok(value)) => link::string(value).unwrap_or_default(),
                    // Not a string: no live key of this cluster, whatever it is.
                    _ => continue,
                };
                let fields = match pair.get(1) {
                    Some(Ok(value)) => ::redis::from_redis_value(value.clone()).unwrap_or_default(),
                    _ => HashMap::new(),
                };
                let mut sorted: Vec<_> = fields.iter().collect();
                sorted.sort();
                (address, &owner, sorted).hash(&mut hash);
                match seata::read(address, &owner, fields) {
                    Ok(instance) => out.instances.push(instance),
                    Err(why) => out.reject("redis", format!("key `{}`: {why}", seata::live_key(service, address))),
                }
            }
        }
        if !gone.is_empty() {
            let mut rumours = self.rumours();
            if let Some(rumours) = rumours.get_mut(service) {
                rumours.came.retain(|address| !gone.contains(address));
            }
        }
        unique(&mut out);
        let known = !out.instances.is_empty() || out.rejected > 0;
        Ok(Look { snapshot: out, known, mark: hash.finish() })
    }

    async fn look_plain(&self, link: &Link, service: &str, prefix: &str) -> Result<Look, DriverError> {
        let keys = Keys::new(prefix, service);
        let mut ids: Vec<String> = link.ask(::redis::cmd("SMEMBERS").arg(keys.index())).await?;
        ids.sort();
        // Without instances the index of services knows, which may be on another server.
        let known = !ids.is_empty() || {
            let index = plain::services(prefix);
            self.servers.link(&index).await?.ask(::redis::cmd("SISMEMBER").arg(&index).arg(service)).await?
        };
        let mut out = Snapshot::default();
        let mut hash = DefaultHasher::new();
        for chunk in ids.chunks(STEP) {
            let mut get = ::redis::cmd("MGET");
            for id in chunk {
                get.arg(keys.instance(id));
            }
            let documents: Vec<Option<Vec<u8>>> = link.ask(&get).await?;
            for (id, document) in chunk.iter().zip(documents) {
                let Some(document) = document else {
                    // Tidying up; another reader, or nobody, does it where this one may not.
                    if let Err(error) = link.ask::<Value>(&plain::forget(&keys, id)).await
                        && error.kind() == ErrorKind::Unreachable
                    {
                        return Err(error);
                    }
                    continue;
                };
                (id, &document).hash(&mut hash);
                match carrier::from_json(&document) {
                    Ok(instance) => out.instances.push(instance),
                    Err(why) => out.reject("redis", format!("key `{}`: {why}", keys.instance(id))),
                }
            }
        }
        unique(&mut out);
        Ok(Look { snapshot: out, known, mark: hash.finish() })
    }

    pub(super) async fn follow(&self, service: &str, after: Option<&Cursor>) -> Result<Seen, DriverError> {
        self.check(service, None)?;
        let channel = match &self.layout {
            Layout::Seata => seata::channel(service),
            Layout::Plain { prefix } => Keys::new(prefix, service).channel().to_owned(),
        };
        let was_known = after.is_some_and(|cursor| cursor.as_str().ends_with('+'));
        let link = self.link(service).await?;
        let mut messages = link.listen(&channel).await?;
        let mut since = Instant::now();
        if after.is_some() {
            // What another service's look found a moment ago will do.
            since = since.checked_sub(self.rescan / 2).unwrap_or(since);
        }
        let mut next = Instant::now() + self.rescan;
        loop {
            messages.mark_unchanged();
            let look = self.look(&link, service, since).await?;
            let known = look.known || was_known;
            let cursor = Cursor::new(format!("{:x}{}", look.mark, if known { "+" } else { "-" }));
            if after != Some(&cursor) {
                let state = if known { SeenState::Service(look.snapshot) } else { SeenState::UnknownService };
                return Ok(Seen { cursor, state });
            }
            tokio::select! {
                // The sender lives as long as the link that is held here.
                _ = messages.changed() => {
                    tokio::time::sleep(SETTLE).await;
                    if link.is_broken() {
                        return Err(DriverError::new(ErrorKind::Unreachable, "lost the connection to Redis"));
                    }
                }
                () = tokio::time::sleep_until(next) => {
                    since = Instant::now().checked_sub(self.rescan / 2).unwrap_or(since);
                    next = Instant::now() + self.rescan;
                }
            }
        }
    }
}

/// Keeps the first of instances with the same id.
fn unique(out: &mut Snapshot) {
    let mut ids = HashSet::new();
    let (keep, twice): (Vec<_>, Vec<_>) =
        std::mem::take(&mut out.instances).into_iter().partition(|instance| ids.insert(instance.id.clone()));
    out.instances = keep;
    for instance in twice {
        let message = format!("key `{}`: another entry has the id `{}` already", instance.address, instance.id);
        out.reject("redis", message);
    }
}

#[cfg(test)]
mod tests {
    use metaroute_core::instance::Instance;

    use super::*;

    #[test]
    fn an_id_that_comes_twice_is_kept_once() {
        let instance = |address: &str| Instance::new(address.parse().expect("an address")).with_id("a");
        let mut out = Snapshot { instances: vec![instance("h:1"), instance("h:2")], ..Snapshot::default() };
        unique(&mut out);
        assert_eq!((out.instances.len(), out.rejected), (1, 1));
    }
}
