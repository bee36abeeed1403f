//! Describing a service to call, before it is started.

use std::collections::BTreeMap;
use std::path::PathBuf;

use metaroute_core::resilience::ejection::EjectionPolicy;
use metaroute_core::rules::{Balance, RuleSet, ZonePreference};
use metaroute_core::{Extensions, GuardOptions, Options, Selector};
use metaroute_expr::Expr;

use super::rules::{Overlay, Rules, RulesError, Watched};
use super::{LiveSelector, Start};
use crate::connection::Connection;
use crate::seata::SeataConfig;
use crate::spring::SpringConfig;

/// A service to call: which rules, and who is calling. [`ServiceBuilder::start`] makes it live.
#[derive(Clone, Debug)]
#[must_use = "nothing happens before `start`"]
pub struct ServiceBuilder {
    connection: Connection,
    service: String,
    source: Source,
    overlay: Overlay,
    caller: BTreeMap<String, String>,
    guard: Option<GuardOptions>,
    seed: Option<u64>,
    extensions: Extensions,
    explains: bool,
}

#[derive(Clone, Debug)]
enum Source {
    Given(Rules),
    /// The preset, which depends on the caller as it is at the end.
    NacosCluster,
}

impl ServiceBuilder {
    pub(crate) fn new(connection: Connection, service: String) -> Self {
        Self {
            connection,
            service,
            source: Source::Given(Rules::default()),
            overlay: Overlay::default(),
            caller: BTreeMap::new(),
            guard: None,
            seed: None,
            extensions: Extensions::default(),
            explains: false,
        }
    }

    /// Sets the rules: a [`RuleSet`], an expression as text, or a rules file as a path. The last call wins.
    pub fn rules(mut self, rules: impl Into<Rules>) -> Self {
        self.source = Source::Given(rules.into());
        self
    }

    /// Sets the rules to a file that is watched: a good edit takes effect within a second, a bad one changes nothing and
    /// shows in [`LiveSelector::status`], in one log line and in the metrics.
    pub fn rules_file(self, path: impl Into<PathBuf>) -> Self {
        self.rules(path.into())
    }

    /// Sets the rules to the Nacos same-cluster / same-version rule ([`RuleSet::nacos_cluster`]) for the caller's
    /// `cluster` and `target-version`.
    pub fn nacos_cluster(mut self) -> Self {
        self.source = Source::NacosCluster;
        self
    }

    /// Adds one value of the caller's own metadata: `$caller.KEY` in rules, and `cluster`, `zone`, `region` for the
    /// preferences. By itself it switches no preference on.
    pub fn caller(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.caller.insert(key.into(), value.into());
        self
    }

    /// Adds several values of the caller's own metadata.
    pub fn caller_metadata<K: Into<String>, V: Into<String>>(
        mut self,
        values: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.caller.extend(values.into_iter().map(|(key, value)| (key.into(), value.into())));
        self
    }

    /// Routes as a Seata client with this configuration does: its routers and its balancer, and the cluster its
    /// transaction service group is mapped to where the service's name is such a group. With `client.routing.debug`
    /// every pick of [`LiveSelector::select`] is explained in the log, which is slow.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::path::Path;
    /// use metaroute::properties::Surroundings;
    /// use metaroute::seata::SeataConfig;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("application.properties");
    /// # std::fs::write(&path, "seata.tx-service-group=tx\nseata.service.vgroup-mapping.tx=default\n")?;
    ///
    /// let config = SeataConfig::read(&path, &Surroundings::none())?;
    /// let coordinators = metaroute::connect("memory:")?.service("tx").seata(&config).start().await?;
    /// assert_eq!(coordinators.service(), "default");
    /// # Ok(())
    /// # }
    /// ```
    pub fn seata(mut self, config: &SeataConfig) -> Self {
        self.service = config.cluster_of(&self.service).to_owned();
        self.explains = config.debug;
        self.rules(config.rules.clone())
    }

    /// Calls as a Spring Cloud Alibaba service with this configuration: its metadata and cluster become the caller's.
    /// Follow it with [`ServiceBuilder::nacos_cluster`] for the rule such services usually have.
    pub fn spring(self, config: &SpringConfig) -> Self {
        self.caller_metadata(config.caller())
    }

    /// Prefers the caller's own cluster, whatever the rules say; others only when it has no usable instance.
    pub fn prefer_cluster(mut self) -> Self {
        self.overlay.prefer_cluster = true;
        self
    }

    /// Prefers the caller's own zone, in place of what the rules say about zones.
    pub fn prefer_zone(mut self, preference: ZonePreference) -> Self {
        self.overlay.prefer_zone = Some(preference);
        self
    }

    /// Chooses by this balancer, in place of the one the rules name.
    pub fn balance(mut self, balance: Balance) -> Self {
        self.overlay.balance = Some(balance);
        self
    }

    /// Leaves instances alone that keep failing, in place of what the rules say about ejection. It lives on outcomes:
    /// report them, or use [`Route`](crate::Route), which does.
    pub fn ejection(mut self, policy: EjectionPolicy) -> Self {
        self.overlay.ejection = Some(policy);
        self
    }

    /// Sets when a push of the registry is doubted. By default a list that instances leave by themselves (a registry
    /// with leases or heartbeats) is guarded as [`GuardOptions::default`] says, and one that only changes because
    /// somebody changes it (a file, this process) is believed at once.
    pub fn guard(mut self, guard: GuardOptions) -> Self {
        self.guard = Some(guard);
        self
    }

    /// Fixes the seed of all random choices, for tests. Without it every start draws a fresh one, so that a fleet of
    /// clients does not begin on the same instance.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Adds routers and balancers of your own, which rules may then name.
    pub fn extensions(mut self, extensions: Extensions) -> Self {
        self.extensions = extensions;
        self
    }

    /// Starts following the service. Returns as soon as the rules are in force; whether there is an instance yet is
    /// asked with [`LiveSelector::ready`]. Must run inside a tokio runtime with its timer switched on.
    ///
    /// # Errors
    /// When the rules cannot be used. A registry that does not answer is no error here.
    pub async fn start(self) -> Result<LiveSelector, RulesError> {
        let (watched, set) = match self.source {
            Source::NacosCluster => (None, RuleSet::nacos_cluster(&self.caller)),
            Source::Given(Rules::Set(set)) => (None, *set),
            Source::Given(Rules::Expression(text)) => match Expr::parse(&text) {
                Ok(expr) => (None, RuleSet::must(expr)),
                Err(source) => return Err(RulesError::Expression { text, source: Box::new(source) }),
            },
            Source::Given(Rules::File(path)) => {
                let (watched, set) = Watched::open(path).await.map_err(|error| RulesError::File(Box::new(error)))?;
                (Some(watched), set)
            }
        };
        let guard = self.guard.unwrap_or_else(|| {
            // Where instances have no liveness of their own, a shorter list is somebody's decision.
            let liveness = self.connection.registry().capabilities().liveness;
            if liveness { GuardOptions::default() } else { GuardOptions::off() }
        });
        let options = Options {
            guard,
            seed: self.seed.unwrap_or_else(rand::random),
            extensions: self.extensions,
            caller: self.caller,
        };
        let selector =
            Selector::new(self.overlay.over(set), options).map_err(|error| RulesError::Unfit(Box::new(error)))?;
        Ok(LiveSelector::start(Start {
            connection: self.connection,
            service: self.service.into(),
            selector,
            watched,
            overlay: self.overlay,
            explains: self.explains,
        }))
    }
}
