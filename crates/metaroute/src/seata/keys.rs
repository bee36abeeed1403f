//! Names nobody reads. Seata ignores a misspelt key without a word; here it is named, with the likely spelling.

use metaroute_registry::document::{Note, suggest};

use crate::properties::{Properties, same_name};

/// Sections under `seata.` (or at the top of a `registry.conf`).
const TOP: [&str; 33] = [
    "access-key",
    "application-id",
    "client",
    "config",
    "console",
    "data-source-proxy-mode",
    "disable-global-transaction",
    "enable-auto-data-source-proxy",
    "enabled",
    "exclude-for-auto-proxying",
    "excludes-for-auto-proxying",
    "excludes-for-scanning",
    "expose-proxy",
    "http",
    "log",
    "metrics",
    "registry",
    "rpc",
    "saga",
    "scan-packages",
    "secret-key",
    "security",
    "server",
    "service",
    "session",
    "store",
    "tcc",
    "transport",
    "tx-service-group",
    "undo",
    "use-jdk-proxy",
    "vgroup-store",
    "lock",
];

const CLIENT: [&str; 8] = ["rm", "tm", "undo", "load-balance", "routing", "http", "log", "meta"];
const LOAD_BALANCE: [&str; 2] = ["type", "virtual-nodes"];
const ROUTING: [&str; 3] = ["enabled", "debug", "routers"];
const ROUTER: [&str; 3] = ["enabled", "expression", "fallback"];
const SERVICE: [&str; 5] =
    ["vgroup-mapping", "grouplist", "enable-degrade", "disable-global-transaction", "max-commit-retry-timeout"];
const REGISTRY: [&str; 19] = [
    "type",
    "load-balance",
    "load-balance-virtual-nodes",
    "preferred-networks",
    "ignored-interfaces",
    "ignored-networks",
    "metadata",
    "metadata-max-age-ms",
    "file",
    "raft",
    "zk",
    "redis",
    "nacos",
    "eureka",
    "consul",
    "etcd3",
    "sofa",
    "custom",
    "seata",
];

/// Notes every name under the prefixes we read that stands for nothing.
pub(super) fn check(properties: &Properties, spring: bool, notes: &mut Vec<Note>) {
    for property in properties.of_files() {
        let (below, prefix) = match property.below("seata") {
            Some(below) => (below, "seata."),
            // Without the prefix a Spring file belongs to everybody; only the routing keys are certainly meant for Seata.
            None if spring && property.below("client.routing").is_none() => continue,
            None => (property.name.clone(), ""),
        };
        let segments: Vec<&str> = below.split('.').collect();
        let mut complain = |depth: usize, known: &[&str]| {
            let path = format!("{prefix}{}", segments[..=depth].join("."));
            let hint = suggest(segments[depth], known.iter().copied())
                .map(|word| format!(", did you mean `{word}`?"))
                .unwrap_or_default();
            // One misspelt section is one mistake, however many keys stand in it.
            let message = format!("unknown key `{path}`{hint}");
            if !notes.iter().any(|note| note.message == message) {
                notes.push(property.note("unknown_key", message));
            }
        };
        let is = |depth: usize, known: &[&str]| {
            segments.get(depth).is_some_and(|segment| known.iter().any(|word| same_name(segment, word)))
        };
        let at = |depth: usize, word: &str| segments.get(depth).is_some_and(|segment| same_name(segment, word));
        if !is(0, &TOP) {
            if !prefix.is_empty() || suggest(segments[0], ["client", "registry", "service"]).is_some() {
                complain(0, &TOP);
            }
        } else if at(0, "client") && segments.len() > 1 {
            if !is(1, &CLIENT) {
                complain(1, &CLIENT);
            } else if at(1, "load-balance") && segments.len() > 2 && !is(2, &LOAD_BALANCE) {
                complain(2, &LOAD_BALANCE);
            } else if at(1, "routing") && segments.len() > 2 {
                let router = segments[2];
                if router.starts_with("metadata-router-") && router.len() > "metadata-router-".len() {
                    if segments.len() > 3 && !is(3, &ROUTER) {
                        complain(3, &ROUTER);
                    }
                } else if !router.starts_with("spi-") && !is(2, &ROUTING) {
                    complain(2, &["enabled", "debug", "routers", "metadata-router-1"]);
                }
            }
        } else if at(0, "registry") && segments.len() > 1 && !is(1, &REGISTRY) {
            complain(1, &REGISTRY);
        } else if at(0, "service") && segments.len() > 1 && !is(1, &SERVICE) && !at(2, "grouplist") {
            complain(1, &SERVICE);
        }
    }
}
