//! What metaroute is compared with: a bare axum handler, an axum proxy before it, and MariaDB through a pool: by its own
//! protocol from this process, and behind an axum service that answers the same questions as JSON.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Request, Response, StatusCode, Uri};
use axum::routing::post;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use mysql_async::prelude::Queryable;
use mysql_async::{Opts, OptsBuilder, Pool, PoolConstraints, PoolOpts, Row, Value};

use crate::client::{CONNECTIONS, Load, cpu};
use crate::servers::{Tenants, file};
use crate::wrk::Ask;

/// Serves constants: `/hop/N` reads the body and answers N bytes, for each N of a comma-separated list.
pub async fn hop(sizes: &str) {
    let mut router = axum::Router::new();
    for size in sizes.split(',').map(|size| size.parse::<usize>().expect("a number of bytes")) {
        let answer = Bytes::from(vec![b'x'; size]);
        let handler = move |_: Bytes| {
            let answer = answer.clone();
            async move { ([("content-type", "application/json")], answer) }
        };
        router = router.route(&format!("/hop/{size}"), post(handler));
    }
    serve(router).await;
}

type Upstream = (Client<HttpConnector, Body>, String);

/// Passes everything on to another address.
pub async fn proxy(to: &str) {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Client<HttpConnector, Body> = Client::builder(TokioExecutor::new()).build(connector);
    let router = axum::Router::new().fallback(pass_on).with_state((client, to.to_owned()));
    serve(router).await;
}

async fn pass_on(State((client, to)): State<Upstream>, mut request: Request<Body>) -> Response<Body> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = format!("http://{to}{path}").parse::<Uri>().expect("an address and a path");
    client.request(request).await.expect("the upstream answers").map(Body::new)
}

/// Answers the benchmark's questions from MariaDB: what a service in front of it would do, without anything around it.
pub async fn maria(url: &str) {
    serve(axum::Router::new().route("/maria", post(from_maria)).with_state(pool(url))).await;
}

async fn from_maria(State(pool): State<Pool>, body: Bytes) -> Response<Body> {
    match rows_as_json(&pool, &body).await {
        Ok(json) => Response::builder().header("content-type", "application/json").body(Body::from(json)),
        Err(error) => {
            eprintln!("{error}");
            Response::builder().status(StatusCode::INTERNAL_SERVER_ERROR).body(Body::empty())
        }
    }
    .expect("a legal response")
}

type Columns = (u64, u64, String, Option<u64>, Option<String>, Value, Value);

async fn rows_as_json(pool: &Pool, body: &[u8]) -> Result<String, Box<dyn std::error::Error>> {
    use std::fmt::Write;
    let asked: serde_json::Value = serde_json::from_slice(body)?;
    let user = asked["user_id"].as_u64().ok_or("no user")?;
    let mut connected = pool.get_conn().await?;
    // Prepared statements are kept by the connection.
    let rows: Vec<Columns> = match asked["file_id"].as_u64() {
        Some(id) => connected.exec(sql(Ask::Point), (id, user)).await?,
        None => connected.exec(sql(Ask::Page), (user,)).await?,
    };
    let mut json = String::with_capacity(100 + rows.len() * 220);
    json.push_str("{\"rows\":[");
    for (at, (id, user, path, size, mime, created, updated)) in rows.iter().enumerate() {
        let comma = if at > 0 { "," } else { "" };
        let (path, mime) = (serde_json::to_string(path)?, serde_json::to_string(mime)?);
        write!(json, "{comma}{{\"file_id\":\"{id}\",\"user_id\":\"{user}\",\"path\":{path},\"mime\":{mime},\"size\":")?;
        match size {
            Some(size) => write!(json, "\"{size}\"")?,
            None => json.push_str("null"),
        }
        for (name, time) in [("created_at", created), ("updated_at", updated)] {
            match time {
                Value::Date(year, month, day, hour, minute, second, micros) => write!(
                    json,
                    ",\"{name}\":\"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z\""
                )?,
                _ => write!(json, ",\"{name}\":null")?,
            }
        }
        json.push('}');
    }
    json.push_str("]}");
    Ok(json)
}

async fn serve(router: axum::Router) {
    use axum::serve::ListenerExt;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("ready http://{}", listener.local_addr().expect("bound"));
    let listener = listener.tap_io(|stream| stream.set_nodelay(true).expect("set"));
    axum::serve(listener, router).await.expect("serves");
}

fn sql(ask: Ask) -> String {
    match ask {
        Ask::Point => format!("SELECT {COLUMNS} FROM file_metadata WHERE file_id = ? AND user_id = ?"),
        Ask::Page => format!(
            "SELECT {COLUMNS} FROM file_metadata WHERE user_id = ? ORDER BY created_at DESC, file_id DESC LIMIT 100"
        ),
    }
}

/// As many TCP connections as the load has.
fn pool(url: &str) -> Pool {
    let limits = PoolConstraints::new(CONNECTIONS as usize, CONNECTIONS as usize).expect("legal");
    let opts = OptsBuilder::from_opts(Opts::from_url(url).expect("legal"))
        .prefer_socket(false)
        .tcp_nodelay(true)
        .pool_opts(PoolOpts::default().with_constraints(limits).with_reset_connection(false));
    Pool::new(opts)
}

/// MariaDB with the rows in it.
pub struct Maria {
    database: test_support::mariadb::MariaDb,
    pool: Pool,
}

const COLUMNS: &str = "file_id, user_id, path, size, mime, created_at, updated_at";

impl Maria {
    /// Starts one and fills it; `None` where the machine has none.
    pub async fn start(rows: u64) -> Option<Maria> {
        let options = ["--innodb-buffer-pool-size=1G", "--innodb-flush-log-at-trx-commit=2", "--skip-log-bin"];
        let database = match test_support::mariadb::MariaDb::start(&options) {
            Ok(database) => database,
            Err(missing) => {
                eprintln!("no MariaDB: {missing}");
                return None;
            }
        };
        database.sql(
            "CREATE TABLE file_metadata (file_id BIGINT UNSIGNED PRIMARY KEY, user_id BIGINT UNSIGNED NOT NULL,
             path VARCHAR(512) NOT NULL, size BIGINT UNSIGNED, mime VARCHAR(100), content_hash VARBINARY(64),
             created_at DATETIME(6), updated_at DATETIME(6), KEY user_time (user_id, created_at))",
        );
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.tsv");
        {
            use std::io::Write;
            let mut out = std::io::BufWriter::new(std::fs::File::create(&path).expect("a file"));
            for id in 0..rows {
                let f = file(id);
                writeln!(
                    out,
                    "{}\t{}\t{}\t{}\t{}\t\\N\t{}\t{}",
                    f.id,
                    f.user,
                    f.path,
                    f.size,
                    f.mime,
                    f.created.trim_end_matches('Z'),
                    f.updated.trim_end_matches('Z')
                )
                .expect("written");
            }
            out.flush().expect("written");
        }
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("set");
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("set");
        database.sql(&format!(
            "LOAD DATA INFILE '{}' INTO TABLE file_metadata; ANALYZE TABLE file_metadata",
            path.display()
        ));
        let pool = pool(&database.url());
        Some(Maria { database, pool })
    }

    pub fn url(&self) -> String {
        self.database.url()
    }

    pub fn pid(&mut self) -> u32 {
        self.database.server().id().expect("it runs")
    }

    /// Asks for single rows or for pages of 100 for a while.
    pub async fn load(&mut self, ask: Ask, tenants: Tenants, time: Duration) -> Load {
        let pids = [self.pid()];
        let (begun, before) = (Instant::now(), cpu(&pids));
        let tasks: Vec<_> = (0..CONNECTIONS)
            .map(|connection| {
                let pool = self.pool.clone();
                tokio::spawn(async move {
                    let mut connected = pool.get_conn().await.expect("a connection");
                    let statement = connected.prep(sql(ask)).await.expect("legal");
                    let mut took = Vec::new();
                    let mut n = connection << 32;
                    while begun.elapsed() < time {
                        n += 1;
                        let (id, user) = tenants.pick(n);
                        let sent = Instant::now();
                        let rows: Vec<Row> = match ask {
                            Ask::Point => connected.exec(&statement, (id, user)).await.expect("answered"),
                            Ask::Page => connected.exec(&statement, (user,)).await.expect("answered"),
                        };
                        took.push(sent.elapsed());
                        assert_eq!(rows.len(), if ask == Ask::Point { 1 } else { 100 });
                    }
                    took
                })
            })
            .collect();
        let mut took = Vec::new();
        for task in tasks {
            took.append(&mut task.await.expect("no panic"));
        }
        Load::of(took, begun.elapsed(), cpu(&pids) - before)
    }

    /// Counts by a full scan: how many, and how long it took.
    pub async fn scan(&mut self) -> (u64, Duration, Duration) {
        let pids = [self.pid()];
        let mut connected = self.pool.get_conn().await.expect("a connection");
        let sql =
            "SELECT COUNT(*) FROM file_metadata IGNORE INDEX (user_time) WHERE size > 500000 AND mime = 'image/png'";
        let (begun, before) = (Instant::now(), cpu(&pids));
        let count: u64 = connected.query_first(sql).await.expect("answered").expect("one row");
        (count, begun.elapsed(), cpu(&pids) - before)
    }
}

/// An address from the line a server prints.
pub fn address(line: &str) -> SocketAddr {
    let (_, address) = line.trim().split_once("://").unwrap_or_else(|| panic!("`{line}` has no address"));
    address.parse().expect("an address")
}
