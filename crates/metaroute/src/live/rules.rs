//! Where the rules of a live selector come from, and how a rules file is watched.
//!
//! The file is read whole twice a second and compared with what was read last. Notifications of the system would be
//! quicker by half a second and are lost on network mounts, with replaced folders and swapped links; reading some
//! kilobytes from the page cache is cheap, and nothing is ever missed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use metaroute_core::RuleError;
use metaroute_core::resilience::ejection::EjectionPolicy;
use metaroute_core::rules::{Balance, RuleSet, ZonePreference};
use metaroute_expr::{Expr, ParseError};
use metaroute_registry::document::{ConfigError, Format};
use metaroute_registry::fleet::read_text;
use tokio::sync::mpsc;

use crate::rules_file::RulesFile;

/// How often a rules file is looked at. An edit shows within a second, as fast as a person can switch windows.
const POLL: Duration = Duration::from_millis(500);

/// How long a changed file must stand still: editors truncate first and write afterwards.
const SETTLE: Duration = Duration::from_millis(100);

/// Rules, or where to find them.
///
/// A text is an *expression*, one `must` rule with nothing to fall back to; a path is a rules file, which is watched.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Rules {
    /// Rules as data.
    Set(Box<RuleSet>),
    /// One mandatory expression.
    Expression(String),
    /// A rules file; edits take effect while running, bad ones are refused.
    File(PathBuf),
}

impl Default for Rules {
    /// No rule at all.
    fn default() -> Self {
        Self::Set(Box::default())
    }
}

impl From<RuleSet> for Rules {
    fn from(set: RuleSet) -> Self {
        Self::Set(Box::new(set))
    }
}

impl From<Expr> for Rules {
    fn from(expr: Expr) -> Self {
        RuleSet::must(expr).into()
    }
}

impl From<&str> for Rules {
    fn from(expression: &str) -> Self {
        Self::Expression(expression.to_owned())
    }
}

impl From<String> for Rules {
    fn from(expression: String) -> Self {
        Self::Expression(expression)
    }
}

impl From<&Path> for Rules {
    fn from(path: &Path) -> Self {
        Self::File(path.to_owned())
    }
}

impl From<PathBuf> for Rules {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

/// Rules that cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    /// The file cannot be read or says something wrong; the cause has the place.
    #[error("the rules file cannot be used")]
    File(#[source] Box<ConfigError>),
    /// The expression does not parse.
    #[error("the expression `{text}` cannot be read")]
    Expression {
        /// The expression.
        text: String,
        /// What is wrong with it, and where.
        #[source]
        source: Box<ParseError>,
    },
    /// The rules are well written and do not work: an unknown router, a number out of range, …
    #[error("the rules cannot be put in force")]
    Unfit(#[source] Box<RuleError>),
}

/// What the program adds to whatever rules are in force.
#[derive(Clone, Debug, Default)]
pub(super) struct Overlay {
    pub(super) prefer_cluster: bool,
    pub(super) prefer_zone: Option<ZonePreference>,
    pub(super) balance: Option<Balance>,
    pub(super) ejection: Option<EjectionPolicy>,
}

impl Overlay {
    pub(super) fn over(&self, mut set: RuleSet) -> RuleSet {
        set.prefer.cluster |= self.prefer_cluster;
        if let Some(zone) = &self.prefer_zone {
            set.prefer.zone = Some(zone.clone());
        }
        if let Some(balance) = &self.balance {
            set.balance = balance.clone();
        }
        if let Some(ejection) = &self.ejection {
            set.ejection = Some(*ejection);
        }
        set
    }
}

/// The content of a rules file, or why there is none.
type Content = Result<(String, Format), ConfigError>;

/// A rules file and what was read last.
#[derive(Debug)]
pub(super) struct Watched {
    path: PathBuf,
    last: Content,
}

impl Watched {
    /// Reads a file for the first time.
    pub(super) async fn open(path: PathBuf) -> Result<(Self, RuleSet), ConfigError> {
        let last = read(&path).await;
        let set = parse(&path, &last)?;
        Ok((Self { path, last }, set))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Sends the rules after each change of the file, until nobody listens.
    pub(super) async fn run(mut self, changes: mpsc::Sender<Result<RuleSet, ConfigError>>) {
        loop {
            tokio::select! {
                () = changes.closed() => return,
                () = self.change() => {}
            }
            if changes.send(parse(&self.path, &self.last)).await.is_err() {
                return;
            }
        }
    }

    /// Waits until the file differs from what was read last and stands still.
    async fn change(&mut self) {
        let mut new;
        loop {
            tokio::time::sleep(POLL).await;
            new = read(&self.path).await;
            if new != self.last {
                break;
            }
        }
        loop {
            tokio::time::sleep(SETTLE).await;
            let again = read(&self.path).await;
            if again == new {
                break;
            }
            new = again;
        }
        self.last = new;
    }
}

async fn read(path: &Path) -> Content {
    let owned = path.to_owned();
    match tokio::task::spawn_blocking(move || read_text(&owned)).await {
        Ok(content) => content,
        // Only while the runtime shuts down, and then nobody looks at it any more.
        Err(error) => Err(ConfigError::new("unreadable", format!("{} was not read: {error}", path.display()))),
    }
}

fn parse(path: &Path, content: &Content) -> Result<RuleSet, ConfigError> {
    let (text, format) = content.as_ref().map_err(Clone::clone)?;
    RulesFile::parse(&path.display().to_string(), text, *format).map(|file| file.rules)
}
