use std::path::Path;

use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
#[command(name = "simulate")]
struct Cli {
    #[command(subcommand)]
    command: SimulateCommand,
}

fn parse(flags: &str) -> Result<SimulateCommand, clap::Error> {
    Cli::try_parse_from(std::iter::once("simulate").chain(flags.split_whitespace())).map(|cli| cli.command)
}

fn run(flags: &str) -> Report {
    let command = parse(flags).unwrap_or_else(|error| panic!("{flags}: {error}"));
    command.report().unwrap_or_else(|error| panic!("{flags}: {error}"))
}

#[test]
fn the_well_known_comparison_by_default() {
    let report = run("retry-storm");
    let json = serde_json::to_value(&report).expect("a report is plain data");
    let fixed = &json["policies"][0];
    assert_eq!(fixed["policy"], "fixed:5s");
    let window = &fixed["windows"][0];
    assert_eq!(
        (&window["window"], &window["calls"], &window["peak_per_second"]),
        (&"12s".into(), &200.into(), &100.into())
    );
    assert_eq!(window["per_second"], serde_json::json!([0, 0, 0, 0, 0, 100, 0, 0, 0, 0, 100, 0]));
    assert_eq!(fixed["windows"][1]["calls"], 1100);
    let exponential = &json["policies"][1];
    assert_eq!(exponential["policy"], "exponential:1s,1.5,60s,0.5");
    assert_eq!(exponential["windows"][1]["per_second"].as_array().map(Vec::len), Some(60));
    assert!(exponential["windows"][1]["peak_per_second"].as_u64() < Some(100));
}

#[test]
fn subscribe_loop_counts_an_hour() {
    let report = run("subscribe-loop");
    let hour = |policy: usize| &report.policies[policy].windows[1];
    assert_eq!((hour(0).calls, hour(0).peak_per_second), (3_600_000, 1000));
    assert!((110..150).contains(&hour(1).calls), "{}", hour(1).calls);
}

#[test]
fn results_carry_the_names_that_were_given() {
    let report = run("retry-storm --policy fixed:5000ms --window 1m --policy exponential:1s,1.5,60s");
    let names: Vec<_> = report.policies.iter().map(|policy| policy.policy.as_str()).collect();
    assert_eq!(names, ["fixed:5000ms", "exponential:1s,1.5,60s"]);
    assert_eq!(report.policies[0].windows[0].window, "1m");
}

#[test]
fn a_policy_has_the_same_numbers_in_any_company_and_other_ones_with_another_seed() {
    let calls = |flags: &str| run(flags).policies.pop().map(|policy| policy.windows[0].per_second.clone());
    let alone = calls("retry-storm --policy exponential:1s,1.5,60s,0.5");
    assert_eq!(alone, calls("retry-storm"));
    assert_ne!(alone, calls("retry-storm --seed 2"));
}

#[test]
fn bad_flags_are_refused_with_the_offending_text() {
    for (flags, message) in [
        ("retry-storm --policy linear:1s", "unknown back-off policy `linear:1s`"),
        (
            "retry-storm --policy exponential:1s,0.5,60s",
            "the multiplier must be a finite number of at least 1, not 0.5",
        ),
        ("retry-storm --window 12", "`12` is no duration"),
        ("subscribe-loop --tick soon", "`soon` is no duration"),
    ] {
        let error = parse(flags).expect_err(flags).to_string();
        assert!(error.contains(message), "{flags}: {error}");
    }
}

#[test]
fn scenarios_that_never_end_are_refused() {
    let error = parse("retry-storm --tick 0 --policy none").expect("well formed").report().expect_err("no end");
    assert_eq!(error.to_string(), "`none` cannot be simulated");
    assert!(
        std::error::Error::source(&error).is_some_and(|source| source.to_string().contains("give a tick or a latency"))
    );
}

#[test]
fn pictures_name_what_they_show() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("storm.svg");
    run(&format!("retry-storm --plot {}", path.display()));
    let svg = std::fs::read_to_string(&path).expect("the plot was written");
    for text in [
        "Retry storm: 100 clients that failed together",
        "first 12s",
        "first 60s",
        "seconds since the failure",
        "calls per second",
        "fixed:5s   1,100 calls, peak 100/s",
    ] {
        assert!(svg.contains(text), "{text}");
    }
}

#[test]
fn a_png_holds_text_and_every_colour() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("LOOP.PNG");
    run(&format!("subscribe-loop --plot {}", path.display()));
    let file = std::io::BufReader::new(std::fs::File::open(&path).expect("the plot was written"));
    let mut reader = png::Decoder::new(file).read_info().expect("a png");
    let mut pixels = vec![0; reader.output_buffer_size().expect("it fits in memory")];
    let info = reader.next_frame(&mut pixels).expect("one picture");
    assert_eq!((info.width, info.height), (2400, 1768));
    let count = |colour: [u8; 3]| pixels.as_chunks::<3>().0.iter().filter(|pixel| **pixel == colour).count();
    assert!(count([0, 114, 178]) > 10_000, "the first series");
    assert!(count([213, 94, 0]) > 1_000, "the second series");
    // The title is the only large text in this colour: without a font there would be but the axes.
    let title: usize =
        pixels[..2400 * 3 * 100].as_chunks::<3>().0.iter().filter(|pixel| **pixel == [33, 37, 41]).count();
    assert!(title > 1_000, "{title} pixels of ink");
}

#[test]
fn pictures_of_unusual_reports_are_drawn_too() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, flags) in [
        ("nothing.svg", "retry-storm --clients 0"),
        ("long.svg", "retry-storm --clients 1 --window 300s --window 301s --window 5h --window 168h"),
        ("short.svg", "retry-storm --window 1ns --window 500ms"),
        (
            "many.svg",
            "retry-storm --policy none --policy fixed:1s --policy fixed:2s --policy fixed:3s --policy fixed:4s \
          --policy fixed:5s --policy fixed:6s --policy fixed:7s --policy fixed:8s --policy fixed:9s --window 12s",
        ),
    ] {
        let path = folder.path().join(name);
        run(&format!("{flags} --plot {}", path.display()));
        assert!(path.exists(), "{name}");
    }
}

#[test]
fn pictures_that_cannot_be_written_say_so() {
    let run = |path: &str| {
        parse(&format!("retry-storm --plot {path}")).expect("well formed").report().expect_err(path).to_string()
    };
    assert_eq!(run("storm.pdf"), "cannot tell the picture format of `storm.pdf`, its name must end in .png or .svg");
    assert_eq!(run("storm"), "cannot tell the picture format of `storm`, its name must end in .png or .svg");
    assert_eq!(run("no/such/folder/storm.svg"), "cannot write `no/such/folder/storm.svg`");
}

/// Runs every `$ metaroute simulate …` of the guidance page. With `UPDATE_DOCS=1` the page is rewritten instead.
#[test]
fn the_guidance_page_shows_what_the_command_prints() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/backoff.md");
    let page = std::fs::read_to_string(&path).expect("the guidance page");
    let mut fresh = String::new();
    let mut blocks = 0;
    let mut rest = page.as_str();
    while let Some((before, block)) = rest.split_once("```console\n$ metaroute simulate ") {
        let (block, after) = block.split_once("\n```\n").expect("every block is closed");
        let flags = block.lines().next().expect("a block has its command");
        let output = run(flags).to_string();
        fresh.push_str(&format!("{before}```console\n$ metaroute simulate {flags}\n{}\n```\n", output.trim_end()));
        blocks += 1;
        rest = after;
    }
    fresh.push_str(rest);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &fresh).expect("the page can be written");
    } else {
        assert_eq!(page, fresh, "run this test with UPDATE_DOCS=1");
    }
    assert_eq!(blocks, 3);
}
