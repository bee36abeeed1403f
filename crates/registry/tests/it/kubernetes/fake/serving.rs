//! Connections: with or without TLS, HTTP/1 or HTTP/2.

use std::sync::Arc;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use test_support::certificate::Certificate;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Streams of one connection, as Go allows at least.
const STREAMS: u32 = 100;

/// Serves everybody who comes until it is dropped.
pub(super) async fn serve(listener: TcpListener, router: Router, tls: Option<TlsAcceptor>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let (router, tls) = (router.clone(), tls.clone());
        // As Go does for every socket.
        let _ = stream.set_nodelay(true);
        tokio::spawn(async move {
            let service = TowerToHyperService::new(router);
            let mut http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            http.http2().max_concurrent_streams(STREAMS);
            // Whoever goes away without a word is no failure of the server.
            let _ = match tls {
                None => http.serve_connection(TokioIo::new(stream), service).await,
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => http.serve_connection(TokioIo::new(stream), service).await,
                    Err(_) => Ok(()),
                },
            };
        });
    }
}

/// TLS with these protocols; `mutual` asks clients for a certificate of the same authority.
pub(super) fn acceptor(certificate: &Certificate, protocols: &[&[u8]], mutual: bool) -> TlsAcceptor {
    let chain: Vec<_> = CertificateDer::pem_file_iter(&certificate.cert)
        .expect("the certificate")
        .collect::<Result<_, _>>()
        .expect("the certificate");
    let key = PrivateKeyDer::from_pem_file(&certificate.key).expect("the key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("a version");
    let builder = if mutual {
        let mut roots = rustls::RootCertStore::empty();
        let ca = CertificateDer::from_pem_file(&certificate.ca).expect("the authority");
        roots.add(ca).expect("the authority");
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().expect("roots");
        builder.with_client_cert_verifier(clients)
    } else {
        builder.with_no_client_auth()
    };
    let mut config = builder.with_single_cert(chain, key).expect("a certificate and its key");
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}
