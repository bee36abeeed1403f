use super::*;
use crate::Scratch;
use std::fs;

const SOON: Duration = Duration::from_secs(20);

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

fn start(scratch: &Scratch, script: &str) -> Server {
    let log = scratch.path().join("log");
    Server::start("script", shell(script), &log, Ready::LogSays("ready".into())).expect("the script starts")
}

/// The one-letter state of a process in /proc, `None` once it is gone.
fn state(id: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[test]
fn stop_asks_first() {
    let scratch = Scratch::new("stop");
    let mut server = start(&scratch, "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done");
    assert!(server.is_running());
    let status = server.stop().expect("it ran");
    assert_eq!(status.code(), Some(7));
    assert!(server.log().contains("bye"));
    assert!(!server.is_running());
    assert_eq!(server.stop(), None, "stopping twice is harmless");
}

#[test]
fn stop_reaches_a_paused_process() {
    let scratch = Scratch::new("paused");
    let mut server = start(&scratch, "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done");
    let id = server.id().expect("it runs");
    server.pause();
    assert!(wait_until(SOON, || state(id) == Some('T')));
    assert_eq!(server.stop().and_then(|status| status.code()), Some(7));
}

#[test]
fn pause_and_resume() {
    let scratch = Scratch::new("pause");
    let mut server = start(&scratch, "echo ready; while :; do :; done");
    let id = server.id().expect("it runs");
    server.pause();
    assert!(wait_until(SOON, || state(id) == Some('T')), "state {:?}", state(id));
    assert!(server.is_running());
    server.resume();
    assert!(wait_until(SOON, || state(id) == Some('R')), "state {:?}", state(id));
}

#[test]
fn kill_takes_the_children_along_and_start_again_waits_for_the_new_line() {
    let scratch = Scratch::new("kill");
    let mut server = start(&scratch, "sleep 600 & echo child $!; echo ready; wait");
    let log = server.log();
    let child: u32 = log
        .lines()
        .find_map(|line| line.strip_prefix("child "))
        .and_then(|id| id.parse().ok())
        .expect("the script prints its child");
    let status = server.kill().expect("it ran");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    assert!(wait_until(SOON, || matches!(state(child), None | Some('Z'))), "the child is gone");

    server.start_again().expect("it starts again");
    assert_eq!(server.log().matches("ready").count(), 2);
}

#[test]
fn an_early_end_is_told_with_the_log() {
    let scratch = Scratch::new("early");
    let log = scratch.path().join("log");
    let error = Server::start("script", shell("echo no such table; exit 3"), &log, Ready::LogSays("ready".into()))
        .expect_err("it ends");
    let text = error.to_string();
    assert!(text.contains("ended before it was ready") && text.contains("no such table"), "{text}");
}

#[test]
fn a_deadline_is_told_and_leaves_nothing_running() {
    let scratch = Scratch::new("deadline");
    let log = scratch.path().join("log");
    let said = log.clone();
    // It is looked for before the deadline counts, or the process might have said nothing yet.
    let never = move || {
        assert!(wait_until(SOON, || fs::read_to_string(&said).is_ok_and(|text| text.ends_with('\n'))));
        false
    };
    let error = Server::start_within(
        Duration::from_millis(300),
        "script",
        shell("echo pid $$; sleep 600"),
        &log,
        Ready::Check(Box::new(never)),
    )
    .expect_err("never ready");
    assert!(matches!(error, ServerError::NotReady { .. }), "{error}");
    let text = fs::read_to_string(&log).expect("log");
    let id: u32 = text.trim().trim_start_matches("pid ").parse().expect("the script prints its id");
    assert_eq!(state(id), None);
}

#[test]
fn a_program_that_is_not_there_is_an_error() {
    let scratch = Scratch::new("absent");
    let error = Server::start(
        "absent",
        Command::new("no-such-program-here"),
        &scratch.path().join("log"),
        Ready::Check(Box::new(|| true)),
    )
    .expect_err("no such program");
    assert!(matches!(error, ServerError::Spawn { .. }), "{error}");
}

#[test]
fn the_guard_kills_the_group_when_we_are_gone() {
    let scratch = Scratch::new("guard");
    let mut server = start(&scratch, "echo ready; sleep 600 & wait");
    let id = server.id().expect("it runs");
    // What the kernel does for a killed test binary: close our end of the pipe.
    drop(server.running.as_mut().and_then(|running| running.guard.stdin.take()));
    assert!(wait_until(SOON, || !server.is_running()));
    assert_eq!(state(id), None, "is_running has reaped it");
}
