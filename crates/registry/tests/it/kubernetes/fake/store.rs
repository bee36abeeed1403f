//! The slices, as etcd behind a real server keeps them: one version for all, which only grows, and the history of changes.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::refusal::Refusal;
use super::validation::validate;
use super::{GROUP, KIND};

/// Where versions begin: nobody may take them for small numbers.
pub(super) const FIRST: u64 = 7_000_000_000_000_000_000;

/// Everything that is stored.
pub(super) struct Store {
    pub(super) version: u64,
    /// By namespace and name.
    pub(super) objects: BTreeMap<(String, String), Value>,
    pub(super) history: Vec<Change>,
    /// History up to this version is gone.
    pub(super) compacted: u64,
}

/// One change of an object.
#[derive(Clone)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) namespace: String,
    pub(super) before: Option<Value>,
    pub(super) after: Option<Value>,
}

impl Store {
    pub(super) fn new() -> Self {
        Self { version: FIRST, objects: BTreeMap::new(), history: Vec::new(), compacted: FIRST - 1 }
    }

    fn store(&mut self, namespace: &str, name: &str, after: Option<Value>) {
        let key = (namespace.to_owned(), name.to_owned());
        let before = match &after {
            Some(object) => self.objects.insert(key, object.clone()),
            None => self.objects.remove(&key),
        };
        self.history.push(Change { version: self.version, namespace: namespace.to_owned(), before, after });
    }

    pub(super) fn create(&mut self, namespace: &str, mut object: Value) -> Result<Value, Refusal> {
        validate(&object, namespace, None)?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if self.objects.contains_key(&(namespace.to_owned(), name.clone())) {
            let message = format!("endpointslices.{GROUP} \"{name}\" already exists");
            return Err(Refusal::new(StatusCode::CONFLICT, "AlreadyExists", message));
        }
        if object["metadata"].get("resourceVersion").is_some() {
            return Err(Refusal::bad("resourceVersion should not be set on objects to be created"));
        }
        self.version += 1;
        object["apiVersion"] = format!("{GROUP}/v1").into();
        object["kind"] = KIND.into();
        let meta = &mut object["metadata"];
        meta["namespace"] = namespace.into();
        meta["uid"] = format!("00000000-0000-4000-8000-{:012x}", self.version - FIRST).into();
        meta["resourceVersion"] = self.version.to_string().into();
        meta["creationTimestamp"] = "2026-11-30T00:00:00Z".into();
        meta["generation"] = 1.into();
        self.store(namespace, &name, Some(object.clone()));
        Ok(object)
    }

    pub(super) fn replace(&mut self, namespace: &str, name: &str, mut object: Value) -> Result<Value, Refusal> {
        let before = self.get(namespace, name)?;
        if object["metadata"]["name"].as_str() != Some(name) {
            return Err(Refusal::bad("the name of the object does not match the name on the URL"));
        }
        let claimed = object["metadata"].get("resourceVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
        if !claimed.is_empty() && before["metadata"]["resourceVersion"] != claimed {
            let message = format!(
                "Operation cannot be fulfilled on endpointslices.{GROUP} \"{name}\": the object has been modified; \
                 please apply your changes to the latest version and try again"
            );
            return Err(Refusal::new(StatusCode::CONFLICT, "Conflict", message));
        }
        validate(&object, namespace, Some(&before))?;
        object["apiVersion"] = format!("{GROUP}/v1").into();
        object["kind"] = KIND.into();
        for kept in ["namespace", "uid", "creationTimestamp", "generation", "resourceVersion"] {
            object["metadata"][kept] = before["metadata"][kept].clone();
        }
        if object == before {
            // Nothing changes, so there is no new version.
            return Ok(object);
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        object["metadata"]["generation"] = (before["metadata"]["generation"].as_u64().unwrap_or(0) + 1).into();
        self.store(namespace, name, Some(object.clone()));
        Ok(object)
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> Result<Value, Refusal> {
        let key = (namespace.to_owned(), name.to_owned());
        self.objects.get(&key).cloned().ok_or_else(|| Refusal::not_found(name))
    }

    /// Changes what a patch names (RFC 7396). In a slice every list is atomic, so the strategic kind is the same.
    pub(super) fn patch(&mut self, namespace: &str, name: &str, patch: &Value) -> Result<Value, Refusal> {
        let mut object = self.get(namespace, name)?;
        merge(&mut object, patch);
        self.replace(namespace, name, object)
    }

    /// Stores something that no validation would let pass.
    pub(super) fn put_unchecked(&mut self, namespace: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        self.store(namespace, &name, Some(object));
    }

    pub(super) fn delete(&mut self, namespace: &str, name: &str) -> Result<Value, Refusal> {
        let object = self.get(namespace, name)?;
        self.version += 1;
        self.store(namespace, name, None);
        Ok(object)
    }

    /// The objects as they were at a version: what happened since is undone.
    pub(super) fn at(&self, version: u64) -> BTreeMap<(String, String), Value> {
        let mut objects = self.objects.clone();
        for change in self.history.iter().rev().filter(|change| change.version > version) {
            let name = change.after.as_ref().or(change.before.as_ref()).and_then(|o| o["metadata"]["name"].as_str());
            let key = (change.namespace.clone(), name.unwrap_or_default().to_owned());
            match &change.before {
                Some(before) => drop(objects.insert(key, before.clone())),
                None => drop(objects.remove(&key)),
            }
        }
        objects
    }
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Some(map) = target.as_object_mut() else { return };
    for (key, value) in patch {
        if value.is_null() {
            map.remove(key);
        } else {
            merge(map.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}
