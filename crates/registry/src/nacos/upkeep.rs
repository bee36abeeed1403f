//! What is done for a connection beside the calls: registrations are repeated over a new one, services asked for again, and a
//! server's wish to go elsewhere is followed.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Shared;
use super::connection::{Connection, End, lock};
use super::sending::send_record;

/// How often every followed service is asked for again: pushes get lost (Seata #7986).
const RECONCILE_EVERY: Duration = Duration::from_secs(30);
/// A service that nobody has asked for since then is followed no more. Longer than the longest back-off.
const FORGET_AFTER: Duration = Duration::from_secs(180);

/// Registers everything wanted over a new connection.
pub(super) async fn redo(shared: Weak<Shared>, connection: Arc<Connection>) {
    let Some(shared) = shared.upgrade() else { return };
    if !shared.config.ephemeral {
        return;
    }
    let records: Vec<_> = lock(&shared.records).values().cloned().collect();
    for record in records {
        if record.wanted().is_empty() {
            continue;
        }
        let sent = send_record(Arc::clone(&shared), Arc::clone(&record), Arc::clone(&connection), None).await;
        if let Err(error) = sent {
            // Whoever keeps the registration finds it missing and asks for it by itself.
            tracing::warn!(service = record.service, %error, "not registered again");
            if !connection.is_alive() {
                return;
            }
        }
    }
}

/// Asks for every followed service now and then, and forgets those that nobody wants any more.
pub(super) async fn reconcile(shared: Weak<Shared>, connection: Weak<Connection>) {
    loop {
        // Not all clients at once.
        tokio::time::sleep(RECONCILE_EVERY.mul_f64(rand::random_range(0.8..1.2))).await;
        let (Some(shared), Some(connection)) = (shared.upgrade(), connection.upgrade()) else { return };
        let (kept, forgotten) = connection.followed(FORGET_AFTER);
        for service in kept {
            if let Err(error) = shared.subscribe(&connection, &service).await {
                tracing::debug!(service, %error, "not reconciled");
                break;
            }
        }
        for service in forgotten {
            let mut body = shared.naming(&service);
            body.insert("subscribe".into(), false.into());
            body.insert("clusters".into(), "".into());
            if shared.call(&connection, "SubscribeServiceRequest", body).await.is_err() {
                break;
            }
        }
    }
}

/// Goes to another server when this one wants it: first the new connection with everything on it, then the end of the old.
pub(super) fn follow_reset(
    shared: Weak<Shared>,
    connection: Arc<Connection>,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    // Boxed: connecting starts this, and this connects.
    Box::pin(async move {
        connection.sent_away().await;
        let Some(shared) = shared.upgrade() else { return };
        let suggestion = connection.suggestion();
        tracing::info!(server = connection.server, ?suggestion, "the server sends us to another one");
        let failed = shared.connecting.lock().await;
        let count = shared.config.grpc.len();
        // The suggestion counts where the address names that server; else the next one does.
        let suggested = suggestion.and_then(|(host, port)| shared.config.position(&host, port));
        let next = suggested.unwrap_or_else(|| (shared.first.load(Ordering::Relaxed) + 1) % count.max(1));
        shared.first.store(next, Ordering::Relaxed);
        match shared.connect().await {
            Ok(new) => {
                drop(failed);
                redo(Arc::downgrade(&shared), Arc::clone(&new)).await;
                connection.end_with(End::Moved);
            }
            // The old one stays for as long as its server lets it.
            Err(error) => tracing::warn!(%error, "no other server"),
        }
    })
}
