//! The HTTP side of the fake server: logins, and the client interfaces of versions 1 and 3.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::fake::{Beat, Key, Shared, check, key};

pub(super) fn app(shared: Arc<Shared>) -> Router {
    Router::new().fallback(answer).with_state(shared)
}

/// Query and form together, as Java's servlets see them.
fn parameters(query: HashMap<String, String>, body: &Bytes) -> HashMap<String, String> {
    let mut all = query;
    let text = String::from_utf8_lossy(body);
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        all.insert(decode(name), decode(value));
    }
    all
}

fn decode(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let digits = [bytes.next().unwrap_or(b'0'), bytes.next().unwrap_or(b'0')];
                out.push(u8::from_str_radix(&String::from_utf8_lossy(&digits), 16).unwrap_or(b'?'));
            }
            other => out.push(other),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let manners = shared.manners().clone();
    let p = parameters(query, &body);
    let Some(path) = uri.path().strip_prefix("/nacos") else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let login = match path {
        "/v3/auth/user/login" => Some(manners.login_paths.0),
        "/v1/auth/users/login" => Some(manners.login_paths.1),
        _ => None,
    };
    match login {
        Some(true) if method == Method::POST => {
            let given = (p.get("username").map(String::as_str), p.get("password").map(String::as_str));
            if manners.login.is_some_and(|(user, password)| given != (Some(user), Some(password))) {
                return (StatusCode::FORBIDDEN, "unknown user!").into_response();
            }
            let token = shared.state().log_in(manners.token_ttl);
            return Json(json!({"accessToken": token, "tokenTtl": manners.token_ttl.as_secs(), "globalAdmin": true}))
                .into_response();
        }
        Some(_) => return StatusCode::NOT_FOUND.into_response(),
        None => {}
    }
    if path.starts_with("/v2/") {
        // Switched off by default in 3.1.
        let text = "{\"code\":40000,\"message\":\"Current API will be deprecated, set nacos.core.api.compatibility.admin.enabled=true\"}";
        return (StatusCode::GONE, text).into_response();
    }
    if manners.login.is_some() {
        let bearer = headers.get("authorization").and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let header = headers.get("accesstoken").and_then(|value| value.to_str().ok());
        let token = bearer.or(header).or(p.get("accessToken").map(String::as_str)).unwrap_or_default();
        if !shared.state().is_token(token) {
            return (StatusCode::FORBIDDEN, "token expired!").into_response();
        }
    }
    let (v3, v1) = (manners.http.1, manners.http.0);
    match (method.as_str(), path) {
        ("POST", "/v3/client/ns/instance") if v3 => {
            if p.get("heartBeat").is_some_and(|beat| beat == "true") {
                return match beat(&shared, &p, 3) {
                    true => envelope(0, "success", json!("ok")),
                    false => envelope(21003, "instance not found", Value::Null),
                };
            }
            if !p.contains_key("ip") {
                let body = json!({"code": 10000, "message": "parameter missing", "data": "Required parameter 'ip' type String is not present"});
                return (StatusCode::BAD_REQUEST, Json(body)).into_response();
            }
            match register(&shared, &p, manners.metadata_limit) {
                Ok(()) => envelope(0, "success", json!("ok")),
                Err(why) => (StatusCode::BAD_REQUEST, why).into_response(),
            }
        }
        ("DELETE", "/v3/client/ns/instance") if v3 => {
            deregister(&shared, &p);
            envelope(0, "success", json!("ok"))
        }
        ("GET", "/v3/client/ns/instance/list") if v3 => {
            let (service, clusters) = (service(&p), text(&p, "clusterName"));
            let healthy = p.get("healthyOnly").is_some_and(|only| only == "true");
            let mut info = shared.state().info(&service, clusters, true, healthy);
            let hosts = info["hosts"].take();
            let hosts: Vec<Value> = hosts.as_array().cloned().unwrap_or_default().into_iter().map(without_id).collect();
            envelope(0, "success", hosts.into())
        }
        ("PUT", "/v1/ns/instance") if v1 => match overlay(&shared, &p) {
            true => "ok".into_response(),
            false => {
                (StatusCode::NOT_FOUND, Json(json!({"code": 20004, "message": "resource not found", "data": null})))
                    .into_response()
            }
        },
        ("PUT", "/v3/admin/ns/instance") if v3 => match overlay(&shared, &p) {
            true => envelope(0, "success", json!("ok")),
            false => {
                (StatusCode::NOT_FOUND, Json(json!({"code": 20004, "message": "resource not found", "data": null})))
                    .into_response()
            }
        },
        ("POST", "/v1/ns/instance") if v1 => match register(&shared, &p, manners.metadata_limit) {
            Ok(()) => "ok".into_response(),
            Err(why) => (StatusCode::BAD_REQUEST, why).into_response(),
        },
        ("DELETE", "/v1/ns/instance") if v1 => {
            deregister(&shared, &p);
            "ok".into_response()
        }
        ("PUT", "/v1/ns/instance/beat") if v1 => match beat(&shared, &p, 1) {
            true => Json(json!({"clientBeatInterval": 5000, "code": 10200, "lightBeatEnabled": true})).into_response(),
            false => Json(json!({"clientBeatInterval": 5000, "code": 20404, "lightBeatEnabled": true})).into_response(),
        },
        ("GET", "/v1/ns/instance/list") if v1 => {
            let healthy = p.get("healthyOnly").is_some_and(|only| only == "true");
            let mut info = shared.state().info(&service(&p), text(&p, "clusters"), true, healthy);
            let name = format!("{}@@{}", service(&p).1, service(&p).2);
            info["name"] = name.into();
            let all = info["allIPs"].take();
            info["allIps"] = all;
            Json(info).into_response()
        }
        ("GET", "/v1/ns/service/list") if v1 => {
            let all: Vec<String> = shared.state().services(&service(&p).0, &service(&p).1).into_iter().collect();
            let number = |name: &str| p.get(name).and_then(|text| text.parse::<usize>().ok()).unwrap_or(1);
            let (page, size) = (number("pageNo"), number("pageSize"));
            let names: Vec<&String> = all.iter().skip((page - 1) * size).take(size).collect();
            Json(json!({"count": all.len(), "doms": names})).into_response()
        }
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

fn envelope(code: i64, message: &str, data: Value) -> Response {
    Json(json!({"code": code, "message": message, "data": data})).into_response()
}

fn without_id(mut host: Value) -> Value {
    if let Some(map) = host.as_object_mut() {
        map.remove("instanceId");
    }
    host
}

fn text<'a>(p: &'a HashMap<String, String>, name: &str) -> &'a str {
    p.get(name).map(String::as_str).unwrap_or_default()
}

fn service(p: &HashMap<String, String>) -> Key {
    let name = text(p, "serviceName");
    match name.split_once("@@") {
        Some((group, name)) => key(text(p, "namespaceId"), group, name),
        None => key(text(p, "namespaceId"), text(p, "groupName"), name),
    }
}

fn place(p: &HashMap<String, String>) -> (String, i64, String) {
    let cluster = match (text(p, "clusterName"), text(p, "cluster")) {
        ("", "") => "DEFAULT",
        ("", cluster) | (cluster, _) => cluster,
    };
    (text(p, "ip").to_owned(), text(p, "port").parse().unwrap_or_default(), cluster.to_owned())
}

fn register(shared: &Shared, p: &HashMap<String, String>, limit: usize) -> Result<(), String> {
    let service = service(p);
    let (ip, port, cluster) = place(p);
    let weight: f64 = p.get("weight").and_then(|weight| weight.parse().ok()).unwrap_or(1.0);
    if !(0.0..=10_000.0).contains(&weight) {
        return Err("instance format invalid: The weights range from 0 to 10000".into());
    }
    let metadata: Value = match text(p, "metadata") {
        "" => json!({}),
        text => serde_json::from_str(text).map_err(|_| "instance format invalid".to_owned())?,
    };
    let ephemeral = p.get("ephemeral").is_none_or(|ephemeral| ephemeral != "false");
    let instance = json!({
        "instanceId": format!("{ip}#{port}#{cluster}#{}@@{}", service.1, service.2),
        "ip": ip, "port": port, "weight": weight, "healthy": true,
        "enabled": p.get("enabled").is_none_or(|enabled| enabled != "false"),
        "ephemeral": ephemeral, "clusterName": cluster,
        "serviceName": format!("{}@@{}", service.1, service.2), "metadata": metadata,
        "instanceHeartBeatInterval": 5000, "instanceHeartBeatTimeOut": 15000, "ipDeleteTimeout": 30000,
    });
    check(limit, &service, &instance)?;
    let mut state = shared.state();
    if ephemeral {
        let place = format!("{ip}:{port}:{cluster}");
        state.beats.insert((service.clone(), place), Beat { instance, last: Instant::now() });
        state.touch(&service);
    } else {
        state.keep(&service, instance);
    }
    Ok(())
}

/// What an operator sets lies over what is registered; its metadata is merged.
fn overlay(shared: &Shared, p: &HashMap<String, String>) -> bool {
    let service = service(p);
    let (ip, port, _) = place(p);
    let mut what = serde_json::Map::new();
    for (name, value) in [("weight", p.get("weight")), ("enabled", p.get("enabled")), ("metadata", p.get("metadata"))] {
        if let Some(value) = value.and_then(|text| serde_json::from_str::<Value>(text).ok()) {
            what.insert(name.to_owned(), value);
        }
    }
    shared.state().lay_over(&service, &ip, port, what)
}

fn deregister(shared: &Shared, p: &HashMap<String, String>) {
    let service = service(p);
    let (ip, port, cluster) = place(p);
    let mut state = shared.state();
    if p.get("ephemeral").is_some_and(|ephemeral| ephemeral == "false") {
        state.let_go(&service, &ip, port);
        return;
    }
    state.beats.remove(&(service.clone(), format!("{ip}:{port}:{cluster}")));
    state.touch(&service);
}

fn beat(shared: &Shared, p: &HashMap<String, String>, version: u8) -> bool {
    let service = service(p);
    let (mut ip, mut port, mut cluster) = place(p);
    // Version 1 carries it in a JSON of its own as well.
    if version == 1
        && let Ok(beat) = serde_json::from_str::<Value>(text(p, "beat"))
    {
        ip = beat["ip"].as_str().unwrap_or(&ip).to_owned();
        port = beat["port"].as_i64().unwrap_or(port);
        cluster = beat["cluster"].as_str().unwrap_or(&cluster).to_owned();
    }
    let mut state = shared.state();
    let key = (service.clone(), format!("{ip}:{port}:{cluster}"));
    let Some(found) = state.beats.get_mut(&key) else { return false };
    found.last = Instant::now();
    let was = std::mem::replace(&mut found.instance["healthy"], true.into());
    if was != true {
        state.touch(&service);
    }
    true
}
