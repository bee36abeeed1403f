//! The web console: static files that are part of the binary and use the public API alone.
//!
//! A console from somewhere else would be one more thing to deploy and to keep in step. These files have no build step, load
//! nothing from another origin, and know nothing that the API does not say, so they work without a network, and
//! everything seen in them can be had with curl.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use axum::routing::get;
use xxhash_rust::xxh3::xxh3_64;

/// A file of the console.
#[derive(Clone, Copy, Debug)]
struct File {
    /// Path below `/console/`, without a leading slash.
    path: &'static str,
    bytes: &'static [u8],
}

macro_rules! files {
    ($($path:literal),+ $(,)?) => {
        &[$(File { path: $path, bytes: include_bytes!(concat!("../console/", $path)) }),+]
    };
}

const FILES: &[File] = files![
    "index.html",
    "style.css",
    "icon.svg",
    "js/api.js",
    "js/curl.js",
    "js/dom.js",
    "js/json.js",
    "js/main.js",
    "js/overview.js",
    "js/poller.js",
    "js/query.js",
    "js/services.js",
    "js/slots.js",
];

/// The page answers for the folder too.
const PAGE: &str = "index.html";

/// Headers of every answer. Nothing inline, nothing from elsewhere, no framing, no sending of forms past the script.
const HEADERS: [(HeaderName, HeaderValue); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
    ),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    // The files change with the binary, under the same names: kept, but asked about each time.
    (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
];

/// The console under `/console/`, for GET and HEAD.
pub fn routes() -> Router {
    let mut router = Router::new().route("/console", get(|| async { moved("/console/") }));
    for file in FILES {
        let ready = Arc::new(Ready::of(file));
        let at = format!("/console/{}", file.path);
        if file.path == PAGE {
            let ready = Arc::clone(&ready);
            router = router.route("/console/", get(move |headers: HeaderMap| async move { ready.answer(&headers) }));
        }
        router = router.route(&at, get(move |headers: HeaderMap| async move { ready.answer(&headers) }));
    }
    router
}

fn moved(to: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static(to));
    response
}

/// A file with what is computed once.
struct Ready {
    bytes: Bytes,
    kind: HeaderValue,
    tag: HeaderValue,
}

impl Ready {
    fn of(file: &File) -> Ready {
        let kind = match mime_guess::from_path(file.path).first_raw() {
            // Scripts, styles and pages are UTF-8, and nothing else says so.
            Some(kind) if kind.starts_with("text/") => format!("{kind}; charset=utf-8"),
            Some(kind) => kind.to_owned(),
            None => "application/octet-stream".to_owned(),
        };
        let tag = format!("\"{:016x}\"", xxh3_64(file.bytes));
        Ready {
            bytes: Bytes::from_static(file.bytes),
            kind: HeaderValue::try_from(kind).expect("media types are ASCII"),
            tag: HeaderValue::try_from(tag).expect("digits are ASCII"),
        }
    }

    fn answer(&self, asked: &HeaderMap) -> Response<Body> {
        let known = asked.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
        let mut known = known.flat_map(|list| list.split(',')).map(str::trim);
        // Proxies that compress weaken the tag; what it stands for is the same.
        let same = known.any(|tag| tag == "*" || self.tag == tag.strip_prefix("W/").unwrap_or(tag));
        let mut response = Response::new(if same { Body::empty() } else { Body::from(self.bytes.clone()) });
        let headers = response.headers_mut();
        for (name, value) in HEADERS {
            headers.insert(name, value);
        }
        headers.insert(header::ETAG, self.tag.clone());
        if same {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        } else {
            headers.insert(header::CONTENT_TYPE, self.kind.clone());
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use axum::http::{Method, Request};
    use tower::ServiceExt;

    use super::*;

    async fn ask(method: Method, path: &str, tag: Option<&str>) -> Response<Body> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(tag) = tag {
            request = request.header(header::IF_NONE_MATCH, tag);
        }
        let request = request.body(Body::empty()).expect("legal");
        routes().oneshot(request).await.expect("a router never fails")
    }

    fn header_of(response: &Response<Body>, name: HeaderName) -> Option<&str> {
        response.headers().get(name).and_then(|value| value.to_str().ok())
    }

    #[tokio::test]
    async fn files_are_served_with_their_types_and_nothing_else_is() {
        for (method, path, status, kind) in [
            (Method::GET, "/console/", 200, Some("text/html; charset=utf-8")),
            (Method::HEAD, "/console/", 200, Some("text/html; charset=utf-8")),
            (Method::GET, "/console/index.html", 200, Some("text/html; charset=utf-8")),
            (Method::GET, "/console/style.css", 200, Some("text/css; charset=utf-8")),
            (Method::GET, "/console/js/main.js", 200, Some("text/javascript; charset=utf-8")),
            (Method::GET, "/console/icon.svg", 200, Some("image/svg+xml")),
            (Method::GET, "/console", 308, None),
            (Method::POST, "/console/", 405, None),
            (Method::DELETE, "/console/js/main.js", 405, None),
            (Method::GET, "/console/../Cargo.toml", 404, None),
            (Method::GET, "/console/other", 404, None),
        ] {
            let response = ask(method.clone(), path, None).await;
            assert_eq!(response.status().as_u16(), status, "{method} {path}");
            assert_eq!(header_of(&response, header::CONTENT_TYPE), kind, "{method} {path}");
            if status == 200 {
                let policy = header_of(&response, header::CONTENT_SECURITY_POLICY).expect("a policy");
                assert!(policy.starts_with("default-src 'self';") && !policy.contains("unsafe"), "{policy}");
                assert_eq!(header_of(&response, header::X_CONTENT_TYPE_OPTIONS), Some("nosniff"));
                assert_eq!(header_of(&response, header::CACHE_CONTROL), Some("no-cache"));
            }
        }
        assert_eq!(header_of(&ask(Method::GET, "/console", None).await, header::LOCATION), Some("/console/"));
    }

    #[tokio::test]
    async fn what_the_browser_has_is_not_sent_again() {
        let first = ask(Method::GET, "/console/style.css", None).await;
        let tag = header_of(&first, header::ETAG).expect("a tag").to_owned();
        for same in [tag.clone(), format!("W/{tag}"), format!("\"other\", {tag}"), "*".to_owned()] {
            let again = ask(Method::GET, "/console/style.css", Some(&same)).await;
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{same}");
            assert_eq!(header_of(&again, header::ETAG), Some(tag.as_str()));
        }
        assert_eq!(ask(Method::GET, "/console/style.css", Some("\"other\"")).await.status(), StatusCode::OK);
    }

    fn files_in(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).expect("it is there") {
            let path = entry.expect("readable").path();
            if path.is_dir() { files_in(&path, found) } else { found.push(path) }
        }
    }

    /// A file that is only in the folder would be missing from the binary.
    #[test]
    fn every_file_of_the_folder_is_served() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("console");
        let mut found = Vec::new();
        files_in(&root, &mut found);
        let mut names: Vec<_> = found.iter().filter_map(|path| path.strip_prefix(&root).ok()?.to_str()).collect();
        names.sort_unstable();
        let mut served: Vec<_> = FILES.iter().map(|file| file.path).collect();
        served.sort_unstable();
        assert_eq!(names, served);
    }

    /// The policy would block them, and a page that relies on them would be broken.
    #[test]
    fn nothing_is_inline_and_nothing_comes_from_elsewhere() {
        for file in FILES {
            let text = std::str::from_utf8(file.bytes).expect("UTF-8");
            for bad in ["<script>", "<style", " style=", "onclick=", "javascript:", "innerHTML", "eval(", "@import"] {
                assert!(!text.contains(bad), "{} has {bad}", file.path);
            }
            // Names of XML namespaces are not addresses.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("http://") && !text.contains("https://"), "{} names another origin", file.path);
        }
    }
}
