//! What goes to stdout, and how it looks.
//!
//! Data goes to stdout and nothing else does. Colours are written always and stripped where the output is no terminal
//! or `NO_COLOR` is set, so no other code asks about terminals. Writes can fail (a full disk, a closed pipe) and every
//! command passes that on.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use anstream::AutoStream;
use anstyle::{AnsiColor, Style};
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// Form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs: one JSON document.
    Json,
    /// For programs: one JSON object a line, as results arrive.
    Ndjson,
}

/// Good, kept, present.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Bad, dropped, an error.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
/// Doubtful.
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();
/// Of less interest.
pub(crate) const FAINT: Style = Style::new().dimmed();
/// Headings.
pub(crate) const STRONG: Style = Style::new().bold();

/// Text in a style.
pub(crate) fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// Stdout in the form that was asked for.
pub(crate) struct Out {
    pub(crate) format: Format,
    writer: BufWriter<AutoStream<StdoutLock<'static>>>,
}

impl Out {
    pub(crate) fn new(format: Format) -> Self {
        Self { format, writer: BufWriter::new(AutoStream::auto(io::stdout().lock())) }
    }

    /// Whether people read it.
    pub(crate) fn is_text(&self) -> bool {
        self.format == Format::Text
    }

    /// A line of text.
    pub(crate) fn line(&mut self, text: impl AsRef<str>) -> io::Result<()> {
        self.writer.write_all(text.as_ref().as_bytes())?;
        self.writer.write_all(b"\n")
    }

    /// Text as it is.
    pub(crate) fn raw(&mut self, text: &str) -> io::Result<()> {
        self.writer.write_all(text.as_bytes())
    }

    /// Where bytes go that are in their form already.
    pub(crate) fn writer(&mut self) -> &mut impl Write {
        &mut self.writer
    }

    /// A JSON document on a line of its own.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.writer, value).map_err(io::Error::from)?;
        self.writer.write_all(b"\n")
    }

    /// A table.
    pub(crate) fn table(&mut self, table: &Table) -> io::Result<()> {
        for line in table.lines() {
            self.line(line.trim_end())?;
        }
        Ok(())
    }

    /// Hands everything over to the reader; a stream does so after each item.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// A table with this heading: as wide as the terminal, or as wide as it wants where there is none.
pub(crate) fn table(heading: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(heading.iter().map(|h| if h.is_empty() { String::new() } else { paint(STRONG, h) }));
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    if io::stdout().is_terminal()
        && let Some((terminal_size::Width(width), _)) = terminal_size::terminal_size()
    {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    table
}

/// Tells people something on stderr.
pub(crate) fn tell(text: impl AsRef<str>) {
    // Where stderr is gone there is nobody left to tell.
    let _ = writeln!(anstream::stderr(), "{}", text.as_ref());
}
