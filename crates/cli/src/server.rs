//! `metaroute server`: one role as a process of its own.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use metaroute::Connection;
use metaroute_registry::Registry;
use metaroute_server::SERVICE;
use metaroute_server::api::Beside;
use metaroute_server::config::{ROUTER_YAML, RouterConfig, SHARD_YAML, ShardConfig};
use metaroute_server::role::{RouterRole, ShardRole};
use serde_json::json;

use crate::failure::{Failure, Outcome};
use crate::output::{Format, Out};
use crate::services::{self, Hub};
use crate::source;
use crate::status::Status;
use crate::up::data::role_failure;
use crate::up::observe;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    /// One copy of one shard
    Shard,
    /// The HTTP API over shards in other processes
    Router,
    /// Applies a change stream to shards
    Syncer,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  metaroute server --role shard --print-config > g0-s0.yaml
  metaroute server --role shard --config g0-s0.yaml
  metaroute server --role router --config router.yaml")]
pub(crate) struct Server {
    /// Which role
    #[arg(long, value_enum, value_name = "ROLE")]
    role: Role,
    /// Its configuration
    #[arg(long, value_name = "FILE", required_unless_present = "print_config")]
    config: Option<PathBuf>,
    /// Print the annotated configuration with its defaults, and end
    #[arg(long)]
    print_config: bool,
}

impl Server {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        if self.print_config {
            match self.role {
                Role::Shard => out.raw(SHARD_YAML)?,
                Role::Router => out.raw(ROUTER_YAML)?,
                Role::Syncer => return Err(no_syncer()),
            }
            return Ok(Status::Done);
        }
        let Some(path) = self.config else {
            return Err(Failure::usage("missing_argument", "--config FILE is missing"));
        };
        let config = |error| Failure::config(&error, Status::Usage);
        match self.role {
            Role::Shard => {
                let config = ShardConfig::read(&path).map_err(config)?;
                let _log = observe::log_to_stderr(out.format);
                source::runtime()?.block_on(shard(config, out))
            }
            Role::Router => {
                let config = RouterConfig::read(&path).map_err(config)?;
                let _log = observe::log_to_stderr(out.format);
                source::runtime()?.block_on(router(config, out))
            }
            Role::Syncer => Err(no_syncer()),
        }
    }
}

fn no_syncer() -> Failure {
    Failure::usage("unsupported_role", "this build has no role syncer").expected(["shard", "router"])
}

fn ready(out: &mut Out, address: &str) -> Result<(), Failure> {
    match out.format {
        Format::Text => out.line(format!("ready {address}"))?,
        Format::Json | Format::Ndjson => out.json(&json!({ "ready": address }))?,
    }
    out.flush()?;
    Ok(())
}

async fn shard(config: ShardConfig, out: &mut Out) -> Outcome {
    let mut signals = source::Signals::take_over()?;
    let role = ShardRole::start(config).await.map_err(|error| role_failure(&error))?;
    ready(out, &format!("grpc://{}", role.address()))?;
    signals.next().await;
    tracing::info!("draining");
    tokio::select! {
        () = role.shutdown() => {}
        // Who asks twice does not want to wait.
        () = signals.next() => tracing::warn!("ended before the store was closed; it recovers at the next start"),
    }
    Ok(Status::Done)
}

/// The services of a router's registry. Without one there are none.
async fn beside(registry: Option<Registry>) -> Beside {
    let hub = match registry {
        Some(registry) => Hub::while_asked(Connection::new(registry), SERVICE).await,
        None => Hub::without_registry(),
    };
    services::beside(&hub)
}

async fn router(config: RouterConfig, out: &mut Out) -> Outcome {
    let mut signals = source::Signals::take_over()?;
    let role = RouterRole::start(config, beside).await.map_err(|error| role_failure(&error))?;
    ready(out, &format!("http://{}", role.address()))?;
    signals.next().await;
    tracing::info!("draining");
    // Balancers get a moment to notice before the listener closes.
    role.service().drain();
    tokio::select! {
        () = async { tokio::time::sleep(Duration::from_millis(200)).await; role.shutdown().await } => {}
        () = signals.next() => {}
    }
    Ok(Status::Done)
}
