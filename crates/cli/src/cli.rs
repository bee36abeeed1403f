//! The whole command line, from arguments to exit status.

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::export::Export;
use crate::expr::ExprCommand;
use crate::failure::{Failure, Outcome};
use crate::import::Import;
use crate::output::{Format, Out, tell};
use crate::query::Query;
use crate::registry::RegistryCommand;
use crate::route::RouteCommand;
use crate::server::Server;
use crate::simulate::SimulateCommand;
use crate::status::{self, Status};
use crate::store::{Backup, Restore, StoreCommand};
use crate::topology::TopologyCommand;
use crate::up::Up;
use crate::usage;

const EXAMPLES: &str = "\
Examples:
  metaroute up
  metaroute route explain orders --from fleet.yaml --rule 'version >= 2.10'
  metaroute expr eval 'version >= 2.10' --with version=2.9";

/// Routes calls by metadata: narrow the instances, choose one, and say why.
#[derive(Parser)]
#[command(name = "metaroute", version, propagate_version = true, after_help = EXAMPLES, after_long_help = long_help())]
#[command(subcommand_required = false, disable_help_subcommand = false)]
pub(crate) struct Cli {
    /// Form of the output: text, json or ndjson
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t, hide_possible_values = true)]
    format: Format,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Start everything in one process: a registry with a fleet, and routing over HTTP
    ///
    /// Prints `ready http://ADDRESS` on stdout when HTTP answers. Ctrl-C or SIGTERM drains and ends it.
    Up(Up),
    /// Run one role as a process of its own
    ///
    /// Prints `ready ADDRESS` on stdout when it answers. Ctrl-C or SIGTERM drains and ends it.
    Server(Server),
    /// Rows from a server, with their path, price and completeness
    Query(Box<Query>),
    /// Write the rows of an NDJSON file to a server
    Import(Import),
    /// All rows of a selection as NDJSON
    Export(Box<Export>),
    /// Who owns what, and changing it
    #[command(subcommand)]
    Topology(TopologyCommand),
    /// Explain, pick, lint, compare and simulate on a real registry
    #[command(subcommand)]
    Route(Box<RouteCommand>),
    /// List, follow, register and examine what a registry holds
    #[command(subcommand)]
    Registry(RegistryCommand),
    /// Evaluate, check and format expressions
    #[command(subcommand)]
    Expr(ExprCommand),
    /// Replay back-off policies in virtual time
    #[command(subcommand)]
    Simulate(SimulateCommand),
    /// Look over stores on disk, or files that declare stores
    #[command(subcommand)]
    Store(StoreCommand),
    /// Write checkpoints of all stores of a running server or of a data folder
    Backup(Backup),
    /// Make a data folder from a backup
    Restore(Restore),
    /// Print a completion script for a shell
    #[command(after_help = "\
Examples:
  metaroute completions bash > /etc/bash_completion.d/metaroute
  metaroute completions zsh > ~/.zfunc/_metaroute")]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

fn long_help() -> String {
    format!("{EXAMPLES}\n\n{}", status::TABLE)
}

/// Runs the command line of this process.
pub(crate) fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let format = early_format(&args);
    std::panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map_or_else(String::new, |at| format!(" at {}:{}", at.file(), at.line()));
        let what = panic.payload_as_str().unwrap_or("no message");
        Failure::new(Status::Bug, "internal", format!("this is a bug of metaroute: {what}{place}"))
            .hint("please report it with the command you ran")
            .report(format);
    }));
    let outcome = catch_unwind(AssertUnwindSafe(|| run(args, format)));
    match outcome {
        Ok(Ok(status)) => status.into(),
        Ok(Err(failure)) => {
            failure.report(format);
            failure.status.into()
        }
        // The hook has reported it.
        Err(_) => Status::Bug.into(),
    }
}

fn run(args: Vec<OsString>, format: Format) -> Outcome {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return parse_failure(&error, format),
    };
    let mut out = Out::new(cli.format);
    let outcome = match cli.command {
        None => {
            out.raw(&Cli::command().render_help().ansi().to_string())?;
            Ok(Status::Done)
        }
        Some(Command::Up(command)) => command.run(&mut out),
        Some(Command::Server(command)) => command.run(&mut out),
        Some(Command::Query(command)) => command.run(&mut out),
        Some(Command::Import(command)) => command.run(&mut out),
        Some(Command::Export(command)) => command.run(&mut out),
        Some(Command::Topology(command)) => command.run(&mut out),
        Some(Command::Route(command)) => command.run(&mut out),
        Some(Command::Registry(command)) => command.run(&mut out),
        Some(Command::Expr(command)) => command.run(&mut out),
        Some(Command::Simulate(command)) => command.run(&mut out),
        Some(Command::Store(command)) => command.run(&mut out),
        Some(Command::Backup(command)) => command.run(&mut out),
        Some(Command::Restore(command)) => command.run(&mut out),
        Some(Command::Completions { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "metaroute", &mut script);
            out.raw(&String::from_utf8_lossy(&script))?;
            Ok(Status::Done)
        }
    };
    // What was found before a failure still reaches the reader, in order.
    match (outcome, out.flush()) {
        (Err(failure), _) => Err(failure),
        (Ok(_), Err(error)) => Err(Failure::stdout(&error)),
        (Ok(status), Ok(())) => Ok(status),
    }
}

/// Help and version are answers; everything else clap says is a usage error.
fn parse_failure(error: &clap::Error, format: Format) -> Outcome {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let mut out = Out::new(format);
            out.raw(&error.render().ansi().to_string())?;
            out.flush()?;
            Ok(Status::Done)
        }
        _ if format == Format::Text => {
            tell(error.render().ansi().to_string().trim_end());
            Ok(Status::Usage)
        }
        _ => Err(usage::failure(error)),
    }
}

/// The format asked for, also where the rest of the command line cannot be read.
fn early_format(args: &[OsString]) -> Format {
    let mut format = Format::Text;
    let mut words = args.iter().skip(1).map(|arg| arg.to_string_lossy());
    while let Some(word) = words.next() {
        let value = match word.as_ref() {
            "--" => break,
            "--format" => words.next(),
            other => other.strip_prefix("--format=").map(|value| value.to_owned().into()),
        };
        match value.as_deref() {
            Some("json") => format = Format::Json,
            Some("ndjson") => format = Format::Ndjson,
            Some(_) => format = Format::Text,
            None => {}
        }
    }
    format
}

#[cfg(test)]
mod manual;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_format_is_known_before_the_rest_is_understood() {
        let of = |words: &[&str]| early_format(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(of(&["metaroute", "nonsense", "--format", "json"]), Format::Json);
        assert_eq!(of(&["metaroute", "--format=ndjson", "x"]), Format::Ndjson);
        assert_eq!(of(&["metaroute", "--", "--format=json"]), Format::Text);
        assert_eq!(of(&["metaroute", "--format"]), Format::Text);
    }
}
