//! Registers one instance and keeps it registered until it is killed: the process that the conformance suite kills.
//!
//! `registrant REGISTRY_URL SERVICE ADDRESS`; prints `registered` once the registry has it.

use std::io::Write;

use metaroute_core::instance::Instance;
use metaroute_registry::{Registry, RegistryUrl};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, service, address] = arguments.as_slice() else {
        return Err("usage: registrant REGISTRY_URL SERVICE ADDRESS".into());
    };
    let registry = Registry::connect(&url.parse::<RegistryUrl>()?)?;
    let mut registration = registry.register(service, Instance::new(address.parse()?))?;
    registration.registered().await?;
    writeln!(std::io::stdout(), "registered")?;
    std::future::pending::<()>().await;
    Ok(())
}
