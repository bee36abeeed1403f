//! Where log lines go.

use tracing_subscriber::EnvFilter;

use crate::output::Format;

/// Sends log lines to stderr: text for people, JSON where JSON was asked for. `RUST_LOG` chooses what is said.
pub(crate) fn log_to_stderr(format: Format) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // A second subscriber can only mean that a test set one.
    let _ = match format {
        Format::Text => {
            let colours = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
            builder.with_ansi(colours).try_init()
        }
        Format::Json | Format::Ndjson => builder.json().flatten_event(true).try_init(),
    };
}
