use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// As a real server 2.0.0 answered, phantom follower included.
const ANSWER: &str = r#"{"nodes":[
    {"metadata":{},"control":{"host":"192.0.2.2","port":28044},"transaction":{"host":"192.0.2.2","port":28045},
     "group":"default","role":"LEADER"},
    {"metadata":{"env":"prod"},"control":{"host":"192.0.2.2","port":26046},
     "transaction":{"host":"192.0.2.2","port":27046},"group":"default","role":"FOLLOWER","version":"2.5.0"}],
    "storeMode":"raft","term":1}"#;

#[test]
fn all_nodes_are_listed_with_their_role() {
    let found = read(0, &parse(ANSWER));
    let State::Listed(snapshot, _) = found.state else { panic!("a list") };
    let text = |n: usize, key: &str| snapshot.instances[n].metadata.get(key).map(|value| value.to_text().to_string());
    assert_eq!(snapshot.instances.len(), 2);
    assert_eq!(snapshot.instances[0].address.to_string(), "192.0.2.2:27046");
    assert_eq!(text(0, "role").as_deref(), Some("FOLLOWER"));
    assert_eq!(text(0, "version").as_deref(), Some("2.5.0"));
    assert_eq!(text(0, "env").as_deref(), Some("prod"), "metadata of a node is kept");
    assert_eq!(text(1, "role").as_deref(), Some("LEADER"));
    assert_eq!(text(1, "group").as_deref(), Some("default"));
    assert_eq!(text(1, "term").as_deref(), Some("1"));
    assert_eq!(text(1, "version"), None);
}

/// Seen on a real server with the Raft port it wants.
#[test]
fn a_group_of_one_leads_itself_and_does_not_follow() {
    let node = |role: &str| {
        format!(r#"{{"control":{{"host":"h","port":1}},"transaction":{{"host":"h","port":2}},"role":"{role}"}}"#)
    };
    for order in [["LEADER", "FOLLOWER"], ["FOLLOWER", "LEADER"]] {
        let nodes = order.map(node).join(",");
        let found = read(0, &parse(&format!(r#"{{"nodes":[{nodes}],"storeMode":"raft","term":1}}"#)));
        let State::Listed(snapshot, _) = found.state else { panic!("a list") };
        assert_eq!(snapshot.instances.len(), 1);
        assert_eq!(snapshot.instances[0].metadata.get("role"), Some(&"LEADER".into()));
    }
}

#[test]
fn an_unknown_group_is_told_from_one_without_a_leader() {
    let state = |text: &str| read(0, &parse(text)).state;
    assert!(matches!(state(r#"{"nodes":null,"storeMode":null,"term":0}"#), State::Unknown));
    assert!(matches!(state(r#"{"nodes":null,"storeMode":"raft","term":0}"#), State::Leaderless));
    assert!(matches!(state(r#"{"nodes":[],"storeMode":"raft","term":3}"#), State::Leaderless));
}

#[test]
fn events_are_found_among_other_lines() {
    let metadata = r#"{"nodes":[],"storeMode":"raft","term":4}"#;
    let line = format!(r#"CW:{{"group":"default","timestamp":1,"metadata":{metadata}}}"#);
    let (group, found) = event(&line).expect("an event");
    assert_eq!(group.as_deref(), Some("default"));
    assert_eq!(found["term"].as_i64(), Some(4));
    assert!(event(&format!("data: {line}")).is_some());
    for other in ["", ":", "KA:{}", "CW:", "CW:{", "CW:[]", "CW:{}"] {
        assert!(event(other).is_none(), "{other}");
    }
}

#[test]
fn an_endless_line_is_not_collected_for_ever() {
    let mut lines = Lines::default();
    let chunk = vec![b'x'; 1 << 20];
    let error = (0..8).find_map(|_| lines.push(&chunk).err()).expect("a limit");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
}

proptest! {
    #[test]
    fn lines_do_not_depend_on_how_they_arrive(
        lines in prop::collection::vec("[a-zä ]{0,9}", 0..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let bytes: Vec<u8> = lines.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.push(bytes.len());
        cuts.sort_unstable();
        let mut reader = Lines::default();
        let mut read = Vec::new();
        let mut from = 0;
        for cut in cuts {
            read.extend(reader.push(&bytes[from..cut]).expect("short"));
            from = cut;
        }
        let wanted: Vec<_> = lines.iter().map(|line| line.trim().to_owned()).collect();
        prop_assert_eq!(read, wanted);
    }

    #[test]
    fn no_answer_panics(text in "\\PC{0,60}") {
        let _ = event(&text);
        if let Ok(value) = serde_json::from_str::<Value>(&text) {
            let _ = read(0, &value);
        }
    }
}
