//! What `kubectl` reads before it asks for slices: which versions, groups and kinds there are.

use serde_json::{Value, json};

use super::{GROUP, KIND};

/// The document at a path, by its parts.
pub(super) fn at(path: &[&str]) -> Option<Value> {
    Some(match path {
        ["version"] => json!({"major": "1", "minor": "33", "gitVersion": "v1.33.0"}),
        ["api"] => json!({"kind": "APIVersions", "versions": ["v1"]}),
        ["api", "v1"] => json!({
            "kind": "APIResourceList", "groupVersion": "v1",
            "resources": [{"name": "namespaces", "singularName": "", "namespaced": false, "kind": "Namespace",
                "verbs": ["get", "list"]}],
        }),
        ["api", "v1", "namespaces", name] => {
            json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}})
        }
        ["apis"] => json!({
            "kind": "APIGroupList", "apiVersion": "v1",
            "groups": [{
                "name": GROUP,
                "versions": [{"groupVersion": format!("{GROUP}/v1"), "version": "v1"}],
                "preferredVersion": {"groupVersion": format!("{GROUP}/v1"), "version": "v1"},
            }],
        }),
        ["apis", GROUP, "v1"] => json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/v1"),
            "resources": [{
                "name": "endpointslices", "singularName": "endpointslice", "namespaced": true, "kind": KIND,
                "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            }],
        }),
        _ => return None,
    })
}
