//! Clap's complaints in our form, so that scripts get JSON for a mistyped flag too.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::failure::Failure;

/// A usage error as a failure.
pub(crate) fn failure(error: &clap::Error) -> Failure {
    let code = match error.kind() {
        ErrorKind::UnknownArgument => "unknown_argument",
        ErrorKind::InvalidSubcommand => "unknown_command",
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "missing_command",
        ErrorKind::MissingRequiredArgument => "missing_argument",
        ErrorKind::ArgumentConflict => "conflicting_arguments",
        ErrorKind::InvalidValue
        | ErrorKind::ValueValidation
        | ErrorKind::NoEquals
        | ErrorKind::TooManyValues
        | ErrorKind::TooFewValues
        | ErrorKind::WrongNumberOfValues
        | ErrorKind::InvalidUtf8 => "bad_value",
        _ => "bad_usage",
    };
    let text = error.to_string();
    // What clap calls a message is the first paragraph; tips and the usage line follow.
    let message: Vec<&str> = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    let message = message.join(" ");
    let mut failure = Failure::usage(code, message.strip_prefix("error: ").unwrap_or(&message));
    if let Some(values) = error.get(ContextKind::ValidValue) {
        failure.expected = strings(values);
    }
    let tip = text.lines().find_map(|line| line.trim().strip_prefix("tip: "));
    let usage = text.lines().find_map(|line| line.strip_prefix("Usage: "));
    failure.hint = tip.map(str::to_owned).or_else(|| usage.map(|usage| format!("usage: {usage}")));
    failure
}

fn strings(value: &ContextValue) -> Vec<String> {
    match value {
        ContextValue::String(text) => vec![text.clone()],
        ContextValue::Strings(texts) => texts.clone(),
        _ => Vec::new(),
    }
}
