//! The roles as running servers: everything in one process, one shard, one router.
//!
//! Each is built from checked configuration, says when it is ready, and stops in order: not ready first, then nothing
//! new, then what has begun is finished, then stores are flushed and closed.

mod find;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router as HttpRouter;
use axum::body::Body;
use axum::http::Response;
use axum::routing::get;
use metaroute_cluster::client::{GrpcShards, ShardService};
use metaroute_cluster::cursor::CursorKeys;
use metaroute_cluster::protocol::{Shard, ShardId, WorkBudget};
use metaroute_cluster::replicas::{self, Replicas};
use metaroute_cluster::router::{RouterOptions, Stamps};
use metaroute_cluster::topology::{FileStore, Watcher};
use metaroute_cluster::versions::HybridClock;
use metaroute_cluster::{Router, wire};
use metaroute_core::Address;
use metaroute_registry::{ConfigError, Registration, Registry};
use metaroute_store::{OpenOptions, PoolSize};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::server::TcpIncoming;

use crate::api::Beside;
use crate::api::problem::Problem;
use crate::config::{RouterConfig, ShardConfig};
use crate::local::{Local, LocalOptions, OpenError};
use crate::serve::serve_http;
use crate::service::{Service, ServiceOptions};
use crate::shard::{ShardHost, with_causes};
use crate::stores;

/// Why a role could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RoleError {
    /// Its configuration, or a file it names, cannot be used.
    #[error("{0}")]
    Config(ConfigError),
    /// It cannot listen.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Its registry is not part of this build, or read-only.
    #[error("registry: {0}")]
    Registry(String),
    /// The keys that seal cursors cannot be used.
    #[error("cursor keys: {0}")]
    Keys(String),
    /// The data folder cannot be used.
    #[error("the data folder cannot be used")]
    Open(#[source] OpenError),
}

/// Everything in one process over a data folder.
#[derive(Clone, Debug)]
pub struct Standalone {
    local: Arc<Local>,
    service: Arc<Service>,
}

impl Standalone {
    /// Opens a data folder, its shards and a router over them. Shards open in the background; [`Local::opened`] waits.
    ///
    /// # Errors
    /// When the folder cannot be used.
    pub async fn open(options: LocalOptions, service: ServiceOptions) -> Result<Standalone, OpenError> {
        let local = Local::open(options).await?;
        let keys = local.cursor_keys()?;
        let data = local.data().to_owned();
        let clock = HybridClock::new(local.clock_bound()?, move |bound| {
            Local::store_clock_bound(&data, bound).map_err(|error| error.to_string())
        });
        let stamps: Stamps = Arc::new(move |count| clock.next(count));
        let options = RouterOptions { stamps: Some(stamps), ..RouterOptions::default() };
        let client = Arc::new(local.clients().clone());
        let router = Router::new(local.watcher().clone(), local.replicas().clone(), client, keys, options);
        let topology = Arc::new(local.topology_store().clone());
        let stores = local.stores().to_vec();
        let service = Service::new(router, stores, topology, Some(Arc::clone(&local)), service);
        Ok(Standalone { local, service })
    }

    /// The shards.
    pub fn local(&self) -> &Arc<Local> {
        &self.local
    }

    /// What the HTTP API stands on.
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// Finishes what has begun, flushes and closes the stores.
    pub async fn shutdown(&self, within: Duration) {
        self.service.drain();
        self.local.shutdown(within).await;
    }
}

/// A shard process.
#[derive(Debug)]
pub struct ShardRole {
    host: ShardHost,
    address: SocketAddr,
    http: Option<SocketAddr>,
    registry: Option<Registry>,
    /// Leaves the registry when it is told to stop, and ends then.
    registered: Option<JoinHandle<()>>,
    leave: watch::Sender<bool>,
    drain: Duration,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

/// How long leaving a registry may take; an entry that stays is found out by the first who asks.
const LEAVE_WITHIN: Duration = Duration::from_secs(3);

impl ShardRole {
    /// Binds, then opens the store in the background; routers hear `LOADING` until it is open.
    ///
    /// # Errors
    /// When it cannot listen or its configuration names what cannot be used.
    pub async fn start(config: ShardConfig) -> Result<ShardRole, RoleError> {
        let stores = match &config.stores {
            Some(path) => stores::with_built_in(stores::read(path).map_err(RoleError::Config)?),
            None => stores::with_built_in(Vec::new()),
        };
        let id = ShardId::new(config.group.as_str(), config.shard.as_str());
        let registry = match &config.registry {
            None => None,
            Some(url) => {
                let registry = Registry::connect(url).map_err(|error| RoleError::Registry(error.to_string()))?;
                registry.capabilities().register.then_some(registry)
            }
        };
        let listener = listen(config.listen).await?;
        let address = local_address(&listener, config.listen)?;
        let (watcher, feeding) = Watcher::start(Arc::new(FileStore::new(&config.topology)));
        let mut tasks = vec![tokio::spawn(feeding)];
        let host = ShardHost::new(id.clone(), watcher.clone());
        let (stop, stopped) = watch::channel(false);
        tasks.push(tokio::spawn(serve_grpc(listener, Arc::new(host.clone()), stopped.clone())));
        let http = match config.http {
            None => None,
            Some(address) => {
                let listener = listen(address).await?;
                let bound = local_address(&listener, address)?;
                tasks.push(tokio::spawn(serve_http(listener, probes(host.clone(), watcher.clone()), stopped)));
                Some(bound)
            }
        };
        let (leave, leaving) = watch::channel(false);
        let mut registered = None;
        if let Some(registry) = &registry {
            let advertised = config.advertise.clone().unwrap_or_else(|| address.to_string());
            let advertised: Address =
                advertised.parse().map_err(|error| RoleError::Registry(format!("{advertised}: {error}")))?;
            let keeping = keep_registered(registry.clone(), advertised, host.clone(), config.zone.clone(), leaving);
            registered = Some(tokio::spawn(keeping));
        }
        let options = OpenOptions {
            durability: config.durability,
            cache_bytes: config.cache_bytes,
            points: PoolSize { threads: config.point_threads, queue: 1_024 },
            scans: PoolSize { threads: config.scan_threads, queue: 256 },
            ..OpenOptions::default()
        };
        let opening = host.clone();
        tasks.push(tokio::spawn(async move {
            if let Err(error) = opening.open(config.data, options, &stores).await {
                tracing::error!(error = with_causes(&error), "the shard did not start");
            }
        }));
        Ok(ShardRole { host, address, http, registry, registered, leave, drain: config.drain, stop, tasks })
    }

    /// Where routers reach it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where its probes answer.
    pub fn http(&self) -> Option<SocketAddr> {
        self.http
    }

    /// The shard itself.
    pub fn host(&self) -> &ShardHost {
        &self.host
    }

    /// Leaves the registry, finishes what has begun, flushes and closes the store. While it leaves it answers: routers
    /// hear of it later than it does.
    pub async fn shutdown(self) {
        let deadline = Instant::now() + self.drain;
        self.leave.send_replace(true);
        if let Some(registered) = self.registered
            && tokio::time::timeout(LEAVE_WITHIN + Duration::from_secs(1), registered).await.is_err()
        {
            tracing::warn!("the registry may still list this shard");
        }
        if let Some(registry) = &self.registry {
            registry.shutdown(Duration::from_secs(2)).await;
        }
        self.host.drain(deadline).await;
        self.stop.send_replace(true);
        for task in self.tasks {
            task.abort();
        }
    }
}

async fn serve_grpc(listener: TcpListener, shard: Arc<dyn Shard>, mut stop: watch::Receiver<bool>) {
    let service = ShardService::server(shard);
    // The server's own `tcp_nodelay` is for listeners that it binds itself. Without it an answer's second packet waits for
    // the acknowledgement of the first, which the asker delays by 40 ms.
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let stopped = async move {
        // An error means that the sender is gone, which is a stop too.
        let _ = stop.wait_for(|stop| *stop).await;
    };
    let served =
        tonic::transport::Server::builder().add_service(service).serve_with_incoming_shutdown(incoming, stopped).await;
    if let Err(error) = served {
        tracing::error!(error = with_causes(&error), "the shard's listener ended");
    }
}

/// Keeps the copy registered while it is ready, and only then: an entry that cannot answer costs every router a question.
async fn keep_registered(
    registry: Registry,
    address: Address,
    host: ShardHost,
    zone: Option<String>,
    mut leave: watch::Receiver<bool>,
) {
    let mut condition = host.watch();
    let mut registration: Option<Registration> = None;
    loop {
        let state = condition.borrow_and_update().state;
        match (state.is_ready(), registration.take()) {
            (true, None) => {
                let instance = replicas::instance(address.clone(), host.id(), state, zone.as_deref());
                match registry.register(replicas::SERVICE, instance) {
                    Ok(new) => registration = Some(new),
                    Err(error) => tracing::error!(%error, "the shard is not registered"),
                }
            }
            (false, Some(old)) => old.deregister().await,
            (_, kept) => registration = kept,
        }
        tokio::select! {
            changed = condition.changed() => {
                if changed.is_ok() {
                    continue;
                }
            }
            // An error means that nobody can say so any more.
            _ = leave.wait_for(|leave| *leave) => {}
        }
        if let Some(registration) = registration {
            registration.drain(LEAVE_WITHIN).await;
        }
        return;
    }
}

fn probes(host: ShardHost, watcher: Watcher) -> HttpRouter {
    let ready = host.clone();
    HttpRouter::new()
        .route("/livez", get(|| async { plain("application/json", "{\"status\":\"ok\"}") }))
        .route(
            "/readyz",
            get(move || {
                let condition = ready.condition();
                async move {
                    if condition.state.is_ready() {
                        return plain("application/json", "{\"status\":\"ready\"}");
                    }
                    let status = axum::http::StatusCode::SERVICE_UNAVAILABLE;
                    Problem::new(status, "not_ready", condition.to_string()).response()
                }
            }),
        )
        .route("/metrics", get(move || metrics_page(host.clone(), watcher.clone())))
        .fallback(|| async { Problem::not_found("a shard answers probes here and routers elsewhere").response() })
}

#[derive(Debug)]
struct OneShard(ShardHost, Watcher);

impl prometheus_client::collector::Collector for OneShard {
    fn encode(&self, encoder: prometheus_client::encoding::DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let epoch = self.1.topology().map_or(0, |topology| topology.epoch());
        crate::metrics::encode_shards(encoder, std::slice::from_ref(&self.0), epoch)
    }
}

async fn metrics_page(host: ShardHost, watcher: Watcher) -> Response<Body> {
    let page = tokio::task::spawn_blocking(move || {
        let mut registry = prometheus_client::registry::Registry::with_prefix("metaroute");
        registry.register_collector(Box::new(OneShard(host, watcher)));
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).map(|()| page)
    });
    match page.await {
        Ok(Ok(page)) => plain("application/openmetrics-text; version=1.0.0; charset=utf-8", page),
        _ => Problem::internal("the metrics cannot be written").response(),
    }
}

fn plain(kind: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    let kind = axum::http::HeaderValue::from_static(kind);
    response.headers_mut().insert(axum::http::header::CONTENT_TYPE, kind);
    response
}

/// A router process.
#[derive(Debug)]
pub struct RouterRole {
    address: SocketAddr,
    service: Arc<Service>,
    drain: Duration,
    registry: Option<Registry>,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
    tasks: Vec<JoinHandle<()>>,
}

impl RouterRole {
    /// Binds and begins to answer. `beside` says what it answers besides rows, given its registry.
    ///
    /// # Errors
    /// When it cannot listen or its configuration names what cannot be used.
    pub async fn start(
        config: RouterConfig,
        beside: impl AsyncFnOnce(Option<Registry>) -> Beside,
    ) -> Result<RouterRole, RoleError> {
        let stores = match &config.stores {
            Some(path) => stores::with_built_in(stores::read(path).map_err(RoleError::Config)?),
            None => stores::with_built_in(Vec::new()),
        };
        let keys = if config.cursor_keys.is_empty() {
            CursorKeys::in_file(&config.cursor_key_file)
        } else {
            CursorKeys::from_hex(config.cursor_keys.iter().map(String::as_str))
        };
        let keys = keys.map_err(|error| RoleError::Keys(with_causes(&error)))?;
        let registry = match &config.registry {
            None => None,
            Some(url) => Some(Registry::connect(url).map_err(|error| RoleError::Registry(error.to_string()))?),
        };
        let listener = listen(config.listen).await?;
        let address = local_address(&listener, config.listen)?;
        let topology = Arc::new(FileStore::new(&config.topology));
        let (watcher, feeding) = Watcher::start(topology.clone());
        let mut tasks = vec![tokio::spawn(feeding)];
        let copies = Replicas::new(config.zone.as_deref(), seed());
        let client = GrpcShards::new();
        tasks.push(match &registry {
            Some(registry) => {
                let subscription = registry.subscribe(replicas::SERVICE);
                tokio::spawn(find::in_registry(subscription, copies.clone(), client.clone()))
            }
            None => tokio::spawn(find::in_topology(watcher.clone(), copies.clone(), client.clone())),
        });
        let options = RouterOptions {
            budget: WorkBudget { entries: config.work_budget, ..WorkBudget::default() },
            merge_bytes: config.merge_bytes,
            hedge: config.hedge,
            global_queries: config.global_queries,
            ..RouterOptions::default()
        };
        let router = Router::new(watcher, copies, Arc::new(client), keys, options);
        let options = ServiceOptions {
            timeout: config.timeout,
            slow_log: config.slow_log,
            requests: config.requests,
            ..ServiceOptions::default()
        };
        let service = Service::new(router, stores, topology, None, options);
        let (stop, stopped) = watch::channel(false);
        let http = crate::api::standalone(Arc::clone(&service), beside(registry.clone()).await);
        let serving = tokio::spawn(serve_http(listener, http, stopped));
        Ok(RouterRole { address, service, drain: config.drain, registry, stop, serving, tasks })
    }

    /// Where clients reach it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What the HTTP API stands on.
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// Says not ready, finishes what has begun, ends.
    pub async fn shutdown(self) {
        self.service.drain();
        self.stop.send_replace(true);
        if tokio::time::timeout(self.drain, self.serving).await.is_err() {
            tracing::warn!("requests were still open at the end");
        }
        for task in self.tasks {
            task.abort();
        }
        if let Some(registry) = &self.registry {
            registry.shutdown(Duration::from_secs(1)).await;
        }
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, RoleError> {
    TcpListener::bind(address).await.map_err(|source| RoleError::Listen { address, source })
}

fn local_address(listener: &TcpListener, asked: SocketAddr) -> Result<SocketAddr, RoleError> {
    listener.local_addr().map_err(|source| RoleError::Listen { address: asked, source })
}

/// Routers that pick in step would all ask the same copy at once.
fn seed() -> u64 {
    rand::random()
}

// The size of a batch between processes is the wire's; a shard's own batches are made to fit it.
const _: () = assert!(wire::BATCH_BYTES < wire::MESSAGE_BYTES_MAX);

#[cfg(test)]
mod tests;
