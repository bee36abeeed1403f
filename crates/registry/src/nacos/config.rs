//! What an address says.

use std::sync::Arc;

use rustls::ClientConfig;

use super::instances::Filter;
use super::login::Login;
use super::names;
use super::over_http::{self, NacosHttp};
use crate::backend::{Params, bad};
use crate::carrier;
use crate::driver::{Driver, DriverError, Limits};
use crate::http::Http;
use crate::registry::ConnectError;
use crate::tls::Tls;
use crate::url::{Host, RegistryUrl};

const HTTP_PORT: u16 = 8848;
const GRPC_OFFSET: u16 = 1000;
const NAMESPACE: &str = "public";
const GROUP: &str = "DEFAULT_GROUP";
const CONTEXT: &str = "/nacos";
const METADATA_LIMIT: usize = 1024;

/// What an address says, checked.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The servers' gRPC ends, in the order written.
    pub(super) grpc: Vec<Host>,
    /// The servers' HTTP ports, in the same order.
    http_ports: Vec<u16>,
    pub(super) namespace: String,
    pub(super) group: String,
    pub(super) filter: Filter,
    pub(super) ephemeral: bool,
    pub(super) metadata_limit: usize,
    /// Context path of the HTTP interface: empty, or with a slash at its start.
    pub(super) context: String,
}

/// What goes beside gRPC.
pub(crate) struct Side {
    pub(super) http: Http,
    pub(super) login: Option<Login>,
    pub(super) tls: Option<Arc<ClientConfig>>,
}

/// The driver for an address.
pub(crate) fn open(url: &RegistryUrl) -> Result<Arc<dyn Driver>, ConnectError> {
    let mut params = Params::of(url);
    let named = |name: &str, value: &str, check: fn(&str) -> Result<(), DriverError>| {
        check(value).map_err(|error| bad(format!("`{name}={value}`: {error}")))
    };
    let namespace = if url.path().is_empty() { NAMESPACE } else { url.path() };
    named("namespace", namespace, names::namespace)?;
    let group = params.text("group").filter(|group| !group.is_empty()).unwrap_or(GROUP);
    named("group", group, names::group)?;
    let clusters: Vec<String> = params
        .text("cluster")
        .unwrap_or_default()
        .split(',')
        .map(str::trim)
        .filter(|cluster| !cluster.is_empty())
        .map(str::to_owned)
        .collect();
    for cluster in &clusters {
        named("cluster", cluster, names::cluster)?;
    }
    let number = |name: &str, text: Option<&str>, default: usize| match text.map(str::parse::<usize>) {
        None => Ok(default),
        Some(Ok(number)) if number > 0 => Ok(number),
        Some(_) => Err(bad(format!("parameter `{name}={}`: expected a number", text.unwrap_or_default()))),
    };
    let ephemeral = params.switch("ephemeral", true)?;
    let metadata_limit = number("metadata-limit", params.text("metadata-limit"), METADATA_LIMIT)?;
    let believe_protected = match params.text("protected") {
        None | Some("unhealthy") => false,
        Some("healthy") => true,
        Some(other) => return Err(bad(format!("parameter `protected={other}`: expected `healthy` or `unhealthy`"))),
    };
    let grpc_port = match params.text("grpc-port").map(str::parse::<u16>) {
        None => None,
        Some(Ok(port)) if port > 0 => Some(port),
        Some(_) => return Err(bad("parameter `grpc-port`: expected a port from 1 to 65535")),
    };
    let context = params.text("context").unwrap_or(CONTEXT).trim_matches('/');
    let context = if context.is_empty() { String::new() } else { format!("/{context}") };
    let api = params.text("api").unwrap_or("grpc");
    let tls = Tls::of(&mut params, url.tls())?;
    let mut https = tls.clone();
    https.on = params.switch("https", tls.on)?;

    let mut grpc = Vec::new();
    let mut http_ports = Vec::new();
    for host in url.hosts() {
        let http = host.port.unwrap_or(HTTP_PORT);
        let port = match grpc_port.or_else(|| http.checked_add(GRPC_OFFSET)) {
            Some(port) => port,
            None => {
                return Err(bad(format!("server `{host}`: there is no port {GRPC_OFFSET} above it; name `grpc-port`")));
            }
        };
        grpc.push(Host { name: host.name.clone(), port: Some(port) });
        http_ports.push(http);
    }
    let login = match (url.user(), url.password()) {
        (None, None) => None,
        (Some(user), Some(password)) => {
            let password = password.reveal().map_err(|error| bad(error.to_string()))?;
            Some(Login::new(user.to_owned(), password, context.clone()))
        }
        _ => return Err(bad("a login needs a user and a password: `nacos://USER:PASSWORD@HOST`")),
    };
    let config = Config {
        grpc,
        http_ports,
        namespace: namespace.to_owned(),
        group: group.to_owned(),
        filter: Filter { clusters, believe_protected },
        ephemeral,
        metadata_limit,
        context,
    };
    let side = Arc::new(Side {
        http: Http::new(url, HTTP_PORT, &https)?,
        login,
        tls: match tls.on {
            true => {
                let mut config = tls.config()?;
                config.alpn_protocols = vec![b"h2".to_vec()];
                Some(Arc::new(config))
            }
            false => None,
        },
    });
    match api {
        "grpc" => {
            params.finish()?;
            Ok(Arc::new(super::Nacos::new(config, side)))
        }
        "http" => {
            let ttl = params.duration("ttl", over_http::TTL)?;
            let poll = params.duration("poll", over_http::POLL)?;
            params.finish()?;
            let ttl = (ttl != over_http::TTL).then_some(ttl);
            Ok(Arc::new(NacosHttp::new(config, side, ttl, poll)))
        }
        other => Err(bad(format!("parameter `api={other}`: expected `grpc` or `http`"))),
    }
}

impl Config {
    pub(super) fn limits(&self) -> Limits {
        Limits { total_chars: Some(self.metadata_limit), reserved_prefixes: &[carrier::RESERVED], ..Limits::default() }
    }

    /// The cluster of instances that name none.
    pub(super) fn home(&self) -> &str {
        self.filter.clusters.first().map_or("", String::as_str)
    }

    /// Which of the servers this is, by its HTTP or gRPC port.
    pub(super) fn position(&self, host: &str, port: u16) -> Option<usize> {
        let same = |at: &usize| {
            let grpc = &self.grpc[*at];
            grpc.name.eq_ignore_ascii_case(host)
                && (port == 0 || self.http_ports[*at] == port || grpc.port == Some(port))
        };
        (0..self.grpc.len()).find(same)
    }
}
