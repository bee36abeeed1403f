//! State machines that decide when to try again and whom to leave alone.
//!
//! A call that failed may be repeated ([`backoff`]) as long as the repetition is paid for ([`budget`]), and an instance
//! that keeps failing is left alone for a while ([`ejection`]). [`storm`] replays whole fleets of such clients in
//! virtual time, so that a policy can be judged before it is used.
//!
//! Nothing here reads a clock, sleeps or owns a source of randomness. Time is a [`Duration`](std::time::Duration) since
//! an epoch of the caller's choice that never runs backwards; randomness is a [`rand::Rng`] handed in. Both can
//! therefore be fixed in a test.

pub mod backoff;
pub mod budget;
pub mod ejection;
pub mod storm;
