//! Bringing what the checks need, in the background and once per machine.
//!
//! Each need has its own thread and its own log in the cache folder. A lock file per need keeps two runs on one machine from
//! building the same thing twice; Debian's package manager is asked by one thread at a time.

pub(crate) mod crates;
pub(crate) mod debian;
pub(crate) mod go;
pub(crate) mod maven;
pub(crate) mod python;
pub(crate) mod tool;

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result};
use test_support::cache;

use crate::needs::Need;

/// Where an installer works: its log and what it shares with the others.
pub(crate) struct Site {
    /// Output of the programs it runs.
    pub(crate) log: File,
    pub(crate) debian: Arc<debian::Debian>,
}

/// Needs being brought in the background.
pub(crate) struct Background {
    jobs: Vec<(Need, JoinHandle<Result<()>>)>,
}

/// A need that could not be met, and why.
pub(crate) struct Unmet {
    pub(crate) need: Need,
    pub(crate) why: String,
}

impl Background {
    /// Starts bringing those needs that are not met yet.
    pub(crate) fn start(needs: &[Need]) -> Self {
        let debian = Arc::new(debian::Debian::default());
        let jobs = needs
            .iter()
            .filter(|need| (need.check)().is_err())
            .map(|need| {
                let (need, debian) = (*need, Arc::clone(&debian));
                (need, std::thread::spawn(move || bring(need, debian)))
            })
            .collect();
        Self { jobs }
    }

    /// Waits for all of them and returns those that failed.
    pub(crate) fn finish(self) -> Vec<Unmet> {
        self.jobs
            .into_iter()
            .filter_map(|(need, job)| {
                let result = job.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the installer panicked")));
                result.err().map(|error| Unmet { need, why: format!("{error:#}") })
            })
            .collect()
    }
}

fn log_path(need: &Need) -> PathBuf {
    cache::dir().join("log").join(format!("{}.log", need.name))
}

fn bring(need: Need, debian: Arc<debian::Debian>) -> Result<()> {
    let started = Instant::now();
    let log = log_path(&need);
    fs::create_dir_all(cache::dir().join("log"))
        .with_context(|| format!("cannot make the cache folder {}", cache::dir().display()))?;
    let lock = File::create(cache::dir().join("log").join(format!("{}.lock", need.name)))?;
    lock.lock()?;
    // Another run may have brought it while we waited.
    if (need.check)().is_ok() {
        return Ok(());
    }
    println!("bringing {} ({}); log {}", need.name, need.purpose, log.display());
    let site = Site { log: File::create(&log)?, debian };
    let result = (need.bring)(&site).and_then(|()| Ok((need.check)()?));
    match &result {
        Ok(()) => println!("brought {} in {:.1} min", need.name, started.elapsed().as_secs_f64() / 60.0),
        Err(error) => println!("could not bring {}: {error:#}; log {}", need.name, log.display()),
    }
    result
}

/// Brings the needs in the foreground; returns whether all are met.
pub(crate) fn all(needs: &[Need]) -> Result<bool> {
    let unmet = Background::start(needs).finish();
    for need in needs {
        match unmet.iter().find(|unmet| unmet.need.name == need.name) {
            None => println!("{:<12} there: {}", need.name, need.purpose),
            Some(unmet) => println!("{:<12} missing: {}", need.name, unmet.why),
        }
    }
    Ok(unmet.is_empty())
}
