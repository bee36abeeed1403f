//! Keeping one instance registered.

use std::future::Future;
use std::sync::Arc;

use metaroute_core::instance::Instance;
use metaroute_core::resilience::backoff::{Backoff, Policy};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Instrument;

use crate::driver::{Driver, DriverError, Lease, Renewal};

/// Whether the registry has what is wanted.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum RegistrationState {
    /// Not yet; the last error, if there was one. Attempts go on.
    Pending(Option<DriverError>),
    /// Yes.
    #[default]
    Registered,
    /// No, and trying the same again cannot help; [`Registration::update`] may.
    Refused(DriverError),
    /// It was taken away, or the attempt was given up at shutdown.
    Ended,
}

/// What is wanted: an instance, or nothing.
type Wanted = Option<Arc<Instance>>;

/// An instance that is kept registered. Dropping it makes the instance unwanted: it is withdrawn in the background; to
/// wait for that call [`deregister`](Registration::deregister).
#[derive(Debug)]
pub struct Registration {
    wanted: watch::Sender<Wanted>,
    state: watch::Receiver<RegistrationState>,
    driver: DriverHandle,
    id: metaroute_core::instance::InstanceId,
}

struct DriverHandle(Arc<dyn Driver>);

impl std::fmt::Debug for DriverHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Driver")
    }
}

impl Registration {
    /// Whether the registry has it.
    pub fn state(&self) -> RegistrationState {
        self.state.borrow().clone()
    }

    /// Waits until the registry has it, or refused it.
    ///
    /// # Errors
    /// The refusal. An unreachable registry is waited for; put a timeout around it.
    pub async fn registered(&mut self) -> Result<(), DriverError> {
        let state = self.state.wait_for(|state| !matches!(state, RegistrationState::Pending(_))).await;
        match state.as_deref() {
            Ok(RegistrationState::Refused(error)) => Err(error.clone()),
            // Ended: nobody else will register it, and that was asked for.
            _ => Ok(()),
        }
    }

    /// Replaces weight, metadata and so on. The id must stay the same.
    ///
    /// # Errors
    /// When the id changed or the instance is beyond what the registry accepts; the old one stays.
    pub fn update(&self, instance: Instance) -> Result<(), DriverError> {
        use crate::driver::ErrorKind;
        if instance.id != self.id {
            let message = format!("id `{}` cannot become `{}`: register that instead", self.id, instance.id);
            return Err(DriverError::new(ErrorKind::Invalid, message));
        }
        self.driver.0.limits().check(&instance)?;
        self.wanted.send_replace(Some(Arc::new(instance)));
        Ok(())
    }

    /// Withdraws the instance and waits until the registry has let go of it, or until the registry is shut down.
    pub async fn deregister(mut self) {
        self.wanted.send_replace(None);
        // The sender ends with the keeper, which is as good.
        let _ = self.state.wait_for(|state| matches!(state, RegistrationState::Ended)).await;
    }
}

/// The handle, and the future that does the work.
pub(super) fn start(
    service: &str,
    instance: Instance,
    driver: Arc<dyn Driver>,
    policy: Policy,
    stop: watch::Receiver<bool>,
) -> (Registration, impl Future<Output = ()> + Send + 'static) {
    let id = instance.id.clone();
    let span = tracing::info_span!("registration", service, %id);
    let (wanted, wanted_rx) = watch::channel(Some(Arc::new(instance.clone())));
    let (state, state_rx) = watch::channel(RegistrationState::Pending(None));
    let registration = Registration { wanted, state: state_rx, driver: DriverHandle(Arc::clone(&driver)), id };
    let keeper = Keeper {
        service: service.into(),
        driver,
        backoff: Backoff::new(policy),
        started: Instant::now(),
        wanted: wanted_rx,
        stop,
        state,
        last: Arc::new(instance),
        maybe_there: false,
    };
    (registration, keeper.run().instrument(span))
}

struct Keeper {
    service: Box<str>,
    driver: Arc<dyn Driver>,
    backoff: Backoff,
    started: Instant,
    wanted: watch::Receiver<Wanted>,
    stop: watch::Receiver<bool>,
    state: watch::Sender<RegistrationState>,
    /// What was sent last.
    last: Arc<Instance>,
    /// Whether the registry may have it: an attempt whose answer was lost counts.
    maybe_there: bool,
}

/// Why a wait ended.
enum Woken {
    /// Something else is wanted.
    Wanted,
    /// Time is up.
    Time,
    /// Everything stops.
    Stop,
}

impl Keeper {
    async fn run(mut self) {
        loop {
            let wanted = self.wanted.borrow_and_update().clone();
            let Some(instance) = wanted else { break };
            if *self.stop.borrow() {
                break;
            }
            self.last = Arc::clone(&instance);
            self.maybe_there = true;
            let woken = match self.driver.apply(&self.service, &instance).await {
                Ok(lease) => {
                    self.backoff.reset();
                    self.set(RegistrationState::Registered);
                    self.keep(&instance, lease).await
                }
                Err(error) => {
                    let wait = self.after_failure(&error);
                    self.set(match wait {
                        Some(_) => RegistrationState::Pending(Some(error)),
                        None => RegistrationState::Refused(error),
                    });
                    self.wait(wait).await
                }
            };
            if matches!(woken, Woken::Stop) {
                break;
            }
        }
        self.withdraw().await;
        self.state.send_replace(RegistrationState::Ended);
    }

    /// Renews until the registration is lost or something else is wanted.
    async fn keep(&mut self, instance: &Instance, lease: Lease) -> Woken {
        loop {
            match self.wait(lease.renew_every).await {
                Woken::Time => {}
                woken => return woken,
            }
            match self.driver.renew(&self.service, instance).await {
                Ok(Renewal::Kept) => {}
                Ok(Renewal::Lost) => {
                    self.set(RegistrationState::Pending(None));
                    return Woken::Time;
                }
                Err(error) => {
                    // Applying again is right whether or not the registration survived.
                    self.set(RegistrationState::Pending(Some(error)));
                    return Woken::Time;
                }
            }
        }
    }

    async fn wait(&mut self, time: Option<std::time::Duration>) -> Woken {
        let time = async {
            match time {
                Some(time) => tokio::time::sleep(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.stop.wait_for(|stop| *stop) => Woken::Stop,
            // An error says that the handle is gone.
            changed = self.wanted.changed() => match changed {
                Ok(()) => Woken::Wanted,
                Err(_) => Woken::Stop,
            },
            () = time => Woken::Time,
        }
    }

    /// How long to wait before the next attempt; `None` when another one cannot help.
    fn after_failure(&mut self, error: &DriverError) -> Option<std::time::Duration> {
        self.backoff.on_failure(error.failure(), self.started.elapsed(), &mut rand::rng()).ok()
    }

    /// Withdraws with the same back-off; at shutdown the registry bounds the time by its deadline.
    async fn withdraw(&mut self) {
        if !self.maybe_there {
            return;
        }
        self.backoff.reset();
        let id = self.last.id.clone();
        while let Err(error) = self.driver.withdraw(&self.service, &id).await {
            let Some(wait) = self.after_failure(&error) else {
                tracing::warn!(%error, "the registry refused a deregistration");
                return;
            };
            tokio::time::sleep(wait).await;
        }
    }

    fn set(&self, state: RegistrationState) {
        match &state {
            RegistrationState::Registered => tracing::info!("registered"),
            RegistrationState::Pending(Some(error)) => tracing::warn!(%error, "not registered, trying again"),
            RegistrationState::Refused(error) => tracing::error!(%error, "the registry refused a registration"),
            _ => {}
        }
        self.state.send_replace(state);
    }
}
