use proptest::prelude::*;

use super::*;

fn instance(host: &str, weight: f64) -> Instance {
    Instance::new(format!("{host}:1").parse().unwrap()).with_weight(weight)
}

#[test]
fn revisions_grow_with_changes_only() {
    let memory = Memory::new();
    assert_eq!(memory.revision(), 0);
    assert_eq!(memory.register("s", instance("a", 1.0)).unwrap(), 1);
    assert_eq!(memory.register("s", instance("a", 1.0)).unwrap(), 1);
    assert_eq!(memory.register("s", instance("a", 0.0)).unwrap(), 2);
    assert_eq!(memory.deregister("s", &"b:1".into()), 2);
    assert_eq!(memory.deregister("nobody", &"b:1".into()), 2);
    assert_eq!(memory.deregister("s", &"a:1".into()), 3);
    assert_eq!(memory.instances("s"), Some(vec![]));
    assert_eq!(memory.instances("nobody"), None);
    assert!(memory.register("s", instance("a", -1.0)).is_err());
}

#[test]
fn a_fleet_replaces_everything() {
    use crate::document::Format;
    let fleet = |text: &str| Fleet::parse("f", text, Format::Yaml).unwrap();
    let memory = Memory::with_fleet(&fleet("services: [{name: a, instances: [{address: 'x:1'}]}, {name: b}]"));
    assert_eq!(memory.instances("a").unwrap().len(), 1);
    let before = memory.revision();
    memory.replace_fleet(&fleet("services: [{name: a, instances: [{address: 'x:1'}]}]"));
    assert_eq!((memory.instances("b"), memory.revision()), (None, before + 1));
    memory.replace_fleet(&fleet("services: [{name: a, instances: [{address: 'x:1'}]}]"));
    assert_eq!(memory.revision(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_watch_answers_after_its_cursor_only() {
    let memory = Memory::new();
    let seen = memory.watch("s", None).await.unwrap();
    assert!(matches!(seen.state, SeenState::UnknownService));
    let waiting = tokio::spawn({
        let (memory, cursor) = (memory.clone(), seen.cursor.clone());
        async move { memory.watch("s", Some(&cursor)).await.unwrap() }
    });
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert!(!waiting.is_finished());
    memory.register("s", instance("a", 1.0)).unwrap();
    let seen = waiting.await.unwrap();
    assert!(matches!(seen.state, SeenState::Service(snapshot) if snapshot.instances.len() == 1));
    // A cursor of another store starts over.
    assert!(memory.watch("s", Some(&Cursor::new("etcd-17"))).await.is_ok());
}

proptest! {
    /// Whoever follows by cursors ends with the state of the store, whatever happened in between.
    #[test]
    fn followers_converge(steps in prop::collection::vec((0u8..4, 0u8..4, 0u8..3), 0..60)) {
        let memory = Memory::new();
        let mut cursor: Option<Cursor> = None;
        let mut view: Option<Vec<Instance>> = None;
        for (step, host, weight) in steps {
            let host = format!("h{host}");
            match step {
                0 | 1 => { memory.register("s", instance(&host, f64::from(weight))).unwrap(); }
                2 => { memory.deregister("s", &format!("{host}:1").as_str().into()); }
                _ => {
                    let newer = memory.newer("s", cursor.as_ref().and_then(|c| c.as_str().parse().ok()));
                    if let Some(seen) = newer {
                        cursor = Some(seen.cursor);
                        view = match seen.state { SeenState::Service(s) => Some(s.instances), _ => None };
                    }
                    prop_assert_eq!(&view, &memory.instances("s"));
                }
            }
        }
    }
}
