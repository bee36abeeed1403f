//! What an exit status means. Scripts branch on these numbers, so they are all here.

use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Done, true, found.
    Done = 0,
    /// A clean "no": false, no instance, a difference found, not clean.
    No = 1,
    /// Wrong usage, a bad rule, bad configuration.
    Usage = 2,
    /// A server or registry could not be reached.
    Unreachable = 3,
    /// Not allowed: authentication, permission, quota.
    Denied = 4,
    /// An answer that would be incomplete, not ready or too late.
    Incomplete = 5,
    /// A bug of ours.
    Bug = 70,
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        ExitCode::from(status as u8)
    }
}

/// The table for the manual.
pub(crate) const TABLE: &str = "\
Exit status:
  0   done, true, found
  1   a clean \"no\": false, no instance, a difference found, not clean
  2   wrong usage, a bad rule, bad configuration
  3   a server or registry could not be reached
  4   not allowed: authentication, permission, quota
  5   an answer that would be incomplete, not ready or too late
  70  a bug of ours";
