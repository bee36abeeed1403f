//! From what is wanted of a service to what its server has: one record, sent as a whole.

use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use metaroute_core::instance::InstanceId;
use serde_json::{Map, Value};

use super::Shared;
use super::connection::{Connection, End};
use super::instances::Wired;
use super::records::{Entries, Record};
use crate::driver::{DriverError, ErrorKind};

/// Deregistrations under way at once, for servers that want one for each instance.
const DEREGISTER_AT_ONCE: usize = 32;

impl Shared {
    /// Brings a record at the server in line with what is wanted. The work goes on if the caller does not: what was
    /// sent and what was noted must not part.
    pub(super) async fn flush(
        self: &Arc<Self>,
        record: &Arc<Record>,
        connection: &Arc<Connection>,
        change: Option<(InstanceId, u64)>,
    ) -> Result<(), DriverError> {
        let work = send_record(Arc::clone(self), Arc::clone(record), Arc::clone(connection), change);
        let work = tokio::spawn(work);
        connection.own(work.abort_handle());
        match work.await {
            Ok(outcome) => outcome,
            // It was ended with the connection.
            Err(_) => Err(match connection.reason() {
                Some(End::Lost(error)) => error,
                _ => DriverError::new(ErrorKind::Unreachable, format!("{} was left", connection.server)),
            }),
        }
    }

    /// Sends a record as a whole. What was there before is named for servers that keep every instance apart.
    async fn send(
        &self,
        connection: &Connection,
        service: &str,
        before: &Entries,
        wanted: &Entries,
    ) -> Result<(), DriverError> {
        if wanted.is_empty() || !connection.negotiated {
            // A server with one record per service needs one deregistration for all of it, and only at the end. One that
            // does not negotiate may be of either sort: there each instance that goes or is to start afresh is
            // deregistered by itself, and the rest registered after that.
            let goes = before.iter().filter(|(id, entry)| match wanted.get(*id) {
                None => true,
                Some(now) => !now.wired.same_place(&entry.wired) || resets(&entry.wired, &now.wired),
            });
            let at_most = if connection.negotiated { 1 } else { usize::MAX };
            let bodies: Vec<_> =
                goes.take(at_most).map(|(_, entry)| self.one(service, "deregisterInstance", &entry.wired)).collect();
            stream::iter(bodies)
                .map(|body| self.call(connection, "InstanceRequest", body))
                .buffer_unordered(DEREGISTER_AT_ONCE)
                .try_for_each(async |_| Ok(()))
                .await?;
        }
        match wanted.len() {
            0 => {}
            1 => {
                for entry in wanted.values() {
                    self.call(connection, "InstanceRequest", self.one(service, "registerInstance", &entry.wired))
                        .await?;
                }
            }
            _ => {
                let mut body = self.naming(service);
                body.insert("type".into(), "batchRegisterInstance".into());
                body.insert("instances".into(), wanted.values().map(|entry| entry.wired.json(true)).collect());
                self.call(connection, "BatchInstanceRequest", body).await?;
            }
        }
        Ok(())
    }

    pub(super) fn one(&self, service: &str, kind: &str, wired: &Wired) -> Map<String, Value> {
        let mut body = self.naming(service);
        body.insert("type".into(), kind.into());
        body.insert("instance".into(), wired.json(self.config.ephemeral));
        body
    }
}

/// See [`Shared::flush`].
pub(super) async fn send_record(
    shared: Arc<Shared>,
    record: Arc<Record>,
    connection: Arc<Connection>,
    change: Option<(InstanceId, u64)>,
) -> Result<(), DriverError> {
    let _turn = record.turn.lock().await;
    // While we waited there may have come another connection.
    let connection = match shared.live() {
        Some(live) if live.epoch > connection.epoch => live,
        _ if record.epoch() > connection.epoch => {
            return Err(DriverError::new(ErrorKind::Unreachable, format!("{} was left", connection.server)));
        }
        _ => connection,
    };
    let epoch = connection.epoch;
    if let Some((id, generation)) = &change
        && record.has(epoch, id, *generation)
    {
        return Ok(());
    }
    let wanted = record.wanted();
    let (before, exact) = record.sent_over(epoch);
    if exact && same(&before, &wanted) {
        return Ok(());
    }
    record.sending(epoch, &wanted);
    let error = match shared.send(&connection, &record.service, &before, &wanted).await {
        Ok(()) => {
            record.holds(epoch, wanted);
            return Ok(());
        }
        Err(error) => error,
    };
    let Some((id, generation)) = change else { return Err(error) };
    if error.kind() == ErrorKind::Unreachable {
        return Err(error);
    }
    // Refused, perhaps for somebody else's change that goes with ours: what was there before plus ours decides.
    let mut ours = if exact { before.clone() } else { Entries::new() };
    if let Some(entry) = wanted.get(&id) {
        ours.insert(id.clone(), entry.clone());
    }
    let error = if exact && !same(&ours, &wanted) {
        match shared.send(&connection, &record.service, &before, &ours).await {
            Ok(()) => {
                record.holds(epoch, ours);
                return Ok(());
            }
            Err(error) => error,
        }
    } else {
        error
    };
    if exact && error.kind() != ErrorKind::Unreachable {
        // A refusal changes nothing at the server.
        record.holds(epoch, before);
    }
    if error.kind() != ErrorKind::Unreachable {
        record.take_back(&id, generation);
    }
    Err(error)
}

/// What r-nacos keeps of the registration before unless the instance was gone in between.
fn resets(before: &Wired, now: &Wired) -> bool {
    (before.weight != 1.0 && now.weight == 1.0) || (!before.enabled && now.enabled)
}

/// Whether two states of a record are one.
fn same(one: &Entries, other: &Entries) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).all(|((id, entry), (id2, entry2))| id == id2 && entry.generation == entry2.generation)
}
