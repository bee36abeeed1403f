//! Generates the messages and the gRPC clients of etcd and Nacos from `proto/`, without protoc, where those back ends are
//! built.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    #[cfg(feature = "etcd")]
    {
        let files = protox::compile(["proto/etcd/etcd.proto"], ["proto"])?;
        tonic_prost_build::configure().build_server(false).build_transport(false).compile_fds(files)?;
    }
    #[cfg(feature = "nacos")]
    {
        // The server's side is what the fake one in the tests is built on.
        let files = protox::compile(["proto/nacos/nacos.proto"], ["proto"])?;
        tonic_prost_build::configure().build_transport(false).compile_fds(files)?;
    }
    Ok(())
}
