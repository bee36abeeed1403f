use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::*;

fn rng(seed: u64) -> SmallRng {
    SmallRng::seed_from_u64(seed)
}

fn policy(text: &str) -> Policy {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[track_caller]
fn check_waits(text: &str, expected_ms: &[u64]) {
    let waits: Vec<_> = policy(text).delays(rng(1)).take(expected_ms.len()).collect();
    let expected: Vec<_> = expected_ms.iter().copied().map(ms).collect();
    assert_eq!(waits, expected, "{text}");
}

#[test]
fn waits_without_randomness_follow_the_law() {
    check_waits("none", &[0, 0, 0]);
    check_waits("fixed:5s", &[5000, 5000, 5000]);
    check_waits("exponential:1s,2,5s,none", &[1000, 2000, 4000, 5000, 5000]);
    check_waits("exponential:1s,1.5,60s,none", &[1000, 1500, 2250, 3375]);
    check_waits("exponential:1s,1.5,60s,0", &[1000, 1500, 2250, 3375]);
    check_waits("exponential:2s,1,2s,none", &[2000, 2000]);
}

#[test]
fn failback_parameters_settle_between_30_and_90_seconds() {
    // The published parameters: 1 s × 1.5, cap 60 s, factor 0.5. The cap limits the interval, not the wait.
    let waits: Vec<_> = Policy::default().delays(rng(7)).skip(20).take(2000).collect();
    assert!(waits.iter().all(|wait| (ms(30_000)..=ms(90_000)).contains(wait)));
    assert!(waits.iter().any(|wait| *wait > ms(85_000)), "randomisation comes after the cap");
    assert!(waits.iter().any(|wait| *wait < ms(35_000)));
    assert_eq!(Policy::default().wait_max(), ms(90_000));
}

#[test]
fn factor_draws_are_uniform_over_the_whole_range() {
    // 10,000 first waits of 1 s ± 50 % in ten cells of 100 ms; chi-square with 9 degrees of freedom, p = 0.001 at 27.9.
    let mut cells = [0f64; 10];
    let mut rng = rng(3);
    for _ in 0..10_000 {
        let wait = Backoff::new(Policy::default()).next_delay(Duration::ZERO, &mut rng).expect("no limit is set");
        let cell = (wait.as_millis() as usize).saturating_sub(500) / 100;
        cells[cell.min(9)] += 1.0;
    }
    let chi_square: f64 = cells.iter().map(|count| (count - 1000.0).powi(2) / 1000.0).sum();
    assert!(chi_square < 27.9, "{cells:?}");
}

#[test]
fn attempts_include_the_first_one() {
    assert_eq!(policy("fixed:1s,attempts=3").delays(rng(1)).count(), 2);
    assert_eq!(policy("fixed:1s,attempts=1").delays(rng(1)).count(), 0);
}

#[test]
fn no_attempt_starts_after_the_time_limit() {
    let mut backoff = Backoff::new(policy("fixed:5s,elapsed=12s"));
    let mut rng = rng(1);
    let start = ms(1_000_000);
    assert_eq!(backoff.on_failure(Failure::Transient, start, &mut rng), Ok(ms(5000)));
    assert_eq!(
        backoff.on_failure(Failure::Transient, start + ms(7000), &mut rng),
        Ok(ms(5000)),
        "7 s + 5 s is not later than 12 s"
    );
    assert_eq!(backoff.on_failure(Failure::Transient, start + ms(7001), &mut rng), Err(GiveUp::Elapsed));
    backoff.reset();
    assert_eq!(
        backoff.on_failure(Failure::Transient, start + ms(90_000), &mut rng),
        Ok(ms(5000)),
        "the clock starts anew after a success"
    );
}

#[test]
fn success_restores_the_first_interval() {
    let mut backoff = Backoff::new(policy("exponential:1s,2,60s,none"));
    let mut rng = rng(1);
    for _ in 0..5 {
        backoff.next_delay(Duration::ZERO, &mut rng);
    }
    assert_eq!(backoff.failures(), 5);
    backoff.reset();
    assert_eq!(backoff.failures(), 0);
    assert_eq!(backoff.next_delay(Duration::ZERO, &mut rng), Some(ms(1000)));
}

#[test]
fn permanent_failures_end_at_once_and_give_up_stays() {
    let mut rng = rng(1);
    let mut backoff = Backoff::new(Policy::default());
    assert_eq!(backoff.on_failure(Failure::Permanent, Duration::ZERO, &mut rng), Err(GiveUp::Permanent));
    let mut backoff = Backoff::new(policy("none,attempts=2"));
    assert_eq!(backoff.next_delay(Duration::ZERO, &mut rng), Some(Duration::ZERO));
    for _ in 0..3 {
        assert_eq!(backoff.on_failure(Failure::Transient, Duration::ZERO, &mut rng), Err(GiveUp::Attempts));
    }
}

#[test]
fn a_server_hint_is_a_floor_and_is_spread() {
    let mut rng = rng(1);
    let hinted: Vec<_> = (0..100)
        .map(|_| {
            Backoff::new(Policy::default())
                .on_failure(Failure::After(ms(10_000)), Duration::ZERO, &mut rng)
                .expect("no limit")
        })
        .collect();
    assert!(hinted.iter().all(|wait| (ms(10_500)..=ms(11_500)).contains(wait)));
    assert_ne!(hinted[0], hinted[1]);
    let mut backoff = Backoff::new(policy("none"));
    assert_eq!(backoff.on_failure(Failure::After(Duration::MAX), Duration::ZERO, &mut rng), Ok(SERVER_HINT_MAX));
}

#[test]
fn extreme_numbers_neither_overflow_nor_panic() {
    let mut rng = rng(1);
    let policy =
        Policy::exponential(Duration::from_nanos(1), f64::MAX, Duration::MAX, Jitter::Factor(1.0)).expect("legal");
    let mut backoff = Backoff::new(policy);
    for _ in 0..100 {
        assert!(backoff.next_delay(Duration::MAX, &mut rng).is_some());
    }
    let mut backoff = Backoff::new(Policy::fixed(Duration::MAX).with_elapsed_max(ms(1)));
    assert_eq!(backoff.next_delay(Duration::MAX, &mut rng), None);
    // A clock that runs backwards is a bug of the caller, but not a panic.
    let mut backoff = Backoff::new("fixed:1s,elapsed=5s".parse().expect("legal"));
    assert_eq!(backoff.next_delay(ms(9000), &mut rng), Some(ms(1000)));
    assert_eq!(backoff.next_delay(ms(0), &mut rng), Some(ms(1000)));
}

#[test]
fn delays_drive_backon() {
    use std::sync::mpsc;

    use backon::BlockingRetryable;

    // backon gives the sleeper away for tests; nothing sleeps here.
    let (sleeper, slept) = mpsc::sync_channel(10);
    let mut attempts = 0;
    let result = (|| {
        attempts += 1;
        if attempts < 4 { Err("down") } else { Ok(attempts) }
    })
    .retry(policy("exponential:1s,2,60s,none,attempts=5").delays(rng(1)))
    .sleep(move |wait| sleeper.send(wait).expect("the test listens"))
    .call();
    assert_eq!(result, Ok(4));
    assert_eq!(slept.try_iter().collect::<Vec<_>>(), [ms(1000), ms(2000), ms(4000)]);
}

#[test]
fn t60_every_field_survives_print_and_parse() {
    for text in [
        "none",
        "none,attempts=4",
        "fixed:5s",
        "fixed:250ms,attempts=3,elapsed=90s",
        "exponential:1s,1.5,60s,0.5",
        "exponential:1500us,2.25,7ms,full",
        "exponential:1ms,3,60s,decorrelated,elapsed=3600s",
        "exponential:11ms,2,13s,equal,attempts=17,elapsed=19s",
        "exponential:1s,1.5,60s,none",
    ] {
        assert_eq!(policy(text).to_string(), text);
    }
    let read = policy("exponential:11ms,2,13s,0.25,attempts=17,elapsed=19s");
    assert_eq!(
        read.shape,
        Shape::Exponential { initial: ms(11), multiplier: 2.0, cap: ms(13_000), jitter: Jitter::Factor(0.25) }
    );
    assert_eq!(read.attempts_max().map(NonZeroU32::get), Some(17));
    assert_eq!(read.elapsed_max(), Some(ms(19_000)));
}

#[track_caller]
fn check_error(text: &str, message: &str) {
    let error = text.parse::<Policy>().expect_err(text);
    let full = match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    assert_eq!(full, message, "{text}");
}

#[test]
fn bad_texts_name_the_offending_part() {
    check_error(
        "",
        "unknown back-off policy ``, expected none, fixed:WAIT or exponential:INITIAL,MULTIPLIER,CAP[,JITTER]",
    );
    check_error(
        "linear:1s",
        "unknown back-off policy `linear:1s`, expected none, fixed:WAIT or exponential:INITIAL,MULTIPLIER,CAP[,JITTER]",
    );
    check_error("fixed", "fixed needs a duration, as in fixed:5s");
    check_error("fixed,5s", "unexpected `5s`");
    check_error("fixed:5", "`5` is no duration such as 500ms, 1.5s or 2m");
    check_error("fixed:-5s", "`-5s` is no duration such as 500ms, 1.5s or 2m");
    check_error("fixed:5s,6s", "unexpected `6s`");
    check_error("none:5s", "unexpected `5s`");
    check_error(
        "exponential:1s,1.5",
        "exponential needs initial interval, multiplier and cap, as in exponential:1s,1.5,60s,0.5",
    );
    check_error("exponential:1s,x,60s", "`x` is no multiplier");
    check_error("exponential:1s,inf,60s", "`inf` is no multiplier");
    check_error(
        "exponential:1s,0.5,60s",
        "the numbers of the policy make no sense: the multiplier must be a finite number of at least 1, not 0.5",
    );
    check_error(
        "exponential:1s,2,60s,1.5",
        "the numbers of the policy make no sense: the randomisation factor must be between 0 and 1, not 1.5",
    );
    check_error(
        "exponential:0s,2,60s",
        "the numbers of the policy make no sense: the initial interval must be longer than 0s",
    );
    check_error(
        "exponential:9s,2,6s",
        "the numbers of the policy make no sense: the cap 6s is shorter than the initial interval 9s",
    );
    check_error(
        "exponential:1s,2,60s,some",
        "`some` is no jitter (none, full, equal, decorrelated or a factor between 0 and 1)",
    );
    check_error("exponential:1s,2,60s,full,9", "unexpected `9`");
    check_error("fixed:5s,attempts=0", "`0` is no number of attempts of at least 1");
    check_error("fixed:5s,tries=3", "unexpected `tries=3`");
    check_error("fixed:5s,attempts=3,9s", "unexpected `9s`");
}

#[test]
fn durations_are_exact() {
    for (text, nanos) in [
        ("0", 0u128),
        ("0s", 0),
        ("7ns", 7),
        ("1.5us", 1_500),
        ("1.5µs", 1_500),
        ("0.25ms", 250_000),
        ("1.000000001s", 1_000_000_001),
        ("1.5m", 90_000_000_000),
        ("0.05h", 180_000_000_000),
        ("2h", 7_200_000_000_000),
        ("1.9999999999ns", 1),
    ] {
        assert_eq!(parse_duration(text).map(|duration| duration.as_nanos()), Ok(nanos), "{text}");
    }
    for text in [
        "",
        "s",
        ".5s",
        "5.s",
        "1..5s",
        "1.5.5s",
        "5 s",
        "5S",
        "1e3s",
        "99999999999999999999h",
        "340282366920938463463374607431768211456ns",
    ] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
}

fn jitters() -> impl Strategy<Value = Jitter> {
    prop_oneof![
        Just(Jitter::None),
        Just(Jitter::Full),
        Just(Jitter::Equal),
        Just(Jitter::Decorrelated),
        (0.0..=1.0f64).prop_map(Jitter::Factor),
    ]
}

fn exponentials() -> impl Strategy<Value = Policy> {
    (1u64..10_000_000_000, 1.0..10.0f64, 1u64..1000, jitters()).prop_map(|(initial, multiplier, times, jitter)| {
        let cap = Duration::from_nanos(initial.saturating_mul(times));
        Policy::exponential(Duration::from_nanos(initial), multiplier, cap, jitter).expect("legal numbers")
    })
}

fn policies() -> impl Strategy<Value = Policy> {
    let shapes = prop_oneof![
        Just(Policy::none()),
        (0u64..100_000_000_000).prop_map(|nanos| Policy::fixed(Duration::from_nanos(nanos))),
        exponentials(),
    ];
    (shapes, proptest::option::of(1u32..50), proptest::option::of(0u64..1_000_000_000_000)).prop_map(
        |(mut policy, attempts, elapsed)| {
            if let Some(attempts) = attempts.and_then(NonZeroU32::new) {
                policy = policy.with_attempts_max(attempts);
            }
            if let Some(elapsed) = elapsed {
                policy = policy.with_elapsed_max(Duration::from_nanos(elapsed));
            }
            policy
        },
    )
}

proptest! {
    #[test]
    fn waits_stay_within_the_documented_law(policy in exponentials(), seed: u64) {
        let Shape::Exponential { initial, multiplier, cap, jitter } = policy.shape else { unreachable!("the strategy makes no other") };
        let (initial, cap) = (nanos(initial), nanos(cap));
        let mut interval = initial;
        let mut previous = initial;
        for wait in policy.delays(rng(seed)).take(60) {
            prop_assert!(wait <= policy.wait_max());
            let wait = nanos(wait);
            let (low, high) = match jitter {
                Jitter::None => (interval, interval),
                Jitter::Full => (0, interval),
                Jitter::Equal => (interval.div_ceil(2), interval),
                Jitter::Decorrelated => (initial.min(cap), cap.min((previous as f64 * multiplier) as u64 + 1)),
                Jitter::Factor(factor) => {
                    let half = (interval as f64 * factor) as u64;
                    (interval - half.min(interval), interval + half)
                }
            };
            prop_assert!((low..=high).contains(&wait), "{wait} is not in {low}..={high} of {policy}");
            if !matches!(jitter, Jitter::Factor(_)) {
                prop_assert!(wait <= cap);
            }
            previous = wait;
            interval = grow(interval, multiplier, cap);
            prop_assert!(interval <= cap);
        }
    }

    #[test]
    fn limits_bound_attempts_and_time(policy in policies(), seed: u64, latency in 0u64..1_000_000_000) {
        let mut rng = rng(seed);
        let mut backoff = Backoff::new(policy);
        let latency = Duration::from_nanos(latency);
        let first_failure = latency;
        let mut now = first_failure;
        let mut attempts = 1u32;
        while let Some(wait) = backoff.next_delay(now, &mut rng) {
            attempts += 1;
            if let Some(elapsed) = policy.elapsed_max() {
                prop_assert!(now + wait - first_failure <= elapsed);
            }
            now += wait + latency;
            if attempts == 100 {
                break;
            }
        }
        if let Some(max) = policy.attempts_max() {
            prop_assert!(attempts <= max.get());
            if policy.elapsed_max().is_none() {
                prop_assert_eq!(attempts, max.get());
            }
        }
        if policy.attempts_max().is_none() && policy.elapsed_max().is_none() {
            prop_assert_eq!(attempts, 100, "an unlimited policy never gives up");
        }
    }

    #[test]
    fn print_then_parse_is_the_same_policy(policy in policies()) {
        prop_assert_eq!(policy.to_string().parse::<Policy>(), Ok(policy));
    }

    #[test]
    fn parsing_is_total(text in "(none|fixed|exponential)?[:,]?[0-9a-z.,=µ-]{0,30}") {
        if let Ok(policy) = text.parse::<Policy>() {
            prop_assert_eq!(policy.to_string().parse::<Policy>(), Ok(policy));
        }
    }
}
