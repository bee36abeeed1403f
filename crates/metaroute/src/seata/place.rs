//! Where a Seata configuration registers and looks up, as addresses of ours.
//!
//! `registry.type` and `registry.<type>.*` say which registry, where and as whom; a transaction service group says which of
//! the servers in it. What Seata calls a cluster is a service in most of its layouts, a cluster of the service
//! `seata-server` at Nacos, and nothing at the NamingServer, which is asked for the group itself.

use metaroute_registry::RegistryUrl;
use metaroute_registry::url::UrlError;

use super::{RegistrySettings, RegistryType, SeataConfig, UnknownRegistryType};

/// A service in a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The type it came from.
    pub kind: RegistryType,
    /// The registry.
    pub url: RegistryUrl,
    /// The service there.
    pub service: String,
    /// The cluster of its instances, where that is not the service itself.
    pub cluster: Option<String>,
}

/// A registry of Seata's that has no address of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoPlace {
    /// A class of the user's finds the servers, or a server with addresses in its configuration registers nowhere.
    #[error("registry type `{0}` is no registry that others can ask")]
    NotARegistry(RegistryType),
    /// No registry type is one of Seata's.
    #[error(transparent)]
    UnknownType(UnknownRegistryType),
    /// The registry is of type `file`, and there are no addresses of the cluster.
    #[error("registry type `file` has no addresses of cluster `{0}`: there is no `grouplist` for it")]
    NoList(String),
    /// The settings make no address.
    #[error("the settings of registry type `{kind}` make no address")]
    Address {
        /// The type.
        kind: RegistryType,
        /// What is wrong; shows no secret.
        #[source]
        source: UrlError,
    },
}

impl SeataConfig {
    /// Where a client with this configuration finds the servers of a transaction service group (or of a cluster): its
    /// first registry type counts.
    ///
    /// # Errors
    /// When there is no such registry, or its settings make no address.
    pub fn lookup(&self, group: &str) -> Result<Place, NoPlace> {
        self.known_types()?;
        let kind = self.registry.types.first().copied().unwrap_or(RegistryType::File);
        let name = if kind == RegistryType::Seata { group } else { self.cluster_of(group) };
        self.place(kind, name)
    }

    /// Where a server with this configuration registers: in all its registries.
    ///
    /// # Errors
    /// When there is none, or the settings of one make no address.
    pub fn registrations(&self) -> Result<Vec<Place>, NoPlace> {
        self.known_types()?;
        let kinds = &self.registry.types;
        if kinds.is_empty() || kinds.contains(&RegistryType::File) {
            return Err(NoPlace::NotARegistry(RegistryType::File));
        }
        kinds
            .iter()
            .map(|kind| match kind {
                RegistryType::Seata => {
                    let cluster = Some(self.registry.cluster(*kind).to_owned());
                    Ok(Place { cluster, ..self.place(*kind, &self.tx_service_group)? })
                }
                _ => self.place(*kind, self.registry.cluster(*kind)),
            })
            .collect()
    }

    /// A misspelt type is not the default one.
    fn known_types(&self) -> Result<(), NoPlace> {
        match (self.registry.types.as_slice(), self.registry.unknown.first()) {
            ([], Some(name)) => Err(NoPlace::UnknownType(UnknownRegistryType(name.clone()))),
            _ => Ok(()),
        }
    }

    /// The addresses that stand in the configuration.
    fn fixed(&self, cluster: &str) -> Result<Place, NoPlace> {
        let kind = RegistryType::File;
        let list = self.grouplist.get(cluster).filter(|list| !list.trim().is_empty());
        let list = list.ok_or_else(|| NoPlace::NoList(cluster.to_owned()))?;
        let url = Writer::new("static", list).text().parse().map_err(|source| NoPlace::Address { kind, source })?;
        Ok(Place { kind, url, service: cluster.to_owned(), cluster: None })
    }

    /// `name` is the cluster, at the NamingServer the group.
    fn place(&self, kind: RegistryType, name: &str) -> Result<Place, NoPlace> {
        if kind == RegistryType::File {
            return self.fixed(name);
        }
        let none = RegistrySettings::default();
        let settings = self.registry.settings.get(&kind).unwrap_or(&none);
        let url = registry_url(kind, settings, name, self.spring)?;
        let (service, cluster) = match kind {
            RegistryType::Nacos => {
                let service = text(settings, "application").unwrap_or("seata-server");
                (service.to_owned(), Some(name.to_owned()))
            }
            _ => (name.to_owned(), None),
        };
        Ok(Place { kind, url, service, cluster })
    }
}

/// The address of a Seata registry. `cluster` is the one that is looked up or registered in; `spring` chooses between the
/// defaults of Seata's starter and of its plain code where they differ.
///
/// # Errors
/// When that type is no registry that others can ask, or the settings make no address.
pub fn registry_url(
    kind: RegistryType,
    settings: &RegistrySettings,
    cluster: &str,
    spring: bool,
) -> Result<RegistryUrl, NoPlace> {
    let address = |name: &str, default: &'static str| text(settings, name).unwrap_or(default).to_owned();
    let mut url = match kind {
        RegistryType::Nacos => {
            let group = if spring { "SEATA_GROUP" } else { "DEFAULT_GROUP" };
            let mut url = Writer::new("nacos", &address("server-addr", "localhost:8848"));
            url.path = text(settings, "namespace").map(encode);
            url.param("group", Some(text(settings, "group").unwrap_or(group)));
            url.param("cluster", Some(cluster));
            url.param("context", text(settings, "context-path"));
            url
        }
        RegistryType::Consul => {
            let mut url = Writer::new("consul", &address("server-addr", "127.0.0.1:8500"));
            url.param("layout", Some("seata"));
            url.param("token", text(settings, "acl-token"));
            url
        }
        RegistryType::Eureka => {
            let mut url = Writer::new("eureka", &address("service-url", "http://localhost:8761/eureka"));
            url.param("layout", Some("seata"));
            url
        }
        RegistryType::Zk => {
            let mut url = Writer::new("zookeeper", &address("server-addr", "127.0.0.1:2181"));
            url.param("layout", Some("seata"));
            url.duration("ttl", text(settings, "session-timeout"));
            url
        }
        RegistryType::Redis => {
            let mut url = Writer::new("redis", &address("server-addr", "localhost:6379"));
            url.path = text(settings, "db").filter(|db| *db != "0").map(encode);
            url.param("layout", Some("seata"));
            url
        }
        RegistryType::Etcd3 => {
            let mut url = Writer::new("etcd", &address("server-addr", "http://localhost:2379"));
            url.param("layout", Some("seata"));
            url
        }
        RegistryType::Sofa => {
            let mut url = Writer::new("sofa", &address("server-addr", "127.0.0.1:9603"));
            url.param("layout", Some("seata"));
            url.param("group", Some(text(settings, "group").unwrap_or("SEATA_GROUP")));
            url.param("zone", text(settings, "region"));
            url.param("app", text(settings, "application"));
            url
        }
        RegistryType::Raft => Writer::new("seata-raft", &address("server-addr", "127.0.0.1:7091")),
        RegistryType::Seata => {
            let mut url = Writer::new("namingserver", &address("server-addr", "127.0.0.1:8081"));
            url.path = text(settings, "namespace").map(encode);
            url.param("cluster", text(settings, "cluster"));
            url.duration("heartbeat", text(settings, "heartbeat-period"));
            url
        }
        RegistryType::File | RegistryType::Custom => return Err(NoPlace::NotARegistry(kind)),
    };
    // Seata logs in where both are set; Redis knows a password alone.
    let (user, password) = (text(settings, "username"), text(settings, "password"));
    url.login = match (user, password) {
        (Some(user), Some(password)) => Some(format!("{}:{}", encode(user), encode(password))),
        (None, Some(password)) if kind == RegistryType::Redis => Some(format!(":{}", encode(password))),
        _ => url.login,
    };
    url.text().parse().map_err(|source| NoPlace::Address { kind, source })
}

fn text<'s>(settings: &'s RegistrySettings, name: &str) -> Option<&'s str> {
    settings.get(name).map(str::trim).filter(|text| !text.is_empty())
}

/// An address in the making.
struct Writer {
    scheme: &'static str,
    login: Option<String>,
    hosts: Vec<String>,
    path: Option<String>,
    params: Vec<String>,
}

impl Writer {
    /// Servers as Seata writes them: `host:port`, `http://user:password@host:port/path`, several with commas or semicolons.
    fn new(scheme: &'static str, servers: &str) -> Self {
        let mut url = Self { scheme, login: None, hosts: Vec::new(), path: None, params: Vec::new() };
        for server in servers.split([',', ';']).map(str::trim).filter(|server| !server.is_empty()) {
            let (protocol, rest) = server.split_once("://").unwrap_or(("", server));
            let tls = "tls=true".to_owned();
            if protocol.eq_ignore_ascii_case("https") && !url.params.contains(&tls) {
                url.params.push(tls);
            }
            let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
            let (login, host) = match authority.rsplit_once('@') {
                Some((login, host)) => (Some(login), host),
                None => (None, authority),
            };
            url.login = url.login.or_else(|| login.map(str::to_owned));
            let path = path.trim_matches('/');
            url.path = url.path.or_else(|| (!path.is_empty()).then(|| path.to_owned()));
            url.hosts.push(host.to_owned());
        }
        url
    }

    fn param(&mut self, name: &str, value: Option<&str>) {
        self.params.extend(value.map(|value| format!("{name}={}", encode(value))));
    }

    /// A number of milliseconds, as Seata writes durations.
    fn duration(&mut self, name: &str, millis: Option<&str>) {
        let millis = millis.and_then(|text| text.parse::<u32>().ok()).filter(|millis| *millis > 0);
        self.params.extend(millis.map(|millis| format!("{name}={millis}ms")));
    }

    fn text(&self) -> String {
        let login = self.login.as_ref().map_or_else(String::new, |login| format!("{login}@"));
        let path = self.path.as_ref().map_or_else(String::new, |path| format!("/{path}"));
        let mut text = format!("{}://{login}{}{path}", self.scheme, self.hosts.join(","));
        for (i, param) in self.params.iter().enumerate() {
            text.push(if i == 0 { '?' } else { '&' });
            text.push_str(param);
        }
        text
    }
}

/// Percent-encodes everything that could mean something in an address. A value that reads like a reference to a secret
/// (`env:NAME`) stays one, as everywhere.
fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii_alphanumeric() || "-._~:".contains(c) || !c.is_ascii() {
            out.push(c);
        } else {
            out.push_str(&format!("%{:02X}", u32::from(c)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use metaroute_registry::document::Format;

    use super::*;
    use crate::properties::Surroundings;

    fn config(lines: &[&str]) -> SeataConfig {
        let text = lines.join("\n");
        SeataConfig::parse("application.properties", &text, Format::Properties, &Surroundings::none()).unwrap()
    }

    /// The address, service and cluster that a configuration with these lines looks up for group `shop`.
    #[track_caller]
    fn check(lines: &[&str], url: &str, service: &str, cluster: Option<&str>) {
        let mapping = "seata.service.vgroup-mapping.shop=hz";
        let place = config(&[&[mapping], lines].concat()).lookup("shop").unwrap();
        assert_eq!(
            (place.url.to_string().as_str(), place.service.as_str(), place.cluster.as_deref()),
            (url, service, cluster)
        );
    }

    #[test]
    fn every_type_has_its_address() {
        check(
            &["seata.registry.type=nacos"],
            "nacos://localhost:8848?cluster=hz&group=SEATA_GROUP",
            "seata-server",
            Some("hz"),
        );
        check(
            &[
                "seata.registry.type=nacos",
                "seata.registry.nacos.server-addr=a:8848,b:8848",
                "seata.registry.nacos.namespace=prod",
                "seata.registry.nacos.group=G",
                "seata.registry.nacos.application=tc",
                "seata.registry.nacos.username=me",
                "seata.registry.nacos.password=p@ss/w,rd",
                "seata.registry.nacos.context-path=/n",
            ],
            "nacos://me:***@a:8848,b:8848/prod?cluster=hz&context=/n&group=G",
            "tc",
            Some("hz"),
        );
        check(
            &[
                "seata.registry.type=consul",
                "seata.registry.consul.server-addr=c:8500",
                "seata.registry.consul.acl-token=t",
            ],
            "consul://c:8500?layout=seata&token=***",
            "hz",
            None,
        );
        check(
            &[
                "seata.registry.type=eureka",
                "seata.registry.eureka.service-url=https://u:p@e:8761/eureka,https://f:8761/eureka",
            ],
            "eureka://u:***@e:8761,f:8761/eureka?layout=seata&tls=true",
            "hz",
            None,
        );
        check(
            &[
                "seata.registry.type=zk",
                "seata.registry.zk.server-addr=z:2181",
                "seata.registry.zk.session-timeout=6000",
            ],
            "zookeeper://z:2181?layout=seata&ttl=6000ms",
            "hz",
            None,
        );
        check(
            &["seata.registry.type=redis", "seata.registry.redis.password=x", "seata.registry.redis.db=3"],
            "redis://:***@localhost:6379/3?layout=seata",
            "hz",
            None,
        );
        check(&["seata.registry.type=etcd3"], "etcd://localhost:2379?layout=seata", "hz", None);
        check(
            &["seata.registry.type=sofa", "seata.registry.sofa.region=R"],
            "sofa://127.0.0.1:9603?group=SEATA_GROUP&layout=seata&zone=R",
            "hz",
            None,
        );
        check(
            &["seata.registry.type=raft", "seata.registry.raft.server-addr=a:7091,b:7091"],
            "seata-raft://a:7091,b:7091",
            "hz",
            None,
        );
        // The NamingServer maps groups itself.
        check(
            &[
                "seata.registry.type=seata",
                "seata.registry.seata.server-addr=n:8081",
                "seata.registry.seata.namespace=prod",
            ],
            "namingserver://n:8081/prod",
            "shop",
            None,
        );
    }

    /// What is in the `file.conf` and the `application.yml` of most who try Seata.
    #[test]
    fn addresses_in_the_configuration_are_a_list_that_does_not_change() {
        check(
            &["seata.registry.type=file", "seata.service.grouplist.hz=10.0.0.1:8091;10.0.0.2:8091"],
            "static://10.0.0.1:8091,10.0.0.2:8091",
            "hz",
            None,
        );
        // Without a word about registries it is this one, and the starter knows one address.
        let starter = config(&["seata.application-id=x"]);
        assert_eq!(starter.lookup("default_tx_group").unwrap().url.to_string(), "static://127.0.0.1:8091");
        let text = "registry { type = \"file\" }
            service {
              vgroupMapping.default_tx_group = \"default\"
              default.grouplist = \"127.0.0.1:8091\"
              my-cluster.grouplist = \"10.0.0.1:8091\"
            }";
        let conf = SeataConfig::parse("file.conf", text, Format::Conf, &Surroundings::none()).unwrap();
        assert_eq!(conf.lookup("default_tx_group").unwrap().url.to_string(), "static://127.0.0.1:8091");
        assert_eq!(conf.lookup("my-cluster").unwrap().url.to_string(), "static://10.0.0.1:8091");
        assert_eq!(conf.lookup("other"), Err(NoPlace::NoList("other".into())));
        assert_eq!(conf.notes, [], "{:?}", conf.notes);
        let text = "service.vgroupMapping.g=hz\nservice.hz.grouplist=10.0.0.1:8091";
        let import = SeataConfig::parse("config.txt", text, Format::Properties, &Surroundings::none()).unwrap();
        assert_eq!(import.lookup("g").unwrap().url.to_string(), "static://10.0.0.1:8091");
        assert_eq!(import.notes, [], "{:?}", import.notes);
        let bad = config(&["seata.registry.type=file", "seata.service.grouplist.g=a:99999"]);
        assert!(matches!(bad.lookup("g"), Err(NoPlace::Address { .. })));
    }

    #[test]
    fn plain_java_has_its_own_default() {
        let text = "registry.type=nacos";
        let conf = SeataConfig::parse("registry.properties", text, Format::Properties, &Surroundings::none()).unwrap();
        assert_eq!(conf.lookup("g").unwrap().url.to_string(), "nacos://localhost:8848?cluster=g&group=DEFAULT_GROUP");
    }

    #[test]
    fn a_misspelt_type_is_not_the_default_one() {
        let wrong = config(&["seata.registry.type=nacso"]);
        let unknown = NoPlace::UnknownType(UnknownRegistryType("nacso".into()));
        assert_eq!((wrong.lookup("g"), wrong.registrations()), (Err(unknown.clone()), Err(unknown)));
        // Beside one that is right it is a note.
        let both = config(&["seata.registry.type=zk,nacso"]);
        assert_eq!(both.registrations().unwrap().len(), 1);
    }

    #[test]
    fn a_server_registers_in_all_its_registries() {
        let server = config(&[
            "seata.registry.type=redis,seata",
            "seata.registry.redis.cluster=hz",
            "seata.registry.seata.cluster=sh",
            "seata.tx-service-group=shop",
        ]);
        let places = server.registrations().unwrap();
        let told: Vec<_> = places.iter().map(|p| (p.kind, p.service.as_str(), p.cluster.as_deref())).collect();
        assert_eq!(told, [(RegistryType::Redis, "hz", None), (RegistryType::Seata, "shop", Some("sh"))]);
    }

    #[test]
    fn what_is_no_registry_says_so_and_no_secret_shows() {
        let custom = config(&["seata.registry.type=custom"]);
        assert_eq!(custom.lookup("g"), Err(NoPlace::NotARegistry(RegistryType::Custom)));
        let file = config(&["seata.registry.type=file"]);
        assert_eq!(file.registrations(), Err(NoPlace::NotARegistry(RegistryType::File)));
        assert_eq!(file.lookup("g"), Err(NoPlace::NoList("g".into())));
        let bad = config(&[
            "seata.registry.type=nacos",
            "seata.registry.nacos.server-addr=a:99999",
            "seata.registry.nacos.username=u",
            "seata.registry.nacos.password=hunter2",
        ]);
        let error = bad.lookup("g").unwrap_err();
        assert!(!format!("{error:?} {error}").contains("hunter2"), "{error:?}");
        let good = config(&["seata.registry.type=redis", "seata.registry.redis.password=hunter2"]).lookup("g").unwrap();
        assert!(!format!("{good:?}").contains("hunter2"));
    }
}
