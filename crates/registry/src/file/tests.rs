use std::time::Duration;

use metaroute_core::instance::Instance;

use super::*;
use crate::registry::{Registry, State, Subscription, View};

/// Longer than any change takes to be noticed on a loaded machine.
const LONG: Duration = Duration::from_secs(20);

fn fleet(hosts: &[&str]) -> String {
    let items: Vec<String> = hosts.iter().map(|host| format!("{{address: '{host}:1'}}")).collect();
    format!("services: [{{name: s, instances: [{}]}}]\n", items.join(", "))
}

fn hosts(view: &View) -> Vec<String> {
    let mut hosts: Vec<_> =
        view.snapshot.iter().flat_map(|s| &s.instances).map(|i| i.address.host().to_owned()).collect();
    hosts.sort();
    hosts
}

/// Replaces a file as editors and careful writers do.
fn replace(path: &Path, text: &str) {
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, text).unwrap();
    std::fs::rename(&fresh, path).unwrap();
}

async fn until(subscription: &mut Subscription, condition: impl FnMut(&View) -> bool) -> View {
    tokio::time::timeout(LONG, subscription.wait_for(condition)).await.expect("noticed in time").unwrap()
}

fn registry(path: &Path, poll: Duration) -> Registry {
    let options = FileOptions { debounce: Duration::from_millis(5), poll };
    Registry::new(FileDriver::new(path, options))
}

async fn follows_edits(poll: Duration) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fleet.yaml");
    std::fs::write(&path, fleet(&["a"])).unwrap();
    let registry = registry(&path, poll);
    let mut s = registry.subscribe("s");
    let mut other = registry.subscribe("other");
    let first = until(&mut s, |view| view.state == State::Fresh).await;
    assert_eq!(hosts(&first), ["a"]);
    until(&mut other, |view| view.state == State::UnknownService).await;

    // In place, and by renaming over it, twice.
    std::fs::write(&path, fleet(&["a", "b"])).unwrap();
    until(&mut s, |view| hosts(view) == ["a", "b"]).await;
    replace(&path, &fleet(&["c"]));
    until(&mut s, |view| hosts(view) == ["c"]).await;
    replace(&path, &fleet(&["d"]));
    until(&mut s, |view| hosts(view) == ["d"]).await;

    // A bad edit: the last good content stays, the error is visible.
    replace(&path, "services: [{name: s, instances: [{adress: 'x:1'}]}]\n");
    let view = until(&mut s, |view| view.state == State::Stale).await;
    assert_eq!(hosts(&view), ["d"]);
    let error = view.error.unwrap();
    assert!(error.to_string().contains("did you mean `address`?"), "{error}");
    assert_eq!(error.config().unwrap().at.unwrap().to_string(), "1:35");

    // Deleted: not reachable, the last good content stays.
    std::fs::remove_file(&path).unwrap();
    let view = until(&mut s, |view| view.state == State::Unreachable).await;
    assert_eq!(hosts(&view), ["d"]);

    // Back with the very same content.
    replace(&path, &fleet(&["d"]));
    let view = until(&mut s, |view| view.state == State::Fresh).await;
    assert_eq!((hosts(&view), view.error.is_none()), (vec!["d".to_owned()], true));

    // The service goes and comes.
    replace(&path, "services: []\n");
    until(&mut s, |view| view.state == State::UnknownService).await;
    replace(&path, &fleet(&["e"]));
    until(&mut s, |view| hosts(view) == ["e"]).await;
    assert!(registry.shutdown(LONG).await);
}

#[tokio::test]
async fn edits_are_followed_by_notification() {
    // So rarely looked at that only notifications can be in time.
    follows_edits(Duration::from_secs(3600)).await;
}

#[tokio::test]
async fn a_link_to_another_folder_is_followed_by_looking() {
    // As ConfigMap mounts do it, but with the target in a folder that is not watched.
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    let watched = folder.path().join("watched");
    for folder in [&a, &b, &watched] {
        std::fs::create_dir(folder).unwrap();
    }
    std::fs::write(a.join("fleet.yaml"), fleet(&["a"])).unwrap();
    std::fs::write(b.join("fleet.yaml"), fleet(&["b", "b2"])).unwrap();
    let link = folder.path().join("data");
    let path = watched.join("fleet.yaml");
    std::os::unix::fs::symlink(&a, &link).unwrap();
    std::os::unix::fs::symlink(link.join("fleet.yaml"), &path).unwrap();
    let registry = registry(&path, Duration::from_millis(20));
    let mut s = registry.subscribe("s");
    until(&mut s, |view| hosts(view) == ["a"]).await;
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&b, &link).unwrap();
    until(&mut s, |view| hosts(view) == ["b", "b2"]).await;
}

#[tokio::test]
async fn a_file_that_comes_later_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("later/fleet.yaml");
    let registry = registry(&path, Duration::from_millis(20));
    let mut s = registry.subscribe("s");
    let view = until(&mut s, |view| view.state == State::Unreachable).await;
    assert!(view.snapshot.is_none() && view.error.unwrap().to_string().contains("cannot be read"));
    assert!(registry.services().await.is_err());
    std::fs::create_dir(folder.path().join("later")).unwrap();
    std::fs::write(&path, fleet(&["a"])).unwrap();
    until(&mut s, |view| hosts(view) == ["a"]).await;
    assert_eq!(registry.services().await.unwrap(), [Box::<str>::from("s")]);
}

#[tokio::test]
async fn one_look_tells_the_kinds_of_failure_apart() {
    let folder = tempfile::tempdir().unwrap();
    let look = async |name: &str, text: Option<&str>, service: &str| {
        let path = folder.path().join(name);
        if let Some(text) = text {
            std::fs::write(&path, text).unwrap();
        }
        let registry = registry(&path, LONG);
        let outcome = registry.instances(service).await;
        registry.shutdown(LONG).await;
        outcome
    };
    assert_eq!(look("none.yaml", None, "s").await.unwrap_err().kind(), ErrorKind::Unreachable);
    assert_eq!(look("bad.yaml", Some("a: b: c"), "s").await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(look("bad.txt", Some(""), "s").await.unwrap_err().kind(), ErrorKind::Invalid);
    assert!(look("good.yaml", Some(&fleet(&["a"])), "t").await.unwrap().is_none());
    let (snapshot, cursor) = look("good.yaml", Some(&fleet(&["a"])), "s").await.unwrap().unwrap();
    assert_eq!((snapshot.instances.len(), cursor.as_str()), (1, "1"));
}

#[tokio::test]
async fn a_fleet_file_cannot_be_registered_in() {
    let registry = registry(Path::new("fleet.yaml"), LONG);
    let error = registry.register("s", Instance::new("a:1".parse().unwrap())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
