//! A Spring Cloud application that registers itself, finds others and balances over them: the foreign client of Eureka and
//! Consul.

use crate::dialogue::Dialogue;
use crate::{Missing, java};

/// A running application.
#[derive(Debug)]
pub struct Spring {
    dialogue: Dialogue,
    port: u16,
}

impl Spring {
    /// Starts an application that is registered as `service` at a Eureka server on this port of 127.0.0.1.
    ///
    /// # Errors
    /// [`Missing`] if Java or the peer is not on the machine.
    ///
    /// # Panics
    /// They are there and it does not come up.
    pub fn with_eureka(server: u16, service: &str, settings: &[&str]) -> Result<Self, Missing> {
        let server = format!("--eureka.client.service-url.defaultZone=http://127.0.0.1:{server}/eureka/");
        let own = [
            "--spring.cloud.consul.enabled=false",
            &server,
            // The server, which is on the class path too, brings Jersey; applications without it use Spring's own client.
            "--eureka.client.jersey.enabled=false",
            "--eureka.instance.hostname=127.0.0.1",
            "--eureka.client.registry-fetch-interval-seconds=1",
            "--eureka.instance.lease-renewal-interval-in-seconds=1",
        ];
        Self::start(service, &[&own, settings].concat())
    }

    /// Starts an application that is registered as `service` at a Consul agent on this port of 127.0.0.1.
    ///
    /// # Errors
    /// As [`with_eureka`](Self::with_eureka).
    pub fn with_consul(agent: u16, service: &str, settings: &[&str]) -> Result<Self, Missing> {
        let agent = format!("--spring.cloud.consul.port={agent}");
        let own = [
            "--eureka.client.enabled=false",
            "--spring.cloud.consul.host=127.0.0.1",
            &agent,
            "--spring.cloud.consul.config.enabled=false",
            "--spring.cloud.consul.discovery.hostname=127.0.0.1",
            "--spring.cloud.consul.discovery.health-check-interval=1s",
        ];
        Self::start(service, &[&own, settings].concat())
    }

    fn start(service: &str, settings: &[&str]) -> Result<Self, Missing> {
        let mut command = java::class("spring-cloud", "peer.Client")?;
        command
            .arg(format!("--spring.application.name={service}"))
            .args(["--server.address=127.0.0.1", "--server.port=0", "--spring.main.banner-mode=off"])
            .args(["--logging.level.root=error", "--spring.cloud.loadbalancer.cache.enabled=false"])
            .args(settings);
        let (dialogue, first) = Dialogue::start("spring", command);
        let port = first.strip_prefix("> ").and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("not the port it listens on: {first}"));
        Ok(Self { dialogue, port })
    }

    /// The port it listens on and is registered with, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The instances of a service, as JSON: objects with `id`, `host`, `port` and `metadata`.
    pub fn list(&mut self, service: &str) -> String {
        self.ask(&format!("list {service}"))
    }

    /// How often its load balancer chose which `host:port` of so many picks, as a JSON object.
    pub fn choose(&mut self, service: &str, picks: u32) -> String {
        self.ask(&format!("choose {service} {picks}"))
    }

    fn ask(&mut self, line: &str) -> String {
        let answer = self.dialogue.ask(line);
        answer.strip_prefix("> ").unwrap_or_else(|| panic!("no answer to `{line}`: {answer}")).to_owned()
    }
}
