//! The examples are programs that end by themselves; here they run.

#[path = "../../examples/reqwest_fleet.rs"]
mod reqwest_fleet;
#[path = "../../examples/tonic_greeter.rs"]
mod tonic_greeter;

#[test]
fn reqwest_balances_by_metadata_and_survives_a_dead_server() {
    reqwest_fleet::main().unwrap();
}

#[test]
fn tonic_balances_by_metadata_and_survives_a_dead_server() {
    tonic_greeter::main().unwrap();
}
