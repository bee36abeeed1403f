//! `docs/registries.md`: its sections about one kind of registry each are the documentation of the modules, so they cannot
//! say anything else; and every parameter that a driver reads stands in them.
//!
//! `UPDATE_DOCS=1 cargo test -p metaroute-registry --test it page` writes the page anew.

use std::path::{Path, PathBuf};

use metaroute_registry::{ConnectError, Registry, RegistryUrl};

/// Heading, module, and the addresses that it serves.
const SECTIONS: [(&str, &str, &[&str]); 10] = [
    ("Nacos", "nacos", &["nacos://h"]),
    ("Consul", "consul", &["consul://h"]),
    ("Eureka", "eureka", &["eureka://h"]),
    ("ZooKeeper", "zookeeper", &["zookeeper://h", "zk://h"]),
    ("Redis", "redis", &["redis://h"]),
    ("etcd", "etcd", &["etcd://h", "etcd3://h"]),
    ("Seata's NamingServer and Raft", "seata", &["namingserver://h", "seata-raft://h"]),
    ("SOFARegistry", "sofa", &["sofa://h"]),
    ("Kubernetes", "kubernetes", &["k8s://h/n", "kubernetes://"]),
    ("DNS", "dns", &["dns+srv://h/d"]),
];

const MARKER: &str =
    "<!-- What follows is printed from the modules of crates/registry/src; see tests/it/page.rs. -->\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn module(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(format!("{name}.rs"));
    std::fs::read_to_string(path).expect("the module")
}

/// A module's documentation as a section of the page: headings one level below it, links into the code as their text.
fn section(heading: &str, name: &str) -> String {
    let text = module(name);
    let lines = text.lines().take_while(|line| line.starts_with("//!"));
    let mut out = format!("\n## {heading}\n\n");
    let mut code = false;
    for line in lines.map(|line| line.strip_prefix("//! ").unwrap_or("")) {
        code ^= line.starts_with("```");
        if !code && line.starts_with('#') {
            out.push_str("##");
        }
        out.push_str(&if code { line.to_owned() } else { plain(line) });
        out.push('\n');
    }
    out
}

/// `[text](crate::path)` and [`text`] as the text alone.
fn plain(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(start) = rest.find("](crate::") {
        let (before, after) = rest.split_at(start);
        let open = before.rfind('[').expect("a link begins");
        out.push_str(&before[..open]);
        out.push_str(&before[open + 1..]);
        rest = after.split_once(')').expect("a link ends").1;
    }
    out + rest
}

#[test]
fn the_page_says_what_the_modules_say() {
    let path = root().join("docs/registries.md");
    let have = std::fs::read_to_string(&path).expect("the page");
    let (front, _) = have.split_once(MARKER).expect("the marker");
    let sections: String = SECTIONS.iter().map(|(heading, name, _)| section(heading, name)).collect();
    let now = format!("{front}{MARKER}{sections}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &now).expect("write the page");
    }
    let have = std::fs::read_to_string(&path).expect("the page");
    assert!(have == now, "docs/registries.md is out of date: run this test with UPDATE_DOCS=1");
}

/// The parameters a driver knows: it names them all when it is given one that it does not.
fn parameters(address: &str) -> Option<Vec<String>> {
    let url: RegistryUrl = format!("{address}?no-such-parameter=1").parse().expect("an address");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let message = match runtime.block_on(async { Registry::connect(&url).map(|_| ()) }) {
        Err(ConnectError::Address(message)) => message,
        // Not part of this build.
        Err(_) => return None,
        Ok(()) => panic!("{address} takes any parameter"),
    };
    let (_, known) = message.split_once("known are ").unwrap_or_else(|| panic!("{address}: {message}"));
    Some(known.split(", ").map(str::to_owned).collect())
}

#[test]
fn every_parameter_is_documented() {
    for (heading, name, addresses) in SECTIONS {
        let text = section(heading, name);
        for address in addresses {
            for parameter in parameters(address).into_iter().flatten() {
                assert!(text.contains(&format!("`{parameter}`")), "{address}: `{parameter}` stands nowhere");
            }
        }
    }
}

#[test]
fn every_kind_of_registry_has_a_row_in_the_table() {
    let page = std::fs::read_to_string(root().join("docs/registries.md")).expect("the page");
    for word in
        "file memory nacos consul eureka zookeeper redis etcd namingserver seata-raft sofa k8s dns+srv".split(' ')
    {
        assert!(page.contains(&format!("| `{word}:")), "{word}");
    }
    for (heading, ..) in SECTIONS {
        assert!(page.contains(&format!("\n## {heading}\n")), "{heading}");
    }
}
