//! Registry addresses: one text form for every kind of registry, with secrets that never show.
//!
//! ```text
//! fleet.yaml   ./fleet.yaml   file:fleet.yaml   file:///etc/fleet.yaml        a fleet file
//! memory:                                                                     this process
//! static://10.0.0.1:80,10.0.0.2:80                                            these addresses
//! nacos://USER:PASSWORD@HOST:8848,HOST2:8848/public?group=G&cluster=C         a server, or several of one cluster
//! ```
//!
//! A password or a parameter such as `token` may be written out, but is better a reference: `env:NAME` reads an
//! environment variable and `file:PATH` a file, both when the connection is made. Neither form of a secret appears in
//! `Debug`, `Display`, logs or errors.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::document::suggest;

/// Kinds of registries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Scheme {
    /// A fleet file.
    File,
    /// This process.
    Memory,
    /// Addresses in the address itself.
    Static,
    /// Nacos.
    Nacos,
    /// Consul.
    Consul,
    /// Eureka.
    Eureka,
    /// ZooKeeper.
    Zookeeper,
    /// Redis or Valkey.
    Redis,
    /// etcd v3.
    Etcd,
    /// Seata's NamingServer.
    NamingServer,
    /// The metadata interface of a Seata Raft cluster.
    SeataRaft,
    /// SOFARegistry.
    Sofa,
    /// Kubernetes EndpointSlices.
    Kubernetes,
    /// DNS SRV records.
    DnsSrv,
}

const SCHEMES: [(&str, Scheme); 18] = [
    ("file", Scheme::File),
    ("memory", Scheme::Memory),
    ("static", Scheme::Static),
    ("nacos", Scheme::Nacos),
    ("consul", Scheme::Consul),
    ("eureka", Scheme::Eureka),
    ("zookeeper", Scheme::Zookeeper),
    ("zk", Scheme::Zookeeper),
    ("redis", Scheme::Redis),
    ("rediss", Scheme::Redis),
    ("etcd", Scheme::Etcd),
    ("etcd3", Scheme::Etcd),
    ("namingserver", Scheme::NamingServer),
    ("seata-raft", Scheme::SeataRaft),
    ("sofa", Scheme::Sofa),
    ("k8s", Scheme::Kubernetes),
    ("kubernetes", Scheme::Kubernetes),
    ("dns+srv", Scheme::DnsSrv),
];

impl Scheme {
    /// The word before the colon.
    pub fn name(self) -> &'static str {
        SCHEMES.iter().find(|(_, scheme)| *scheme == self).map_or("", |(name, _)| name)
    }

    /// Whether this build can connect to it.
    pub fn is_built_in(self) -> bool {
        match self {
            Self::File | Self::Memory | Self::Static => true,
            Self::Nacos => cfg!(feature = "nacos"),
            Self::Consul => cfg!(feature = "consul"),
            Self::Eureka => cfg!(feature = "eureka"),
            Self::Zookeeper => cfg!(feature = "zookeeper"),
            Self::Redis => cfg!(feature = "redis"),
            Self::Etcd => cfg!(feature = "etcd"),
            Self::NamingServer | Self::SeataRaft => cfg!(feature = "seata"),
            Self::Sofa => cfg!(feature = "sofa"),
            Self::Kubernetes => cfg!(feature = "kubernetes-any"),
            Self::DnsSrv => cfg!(feature = "dns"),
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that must not be seen: a password, a token, or where to find one.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Source);

#[derive(Clone, PartialEq, Eq)]
enum Source {
    Plain(Box<str>),
    Env(Box<str>),
    File(PathBuf),
}

impl Secret {
    /// A secret as written: `env:NAME`, `file:PATH` or the secret itself.
    pub fn new(text: &str) -> Self {
        Self(match text.split_once(':') {
            Some(("env", name)) if !name.is_empty() => Source::Env(name.into()),
            Some(("file", path)) if !path.is_empty() => Source::File(path.into()),
            _ => Source::Plain(text.into()),
        })
    }

    /// The secret itself, read from where it is kept. The end of the last line of a file is not part of it.
    ///
    /// # Errors
    /// When the variable is not set or the file cannot be read; the error names the place, never a value.
    pub fn reveal(&self) -> Result<String, SecretError> {
        match &self.0 {
            Source::Plain(text) => Ok(text.to_string()),
            Source::Env(name) => std::env::var(&**name)
                .map_err(|_| SecretError { place: format!("environment variable `{name}`"), source: None }),
            Source::File(path) => match std::fs::read_to_string(path) {
                Ok(text) => Ok(text.trim_end_matches(['\r', '\n']).to_owned()),
                Err(error) => Err(SecretError { place: format!("file `{}`", path.display()), source: Some(error) }),
            },
        }
    }
}

/// Shows where a secret is kept, or `***` for one that was written out.
impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Plain(_) => f.write_str("***"),
            Source::Env(name) => write!(f, "env:{name}"),
            Source::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A secret that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read a secret from {place}")]
pub struct SecretError {
    place: String,
    source: Option<std::io::Error>,
}

/// Whether a parameter or setting of this name holds a secret.
pub fn is_secret_name(name: &str) -> bool {
    let name: String = name.to_ascii_lowercase().chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    [
        "password",
        "passwd",
        "pwd",
        "token",
        "secret",
        "secretkey",
        "accesskey",
        "apikey",
        "privatekey",
        "credential",
        "credentials",
    ]
    .iter()
    .any(|word| name.ends_with(word))
}

/// One server of a registry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// Name or IP address, without brackets.
    pub name: Box<str>,
    /// Port, or the registry's usual one.
    pub port: Option<u16>,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]", self.name)?;
        } else {
            f.write_str(&self.name)?;
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// Where a registry is and how to use it.
#[derive(Clone, PartialEq, Eq)]
pub struct RegistryUrl {
    scheme: Scheme,
    tls: bool,
    user: Option<Box<str>>,
    password: Option<Secret>,
    hosts: Vec<Host>,
    path: Box<str>,
    params: BTreeMap<Box<str>, Box<str>>,
    secrets: BTreeMap<Box<str>, Secret>,
}

impl RegistryUrl {
    /// A fleet file.
    pub fn file(path: impl AsRef<Path>) -> Self {
        let mut url = Self::empty(Scheme::File);
        url.path = path.as_ref().to_string_lossy().into();
        url
    }

    /// A registry inside this process.
    pub fn memory() -> Self {
        Self::empty(Scheme::Memory)
    }

    fn empty(scheme: Scheme) -> Self {
        Self {
            scheme,
            tls: false,
            user: None,
            password: None,
            hosts: Vec::new(),
            path: "".into(),
            params: BTreeMap::new(),
            secrets: BTreeMap::new(),
        }
    }

    /// Addresses separated by commas. The servers of one registry are, too, so a comma separates registries only where a
    /// kind of registry and `://` follow: `etcd://a:2379,b:2379,redis://c:6379` are two.
    ///
    /// # Errors
    /// For the first that is no address.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, UrlError> {
        let starts = text.match_indices(',').map(|(at, _)| at).filter(|at| {
            let rest = text[at + 1..].trim_start();
            rest.split_once("://")
                .is_some_and(|(word, _)| SCHEMES.iter().any(|(name, _)| name.eq_ignore_ascii_case(word)))
        });
        let mut urls = Vec::new();
        let mut from = 0;
        for at in starts.chain([text.len()]) {
            urls.push(text[from..at].parse()?);
            from = at + 1;
        }
        Ok(urls)
    }

    /// Kind of registry.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Whether the scheme itself asks for TLS (`rediss`).
    pub fn tls(&self) -> bool {
        self.tls
    }

    /// User name, if one was given.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Password, if one was given.
    pub fn password(&self) -> Option<&Secret> {
        self.password.as_ref()
    }

    /// Servers, in the order written; empty for files and memory.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// What stands after the servers, without the leading slash: a namespace, a chroot, a database; for files the path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// A parameter that is no secret.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.get(name).map(|value| &**value)
    }

    /// All parameters that are no secrets, by name.
    pub fn params(&self) -> impl Iterator<Item = (&str, &str)> {
        self.params.iter().map(|(name, value)| (&**name, &**value))
    }

    /// The names of the parameters that are secrets.
    pub fn secret_names(&self) -> impl Iterator<Item = &str> {
        self.secrets.keys().map(|name| &**name)
    }

    /// A parameter whose name says that it is a secret.
    pub fn secret(&self, name: &str) -> Option<&Secret> {
        self.secrets.get(name)
    }
}

impl FromStr for RegistryUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(UrlError::new("the registry address is empty"));
        }
        let Some((word, rest)) = split_scheme(text) else {
            return Ok(Self::file(text));
        };
        let lower = word.to_ascii_lowercase();
        let Some((_, scheme)) = SCHEMES.iter().find(|(name, _)| *name == lower) else {
            let error = UrlError::new(format!("unknown kind of registry `{word}`"));
            let port = rest.split(['/', '?']).next().unwrap_or_default();
            return Err(if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) {
                error.hint(format!("write the kind of registry first, for example `nacos://{}`", redact(text)))
            } else {
                match suggest(&lower, SCHEMES.iter().map(|(name, _)| *name)) {
                    Some(name) => error.hint(format!("did you mean `{name}`?")),
                    None => error.hint(format!("known are {}", SCHEMES.map(|(name, _)| name).join(", "))),
                }
            });
        };
        let mut url = Self::empty(*scheme);
        match scheme {
            Scheme::File => {
                let path = rest.strip_prefix("//").map_or(rest, |rest| rest.strip_prefix("localhost").unwrap_or(rest));
                if path.is_empty() {
                    return Err(UrlError::new("`file:` needs a path").hint("write for example `file:fleet.yaml`"));
                }
                url.path = if rest.starts_with("//") { decode(path)?.into() } else { path.into() };
            }
            Scheme::Memory => {
                if !rest.trim_matches('/').is_empty() {
                    return Err(UrlError::new("`memory:` takes nothing after the colon"));
                }
            }
            _ => {
                url.tls = lower == "rediss";
                url.read_server(rest, word)?;
            }
        }
        Ok(url)
    }
}

impl RegistryUrl {
    fn read_server(&mut self, rest: &str, scheme: &str) -> Result<(), UrlError> {
        let Some(rest) = rest.strip_prefix("//") else {
            return Err(UrlError::new(format!("`{scheme}:` must be followed by `//`"))
                .hint(format!("write for example `{scheme}://127.0.0.1`")));
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (userinfo, rest) = split_userinfo(rest);
        if let Some(userinfo) = userinfo {
            let (user, password) = match userinfo.split_once(':') {
                Some((user, password)) => (user, Some(password)),
                None => (userinfo, None),
            };
            self.user = (!user.is_empty()).then(|| decode(user)).transpose()?.map(Into::into);
            self.password = password.map(|password| decode(password).map(|p| Secret::new(&p))).transpose()?;
        }
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, path),
            None => (rest, ""),
        };
        for host in authority.split(',').map(str::trim).filter(|host| !host.is_empty()) {
            self.hosts.push(read_host(host)?);
        }
        // A cluster that runs this program, or DNS, is found without an address.
        if self.hosts.is_empty() && !matches!(self.scheme, Scheme::Kubernetes | Scheme::DnsSrv) {
            return Err(UrlError::new(format!("`{scheme}://` needs a server"))
                .hint(format!("write for example `{scheme}://127.0.0.1`")));
        }
        self.path = decode(path.trim_end_matches('/'))?.into();
        // `k8s://payments` names a namespace; a server has a port, a domain, or a namespace after it.
        if let (Scheme::Kubernetes, "", [host]) = (self.scheme, &*self.path, &*self.hosts)
            && host.port.is_none()
            && !host.name.contains(['.', ':'])
            && &*host.name != "localhost"
        {
            self.path = host.name.clone();
            self.hosts.clear();
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            if self.params.contains_key(&*name) || self.secrets.contains_key(&*name) {
                return Err(UrlError::new(format!("parameter `{name}` is given twice")));
            }
            if is_secret_name(&name) {
                self.secrets.insert(name.into(), Secret::new(&value));
            } else {
                self.params.insert(name.into(), value.into());
            }
        }
        Ok(())
    }
}

/// The scheme and what follows its colon; `None` for a plain path.
fn split_scheme(text: &str) -> Option<(&str, &str)> {
    let (word, rest) = text.split_once(':')?;
    let scheme = word.len() > 1
        && word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    // `some.dir/a:b` and `fleet.v2:x.yaml` are odd, but the first is certainly a path.
    scheme.then_some((word, rest))
}

/// User and password before the servers. A password that is a `file:/…` reference may have its slashes unescaped.
fn split_userinfo(rest: &str) -> (Option<&str>, &str) {
    let authority = rest.split('/').next().unwrap_or_default();
    if let Some(at) = authority.rfind('@') {
        return (Some(&rest[..at]), &rest[at + 1..]);
    }
    if authority.contains(":file:")
        && let Some(at) = rest.find('@')
    {
        return (Some(&rest[..at]), &rest[at + 1..]);
    }
    (None, rest)
}

fn read_host(text: &str) -> Result<Host, UrlError> {
    let bad = |why: &str| UrlError::new(format!("bad server `{text}`: {why}"));
    let (name, port) = if let Some(rest) = text.strip_prefix('[') {
        let (name, rest) = rest.split_once(']').ok_or_else(|| bad("`[` without `]`"))?;
        match rest.strip_prefix(':') {
            Some(port) => (name, Some(port)),
            None if rest.is_empty() => (name, None),
            None => return Err(bad("expected `:port` after `]`")),
        }
    } else {
        match text.split_once(':') {
            Some((_, port)) if port.contains(':') => return Err(bad("an IPv6 address needs brackets")),
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        }
    };
    let name = decode(name)?;
    if name.is_empty() || name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(bad("the host is empty or has spaces"));
    }
    let port = match port {
        None => None,
        Some(port) => match port.parse::<u16>() {
            Ok(number) if number > 0 && port.bytes().all(|b| b.is_ascii_digit()) => Some(number),
            _ => return Err(bad("the port must be 1 to 65535")),
        },
    };
    Ok(Host { name: name.into(), port })
}

/// Percent-decoding. The error does not show the text, which may be a secret.
pub(crate) fn decode(text: &str) -> Result<String, UrlError> {
    if !text.contains('%') {
        return Ok(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16));
        match (digit(rest.next()), digit(rest.next())) {
            (Some(high), Some(low)) => bytes.push((high * 16 + low) as u8),
            _ => {
                return Err(UrlError::new("`%` must be followed by two hexadecimal digits").hint("write `%25` for `%`"));
            }
        }
    }
    String::from_utf8(bytes).map_err(|_| UrlError::new("a percent-encoded part is not UTF-8"))
}

fn encode(text: &str, keep: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii_alphanumeric() || "-._~".contains(c) || keep.contains(c) || !c.is_ascii() {
            out.push(c);
        } else {
            out.push_str(&format!("%{:02X}", u32::from(c)));
        }
    }
    out
}

/// A text that may be an address, with what could be a secret replaced. For messages about texts that do not parse.
pub fn redact(text: &str) -> String {
    let (front, query) = match text.split_once('?') {
        Some((front, query)) => (front, Some(query)),
        None => (text, None),
    };
    let start = front.find("://").map_or(0, |at| at + 3);
    let front = match front[start..].rfind('@') {
        Some(at) => {
            let user = front[start..start + at].split(':').next().unwrap_or_default();
            format!("{}{user}:***@{}", &front[..start], &front[start + at + 1..])
        }
        None => front.to_owned(),
    };
    let Some(query) = query else { return front };
    let pairs: Vec<String> = query
        .split('&')
        .map(|pair| match pair.split_once('=') {
            Some((name, _)) if is_secret_name(name) => format!("{name}=***"),
            _ => pair.to_owned(),
        })
        .collect();
    format!("{front}?{}", pairs.join("&"))
}

/// The address in its text form, secrets hidden. Without secrets it parses back to the same address.
impl fmt::Display for RegistryUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scheme {
            Scheme::File => return write!(f, "file:{}", self.path),
            Scheme::Memory => return f.write_str("memory:"),
            _ => {}
        }
        write!(f, "{}://", if self.tls { "rediss" } else { self.scheme.name() })?;
        if self.user.is_some() || self.password.is_some() {
            f.write_str(&encode(self.user.as_deref().unwrap_or_default(), ""))?;
            if let Some(password) = &self.password {
                write!(f, ":{password}")?;
            }
            f.write_str("@")?;
        }
        for (i, host) in self.hosts.iter().enumerate() {
            write!(f, "{}{host}", if i > 0 { "," } else { "" })?;
        }
        if !self.path.is_empty() {
            write!(f, "/{}", encode(&self.path, "/:"))?;
        }
        let params = self.params.iter().map(|(name, value)| (name, encode(value, "/:,@")));
        let secrets = self.secrets.iter().map(|(name, secret)| (name, secret.to_string()));
        for (i, (name, value)) in params.chain(secrets).enumerate() {
            write!(f, "{}{}={value}", if i == 0 { '?' } else { '&' }, encode(name, ""))?;
        }
        Ok(())
    }
}

impl fmt::Debug for RegistryUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegistryUrl({self})")
    }
}

/// A text that is no registry address. Never shows a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlError {
    message: String,
    hint: Option<String>,
}

impl UrlError {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// A suggested fix.
    pub fn suggestion(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// What is wrong, without the suggestion.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for UrlError {}

#[cfg(test)]
mod tests;
