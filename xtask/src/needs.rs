//! What the checks need beyond Rust and a C compiler, and where it comes from.
//!
//! One line each: adding a server is adding an entry here, its recipe under `peers/` where it has one, and its start in `test-support`.

use std::path::PathBuf;

use anyhow::Result;
use test_support::{Missing, cache, java, nacos, program, zookeeper};

use crate::install::{Site, crates, debian, go, maven, python, tool};

/// Something to bring onto the machine.
#[derive(Clone, Copy)]
pub(crate) struct Need {
    pub(crate) name: &'static str,
    /// What it is for, in the summary's words.
    pub(crate) purpose: &'static str,
    /// Whether it is there.
    pub(crate) check: fn() -> Result<(), Missing>,
    /// Brings it.
    pub(crate) bring: fn(&Site) -> Result<()>,
}

/// Everything, in the order it is listed to people.
pub(crate) const ALL: &[Need] = &[
    Need {
        name: "cargo-deny",
        purpose: "licences, bans and sources of dependencies",
        check: || tool::CARGO_DENY.path().map(drop),
        bring: |site| tool::CARGO_DENY.bring(site),
    },
    Need {
        name: "mariadb",
        purpose: "the MySQL-compatible server",
        check: || {
            ["mariadbd", "mariadb-install-db", "mariadb"].into_iter().try_for_each(|name| program(name).map(drop))
        },
        bring: |site| debian::bring(site, &["mariadb-server", "mariadb-client"]),
    },
    Need {
        name: "languages",
        purpose: "other languages that read our JSON: Node.js, Python, jq",
        check: || LANGUAGES.iter().try_for_each(|(name, _)| program(name).map(drop)),
        bring: |site| debian::bring_programs(site, LANGUAGES),
    },
    Need {
        name: "schemathesis",
        purpose: "requests made up from the OpenAPI document, in Python",
        check: || cache::peer("schemathesis").map(drop),
        bring: |site| python::bring(site, "schemathesis"),
    },
    Need {
        name: "chromium",
        purpose: "a real browser for the console",
        check: || program("chromium").map(drop),
        // Without a font its pages have boxes for letters.
        bring: |site| debian::bring(site, &["chromium", "fonts-liberation", "fonts-dejavu-core"]),
    },
    Need {
        name: "envoy",
        purpose: "the proxy whose metadata subsets ours are compared with",
        check: || test_support::envoy::binary().map(drop),
        bring: |site| python::bring(site, "envoy"),
    },
    Need {
        name: "ribbon",
        purpose: "the original Nacos rule, in Java",
        check: || java::class("ribbon", "").map(drop),
        bring: |site| maven::bring(site, "ribbon"),
    },
    Need {
        name: "namespaces",
        purpose: "networks of their own for servers that bind all interfaces",
        check: || program("ip").map(drop),
        bring: |site| debian::bring_programs(site, &[("ip", "iproute2")]),
    },
    Need {
        name: "seata-server",
        purpose: "Seata's server, with its Raft metadata and its registrations, in Java",
        check: || java::class("seata-server", "").map(drop),
        bring: |site| maven::bring(site, "seata-server"),
    },
    Need {
        name: "sofa",
        purpose: "SOFARegistry, in Java",
        check: || java::class("sofa", "").map(drop),
        bring: |site| maven::bring(site, "sofa"),
    },
    Need {
        name: "sofa-client",
        purpose: "SOFARegistry's own client, in Java",
        check: || java::class("sofa-client", "").map(drop),
        bring: |site| maven::bring(site, "sofa-client"),
    },
    Need {
        name: "consul",
        purpose: "the Consul agent, built from its Go module (8 min of 2 cores, once)",
        check: || cache::peer("consul").map(drop),
        bring: |site| go::bring(site, "consul", &["github.com/hashicorp/consul"]),
    },
    Need {
        name: "spring-cloud",
        purpose: "Spring Cloud's Eureka server, and its clients of Eureka and Consul, in Java",
        check: || java::class("spring-cloud", "").map(drop),
        bring: |site| maven::bring(site, "spring-cloud"),
    },
    Need {
        name: "consul-python",
        purpose: "Consul's client in Python",
        check: || cache::peer("consul-python").map(drop),
        bring: |site| python::bring(site, "consul-python"),
    },
    Need {
        name: "eureka-python",
        purpose: "Eureka's client in Python",
        check: || cache::peer("eureka-python").map(drop),
        bring: |site| python::bring(site, "eureka-python"),
    },
    Need {
        name: "bind",
        purpose: "the DNS server BIND, changed by nsupdate",
        check: || ["named", "nsupdate", "tsig-keygen"].into_iter().try_for_each(|name| program(name).map(drop)),
        bring: |site| debian::bring(site, &["bind9", "bind9-dnsutils"]),
    },
    Need {
        name: "rnacos",
        purpose: "r-nacos, a server that speaks Nacos' protocols",
        check: || nacos::program().map(drop),
        bring: |site| crates::bring(site, nacos::CRATE, nacos::VERSION),
    },
    Need {
        name: "nacos-client",
        purpose: "Nacos' own client, in Java",
        check: || java::class("nacos-client", "").map(drop),
        bring: |site| maven::bring(site, "nacos-client"),
    },
    Need {
        name: "nacos-python",
        purpose: "Nacos' own client, in Python",
        check: || cache::peer("nacos-python").map(drop),
        bring: |site| python::bring(site, "nacos-python"),
    },
    Need {
        name: "etcd",
        purpose: "etcd and its own client",
        check: || ["etcd", "etcdctl"].into_iter().try_for_each(|name| program(name).map(drop)),
        bring: |site| debian::bring(site, &["etcd-server", "etcd-client"]),
    },
    Need {
        name: "etcd35",
        purpose: "etcd 3.5, a second version",
        check: || cache::peer("etcd35").map(drop),
        bring: |site| python::bring(site, "etcd35"),
    },
    Need {
        name: "kubectl",
        purpose: "Kubernetes' own client",
        check: || program("kubectl").map(drop),
        bring: |site| debian::bring_programs(site, &[("kubectl", "kubernetes-client")]),
    },
    Need {
        name: "redis",
        purpose: "Redis and its own client",
        check: || ["redis-server", "redis-cli"].into_iter().try_for_each(|name| program(name).map(drop)),
        bring: |site| debian::bring(site, &["redis-server", "redis-tools"]),
    },
    Need {
        name: "zookeeper",
        purpose: "ZooKeeper, in Java",
        check: zookeeper::check,
        bring: |site| debian::bring(site, &["zookeeper"]),
    },
    Need {
        name: "seata-client",
        purpose: "Seata's released client, in Java",
        check: || java::class("seata-client", "").map(drop),
        bring: |site| maven::bring(site, "seata-client"),
    },
    Need {
        name: "curator",
        purpose: "Curator's service discovery, in Java",
        check: || java::class("curator", "").map(drop),
        bring: |site| maven::bring(site, "curator"),
    },
    Need {
        name: "kazoo",
        purpose: "ZooKeeper's Python client",
        check: || cache::peer("kazoo").map(drop),
        bring: |site| python::bring(site, "kazoo"),
    },
];

/// Programs and the Debian packages that have them.
const LANGUAGES: &[(&str, &str)] = &[("node", "nodejs"), ("python3", "python3"), ("jq", "jq")];

/// Only for `cargo xtask fuzz`, so not among those every test run brings.
pub(crate) const CARGO_FUZZ: Need = Need {
    name: "cargo-fuzz",
    purpose: "running the fuzz targets",
    check: || tool::CARGO_FUZZ.path().map(drop),
    bring: |site| tool::CARGO_FUZZ.bring(site),
};

/// The needs with these names; all of them if none is given.
pub(crate) fn by_names(names: &[&str]) -> Result<Vec<Need>, String> {
    if names.is_empty() {
        return Ok(ALL.to_vec());
    }
    names
        .iter()
        .map(|name| {
            ALL.iter().find(|need| need.name == *name).copied().ok_or_else(|| {
                let known: Vec<_> = ALL.iter().map(|need| need.name).collect();
                format!("unknown name {name:?}; known are {}", known.join(", "))
            })
        })
        .collect()
}

/// The path of `cargo-deny`.
pub(crate) fn cargo_deny() -> Result<PathBuf, Missing> {
    tool::CARGO_DENY.path()
}

/// The path of `cargo-fuzz`.
pub(crate) fn cargo_fuzz() -> Result<PathBuf, Missing> {
    tool::CARGO_FUZZ.path()
}
