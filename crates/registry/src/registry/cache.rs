//! The last good lists on disk: what a process serves that starts while its registry is down.
//!
//! One file for each service of each registry, named after a hash of both, in a folder that several processes may
//! share: files are written whole beside the old one and renamed over it, so a reader sees the one or the other. A file
//! that is damaged, too large or of another version is as good as none, with a warning. An address is written without its
//! secrets; metadata is written as it is, so files are readable by their owner only.
//!
//! ```text
//! {"v":1,"check":"f0e1d2c3b4a59687"}                                        check: XXH3-64 of the next line
//! {"registry":"etcd://127.0.0.1:2379","service":"orders","confirmed":1764464400123,"instances":[{"instance":{…}}]}
//! ```
//!
//! `confirmed` is when the registry last said so, in milliseconds since 1970; an instance is the document that our own
//! layouts write, with `"healthy":false` beside it where the registry said that.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use crate::carrier;
use crate::driver::Snapshot;

/// Version of the file; another one is not read.
const VERSION: u64 = 1;

/// Largest file. A thousand instances with a kilobyte each are 1 MiB.
const FILE_MAX: u64 = 16 << 20;

/// Most files in a folder; the oldest ones go when there are more.
const FILES_MAX: usize = 4096;

/// The lists of one registry in a folder.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    folder: PathBuf,
    registry: Arc<str>,
}

/// A list as it was.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cached {
    pub(super) snapshot: Snapshot,
    /// How long ago the registry confirmed it.
    pub(super) age: Duration,
}

impl Cache {
    /// `registry` names it: its address, secrets hidden.
    pub(super) fn new(folder: PathBuf, registry: &str) -> Self {
        Self { folder, registry: registry.into() }
    }

    fn path(&self, service: &str) -> PathBuf {
        self.folder.join(format!("{:016x}.json", xxh3_64(format!("{}\n{service}", self.registry).as_bytes())))
    }

    /// What was kept of a service. Everything that is wrong with it is said in the log and nowhere else.
    pub(super) async fn load(&self, service: &str) -> Option<Cached> {
        let (path, ours, name) = (self.path(service), self.clone(), service.to_owned());
        let read = tokio::task::spawn_blocking(move || ours.read(&name, SystemTime::now())).await.ok()?;
        match read {
            Ok(cached) => cached,
            Err(error) => {
                tracing::warn!(service, path = %path.display(), %error, "the list kept on disk is of no use");
                None
            }
        }
    }

    /// Keeps a list that the registry confirmed just now.
    pub(super) async fn save(&self, service: &str, snapshot: Arc<Snapshot>) {
        let (path, ours, name) = (self.path(service), self.clone(), service.to_owned());
        let written = tokio::task::spawn_blocking(move || ours.write(&name, &snapshot, SystemTime::now())).await;
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(service, path = %path.display(), %error, "the list is not kept on disk");
            }
            Err(error) => tracing::warn!(service, %error, "the list is not kept on disk"),
        }
    }

    fn read(&self, service: &str, now: SystemTime) -> Result<Option<Cached>, String> {
        let file = match fs::File::open(self.path(service)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let mut text = String::new();
        let read = file.take(FILE_MAX + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
        if read as u64 > FILE_MAX {
            return Err(format!("larger than {FILE_MAX} bytes"));
        }
        let (header, body) = text.split_once('\n').ok_or("it has no second line")?;
        let header: Value = serde_json::from_str(header).map_err(|error| format!("its header: {error}"))?;
        if header["v"].as_u64() != Some(VERSION) {
            return Err(format!("its version is {}, this program reads {VERSION}", header["v"]));
        }
        let body = body.strip_suffix('\n').ok_or("it was cut off")?;
        if header["check"].as_str() != Some(&check(body)) {
            return Err("its check sum is wrong".into());
        }
        let body: Value = serde_json::from_str(body).map_err(|error| error.to_string())?;
        if body["registry"].as_str() != Some(&self.registry) || body["service"].as_str() != Some(service) {
            // Two names with one hash: it is another one's file.
            return Ok(None);
        }
        let confirmed = Duration::from_millis(body["confirmed"].as_u64().ok_or("it has no time")?);
        // A clock that was set back makes a list look like one from the future; it is no younger for that.
        let age = now.duration_since(UNIX_EPOCH + confirmed).unwrap_or_default();
        let mut snapshot = Snapshot::default();
        for entry in body["instances"].as_array().ok_or("it has no list")? {
            let mut instance = carrier::from_json(entry["instance"].to_string().as_bytes())?;
            instance.healthy = entry["healthy"].as_bool().unwrap_or(true);
            snapshot.instances.push(instance);
        }
        Ok(Some(Cached { snapshot, age }))
    }

    fn write(&self, service: &str, snapshot: &Snapshot, now: SystemTime) -> io::Result<()> {
        let instances = snapshot.instances.iter().map(|instance| {
            let document: Value = serde_json::from_slice(&carrier::to_json(instance)).map_err(io::Error::from)?;
            Ok(if instance.healthy {
                json!({"instance": document})
            } else {
                json!({"instance": document, "healthy": false})
            })
        });
        let instances = instances.collect::<io::Result<Vec<Value>>>()?;
        let confirmed = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let confirmed = u64::try_from(confirmed).unwrap_or(u64::MAX);
        let body = json!({
            "registry": &*self.registry, "service": service, "confirmed": confirmed, "instances": instances,
        });
        let body = body.to_string();
        let header = json!({"v": VERSION, "check": check(&body)}).to_string();
        if (header.len() + body.len() + 2) as u64 > FILE_MAX {
            return Err(io::Error::other(format!("it would be larger than {FILE_MAX} bytes")));
        }
        let path = self.path(service);
        if !path.exists() {
            create_folder(&self.folder)?;
            make_room(&self.folder)?;
        }
        // Several processes may write the same list: each has a file of its own until it is complete.
        let mut part = path.clone();
        part.set_extension(format!("{}.part", std::process::id()));
        let written = write_whole(&part, &[header.as_bytes(), b"\n", body.as_bytes(), b"\n"])
            .and_then(|()| fs::rename(&part, &path));
        if written.is_err() {
            let _ = fs::remove_file(&part);
        }
        written
    }
}

fn check(body: &str) -> String {
    format!("{:016x}", xxh3_64(body.as_bytes()))
}

fn create_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

fn write_whole(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    for part in parts {
        file.write_all(part)?;
    }
    // A machine that fails right after the rename must not leave an empty file under the good name.
    file.sync_data()
}

/// Takes the oldest files away while there are as many as there may be.
fn make_room(folder: &Path) -> io::Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|extension| extension == "json" || extension == "part") {
            files.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    if files.len() >= FILES_MAX {
        files.sort();
        for (_, path) in files.iter().take(files.len() + 1 - FILES_MAX) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use metaroute_core::instance::{Instance, MetaValue};
    use proptest::prelude::*;

    use super::*;

    fn cache() -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().join("registry"), "etcd://127.0.0.1:2379");
        (folder, cache)
    }

    fn list() -> Snapshot {
        let mut sick = Instance::new("10.0.0.2:80".parse().unwrap()).with_id("b").with_weight(0.0);
        sick.healthy = false;
        sick.metadata.insert("version".into(), MetaValue::Number("2.10".into()));
        let well = Instance::new("10.0.0.1:80".parse().unwrap()).with_meta("note", "zwölf\n");
        Snapshot { instances: vec![well, sick], ..Snapshot::default() }
    }

    #[test]
    fn a_list_comes_back_as_it_was_with_its_age() {
        let (_folder, cache) = cache();
        let then = UNIX_EPOCH + Duration::from_secs(1_000_000);
        assert_eq!(cache.read("orders", then), Ok(None));
        cache.write("orders", &list(), then).unwrap();
        let later = then + Duration::from_secs(90);
        let cached = cache.read("orders", later).unwrap().unwrap();
        assert_eq!(cached, Cached { snapshot: list(), age: Duration::from_secs(90) });
        assert_eq!(cache.read("orders", then - Duration::from_secs(5)).unwrap().unwrap().age, Duration::ZERO);
        assert_eq!(cache.read("others", later), Ok(None));
        let elsewhere = Cache::new(cache.folder.clone(), "etcd://127.0.0.1:2380");
        assert_eq!(elsewhere.read("orders", later), Ok(None));
    }

    #[test]
    fn a_damaged_file_is_no_file_and_says_why() {
        let (_folder, cache) = cache();
        let now = SystemTime::now();
        cache.write("orders", &list(), now).unwrap();
        let path = cache.path("orders");
        let good = fs::read_to_string(&path).unwrap();
        for (bad, why) in [
            (good.replace("10.0.0.1", "10.0.0.9"), "its check sum is wrong"),
            (good.trim_end().to_owned(), "it was cut off"),
            (good[..40].to_owned(), "its check sum is wrong"),
            (good.replacen("\"v\":1", "\"v\":7", 1), "its version is 7, this program reads 1"),
            (String::new(), "it has no second line"),
        ] {
            fs::write(&path, &bad).unwrap();
            let error = cache.read("orders", now).unwrap_err();
            assert!(error == why || bad.len() == 40, "{error} for {bad}");
        }
        fs::write(&path, good).unwrap();
        assert!(cache.read("orders", now).unwrap().is_some());
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_reads_it_and_nothing_is_left_behind() {
        use std::os::unix::fs::PermissionsExt;
        let (_folder, cache) = cache();
        for _ in 0..3 {
            cache.write("orders", &list(), SystemTime::now()).unwrap();
        }
        let names: Vec<_> = fs::read_dir(&cache.folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(names, [cache.path("orders")]);
        assert_eq!(fs::metadata(&names[0]).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&cache.folder).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn the_folder_does_not_grow_for_ever() {
        let (_folder, cache) = cache();
        create_folder(&cache.folder).unwrap();
        for i in 0..FILES_MAX + 10 {
            fs::write(cache.folder.join(format!("{i:016x}.json")), "").unwrap();
        }
        fs::write(cache.folder.join("notes.txt"), "somebody else's").unwrap();
        cache.write("orders", &list(), SystemTime::now()).unwrap();
        assert_eq!(fs::read_dir(&cache.folder).unwrap().count(), FILES_MAX + 1);
        assert!(cache.folder.join("notes.txt").exists());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_file_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0_usize..400, bit in 0_u8..8) {
            let (_folder, cache) = cache();
            cache.write("s", &list(), SystemTime::now()).unwrap();
            let path = cache.path("s");
            let mut good = fs::read(&path).unwrap();
            fs::write(&path, &bytes).unwrap();
            let _ = cache.read("s", SystemTime::now());
            let at = at % good.len();
            good[at] ^= 1 << bit;
            fs::write(&path, &good).unwrap();
            // One wrong bit anywhere is noticed; in the header it may also be one that means nothing.
            if let Ok(Some(cached)) = cache.read("s", SystemTime::now()) {
                prop_assert_eq!(cached.snapshot, list());
            }
        }
    }
}
