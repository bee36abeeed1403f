use super::ring::nodes_per_weight;
use super::*;

fn names(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("host-{i:02}")).collect()
}

fn members<'a>(names: &'a [String], weights: &[f64]) -> Vec<Member<'a>> {
    names.iter().zip(weights).map(|(id, &weight)| Member { id, weight }).collect()
}

fn ring(members: &[Member<'_>]) -> Ring {
    Ring::new(members, nodes_per_weight(members.iter().map(|m| m.weight)))
}

fn keys() -> impl Iterator<Item = u64> {
    (0..20_000u64).map(|key| hash_key(&key.to_le_bytes()))
}

/// The lookup of one structure, as a function from key to member.
type Lookup = Box<dyn Fn(u64) -> usize>;

fn lookups(members: &[Member<'_>], out: Option<usize>) -> Vec<(&'static str, Lookup)> {
    let (ring, maglev, rendezvous) = (ring(members), Maglev::new(members), Rendezvous::new(members));
    let allowed = move |i: usize| Some(i) != out;
    vec![
        ("ring", Box::new(move |key| ring.lookup(key, allowed).unwrap())),
        ("maglev", Box::new(move |key| maglev.lookup(key, allowed).unwrap())),
        ("rendezvous", Box::new(move |key| rendezvous.lookup(key, allowed).unwrap())),
    ]
}

/// `routing.md` T18: weight 0 owns no key and breaks nothing, alone or among others.
#[test]
fn t18_weight_zero_owns_no_key() {
    let names = names(3);
    for (_, lookup) in lookups(&members(&names, &[0.0, 5.0, 5.0]), None) {
        assert!(keys().all(|key| lookup(key) != 0));
    }
    let none = members(&names, &[0.0; 3]);
    assert_eq!(ring(&none).lookup(7, |_| true), None);
    assert_eq!(Maglev::new(&none).lookup(7, |_| true), None);
    assert_eq!(Rendezvous::new(&none).lookup(7, |_| true), None);
}

/// `routing.md` T41: the same members in any order give the same mapping. Maglev itself needs sorted members (its
/// callers sort), the ring and rendezvous do not.
#[test]
fn t41_order_does_not_matter() {
    let names = names(7);
    let weights = [1.0, 2.0, 3.0, 1.0, 5.0, 1.0, 1.0];
    let straight = members(&names, &weights);
    let (first, second) = (ring(&straight), Rendezvous::new(&straight));
    for turn in 1..7 {
        let mut order = straight.clone();
        order.rotate_left(turn);
        let (turned, other) = (ring(&order), Rendezvous::new(&order));
        for key in keys().take(500) {
            assert_eq!(
                straight[first.lookup(key, |_| true).unwrap()].id,
                order[turned.lookup(key, |_| true).unwrap()].id
            );
            assert_eq!(
                straight[second.lookup(key, |_| true).unwrap()].id,
                order[other.lookup(key, |_| true).unwrap()].id
            );
        }
    }
}

/// `routing.md` T45: when a member goes out only its own keys move, and they return.
#[test]
fn t45_only_the_keys_of_the_dead_move() {
    let names = names(3);
    let members = members(&names, &[1.0, 1.0, 1.0]);
    for ((name, all), (_, some)) in lookups(&members, None).into_iter().zip(lookups(&members, Some(1))) {
        for key in keys() {
            let (before, after) = (all(key), some(key));
            assert!(before == after || before == 1, "{name}");
            assert_ne!(after, 1, "{name}");
        }
    }
}

/// `routing.md` T46: a weight that changes moves few keys, all of them to or from that member, whatever its digits.
#[test]
fn t46_weight_digits_do_not_matter() {
    let names = names(10);
    let weights = |first: f64| {
        let mut weights = [10.0; 10];
        weights[0] = first;
        weights
    };
    for (from, to) in [(9.0, 10.0), (8.0, 9.0), (10.0, 11.0), (99.0, 100.0)] {
        let (before, after) = (members(&names, &weights(from)), members(&names, &weights(to)));
        for ((name, before), (_, after)) in lookups(&before, None).into_iter().zip(lookups(&after, None)) {
            let moved: Vec<_> = keys().map(|key| (before(key), after(key))).filter(|(b, a)| b != a).collect();
            let limit = if name == "maglev" { 0.06 } else { 0.02 };
            let share = moved.len() as f64 / 20_000.0;
            assert!(share < limit, "{name} {from} -> {to}: {share}");
            if name != "maglev" {
                assert!(moved.iter().all(|&(_, to)| to == 0), "{name} {from} -> {to}");
            }
        }
    }
}

/// `routing.md` 5.8: Maglev 1:2 in 65,537 slots (Envoy's documentation).
#[test]
fn golden_maglev_slots() {
    let names = names(2);
    let maglev = Maglev::new(&members(&names, &[1.0, 2.0]));
    assert_eq!(maglev.table().len(), 65_537);
    assert_eq!(maglev.counts(), [21_846, 43_691]);
}

#[test]
fn shares_are_what_lookups_give() {
    let names = names(5);
    let members = members(&names, &[1.0, 2.0, 3.0, 4.0, 0.0]);
    let allowed = |i: usize| i != 2;
    let (ring, maglev) = (ring(&members), Maglev::new(&members));
    for (shares, counts) in [
        (
            ring.shares(5, allowed),
            keys().fold([0.0; 5], |mut c, k| {
                c[ring.lookup(k, allowed).unwrap()] += 1.0 / 20_000.0;
                c
            }),
        ),
        (
            maglev.shares(allowed),
            keys().fold([0.0; 5], |mut c, k| {
                c[maglev.lookup(k, allowed).unwrap()] += 1.0 / 20_000.0;
                c
            }),
        ),
    ] {
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        for (share, counted) in shares.iter().zip(counts) {
            assert!((share - counted).abs() < 0.015, "{share} {counted}");
        }
    }
}

#[test]
fn weights_decide_the_share_of_rendezvous_and_ring() {
    let names = names(3);
    let members = members(&names, &[1.0, 2.0, 7.0]);
    for (name, lookup) in lookups(&members, None) {
        let mut counts = [0.0_f64; 3];
        keys().for_each(|key| counts[lookup(key)] += 1.0 / 20_000.0);
        for (count, expected) in counts.iter().zip([0.1, 0.2, 0.7]) {
            assert!((count - expected).abs() < 0.06, "{name} {counts:?}");
        }
    }
}

/// The vectors of `docs/hashing.md`, computed there with Python's xxhash and hashlib.
#[test]
fn documented_vectors() {
    let page = include_str!("../../../../docs/hashing.md");
    let mut checked = 0;
    for line in page.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let found = match (cells[1], cells[2]) {
            ("key", text) => hash_key(text.as_bytes()),
            ("id 0", text) => hash_id(text, 0),
            ("id 1", text) => hash_id(text, 1),
            ("mix64", text) => mix64(text.parse().unwrap()),
            ("seata", text) => super::seata::seata_hash(text) as u64,
            _ => continue,
        };
        assert_eq!(format!("{found:016x}"), cells[3], "{line}");
        checked += 1;
    }
    assert_eq!(checked, 6);
}

/// The text Seata hashes, and its ring.
#[test]
fn seata_ring_hash_and_text() {
    use super::seata::socket_text;
    assert_eq!(socket_text(&"10.0.0.1:8091".parse().unwrap()), "/10.0.0.1:8091");
    assert_eq!(socket_text(&"[::1]:8091".parse().unwrap()), "/[0:0:0:0:0:0:0:1]:8091");
    let addresses: Vec<crate::Address> = ["10.0.0.1:8091", "10.0.0.2:8091"].map(|a| a.parse().unwrap()).into();
    let ring = SeataRing::new(addresses.iter(), 10);
    assert!((ring.shares(2, |_| true).iter().sum::<f64>() - 1.0).abs() < 1e-9);
    assert_eq!(ring.lookup("any", |i| i == 1), Some(1));
}
