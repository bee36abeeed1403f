//! Every test runs on tokio's paused clock, which jumps to the next timer as soon as nothing else can run.

use std::sync::atomic::AtomicU32;

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn config(policy: &str) -> Config {
    Config {
        policy: policy.parse().unwrap_or_else(|error| panic!("{policy}: {error}")),
        seed: Some(1),
        ..Config::default()
    }
}

/// What the hook was told, as `second word key`.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn queue(&self, config: Config) -> Failback {
        let (log, start) = (self.clone(), Instant::now());
        Failback::start(config, move |event| {
            let at = start.elapsed().as_secs_f64();
            log.push(match event {
                Event::Succeeded { key, attempts } => format!("{at} ok {key} {attempts}"),
                Event::Retrying { key, wait, error, .. } => format!("{at} retry {key} in {wait:?}: {error}"),
                Event::GaveUp { key, attempts, reason, .. } => format!("{at} gave up {key} {attempts} {reason:?}"),
                Event::Replaced { key } => format!("{at} replaced {key}"),
            });
        })
    }

    fn push(&self, line: String) {
        self.0.lock().expect("no holder panics").push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("no holder panics"))
    }
}

/// A task that fails the first `failures` times.
fn failing(failures: u32) -> impl FnMut() -> std::future::Ready<Result<(), TaskError>> + Send + 'static {
    let mut attempts = 0;
    move || {
        attempts += 1;
        std::future::ready(if attempts > failures { Ok(()) } else { Err(TaskError::transient("registry is down")) })
    }
}

/// A task whose attempts never end.
fn hanging() -> impl FnMut() -> std::future::Pending<Result<(), TaskError>> + Send + 'static {
    std::future::pending
}

#[tokio::test(start_paused = true)]
async fn a_call_is_repeated_until_it_succeeds() {
    let log = Log::default();
    let queue = log.queue(config("exponential:1s,2,60s,none"));
    queue.retry("a", Failure::Transient, failing(2)).expect("taken");
    tokio::time::sleep(SECOND * 20).await;
    // The failure before the submission counts: its wait is the first one.
    assert_eq!(log.take(), ["1 retry a in 2s: registry is down", "3 retry a in 4s: registry is down", "7 ok a 3"],);
    let counters = queue.counters();
    assert_eq!((counters.submitted, counters.failed_attempts, counters.succeeded, counters.queued), (1, 2, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn run_starts_at_once() {
    let log = Log::default();
    let queue = log.queue(config("fixed:5s"));
    queue.run("a", failing(1)).expect("taken");
    tokio::time::sleep(SECOND * 20).await;
    assert_eq!(log.take(), ["0 retry a in 5s: registry is down", "5 ok a 2"]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_task_and_a_long_wait_block_nobody() {
    let log = Log::default();
    let queue = log.queue(config("fixed:10s"));
    queue.run("slow", hanging()).expect("taken");
    queue.retry("waits", Failure::After(SECOND * 300), failing(0)).expect("taken");
    tokio::time::sleep(SECOND).await;
    for key in ["a", "b", "c"] {
        queue.run(key, failing(0)).expect("taken");
    }
    tokio::time::sleep(SECOND).await;
    assert_eq!(log.take(), ["1 ok a 1", "1 ok b 1", "1 ok c 1"]);
}

#[tokio::test(start_paused = true)]
async fn attempts_that_hang_are_cut_off_and_free_their_place() {
    let log = Log::default();
    let queue = log.queue(Config { concurrency: NonZeroUsize::MIN, ..config("fixed:5s") });
    queue.run("hangs", hanging()).expect("taken");
    tokio::task::yield_now().await;
    queue.run("waits for the place", failing(0)).expect("taken");
    tokio::time::sleep(SECOND * 31).await;
    assert_eq!(log.take(), ["30 retry hangs in 5s: no answer within 30s", "30 ok waits for the place 1"]);
}

#[tokio::test(start_paused = true)]
async fn no_more_attempts_than_allowed_run_at_a_time() {
    let (running, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let queue =
        Failback::start(Config { concurrency: NonZeroUsize::new(3).expect("not zero"), ..config("fixed:1s") }, |_| {});
    for key in 0..20 {
        let (running, most) = (Arc::clone(&running), Arc::clone(&most));
        let task = move || {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                tokio::time::sleep(SECOND).await;
                running.fetch_sub(1, Ordering::Relaxed);
                Ok(())
            }
        };
        queue.run(format!("{key}"), task).expect("taken");
    }
    tokio::time::sleep(SECOND * 10).await;
    assert_eq!(most.load(Ordering::Relaxed), 3);
    assert_eq!(queue.counters().succeeded, 20);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_says_so() {
    let queue =
        Failback::start(Config { capacity: NonZeroUsize::new(2).expect("not zero"), ..config("fixed:60s") }, |_| {});
    for key in ["a", "b"] {
        queue.retry(key, Failure::Transient, failing(0)).expect("taken");
    }
    let error = queue.run("c", failing(0)).expect_err("full");
    assert_eq!(error, SubmitError::Full { capacity: 2, key: "c".into() });
    assert_eq!(error.to_string(), "the failback queue is full with 2 tasks, `c` was not taken");
    queue.run("a", failing(0)).expect("a newer task of a queued key needs no room");
    tokio::time::sleep(SECOND).await;
    queue.run("c", failing(0)).expect("the place is free again");
    assert_eq!(queue.counters().rejected, 1);
}

#[tokio::test(start_paused = true)]
async fn a_newer_task_replaces_the_older_of_its_key() {
    let log = Log::default();
    let queue = log.queue(config("fixed:5s"));
    queue.retry("x", Failure::Transient, failing(u32::MAX)).expect("taken");
    tokio::time::sleep(SECOND * 6).await;
    queue.retry("x", Failure::Transient, failing(0)).expect("taken");
    tokio::time::sleep(SECOND * 60).await;
    assert_eq!(log.take(), ["5 retry x in 5s: registry is down", "6 replaced x", "11 ok x 1"]);
    assert_eq!(queue.counters().replaced, 1);
}

#[tokio::test(start_paused = true)]
async fn attempts_of_one_key_never_overlap() {
    let log = Log::default();
    let queue = log.queue(config("fixed:5s"));
    let step = |name: &'static str| {
        let log = log.clone();
        move || {
            let log = log.clone();
            async move {
                log.push(format!("{name} starts"));
                tokio::time::sleep(SECOND * 3).await;
                log.push(format!("{name} ends"));
                Err(TaskError::transient("registry is down"))
            }
        }
    };
    queue.run("x", step("register")).expect("taken");
    tokio::time::sleep(SECOND).await;
    queue.run("x", step("deregister")).expect("taken");
    tokio::time::sleep(SECOND * 6).await;
    assert_eq!(
        log.take(),
        [
            "register starts",
            "1 replaced x",
            "register ends",
            "deregister starts",
            "deregister ends",
            "6 retry x in 5s: registry is down",
        ],
        "the older outcome is ignored and the newer one waits for its end",
    );
}

#[tokio::test(start_paused = true)]
async fn cancelled_tasks_are_not_tried_again() {
    let log = Log::default();
    let queue = log.queue(config("fixed:5s"));
    queue.retry("waiting", Failure::Transient, failing(0)).expect("taken");
    queue.run("running", hanging()).expect("taken");
    tokio::time::sleep(SECOND).await;
    assert!(queue.cancel("waiting"));
    assert!(queue.cancel("running"));
    assert!(!queue.cancel("running"), "it is gone already");
    assert!(!queue.cancel("unknown"));
    tokio::time::sleep(SECOND * 100).await;
    assert_eq!(log.take(), [""; 0]);
    assert_eq!((queue.counters().cancelled, queue.counters().queued), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn permanent_failures_and_limits_end_a_task() {
    let log = Log::default();
    let queue = log.queue(config("fixed:1s,attempts=3"));
    queue.run("denied", || async { Err(TaskError::permanent("403")) }).expect("taken");
    tokio::time::sleep(Duration::from_millis(500)).await;
    queue.run("down", failing(u32::MAX)).expect("taken");
    tokio::time::sleep(SECOND * 60).await;
    assert_eq!(
        log.take(),
        [
            "0 gave up denied 1 Some(Permanent)",
            "0.5 retry down in 1s: registry is down",
            "1.5 retry down in 1s: registry is down",
            "2.5 gave up down 3 Some(Attempts)",
        ],
    );
    assert_eq!((queue.counters().gave_up, queue.counters().queued), (2, 0));
    let error = queue.retry("denied", Failure::Permanent, failing(0)).expect_err("no attempt can help");
    assert_eq!(error, SubmitError::GaveUp { key: "denied".into(), reason: GiveUp::Permanent });
}

#[tokio::test(start_paused = true)]
async fn a_server_hint_is_honoured() {
    let log = Log::default();
    let queue = log.queue(config("none"));
    let mut first = true;
    let task = move || {
        let result =
            if std::mem::take(&mut first) { Err(TaskError::new(Failure::After(SECOND * 7), "429")) } else { Ok(()) };
        std::future::ready(result)
    };
    queue.run("a", task).expect("taken");
    tokio::time::sleep(SECOND * 10).await;
    assert_eq!(log.take(), ["0 retry a in 7s: 429", "7 ok a 2"]);
}

#[tokio::test(start_paused = true)]
async fn panics_of_tasks_and_hooks_hurt_nobody_else() {
    let told = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&told);
    let queue = Failback::start(config("fixed:1s"), move |event| {
        counter.fetch_add(1, Ordering::Relaxed);
        assert!(!matches!(event, Event::Succeeded { .. }), "the hook panics on success");
    });
    let task = || async { panic!("a bug in the task") };
    queue.run("panics", task).expect("taken");
    for key in ["a", "b"] {
        queue.run(key, failing(0)).expect("taken");
    }
    tokio::time::sleep(SECOND).await;
    let counters = queue.counters();
    assert_eq!((counters.gave_up, counters.succeeded, counters.queued), (1, 2, 0));
    assert_eq!(told.load(Ordering::Relaxed), 3);
}

#[tokio::test(start_paused = true)]
async fn shutdown_gives_a_last_attempt_and_returns_what_is_left() {
    let log = Log::default();
    let queue = log.queue(config("fixed:60s"));
    for (key, failures) in [("good", 0), ("down", 9)] {
        queue.retry(key, Failure::Transient, failing(failures)).expect("taken");
    }
    queue.run("hangs", hanging()).expect("taken");
    tokio::time::sleep(SECOND).await;
    let unfinished = queue.shutdown(SECOND * 2).await;
    let left = |key: &str, attempts, error: Option<&str>| Unfinished {
        key: key.into(),
        attempts,
        error: error.map(str::to_owned),
    };
    assert_eq!(unfinished, [left("down", 1, Some("registry is down")), left("hangs", 1, None)]);
    assert_eq!(log.take(), ["1 ok good 1"]);
    assert_eq!(queue.run("late", failing(0)), Err(SubmitError::ShutDown("late".into())));
    assert!(queue.shutdown(SECOND).await.is_empty(), "the second call has nothing to return");
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_as_soon_as_all_is_done() {
    let start = Instant::now();
    let queue = Failback::start(config("fixed:60s"), |_| {});
    for key in 0..100 {
        queue.retry(format!("{key}"), Failure::Transient, failing(0)).expect("taken");
    }
    assert_eq!(queue.shutdown(Duration::MAX).await, []);
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(queue.counters().succeeded, 100);
}

#[tokio::test(start_paused = true)]
async fn shutdown_lets_a_replacement_run_after_the_attempt_under_way() {
    let log = Log::default();
    let queue = log.queue(config("fixed:60s"));
    let slow = || async {
        tokio::time::sleep(SECOND * 3).await;
        Ok(())
    };
    queue.run("x", slow).expect("taken");
    tokio::time::sleep(SECOND).await;
    queue.retry("x", Failure::Transient, failing(0)).expect("taken");
    assert_eq!(queue.shutdown(SECOND * 10).await, []);
    assert_eq!(log.take(), ["1 replaced x", "3 ok x 1"]);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_queue_stops_its_attempts() {
    struct Guard(Arc<AtomicU32>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let dropped = Arc::new(AtomicU32::new(0));
    let queue = Failback::start(config("fixed:60s"), |_| {});
    let counter = Arc::clone(&dropped);
    let task = move || {
        let guard = Guard(Arc::clone(&counter));
        async move {
            std::future::pending::<()>().await;
            drop(guard);
            Ok(())
        }
    };
    queue.run("x", task).expect("taken");
    tokio::time::sleep(SECOND).await;
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    drop(queue);
    tokio::time::sleep(SECOND).await;
    assert_eq!(dropped.load(Ordering::Relaxed), 1, "the attempt under way was dropped");
}

#[derive(Debug, Clone)]
enum Step {
    Run(u8, u32),
    Retry(u8, u32),
    Hang(u8),
    Cancel(u8),
    Sleep(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0u8..6, 0u32..4).prop_map(|(key, failures)| Step::Run(key, failures)),
        (0u8..6, 0u32..4).prop_map(|(key, failures)| Step::Retry(key, failures)),
        (0u8..6).prop_map(Step::Hang),
        (0u8..6).prop_map(Step::Cancel),
        (0u64..40_000).prop_map(Step::Sleep),
    ];
    prop::collection::vec(step, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_task_has_exactly_one_end(steps in steps(), capacity in 1usize..6, concurrency in 1usize..4, seed: u64) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let config = Config {
                capacity: NonZeroUsize::new(capacity).expect("not zero"),
                concurrency: NonZeroUsize::new(concurrency).expect("not zero"),
                seed: Some(seed),
                ..config("exponential:1s,1.5,20s,0.5,attempts=4")
            };
            let queue = Failback::start(config, |_| {});
            for step in steps {
                // Refusals are part of the law: they are counted and nothing else happens.
                let _ = match step {
                    Step::Run(key, failures) => queue.run(key.to_string(), failing(failures)),
                    Step::Retry(key, failures) => queue.retry(key.to_string(), Failure::Transient, failing(failures)),
                    Step::Hang(key) => queue.run(key.to_string(), hanging()),
                    Step::Cancel(key) => {
                        queue.cancel(&key.to_string());
                        Ok(())
                    }
                    Step::Sleep(ms) => {
                        tokio::time::sleep(Duration::from_millis(ms)).await;
                        Ok(())
                    }
                };
                assert!(queue.counters().queued <= capacity);
            }
            let unfinished = queue.shutdown(SECOND * 5).await;
            let counters = queue.counters();
            assert_eq!(
                counters.submitted,
                counters.succeeded + counters.gave_up + counters.replaced + counters.cancelled + unfinished.len() as u64,
            );
        });
    }
}
