//! Registered while ready, and only then.
//!
//! A process that registers as it starts gets requests before it can answer them, and one whose database went away goes on
//! getting them. Who has a flag for that, such as behind `/readyz`, hands it over: the instance is registered when it turns
//! true, withdrawn when it turns false, and registered again after that. A flag whose owner is gone is false for good.

use std::sync::{Arc, Weak};
use std::time::Duration;

use metaroute_core::instance::{Instance, InstanceId};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::registration::{Drained, Registration, RegistrationState};
use super::{Registry, Shared};
use crate::driver::{DriverError, ErrorKind, Limits};

/// An instance that is registered while a flag is true. Dropping it withdraws the instance in the background; to wait
/// for that call [`deregister`](Self::deregister) or [`drain`](Self::drain).
#[derive(Debug)]
pub struct WhenReady {
    id: InstanceId,
    limits: Limits,
    wanted: watch::Sender<Arc<Instance>>,
    state: watch::Receiver<Option<RegistrationState>>,
    end: oneshot::Sender<Option<Duration>>,
    task: JoinHandle<Drained>,
}

impl Registry {
    /// Registers an instance whenever `ready` is true and withdraws it whenever it is not.
    ///
    /// ```
    /// # use metaroute_core::instance::Instance;
    /// # use metaroute_registry::{Memory, Registry};
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    /// # runtime.block_on(async {
    /// let registry = Registry::new(Memory::new());
    /// let (ready, flag) = tokio::sync::watch::channel(false);
    /// let mut me = registry.register_when("orders", Instance::new("10.0.0.1:80".parse()?), flag)?;
    /// // … listening, caches warm …
    /// ready.send_replace(true);
    /// me.registered().await?;
    /// me.deregister().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`register`](Self::register), at once and whether or not it is ready.
    pub fn register_when(
        &self,
        service: &str,
        instance: Instance,
        ready: watch::Receiver<bool>,
    ) -> Result<WhenReady, DriverError> {
        self.writable(&instance)?;
        if self.shared.tasks().closed {
            return Err(DriverError::new(ErrorKind::Unsupported, "this registry was shut down"));
        }
        let (id, limits) = (instance.id.clone(), self.limits());
        let (wanted, instances) = watch::channel(Arc::new(instance));
        let (told, state) = watch::channel(None);
        let (end, ended) = oneshot::channel();
        let follower = Follower {
            registry: Arc::downgrade(&self.shared),
            service: service.into(),
            instances,
            ready,
            stop: self.shared.stop.subscribe(),
            told,
        };
        let task = tokio::spawn(follower.run(ended));
        Ok(WhenReady { id, limits, wanted, state, end, task })
    }
}

impl WhenReady {
    /// Whether the registry has it; `None` while it is not ready, so that nobody tries.
    pub fn state(&self) -> Option<RegistrationState> {
        self.state.borrow().clone()
    }

    /// Waits until it is ready and the registry has it, or refused it.
    ///
    /// # Errors
    /// The refusal. What is not ready, or cannot be reached, is waited for; put a timeout around it.
    pub async fn registered(&mut self) -> Result<(), DriverError> {
        loop {
            match self.state.borrow_and_update().clone() {
                Some(RegistrationState::Refused(error)) => return Err(error),
                Some(RegistrationState::Registered) => return Ok(()),
                _ => {}
            }
            if self.state.changed().await.is_err() {
                return Ok(());
            }
        }
    }

    /// Replaces weight, metadata and so on, at once or when it is ready. The id must stay the same.
    ///
    /// # Errors
    /// When the id changed or the instance is beyond what the registry accepts; the old one stays.
    pub fn update(&self, instance: Instance) -> Result<(), DriverError> {
        if instance.id != self.id {
            let message = format!("id `{}` cannot become `{}`: register that instead", self.id, instance.id);
            return Err(DriverError::new(ErrorKind::Invalid, message));
        }
        self.limits.check(&instance)?;
        self.wanted.send_replace(Arc::new(instance));
        Ok(())
    }

    /// Withdraws the instance, whether or not it is ready, and waits until the registry has let go of it.
    pub async fn deregister(self) {
        self.finish(None).await;
    }

    /// Leaves without losing a request, as [`Registration::drain`] does. Where it is not registered there is nothing to
    /// announce.
    pub async fn drain(self, deadline: Duration) -> Drained {
        self.finish(Some(deadline)).await
    }

    async fn finish(self, drain: Option<Duration>) -> Drained {
        // A task that ended before has withdrawn it.
        let _ = self.end.send(drain);
        self.task.await.unwrap_or(Drained { announced: false, deregistered: false })
    }
}

/// The task between the flag and the registration.
struct Follower {
    /// The registry ends this, not the other way round.
    registry: Weak<Shared>,
    service: Box<str>,
    instances: watch::Receiver<Arc<Instance>>,
    ready: watch::Receiver<bool>,
    stop: watch::Receiver<bool>,
    told: watch::Sender<Option<RegistrationState>>,
}

impl Follower {
    async fn run(mut self, mut end: oneshot::Receiver<Option<Duration>>) -> Drained {
        let nothing = Drained { announced: false, deregistered: true };
        let mut flag_is_owned = true;
        let mut registration: Option<Registration> = None;
        loop {
            let ready = flag_is_owned && *self.ready.borrow_and_update();
            match (ready, registration.take()) {
                (true, None) => {
                    let instance = Instance::clone(&self.instances.borrow_and_update());
                    let Some(shared) = self.registry.upgrade() else { return nothing };
                    match (Registry { shared }).register(&self.service, instance) {
                        Ok(registered) => registration = Some(registered),
                        // Shut down meanwhile.
                        Err(error) => {
                            self.told.send_replace(Some(RegistrationState::Refused(error)));
                            return nothing;
                        }
                    }
                }
                (false, Some(registered)) => {
                    tracing::info!(service = %self.service, "not ready, so not registered");
                    self.told.send_replace(None);
                    // In the background: it may be ready again before the registry answers.
                    drop(registered);
                }
                (_, kept) => registration = kept,
            }
            if let Some(registration) = &registration {
                self.told.send_replace(Some(registration.state()));
            }
            tokio::select! {
                asked = &mut end => return match (registration, asked) {
                    (Some(registration), Ok(Some(deadline))) => registration.drain(deadline).await,
                    (Some(registration), Ok(None)) => {
                        registration.deregister().await;
                        nothing
                    }
                    // Dropped, or there is nothing to take away.
                    _ => nothing,
                },
                () = stopped(&mut self.stop) => return nothing,
                changed = self.ready.changed(), if flag_is_owned => flag_is_owned = changed.is_ok(),
                Ok(()) = self.instances.changed() => {
                    if let Some(registration) = &registration {
                        let instance = Instance::clone(&self.instances.borrow_and_update());
                        // What can be wrong with it was checked.
                        let _ = registration.update(instance);
                    }
                }
                // Whatever it is, it is told above.
                _ = changed(&mut registration) => {}
            }
        }
    }
}

/// Waits until everything ends.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error says that there is nobody left to say it.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Waits until there is something new to say of a registration.
async fn changed(registration: &mut Option<Registration>) -> RegistrationState {
    match registration {
        Some(registration) => match registration.changed().await {
            // It stays that, so there is nothing to wait for.
            RegistrationState::Ended => std::future::pending().await,
            state => state,
        },
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    fn instance() -> Instance {
        Instance::new("10.0.0.1:80".parse().expect("an address"))
    }

    async fn eventually(what: &str, mut is: impl FnMut() -> bool) {
        for _ in 0..1000 {
            if is() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("{what}");
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_there_while_ready_and_only_then() {
        let memory = Memory::new();
        let registry = Registry::new(memory.clone());
        let count = || memory.instances("s").map_or(0, |found| found.len());
        let (ready, flag) = watch::channel(false);
        let mut me = registry.register_when("s", instance(), flag).expect("valid");
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!((count(), me.state().is_none()), (0, true));
        for _ in 0..3 {
            ready.send_replace(true);
            me.registered().await.expect("taken");
            eventually("it is there", || count() == 1).await;
            ready.send_replace(false);
            eventually("it is gone", || count() == 0).await;
            assert!(me.state().is_none());
        }
        // What is said meanwhile counts when it is ready.
        me.update(instance().with_weight(5.0)).expect("valid");
        assert!(me.update(instance().with_id("other")).is_err());
        ready.send_replace(true);
        eventually("it is there", || count() == 1).await;
        assert_eq!(memory.instances("s").expect("known")[0].weight, 5.0);
        me.update(instance().with_weight(6.0)).expect("valid");
        eventually("it is changed", || memory.instances("s").is_some_and(|found| found[0].weight == 6.0)).await;
        // A flag without an owner is no reason to go on.
        drop(ready);
        eventually("it is gone", || count() == 0).await;
        me.deregister().await;
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_however_it_is_ended() {
        let memory = Memory::new();
        let registry = Registry::new(memory.clone());
        let count = || memory.instances("s").map_or(0, |found| found.len());
        let (ready, flag) = watch::channel(true);
        let start = || registry.register_when("s", instance(), flag.clone()).expect("valid");
        let mut me = start();
        me.registered().await.expect("taken");
        let drained = me.drain(Duration::from_secs(1)).await;
        assert_eq!((drained, count()), (Drained { announced: true, deregistered: true }, 0));
        let mut me = start();
        me.registered().await.expect("taken");
        drop(me);
        eventually("it is gone", || count() == 0).await;
        ready.send_replace(false);
        let drained = start().drain(Duration::from_secs(1)).await;
        assert_eq!(drained, Drained { announced: false, deregistered: true });
        ready.send_replace(true);
        let mut me = start();
        me.registered().await.expect("taken");
        registry.shutdown(Duration::from_secs(1)).await;
        eventually("it is gone", || count() == 0).await;
        me.deregister().await;
        assert!(registry.register_when("s", instance(), flag.clone()).is_err(), "it is closed");
    }
}
