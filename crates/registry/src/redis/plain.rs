//! Our own layout in Redis: one JSON document per instance, an index of ids per service, an index of services.

use metaroute_core::instance::{Incarnation, Instance};
use redis::Pipeline;

use crate::carrier;

/// Where the keys of one service are. The braces keep them on one node of a cluster; the index of services is on another.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    service: String,
}

impl Keys {
    pub(super) fn new(prefix: &str, service: &str) -> Self {
        Self { service: format!("{prefix}:{{{service}}}") }
    }

    pub(super) fn instance(&self, id: &str) -> String {
        format!("{}:inst:{id}", self.service)
    }

    pub(super) fn index(&self) -> String {
        format!("{}:index", self.service)
    }

    pub(super) fn channel(&self) -> &str {
        &self.service
    }
}

/// The index of services.
pub(super) fn services(prefix: &str) -> String {
    format!("{prefix}:services")
}

/// The document; the owner is the incarnation where the instance names none.
pub(super) fn document(instance: &Instance, owner: &str) -> Vec<u8> {
    let mut instance = instance.clone();
    if instance.incarnation.as_str().is_empty() {
        instance.incarnation = Incarnation::new(owner);
    }
    carrier::to_json(&instance)
}

pub(super) fn register(keys: &Keys, instance: &Instance, owner: &str, ttl_ms: u64) -> Pipeline {
    let id = instance.id.as_str();
    let mut out = redis::pipe();
    out.atomic();
    out.cmd("SET").arg(keys.instance(id)).arg(document(instance, owner)).arg("PX").arg(ttl_ms).ignore();
    enter(&mut out, keys, id);
    out
}

/// Enters an instance into the index of its service.
pub(super) fn enter(out: &mut Pipeline, keys: &Keys, id: &str) {
    out.cmd("SADD").arg(keys.index()).arg(id).ignore();
}

pub(super) fn unregister(keys: &Keys, id: &str) -> Pipeline {
    let mut out = redis::pipe();
    out.atomic();
    out.cmd("DEL").arg(keys.instance(id)).ignore();
    out.cmd("SREM").arg(keys.index()).arg(id).ignore();
    out
}

/// Takes an id out of the index if its key is gone: one step, so that one registered meanwhile stays.
pub(super) fn forget(keys: &Keys, id: &str) -> redis::Cmd {
    let script = "if redis.call('EXISTS', KEYS[1]) == 0 then return redis.call('SREM', KEYS[2], ARGV[1]) end return 0";
    let mut out = redis::cmd("EVAL");
    out.arg(script).arg(2).arg(keys.instance(id)).arg(keys.index()).arg(id);
    out
}
