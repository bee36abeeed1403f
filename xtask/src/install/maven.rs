//! Java peers: a pom with pinned versions and a few classes of our own, compiled against them.
//!
//! `peers/<name>/pom.xml` and `peers/<name>/src/*.java` become `lib/*.jar` and `classes/` in the cache, so that
//! `java -cp 'lib/*:classes' Main` runs it without Maven. A server of others needs no source.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use test_support::cache;

use super::{Site, debian};
use crate::command::logged;

/// Builds the peer `name` into the cache.
pub(crate) fn bring(site: &Site, name: &str) -> Result<()> {
    debian::bring_programs(
        site,
        &[("java", "openjdk-17-jre-headless"), ("javac", "openjdk-17-jdk-headless"), ("mvn", "maven")],
    )?;
    let recipe = cache::recipe_dir(name);
    let dir = cache::peer_dir(name).with_context(|| format!("cannot read {}", recipe.display()))?;
    if dir.exists() {
        // An interrupted build.
        fs::remove_dir_all(&dir)?;
    }
    let (lib, classes) = (dir.join("lib"), dir.join("classes"));
    fs::create_dir_all(&classes)?;
    // Maven writes beside the pom, so it works on a copy.
    let pom = dir.join("pom.xml");
    fs::copy(recipe.join("pom.xml"), &pom)?;
    logged(
        Command::new("mvn")
            .args(["--batch-mode", "--no-transfer-progress", "dependency:copy-dependencies", "-DincludeScope=runtime"])
            .arg(format!("-Dmaven.repo.local={}", cache::dir().join("m2").display()))
            .arg(format!("-DoutputDirectory={}", lib.display()))
            .arg("--file")
            .arg(&pom),
        &site.log,
    )?;
    if recipe.join("src").is_dir() {
        compile(site, &recipe.join("src"), &lib, &classes)?;
    }
    fs::write(dir.join(cache::COMPLETE), "")?;
    Ok(())
}

/// Compiles our own classes against what Maven brought.
fn compile(site: &Site, src: &Path, lib: &Path, classes: &Path) -> Result<()> {
    let mut sources: Vec<_> = fs::read_dir(src)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    sources.retain(|file| file.extension().is_some_and(|extension| extension == "java"));
    sources.sort();
    if sources.is_empty() {
        bail!("no Java source in {}", src.display());
    }
    logged(
        Command::new("javac")
            .args(["-nowarn", "-encoding", "UTF-8", "-cp"])
            .arg(lib.join("*"))
            .arg("-d")
            .arg(classes)
            .args(sources),
        &site.log,
    )
}
