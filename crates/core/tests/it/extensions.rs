//! Routers and balancers of one's own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use metaroute_core::rules::{Balance, Filter, Rule, Terminal};
use metaroute_core::{Balancer, Chooser, Extensions, GuardOptions, Instance, Options, RuleSet, Selector, Update};

use crate::{caller, fleet, must, rules};

/// Keeps the instances nearest to the caller on a line.
struct Nearest {
    top: usize,
}

impl metaroute_core::Router for Nearest {
    fn route(&self, candidates: &[&Instance], caller: &BTreeMap<String, String>, keep: &mut [bool]) {
        let place = |text: Option<&str>| text.and_then(|text| text.parse::<f64>().ok()).unwrap_or(f64::INFINITY);
        let own = place(caller.get("mile").map(String::as_str));
        let mut ranked: Vec<(f64, usize)> = candidates
            .iter()
            .enumerate()
            .map(|(i, candidate)| {
                ((place(candidate.metadata.get("mile").map(|m| m.to_text()).as_deref()) - own).abs(), i)
            })
            .collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        for &(_, i) in ranked.iter().skip(self.top) {
            keep[i] = false;
        }
    }
}

struct First;
struct OnlyFirst(usize);

impl Balancer for First {
    fn prepare(&self, members: &[&Instance], _: &[f64]) -> Box<dyn Chooser> {
        Box::new(OnlyFirst(members.len()))
    }
}

impl Chooser for OnlyFirst {
    fn choose(&self, _: u64, _: Option<&[u8]>) -> usize {
        0
    }

    fn shares(&self) -> Vec<f64> {
        (0..self.0).map(|i| if i == 0 { 1.0 } else { 0.0 }).collect()
    }
}

fn extensions() -> Extensions {
    Extensions::default()
        .with_router("spi-nearest", |name, config| {
            let top = config
                .get("topN")
                .map_or(Ok(5), |top| top.parse())
                .map_err(|_| format!("{name}: topN is no number"))?;
            Ok(Arc::new(Nearest { top }))
        })
        .with_balancer("first", Arc::new(First))
}

fn nearest(top: &str) -> Rule {
    let mut rule = must("");
    rule.name = "nearest".into();
    rule.filter = Filter::Custom { router: "spi-nearest".into(), config: [("topN".to_owned(), top.to_owned())].into() };
    rule.terminal = Some(Terminal::Any);
    rule
}

fn start(set: RuleSet) -> Result<Selector, metaroute_core::RuleError> {
    let options = Options {
        guard: GuardOptions::off(),
        extensions: extensions(),
        caller: caller(&[("mile", "100")]),
        ..Options::default()
    };
    let selector = Selector::new(set, options)?;
    let list = fleet(&["a mile=1", "b mile=90 env=dev", "c mile=105", "d mile=400", "e"]);
    selector.apply(Update::Snapshot(list), Duration::ZERO);
    Ok(selector)
}

#[test]
fn a_router_narrows_what_earlier_rules_left() {
    let selector = start(rules(vec![must("!(env == dev)"), nearest("2")])).unwrap();
    let ids: Vec<_> = crate::shares(&selector, &Default::default()).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, ["a", "c"]);
    let explained = selector.explain(&());
    assert_eq!(explained.instances[3].clause.as_deref(), Some("router spi-nearest"));
}

#[test]
fn a_router_may_refuse_its_configuration() {
    let error = start(rules(vec![nearest("many")])).unwrap_err();
    assert_eq!(error.to_string(), "rule `nearest`: router `spi-nearest`: spi-nearest: topN is no number");
    let mut unknown = nearest("1");
    unknown.filter = Filter::Custom { router: "spi-gone".into(), config: BTreeMap::new() };
    assert_eq!(
        start(rules(vec![unknown])).unwrap_err().to_string(),
        "rule `nearest`: no router `spi-gone` is registered"
    );
}

#[test]
fn a_balancer_chooses_and_explains_itself() {
    let mut set = RuleSet::default();
    set.balance = Balance::Custom("first".into());
    let selector = start(set).unwrap();
    assert_eq!(selector.select(&()).unwrap().instance().id.as_str(), "a");
    assert_eq!(selector.explain(&()).instances[0].probability, 1.0);
    assert_ne!(selector.select_next(&(), &["a".into()]).unwrap().instance().id.as_str(), "a");
    let mut set = RuleSet::default();
    set.balance = Balance::Custom("last".into());
    assert_eq!(start(set).unwrap_err().to_string(), "no balancer `last` is registered");
}

/// Counts how often it is prepared.
struct Counting(Arc<std::sync::atomic::AtomicUsize>);

impl Balancer for Counting {
    fn prepare(&self, members: &[&Instance], shares: &[f64]) -> Box<dyn Chooser> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        First.prepare(members, shares)
    }
}

/// `routing.md` T43: tables are built when something changes, once, however many threads pick.
#[test]
fn t43_one_build_per_change() {
    let builds = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = || builds.load(std::sync::atomic::Ordering::SeqCst);
    let mut set = RuleSet::default();
    set.balance = Balance::Custom("counting".into());
    let extensions = Extensions::default().with_balancer("counting", Arc::new(Counting(Arc::clone(&builds))));
    let selector =
        Selector::new(set, Options { guard: GuardOptions::off(), extensions, ..Options::default() }).unwrap();
    selector.apply(Update::Snapshot(fleet(&["a", "b", "c"])), Duration::ZERO);
    let mut picker = selector.picker();
    for _ in 0..10_000 {
        picker.pick(&()).unwrap();
    }
    assert_eq!(count(), 1);
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| (0..100).for_each(|_| drop(selector.select(&()).unwrap())));
        }
        selector.apply(Update::Snapshot(fleet(&["a", "b", "d"])), Duration::from_secs(1));
    });
    assert_eq!(count(), 2);
}
