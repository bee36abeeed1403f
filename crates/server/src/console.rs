//! The web console: static files that are part of the binary and use the public API alone.

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::routing::get;

/// A file of the console: its path below `/console/` (`index.html`, `app.js`) and its bytes.
#[derive(Clone, Copy, Debug)]
pub struct File {
    /// Path below `/console/`, without a leading slash.
    pub path: &'static str,
    /// Content.
    pub bytes: &'static [u8],
}

/// Routes for these files under `/console/`; `index.html` also answers for the folder itself. Everything comes from this
/// server: no other origin may be loaded from, so a console works without a network and leaks nothing to one.
pub fn routes(files: &[File]) -> Router {
    let mut router = Router::new().route("/console", get(|| async { moved("/console/") }));
    for &file in files {
        router = router.route(&format!("/console/{}", file.path), get(move || async move { answer(file) }));
        if file.path == "index.html" {
            router = router.route("/console/", get(move || async move { answer(file) }));
        }
    }
    router
}

fn moved(to: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static(to));
    response
}

fn answer(file: File) -> Response<Body> {
    let mut response = Response::new(Body::from(file.bytes));
    let kind = mime_guess::from_path(file.path).first_raw().unwrap_or("application/octet-stream");
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let policy = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'";
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    // The files change with the binary, under the same names.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

#[cfg(test)]
mod tests {
    use axum::http::Request;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn files_are_served_with_their_types_and_nothing_else_is() {
        let files = [
            File { path: "index.html", bytes: b"<!doctype html>" },
            File { path: "js/app.js", bytes: b"'use strict'" },
        ];
        for (path, status, kind) in [
            ("/console/", 200, Some("text/html")),
            ("/console/index.html", 200, Some("text/html")),
            ("/console/js/app.js", 200, Some("text/javascript")),
            ("/console", 308, None),
            ("/console/../Cargo.toml", 404, None),
            ("/console/other", 404, None),
        ] {
            let request = Request::get(path).body(Body::empty()).expect("legal");
            let response = routes(&files).oneshot(request).await.expect("a router never fails");
            assert_eq!(response.status().as_u16(), status, "{path}");
            let have = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
            assert_eq!(have, kind, "{path}");
        }
    }
}
