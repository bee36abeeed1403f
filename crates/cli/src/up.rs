//! `metaroute up`: everything in one process, for the first five minutes and for one machine.
//!
//! The registry lives in this process (or in a watched file), routing is asked over HTTP. One line on stdout says when it
//! answers; everything else goes to stderr.

pub(crate) mod data;
pub(crate) mod observe;

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use metaroute::Connection;
use metaroute_registry::document::Format as FileFormat;
use metaroute_registry::{Fleet, Memory, Registry, RegistryUrl};
use metaroute_server::{api, serve_http};
use serde_json::json;
use tokio::net::TcpListener;

use crate::failure::{Failure, Outcome};
use crate::output::{Format, Out, STRONG, paint, tell};
use crate::services::{self, Hub};
use crate::source;
use crate::status::Status;

/// The fleet to begin with.
const FLEET: &str = include_str!("up/fleet.yaml");

/// How long open requests may take after a signal; more would be taken for hanging.
const DRAIN_WITHIN: Duration = Duration::from_secs(10);

#[derive(Args)]
#[command(after_help = "\
Examples:
  metaroute up
  metaroute up --listen 127.0.0.1:0 --instances fleet.yaml
  metaroute up --data ./data --scan /usr --scan-tenant top-dir
  curl -s http://127.0.0.1:7400/v1/file_metadata/query -d '{\"user_id\": 0, \"limit\": 3}'
  curl -s http://127.0.0.1:7400/v1/services/orders/explain -d '{\"rule\": \"version >= 2.10\"}'")]
pub(crate) struct Up {
    /// Where to listen; port 0 takes a free one. Loopback only: there is no authentication
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7400")]
    listen: String,
    /// A fleet file to serve instead of the built-in one; it is watched
    #[arg(long, value_name = "FILE")]
    instances: Option<PathBuf>,
    #[command(flatten)]
    data: data::DataArgs,
}

impl Up {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        // Everything that can be wrong is found before a port is bound.
        let addresses = loopback(&self.listen)?;
        let fleet = match &self.instances {
            Some(path) => {
                let fleet = source::fleet_file(path)?;
                source::tell_notes(&fleet.notes);
                fleet
            }
            None => Fleet::parse("built-in fleet", FLEET, FileFormat::Yaml)
                .map_err(|error| Failure::new(Status::Bug, "internal", error.to_string()))?,
        };
        let _log = observe::log_to_stderr(out.format);
        source::runtime()?.block_on(self.serve(addresses, fleet, out))
    }

    async fn serve(self, addresses: Vec<SocketAddr>, fleet: Fleet, out: &mut Out) -> Outcome {
        let connection = match &self.instances {
            Some(path) => Connection::open(&RegistryUrl::file(path))
                .map_err(|error| Failure::new(Status::Bug, "internal", error.to_string()))?,
            None => Connection::new(Registry::new(Memory::with_fleet(&fleet))),
        };
        let data = self.data.open().await?;
        let listener = TcpListener::bind(addresses.as_slice()).await.map_err(|error| {
            Failure::usage("cannot_listen", format!("cannot listen on {}: {error}", self.listen))
                .hint("another process may have the port; --listen 127.0.0.1:0 takes a free one")
        })?;
        // From here on a signal drains.
        let mut signals = source::Signals::take_over()?;
        data.start(connection.registry());
        let hub = Hub::start(connection).await?;
        let http = api::standalone(Arc::clone(data.service()), services::beside(&hub));
        let address =
            listener.local_addr().map_err(|error| Failure::new(Status::Bug, "internal", error.to_string()))?;
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let serving = tokio::spawn(serve_http(listener, http, stopped));
        match out.format {
            Format::Text => out.line(format!("ready http://{address}"))?,
            Format::Json | Format::Ndjson => out.json(&json!({ "ready": format!("http://{address}") }))?,
        }
        out.flush()?;
        if out.is_text() {
            tell(data.about());
            tell(try_next(&address, self.instances.as_ref(), &fleet));
        }
        signals.next().await;
        tracing::info!("draining");
        data.service().drain();
        stop.send_replace(true);
        let finished = tokio::select! {
            ended = tokio::time::timeout(DRAIN_WITHIN, serving) => ended.is_ok(),
            // Who asks twice does not want to wait.
            () = signals.next() => false,
        };
        if !finished {
            tracing::warn!("requests were still open at the end");
        }
        data.shutdown(DRAIN_WITHIN).await;
        hub.shutdown(Duration::from_secs(1)).await;
        Ok(Status::Done)
    }
}

/// The addresses behind `--listen`. Without authentication nothing but this machine may reach it.
fn loopback(listen: &str) -> Result<Vec<SocketAddr>, Failure> {
    let bad = |message: String| Failure::usage("bad_value", message).hint("write --listen 127.0.0.1:7400");
    let addresses: Vec<SocketAddr> = listen
        .to_socket_addrs()
        .map_err(|error| bad(format!("--listen `{listen}` is not ADDRESS:PORT: {error}")))?
        .collect();
    if addresses.is_empty() {
        return Err(bad(format!("--listen `{listen}` names no address")));
    }
    match addresses.iter().find(|address| !address.ip().is_loopback()) {
        None => Ok(addresses),
        Some(open) => Err(Failure::usage(
            "listen_without_authentication",
            format!("--listen {listen} would be reachable from other machines ({open}) without authentication"),
        )
        .hint("listen on 127.0.0.1, and put a proxy that authenticates in front of it")),
    }
}

fn try_next(address: &SocketAddr, instances: Option<&PathBuf>, fleet: &Fleet) -> String {
    let service = fleet.services.first().map_or("SERVICE", |service| &service.name);
    let what = match instances {
        Some(path) => format!("serving {} (watched)", path.display()),
        None => "serving a built-in fleet, nothing is kept; --instances FILE serves your own".to_owned(),
    };
    format!(
        "{what}\n{}\n  \
         curl -s http://{address}/v1/services\n  \
         curl -s http://{address}/v1/services/{service}/explain -d '{{\"rule\": \"version >= 2.10\"}}'\n  \
         curl -s http://{address}/v1/services/{service}/pick -d '{{\"rule\": \"env == prod\", \"n\": 5}}'\n  \
         curl -s http://{address}/v1/file_metadata/rows -d '{{\"rows\": [{{\"file_id\": 1, \"user_id\": 7, \"path\": \"/a\"}}]}}'\n  \
         curl -s http://{address}/v1/file_metadata/query -d '{{\"user_id\": 7}}'\n  \
         curl -s http://{address}/metrics\n\
         a browser shows it all at http://{address}/console/\n\
         Ctrl-C drains and ends it",
        paint(STRONG, "try next:")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_may_be_listened_on() {
        for listen in ["127.0.0.1:0", "[::1]:7400", "127.1.2.3:80"] {
            assert!(loopback(listen).is_ok(), "{listen}");
        }
        for listen in ["0.0.0.0:7400", "[::]:7400", "192.0.2.1:1"] {
            assert_eq!(loopback(listen).unwrap_err().code, "listen_without_authentication", "{listen}");
        }
        for listen in ["127.0.0.1", ":7400", "", "127.0.0.1:99999"] {
            assert_eq!(loopback(listen).unwrap_err().code, "bad_value", "{listen}");
        }
    }

    #[test]
    fn the_built_in_fleet_is_whole() {
        let fleet = Fleet::parse("built-in fleet", FLEET, FileFormat::Yaml).unwrap();
        assert_eq!(fleet.notes, []);
        assert!(fleet.services.len() >= 3);
        let all: Vec<_> = fleet.services.iter().flat_map(|service| &service.instances).collect();
        assert!(all.iter().any(|instance| !instance.healthy), "one is unhealthy");
        assert!(all.iter().any(|instance| instance.weight == 0.0), "one is draining");
    }

    /// The README shows what is printed.
    #[test]
    fn the_readme_says_what_to_try_next() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
        let have = std::fs::read_to_string(&path).unwrap();
        let fleet = Fleet::parse("built-in fleet", FLEET, FileFormat::Yaml).unwrap();
        let told = try_next(&"127.0.0.1:7400".parse().unwrap(), None, &fleet);
        let told = anstream::adapter::strip_str(&told).to_string();
        let mark = "<!-- up: try next -->\n```text\n";
        let (before, after) = have.split_once(mark).unwrap();
        let (_, after) = after.split_once("```\n").unwrap();
        let now = format!("{before}{mark}{told}\n```\n{after}");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &now).unwrap();
        } else {
            assert!(have == now, "README.md is out of date: run this test with UPDATE_DOCS=1");
        }
    }
}
