//! `metaroute registry`: what a registry holds, and changing it by hand.
//!
//! Looking is a question and an answer. Registering is different: an entry that lives as long as its owner needs an owner,
//! so that command stays in the foreground.

mod amend;
mod deregister;
mod doctor;
mod instances;
mod list;
mod register;
mod watch;

use clap::{Args, Subcommand};
use comfy_table::Table;
use metaroute_core::{Address, Instance, MetaValue};

use crate::failure::{Failure, Outcome};
use crate::output::{BAD, FAINT, GOOD, Out, WARN, paint, table};
use crate::pairs::pair;
use crate::route::explain::right;

#[derive(Subcommand)]
pub(crate) enum RegistryCommand {
    /// List the services
    #[command(after_help = "\
Examples:
  metaroute registry list etcd://127.0.0.1:2379
  metaroute registry list nacos://127.0.0.1:8848/public?group=SEATA_GROUP --format json")]
    List(list::List),
    /// Show the instances of a service
    ///
    /// Status 1 when there is none.
    #[command(after_help = "\
Examples:
  metaroute registry instances redis://127.0.0.1:6379 default
  metaroute registry instances consul://127.0.0.1:8500 orders --format json")]
    Instances(instances::Instances),
    /// Print a line for every change of a service; Ctrl-C ends it
    #[command(after_help = "\
Examples:
  metaroute registry watch zookeeper://127.0.0.1:2181?layout=seata default
  metaroute registry watch etcd://127.0.0.1:2379 orders --format json")]
    Watch(watch::Watch),
    /// Register an instance and keep it registered until Ctrl-C or SIGTERM, then deregister it
    ///
    /// What cannot be registered at the start ends the command; trouble that comes later is shown and waited out.
    #[command(after_help = "\
Examples:
  metaroute registry register etcd://127.0.0.1:2379 default 10.0.0.7:8091 --meta version=2.3
  metaroute registry register consul://127.0.0.1:8500 orders 10.0.0.7:80 --weight 5 --zone a
  metaroute registry register nacos://127.0.0.1:8848 orders 10.0.0.7:80 --drain 10s
  metaroute registry register 10.0.0.7:8091 --seata conf/application.yml")]
    Register(register::Register),
    /// Take an instance away, whoever registered it
    ///
    /// An instance that is not there was taken away already. An owner that is alive may register it again.
    #[command(after_help = "\
Examples:
  metaroute registry deregister redis://127.0.0.1:6379 default 10.0.0.7:8091")]
    Deregister(deregister::Deregister),
    /// Change weight, metadata and so on of an instance that is registered; what is not named stays
    ///
    /// Its liveness stays its owner's. Status 1 when there is no such instance.
    #[command(after_help = "\
Examples:
  metaroute registry update etcd://127.0.0.1:2379 default 10.0.0.7:8091 --weight 0
  metaroute registry update consul://127.0.0.1:8500 orders 10.0.0.7:80 --meta version=2.4 --unset canary")]
    Update(amend::Update),
    /// Check servers, access, clock, layout and limits, and say how to mend what is wrong
    ///
    /// Status 1 when something is doubtful; 2, 3 or 4 when it is wrong, cannot be reached or is not allowed.
    #[command(after_help = "\
Examples:
  metaroute registry doctor nacos://127.0.0.1:8848
  metaroute registry doctor 'consul://127.0.0.1:8500?token=env:TOKEN' orders
  metaroute registry doctor etcd://127.0.0.1:2379 --probe --format json")]
    Doctor(doctor::Doctor),
}

impl RegistryCommand {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        match self {
            Self::List(command) => command.run(out),
            Self::Instances(command) => command.run(out),
            Self::Watch(command) => command.run(out),
            Self::Register(command) => command.run(out),
            Self::Deregister(command) => command.run(out),
            Self::Update(command) => command.run(out),
            Self::Doctor(command) => command.run(out),
        }
    }
}

/// A service of a registry.
#[derive(Args)]
struct ServiceArgs {
    /// The registry: an address or a fleet file
    #[arg(value_name = "REGISTRY_URL")]
    registry: String,
    /// The service; in Seata's layouts the cluster or the vgroup
    #[arg(value_name = "SERVICE")]
    service: String,
}

/// What can be said of an instance besides its address.
#[derive(Args)]
struct InstanceArgs {
    /// Id, unique in the service; the address unless given
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// One metadata value; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    meta: Vec<(String, String)>,
    /// Share of traffic relative to the others; 0 means no new requests
    #[arg(long, value_name = "W", value_parser = weight, allow_negative_numbers = true)]
    weight: Option<f64>,
    /// Cluster
    #[arg(long, value_name = "C")]
    cluster: Option<String>,
    /// Zone
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// Region
    #[arg(long, value_name = "REGION")]
    region: Option<String>,
    /// Switched on or off: true or false
    #[arg(long, value_name = "BOOL")]
    enabled: Option<bool>,
}

impl InstanceArgs {
    /// The instance with what was said about it; its id stays.
    fn over(&self, mut instance: Instance) -> Instance {
        for (key, value) in &self.meta {
            instance.metadata.insert(key.as_str().into(), value.as_str().into());
        }
        if let Some(weight) = self.weight {
            instance.weight = weight;
        }
        if let Some(cluster) = &self.cluster {
            instance.cluster = cluster.as_str().into();
        }
        if let Some(enabled) = self.enabled {
            instance.enabled = enabled;
        }
        for (key, value) in [("zone", &self.zone), ("region", &self.region)] {
            let Some(value) = value else { continue };
            let place = if key == "zone" { &mut instance.locality.zone } else { &mut instance.locality.region };
            *place = value.as_str().into();
            // Where a registry has no place for it, it rides in the metadata, and what was read came from there.
            if let Some(old) = instance.metadata.get_mut(key) {
                *old = MetaValue::from(value.as_str());
            }
        }
        instance
    }

    /// Whether nothing was said but the id.
    fn says_nothing(&self) -> bool {
        self.meta.is_empty()
            && self.weight.is_none()
            && self.cluster.is_none()
            && self.zone.is_none()
            && self.region.is_none()
            && self.enabled.is_none()
    }
}

fn weight(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(weight) if weight.is_finite() && weight >= 0.0 => Ok(weight),
        _ => Err(format!("`{text}` is no weight: a number of at least 0 is wanted")),
    }
}

/// An address of an instance as the command line gives it.
fn address(text: &str) -> Result<Address, Failure> {
    text.parse().map_err(|error: metaroute_core::instance::AddressError| {
        Failure::usage("bad_value", error.to_string()).hint("write HOST:PORT, for example 10.0.0.7:8091")
    })
}

/// Instances at an address, or the one with the id.
fn find<'i>(list: &'i [Instance], address: &Address, id: Option<&str>) -> Vec<&'i Instance> {
    list.iter()
        .filter(|instance| instance.address.same_place(address))
        .filter(|instance| id.is_none_or(|id| instance.id.as_str() == id))
        .collect()
}

/// The instances as a table: columns that say nothing are left out.
fn show(instances: &[Instance]) -> Table {
    let ids = instances.iter().any(|i| i.id.as_str() != i.address.to_string());
    let clusters = instances.iter().any(|i| !i.cluster.is_empty());
    let zones = instances.iter().any(|i| !i.locality.zone.is_empty());
    let mut heading = vec!["", "INSTANCE"];
    heading.extend(ids.then_some("ID"));
    heading.extend(clusters.then_some("CLUSTER"));
    heading.extend(zones.then_some("ZONE"));
    heading.extend(["WEIGHT", "METADATA"]);
    let mut rows = table(&heading);
    for instance in instances {
        let own = instance.id.as_str() != instance.address.to_string();
        let mut row = vec![mark(instance), instance.address.to_string()];
        row.extend(ids.then(|| if own { instance.id.to_string() } else { String::new() }));
        row.extend(clusters.then(|| instance.cluster.to_string()));
        row.extend(zones.then(|| instance.locality.zone.to_string()));
        row.extend([instance.weight.to_string(), metadata(instance)]);
        rows.add_row(row);
    }
    right(&mut rows, &["WEIGHT"], &heading);
    rows
}

/// Whether it may be picked, as far as the registry says.
fn mark(instance: &Instance) -> String {
    match (instance.enabled, instance.healthy) {
        (false, _) => paint(WARN, "off"),
        (true, false) => paint(BAD, "✗"),
        (true, true) => paint(GOOD, "✓"),
    }
}

fn metadata(instance: &Instance) -> String {
    let pairs: Vec<String> =
        instance.metadata.iter().map(|(key, value)| format!("{key}={}", value.to_text())).collect();
    paint(FAINT, &pairs.join(" "))
}

/// One instance in a line.
fn line(instance: &Instance) -> String {
    let mut text = instance.address.to_string();
    if instance.id.as_str() != text {
        text.push_str(&format!("  {}", instance.id));
    }
    text.push_str(&format!("  weight {}", instance.weight));
    if !instance.cluster.is_empty() {
        text.push_str(&format!("  cluster {}", instance.cluster));
    }
    if !instance.enabled {
        text.push_str("  switched off");
    }
    if !instance.healthy {
        text.push_str("  not healthy");
    }
    if !instance.metadata.is_empty() {
        text.push_str(&format!("  {}", metadata(instance)));
    }
    text
}
