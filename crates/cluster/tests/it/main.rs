//! The router over a simulated cluster: shards are maps in memory that can be slow, down, loading or on the move.
//! Tests named `case_N_…` are the cases of the design review of the same number.

mod completeness;
mod grpc;
mod hedging;
mod model;
mod moves;
mod overload;
mod paging;
mod sim;
mod writes;
