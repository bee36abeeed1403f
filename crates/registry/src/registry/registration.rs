//! Keeping instances registered.
//!
//! What is wanted of one id in one service is a single value: an instance, or nothing. One task per such id, the keeper,
//! brings the registry there and holds it there. Whoever registers, updates, deregisters or drops a handle only changes
//! the value, so the calls to the registry follow one after the other and the last wish wins: a deregistration cannot
//! overtake the registration before it, nor the withdrawal of an old handle the registration that came after.

use std::sync::{Arc, Weak};
use std::time::Duration;

use metaroute_core::instance::{Instance, InstanceId};
use metaroute_core::resilience::backoff::{Backoff, Failure, Policy};
use tokio::sync::watch;
use tokio::time::Instant;

use super::subscription::State;
use super::{Registry, Shared};
use crate::driver::{Answer, Driver, DriverError, ErrorKind, Lease, Renewal};

/// How long one call may take before it counts as unanswered. Drivers notice a dead connection sooner; this bounds what
/// one of them that does not can do.
const CALL_MAX: Duration = Duration::from_secs(30);

/// Whether the registry has what is wanted.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum RegistrationState {
    /// Not yet; the last error, if there was one. Attempts go on.
    Pending(Option<DriverError>),
    /// Yes.
    #[default]
    Registered,
    /// No, and trying the same again soon cannot help; [`Registration::update`] may. What was not allowed is tried again
    /// at the back-off's longest wait, because permissions change. So is what was called invalid, where the registry had
    /// this id before; else it is not. (Something that it had taken exactly so before is no refusal but `Pending`.)
    Refused(DriverError),
    /// It was taken away, the attempt was given up at shutdown, or another handle took the id over.
    Ended,
}

/// What is wanted of an id, and by which of the handles that asked one after the other.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) handle: u64,
    /// `None`: nothing.
    pub(super) instance: Option<Arc<Instance>>,
}

/// How far the wish of a handle is fulfilled.
#[derive(Clone, Debug)]
pub(super) struct Told {
    handle: u64,
    state: RegistrationState,
}

/// An instance that is kept registered. Dropping it makes the instance unwanted: it is withdrawn in the background; to
/// wait for that call [`deregister`](Registration::deregister).
///
/// There is one handle for an id. Registering the id again takes it over: the earlier handle says
/// [`Ended`](RegistrationState::Ended) then, and what is done with it has no effect.
#[derive(Debug)]
pub struct Registration {
    handle: u64,
    service: Box<str>,
    id: InstanceId,
    wanted: Arc<watch::Sender<Wish>>,
    told: watch::Receiver<Told>,
    registry: Owner,
}

/// The registry behind a handle, which it does not keep alive.
#[derive(Clone)]
struct Owner(Weak<Shared>);

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registry")
    }
}

/// How far draining came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// The registry showed, to a subscription like everybody's, that no new traffic is wanted.
    pub announced: bool,
    /// The instance was taken away.
    pub deregistered: bool,
}

impl Registration {
    /// Whether the registry has it.
    pub fn state(&self) -> RegistrationState {
        self.of(&self.told.borrow())
    }

    /// Waits until the registry has it, or refused it.
    ///
    /// # Errors
    /// The refusal. An unreachable registry is waited for; put a timeout around it.
    pub async fn registered(&mut self) -> Result<(), DriverError> {
        loop {
            let told = self.told.borrow_and_update().clone();
            match self.of(&told) {
                RegistrationState::Pending(_) => {}
                RegistrationState::Refused(error) => return Err(error),
                // Ended: nobody else will register it, and that was asked for.
                RegistrationState::Registered | RegistrationState::Ended => return Ok(()),
            }
            if self.told.changed().await.is_err() {
                return Ok(());
            }
        }
    }

    /// Waits until the state is another one than was seen last, and returns it; `Ended` stays. Dropping the future loses
    /// nothing.
    pub async fn changed(&mut self) -> RegistrationState {
        match self.told.changed().await {
            Ok(()) => {
                let told = self.told.borrow_and_update().clone();
                self.of(&told)
            }
            Err(_) => RegistrationState::Ended,
        }
    }

    /// Replaces weight, metadata and so on. The id must stay the same.
    ///
    /// # Errors
    /// When the id changed or the instance is beyond what the registry accepts; the old one stays.
    pub fn update(&self, instance: Instance) -> Result<(), DriverError> {
        if instance.id != self.id {
            let message = format!("id `{}` cannot become `{}`: register that instead", self.id, instance.id);
            return Err(DriverError::new(ErrorKind::Invalid, message));
        }
        if let Some(shared) = self.registry.0.upgrade() {
            shared.driver.limits().check(&instance)?;
        }
        self.want(Some(Arc::new(instance)));
        Ok(())
    }

    /// Withdraws the instance and waits until the registry has let go of it, or until the registry is shut down.
    pub async fn deregister(mut self) {
        self.withdrawn().await;
    }

    /// Leaves without losing a request: announces weight 0, waits until the registry shows that to a subscription, then
    /// deregisters. The process itself may stop when what it still serves is finished.
    ///
    /// The announcement takes at most two thirds of the deadline, so that time is left to deregister. Where a registry
    /// carries no weights there is nothing to announce, and it deregisters at once. What is not done in time is given
    /// up; the deregistration goes on in the background.
    pub async fn drain(mut self, deadline: Duration) -> Drained {
        let end = Instant::now() + deadline;
        let announced = tokio::time::timeout(deadline * 2 / 3, self.announce()).await.unwrap_or(false);
        let deregistered = tokio::time::timeout_at(end, self.withdrawn()).await.is_ok();
        Drained { announced, deregistered }
    }

    /// Sets the weight to 0 and waits until that is to be seen.
    async fn announce(&self) -> bool {
        let registry = match self.registry.0.upgrade() {
            Some(shared) if shared.driver.capabilities().weight => Registry { shared },
            _ => return false,
        };
        let Some(mut instance) = self.wanted.borrow().instance.as_deref().cloned() else { return false };
        let mut view = registry.subscribe(&self.service);
        drop(registry);
        instance.weight = 0.0;
        let address = instance.address.clone();
        if self.update(instance).is_err() {
            return false;
        }
        let quiet = view.wait_for(|view| {
            view.state == State::Fresh
                && view.snapshot.as_ref().is_some_and(|snapshot| {
                    let mut same =
                        snapshot.instances.iter().filter(|i| i.id == self.id || i.address.same_place(&address));
                    same.all(|instance| instance.weight == 0.0 || !instance.enabled)
                })
        });
        quiet.await.is_ok()
    }

    async fn withdrawn(&mut self) {
        self.want(None);
        // The sender ends with the keeper, which is as good.
        let handle = self.handle;
        let ended = |told: &Told| told.handle > handle || matches!(told.state, RegistrationState::Ended);
        let _ = self.told.wait_for(ended).await;
    }

    /// Changes the wish, if it still is this handle's to say.
    fn want(&self, instance: Option<Arc<Instance>>) {
        self.wanted.send_if_modified(|wish| {
            let ours = wish.handle == self.handle && (instance.is_some() || wish.instance.is_some());
            if ours {
                wish.instance = instance;
            }
            ours
        });
    }

    /// What is told, as far as it is about this handle.
    fn of(&self, told: &Told) -> RegistrationState {
        if self.wanted.borrow().handle > self.handle || told.handle > self.handle {
            RegistrationState::Ended
        } else if told.handle < self.handle {
            RegistrationState::Pending(None)
        } else {
            told.state.clone()
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.want(None);
    }
}

/// What the registry knows of a keeper.
pub(super) struct Kept {
    wanted: Arc<watch::Sender<Wish>>,
    told: watch::Receiver<Told>,
}

impl Kept {
    /// Another wish for the same id, of a handle that takes it over.
    pub(super) fn take_over(&self, registry: &Arc<Shared>, service: &str, instance: Instance) -> Registration {
        let id = instance.id.clone();
        let mut handle = 0;
        self.wanted.send_modify(|wish| {
            wish.handle += 1;
            wish.instance = Some(Arc::new(instance));
            handle = wish.handle;
        });
        let (wanted, told) = (Arc::clone(&self.wanted), self.told.clone());
        Registration { handle, service: service.into(), id, wanted, told, registry: Owner(Arc::downgrade(registry)) }
    }

    /// Whether nothing is wanted.
    pub(super) fn is_unwanted(&self) -> bool {
        self.wanted.borrow().instance.is_none()
    }
}

/// A first wish for an id: the handle, what the registry keeps of it, and the task that does the work.
pub(super) fn start(
    registry: &Arc<Shared>,
    service: &str,
    instance: Instance,
    stop: watch::Receiver<bool>,
) -> (Registration, Kept, Keeper) {
    let id = instance.id.clone();
    let instance = Some(Arc::new(instance));
    let (wanted, wanted_rx) = watch::channel(Wish { handle: 0, instance });
    let wanted = Arc::new(wanted);
    let (told, told_rx) = watch::channel(Told { handle: 0, state: RegistrationState::Pending(None) });
    let kept = Kept { wanted: Arc::clone(&wanted), told: told_rx.clone() };
    let owner = Owner(Arc::downgrade(registry));
    let keeper = Keeper {
        service: service.into(),
        id: id.clone(),
        driver: Arc::clone(&registry.driver),
        policy: registry.options.policy,
        backoff: Backoff::new(registry.options.policy),
        started: Instant::now(),
        wanted: wanted_rx,
        stop,
        told,
        maybe_there: false,
        taken: None,
    };
    let registration = Registration { handle: 0, service: service.into(), id, wanted, told: told_rx, registry: owner };
    (registration, kept, keeper)
}

/// The task behind all handles for one id.
pub(super) struct Keeper {
    service: Box<str>,
    id: InstanceId,
    driver: Arc<dyn Driver>,
    policy: Policy,
    backoff: Backoff,
    started: Instant,
    wanted: watch::Receiver<Wish>,
    stop: watch::Receiver<bool>,
    told: watch::Sender<Told>,
    /// Whether the registry may have it: an attempt whose answer was lost counts.
    maybe_there: bool,
    /// What the registry took last, until it has let go of it. Who calls *that* invalid later is not the registry as it
    /// was: a proxy or a server that is just starting answers in its place, and will not for ever.
    taken: Option<Arc<Instance>>,
}

/// How long to wait before an attempt is repeated, and what ends the wait before.
enum Pause {
    /// The registry was not reached: another wish would not reach it either, only "nothing" is worth looking at.
    Unreached(Duration),
    /// The registry said no: another wish may be granted. The same one after a while, or never.
    Refused(Option<Duration>),
}

impl Keeper {
    /// Runs until everything stops, or nothing is wanted and `unwanted` agrees that the task may end.
    pub(super) async fn run(mut self, unwanted: impl Fn() -> bool) {
        while !*self.stop.borrow() {
            let Wish { handle, instance } = self.wanted.borrow_and_update().clone();
            match instance {
                Some(instance) => self.hold(handle, &instance).await,
                None => {
                    if !self.let_go().await {
                        continue;
                    }
                    self.tell(handle, RegistrationState::Ended);
                    if unwanted() {
                        return;
                    }
                }
            }
        }
        // At shutdown the registry bounds the time by its deadline.
        while !self.let_go().await {}
        let handle = self.wanted.borrow().handle;
        self.tell(handle, RegistrationState::Ended);
    }

    /// One attempt to register, and what follows from it until there is reason for another one.
    async fn hold(&mut self, handle: u64, instance: &Arc<Instance>) {
        self.maybe_there = true;
        match answer(self.driver.apply(&self.service, instance)).await {
            Ok(lease) => {
                self.backoff.reset();
                self.taken = Some(Arc::clone(instance));
                self.tell(handle, RegistrationState::Registered);
                self.keep(handle, instance, lease).await;
            }
            Err(error) => {
                let same = self.taken.as_ref().is_some_and(|taken| Arc::ptr_eq(taken, instance));
                let pause = match (self.after_failure(&error, same), error.kind()) {
                    (Some(wait), _) => Pause::Unreached(wait),
                    (None, ErrorKind::Denied) => Pause::Refused(Some(self.policy.wait_max())),
                    (None, ErrorKind::Invalid) if self.taken.is_some() => Pause::Refused(Some(self.policy.wait_max())),
                    (None, _) => Pause::Refused(None),
                };
                self.tell(
                    handle,
                    match pause {
                        Pause::Unreached(_) => RegistrationState::Pending(Some(error)),
                        Pause::Refused(_) => RegistrationState::Refused(error),
                    },
                );
                self.pause(&pause).await;
            }
        }
    }

    /// Renews until the registration is lost or something else is wanted.
    async fn keep(&mut self, handle: u64, instance: &Instance, lease: Lease) {
        loop {
            let due = async {
                match lease.renew_every {
                    Some(time) => tokio::time::sleep(time).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = self.stop.wait_for(|stop| *stop) => return,
                // An error says that nobody can wish anything any more: everything stops then.
                _ = self.wanted.changed() => return,
                () = due => {}
            }
            match answer(self.driver.renew(&self.service, instance)).await {
                Ok(Renewal::Kept) => {}
                // Applied again at once: the lease runs out meanwhile. That is right, too, where it survived.
                Ok(Renewal::Lost) => return self.tell(handle, RegistrationState::Pending(None)),
                Err(error) => return self.tell(handle, RegistrationState::Pending(Some(error))),
            }
        }
    }

    async fn pause(&mut self, pause: &Pause) {
        let (end, any) = match pause {
            Pause::Unreached(wait) => (Some(Instant::now() + *wait), false),
            Pause::Refused(wait) => (wait.map(|wait| Instant::now() + wait), true),
        };
        let time = async {
            match end {
                Some(end) => tokio::time::sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(time);
        loop {
            tokio::select! {
                _ = self.stop.wait_for(|stop| *stop) => return,
                changed = self.wanted.changed() => {
                    if changed.is_err() || any || self.wanted.borrow().instance.is_none() {
                        return;
                    }
                }
                () = &mut time => return,
            }
        }
    }

    /// How long to wait before the next attempt; `None` when another one cannot help. `proven` says that what was asked
    /// for was fine before.
    fn after_failure(&mut self, error: &DriverError, proven: bool) -> Option<Duration> {
        let failure = match error.kind() {
            ErrorKind::Invalid if proven => Failure::Transient,
            _ => error.failure(),
        };
        self.backoff.on_failure(failure, self.started.elapsed(), &mut rand::rng()).ok()
    }

    /// One attempt to withdraw. Returns whether the registry has let go; after a failure it waits, unless something is
    /// wanted again meanwhile.
    async fn let_go(&mut self) -> bool {
        if !self.maybe_there {
            return true;
        }
        let Err(error) = answer(self.driver.withdraw(&self.service, &self.id)).await else {
            self.backoff.reset();
            self.maybe_there = false;
            self.taken = None;
            return true;
        };
        let Some(wait) = self.after_failure(&error, self.taken.is_some()) else {
            tracing::warn!(%error, "the registry refused a deregistration");
            self.maybe_there = false;
            return true;
        };
        tracing::debug!(%error, "not deregistered, trying again");
        let stopping = *self.stop.borrow();
        tokio::select! {
            _ = self.stop.wait_for(|stop| *stop), if !stopping => {}
            _ = self.wanted.wait_for(|wish| wish.instance.is_some()), if !stopping => {}
            () = tokio::time::sleep(wait) => {}
        }
        false
    }

    fn tell(&self, handle: u64, state: RegistrationState) {
        match &state {
            RegistrationState::Registered => tracing::info!("registered"),
            RegistrationState::Pending(Some(error)) => tracing::warn!(%error, "not registered, trying again"),
            RegistrationState::Pending(None) => tracing::warn!("the registry lost the registration, applying it again"),
            RegistrationState::Refused(error) => tracing::error!(%error, "the registry refused a registration"),
            RegistrationState::Ended => tracing::info!("deregistered"),
        }
        self.told.send_replace(Told { handle, state });
    }
}

/// The answer to a call, or that there was none in time.
async fn answer<T>(call: Answer<'_, T>) -> Result<T, DriverError> {
    tokio::time::timeout(CALL_MAX, call).await.unwrap_or_else(|_| {
        let message = format!("the registry did not answer within {} s", CALL_MAX.as_secs());
        Err(DriverError::new(ErrorKind::Unreachable, message))
    })
}
