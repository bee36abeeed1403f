//! Balances real HTTP servers by metadata with `reqwest`, and goes on when one of them dies.
//!
//! Three `axum` servers of different versions start on free ports and register in a registry inside this process. The
//! client wants version 2.3 or later, prefers its own cluster, and counts who answers. Then one server dies, without a
//! word to the registry: requests to it are refused, which is certain to be before they were sent, so they move on to
//! the other one; after a few failures the dead one is ejected and not tried again.
//!
//! ```text
//! cargo run -p metaroute --example reqwest_fleet
//! ```
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use metaroute::route::{BoxError, Route};
use metaroute::{Connection, EjectionPolicy, Instance, Memory, Outcome, Registry};
use tokio::runtime::Runtime;
use tower::{Service, ServiceExt};

pub(crate) fn main() -> Result<(), BoxError> {
    let mut old = Server::start("old")?;
    let mut first = Server::start("first")?;
    let mut second = Server::start("second")?;

    let registry = Memory::new();
    for (server, version, cluster) in [(&old, "2.2", "hz"), (&first, "2.3", "hz"), (&second, "2.10", "hz")] {
        let instance = Instance::new(server.address.to_string().parse()?).with_id(server.name);
        registry.register("shop", instance.with_meta("version", version).with_cluster(cluster))?;
    }

    Runtime::new()?.block_on(async {
        let shop = Connection::new(Registry::new(registry))
            .service("shop")
            .rules("version >= 2.3")
            .caller("cluster", "hz")
            .prefer_cluster()
            .ejection(EjectionPolicy { consecutive_failures: Some(3), ..EjectionPolicy::default() })
            .start()
            .await?;
        shop.ready(Duration::from_secs(5)).await?;

        let client = reqwest::Client::new();
        let mut route = Route::builder(shop.clone(), move |instance: Instance| {
            let connection = Http { client: client.clone(), base: format!("http://{}", instance.address) };
            std::future::ready(Ok::<_, BoxError>(connection))
        })
        .when_unsent(|path: &String| Some(path.clone()), reqwest::Error::is_connect)
        .outcome(|result| match result {
            Ok(response) if !response.status().is_server_error() => Outcome::Success,
            _ => Outcome::Failure,
        })
        .build();

        let answers = call(&mut route, 100).await;
        println!("all alive:       {answers:?}");
        assert_eq!(answers.len(), 2, "only versions from 2.3 on: {answers:?}");

        first.die();
        let answers = call(&mut route, 100).await;
        println!("`first` died:    {answers:?}");
        // At most the request that was under way on its connection when it died is lost.
        assert!(answers.get("second").is_some_and(|answered| *answered >= 99), "{answers:?}");
        println!("counted:         {:?}", route.counters());

        assert!(shop.shutdown(Duration::from_secs(5)).await);
        Ok::<_, BoxError>(())
    })?;
    old.die();
    second.die();
    Ok(())
}

/// Asks so many times who is there, some hundred times a second, and counts the answers; errors count under their text.
async fn call(route: &mut Route<String, Http>, times: usize) -> BTreeMap<String, usize> {
    let mut answers = BTreeMap::new();
    for _ in 0..times {
        let answer = async {
            let response = route.ready().await?.call("/name".to_owned()).await?;
            Ok::<_, BoxError>(response.text().await?)
        };
        *answers.entry(answer.await.unwrap_or_else(|error| error.to_string())).or_default() += 1;
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    answers
}

/// The client, bound to one instance. A request is a path.
#[derive(Clone)]
struct Http {
    client: reqwest::Client,
    base: String,
}

impl Service<String> for Http {
    type Response = reqwest::Response;
    type Error = reqwest::Error;
    type Future = Pin<Box<dyn Future<Output = Result<reqwest::Response, reqwest::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), reqwest::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, path: String) -> Self::Future {
        Box::pin(self.client.get(format!("{}{path}", self.base)).send())
    }
}

/// A server with a runtime of its own, so that it can die as a process does: all its sockets at once.
struct Server {
    name: &'static str,
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Server {
    fn start(name: &'static str) -> Result<Self, BoxError> {
        let runtime = Runtime::new()?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        let app = Router::new().route("/name", get(move || std::future::ready(name)));
        runtime.spawn(async move { axum::serve(listener, app).await });
        Ok(Self { name, address, runtime: Some(runtime) })
    }

    fn die(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.die();
    }
}
