//! Balances real gRPC servers by metadata with `tonic`, and goes on when one of them dies.
//!
//! Three `tonic` servers of different versions start on free ports; a fleet file names them. The rules file wants
//! version 2.3 or later for everybody, and sends requests with the header `x-lane: canary` to the canary. Then a server
//! dies, without a word in the file: its connection is found closed and a new one is refused, both before a request is
//! sent, so requests move on to the other one. At last the fleet file is edited while everything runs.
//!
//! The generated client of a `.proto` file takes the route in the same place: `GreeterClient::new(route)`. This example
//! writes the messages and the two ends by hand, to need no compiler for them.
//!
//! ```text
//! cargo run -p metaroute --example tonic_greeter
//! ```
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http;
use hyper_util::rt::{TokioExecutor, TokioIo};
use metaroute::route::{BoxError, Route};
use metaroute::{Instance, LiveSelector};
use tokio::runtime::Runtime;
use tonic::body::Body;
use tonic_prost::ProstCodec;
use tower::Service;

pub(crate) fn main() -> Result<(), BoxError> {
    let mut servers = [Server::start("old")?, Server::start("stable")?, Server::start("canary")?];
    let folder = tempfile::tempdir()?;
    let fleet = folder.path().join("fleet.yaml");
    let rules = folder.path().join("rules.yaml");
    let versions = ["2.2", "2.3", "2.10"];
    write_fleet(&fleet, servers.iter().zip(versions))?;
    std::fs::write(&rules, RULES)?;

    Runtime::new()?.block_on(async {
        let url = format!("file:{}", fleet.display());
        let greeter = metaroute::connect(&url)?.service("greeter").rules_file(&rules).start().await?;
        greeter.ready(Duration::from_secs(5)).await?;

        let route = Route::builder(greeter.clone(), |instance: Instance| Http2::connect(instance.address.to_string()))
            .context(|greeter, request: &http::Request<Body>| {
                let lane = request.headers().get("x-lane").and_then(|lane| lane.to_str().ok());
                greeter.request(lane.map(|lane| ("lane", lane)))
            })
            .build();

        let answers = greet(&route, "", 100).await;
        println!("all alive:          {answers:?}");
        assert_eq!(answers.keys().collect::<Vec<_>>(), ["canary", "stable"], "only versions from 2.3 on");

        let answers = greet(&route, "canary", 50).await;
        println!("the canary's lane:  {answers:?}");
        assert_eq!(answers.keys().collect::<Vec<_>>(), ["canary"]);

        servers[2].die();
        let answers = greet(&route, "", 100).await;
        println!("`canary` died:      {answers:?}");
        // At most the request that was under way on its connection when it died is lost.
        assert!(answers.get("stable").is_some_and(|answered| *answered >= 99), "{answers:?}");
        println!("counted:            {:?}", route.counters());

        write_fleet(&fleet, servers.iter().zip(["2.4", "2.3"]))?;
        until_usable(&greeter, 2).await?;
        let answers = greet(&route, "", 100).await;
        println!("`old` was upgraded: {answers:?}");
        assert_eq!(answers.keys().collect::<Vec<_>>(), ["old", "stable"]);

        assert!(greeter.shutdown(Duration::from_secs(5)).await);
        Ok::<_, BoxError>(())
    })?;
    servers.iter_mut().for_each(Server::die);
    Ok(())
}

const RULES: &str = "
version: 1
rules:
  - {name: version, match: version >= 2.3, terminal: fail}
  - {name: lane, match: lane == $req.lane?, mode: prefer, terminal: any}
ejection: {consecutive_failures: 3}
";

fn write_fleet<'a>(path: &Path, servers: impl Iterator<Item = (&'a Server, &'a str)>) -> std::io::Result<()> {
    let mut text = "services:\n- name: greeter\n  instances:\n".to_owned();
    for (Server { name, address, .. }, version) in servers {
        text.push_str(&format!(
            "  - {{id: {name}, address: '{address}', metadata: {{version: '{version}', lane: {name}}}}}\n"
        ));
    }
    let beside = path.with_extension("new");
    std::fs::write(&beside, text)?;
    std::fs::rename(beside, path)
}

/// Waits until the list has so many instances.
async fn until_usable(greeter: &LiveSelector, instances: usize) -> Result<(), BoxError> {
    let mut revisions = greeter.revisions();
    let wait = async {
        while greeter.status().instances != instances {
            revisions.changed().await?;
        }
        Ok(())
    };
    tokio::time::timeout(Duration::from_secs(10), wait).await?
}

/// Greets so many times, some hundred times a second, and counts who answered; errors count under their text.
async fn greet(route: &Route<http::Request<Body>, Http2>, lane: &str, times: usize) -> BTreeMap<String, usize> {
    // The origin gives requests a scheme and an authority; which server it is, the route decides.
    let origin = http::Uri::from_static("http://greeter");
    let mut client = tonic::client::Grpc::with_origin(route.clone(), origin);
    let mut answers = BTreeMap::new();
    for _ in 0..times {
        let answer = async {
            let mut request = tonic::Request::new(HelloRequest { name: "world".into() });
            if !lane.is_empty() {
                request.metadata_mut().insert("x-lane", lane.parse()?);
            }
            client.ready().await?;
            let codec = ProstCodec::<HelloRequest, HelloReply>::default();
            Ok::<_, BoxError>(client.unary(request, http::uri::PathAndQuery::from_static(PATH), codec).await?)
        };
        let name = match answer.await {
            Ok(reply) => reply.into_inner().server,
            Err(error) => error.to_string(),
        };
        *answers.entry(name).or_default() += 1;
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    answers
}

const PATH: &str = "/example.Greeter/SayHello";

#[derive(Clone, PartialEq, prost::Message)]
struct HelloRequest {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HelloReply {
    #[prost(string, tag = "1")]
    server: String,
}

/// One HTTP/2 connection. It knows before a request is sent that it is closed, so that the route can move on.
#[derive(Clone)]
struct Http2 {
    requests: hyper::client::conn::http2::SendRequest<Body>,
}

impl Http2 {
    async fn connect(address: String) -> Result<Self, BoxError> {
        let stream = tokio::net::TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (requests, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        // It ends when the last handle is dropped or the server goes; what went wrong shows in the requests.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Self { requests })
    }
}

impl Service<http::Request<Body>> for Http2 {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.requests.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.requests.send_request(request))
    }
}

/// The service behind [`PATH`], answering with its own name.
#[derive(Clone)]
struct Greeter(&'static str);

impl tonic::server::NamedService for Greeter {
    const NAME: &'static str = "example.Greeter";
}

impl tonic::server::UnaryService<HelloRequest> for Greeter {
    type Response = HelloReply;
    type Future = std::future::Ready<Result<tonic::Response<HelloReply>, tonic::Status>>;

    fn call(&mut self, _: tonic::Request<HelloRequest>) -> Self::Future {
        std::future::ready(Ok(tonic::Response::new(HelloReply { server: self.0.to_owned() })))
    }
}

impl Service<http::Request<Body>> for Greeter {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let greeter = self.clone();
        Box::pin(async move {
            let codec = ProstCodec::<HelloReply, HelloRequest>::default();
            Ok(tonic::server::Grpc::new(codec).unary(greeter, request).await)
        })
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
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let server = tonic::transport::Server::builder().add_service(Greeter(name));
        runtime.spawn(server.serve_with_incoming(incoming));
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
