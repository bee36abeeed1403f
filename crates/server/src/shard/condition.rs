//! What a copy of a shard is doing, as probes, registries and askers see it.

use metaroute_cluster::protocol::ShardState;
use serde::Serialize;

/// A state with what there is to say about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Condition {
    /// The state.
    pub state: ShardState,
    /// For a loading copy how far it is, in thousandths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loaded_permille: Option<u16>,
    /// What went wrong, for a failed copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Condition {
    /// A bare state.
    pub fn of(state: ShardState) -> Condition {
        Condition { state, loaded_permille: None, reason: None }
    }

    /// Loading, this many thousandths done.
    pub fn loading(permille: u16) -> Condition {
        Condition { loaded_permille: Some(permille.min(1_000)), ..Condition::of(ShardState::Loading) }
    }

    /// Failed, and why.
    pub fn failed(reason: &str) -> Condition {
        Condition { reason: Some(reason.to_owned()), ..Condition::of(ShardState::Failed) }
    }
}

/// `ready`, `loading 0.40`, `failed: disk is full`.
impl std::fmt::Display for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.state.name().to_ascii_lowercase())?;
        if let Some(permille) = self.loaded_permille {
            write!(f, " {:.2}", f64::from(permille) / 1_000.0)?;
        }
        if let Some(reason) = &self.reason {
            write!(f, ": {reason}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_read_as_a_person_would_say_them() {
        assert_eq!(Condition::loading(400).to_string(), "loading 0.40");
        assert_eq!(Condition::of(ShardState::CatchingUp).to_string(), "catching_up");
        assert_eq!(Condition::failed("disk is full").to_string(), "failed: disk is full");
    }
}
