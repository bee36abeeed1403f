//! `metaroute export`: all rows of a selection as NDJSON.
//!
//! Rows alone go to stdout, so that `import` reads them back. The server's last line says that nothing is missing; an
//! export without it ends with status 5.

use std::io::Write as _;

use clap::Args;
use reqwest::Method;
use serde_json::Value;

use crate::failure::{Failure, Outcome};
use crate::output::{Out, tell};
use crate::query::{Selection, number, summary};
use crate::source;
use crate::status::Status;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  metaroute export file_metadata --user 1000 > rows.ndjson
  metaroute export file_metadata --allow global --fields file_id,user_id,path,size")]
pub(crate) struct Export {
    #[command(flatten)]
    select: Selection,
}

impl Export {
    pub(crate) fn run(self, out: &mut Out) -> Outcome {
        source::runtime()?.block_on(self.stream(out))
    }

    async fn stream(&self, out: &mut Out) -> Outcome {
        let client = self.select.server.client()?;
        let body = Value::from(self.select.body()).to_string();
        let mut response = client.send(Method::POST, &self.select.path("export"), &[], Some(body)).await?;
        let cut = |error: &reqwest::Error| {
            let reached = client.unreachable(error);
            Failure::new(Status::Incomplete, "incomplete", format!("the export broke off: {}", reached.message))
        };
        let mut held: Vec<u8> = Vec::new();
        let mut rows = 0_usize;
        let mut last = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| cut(&error))? {
            held.extend_from_slice(&chunk);
            // Whole lines go out, except the last one, which may be the end.
            let Some(end) = held.iter().rposition(|&byte| byte == b'\n') else { continue };
            let rest = held.split_off(end + 1);
            let lines = std::mem::replace(&mut held, rest);
            let start = lines[..end].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
            rows += usize::from(!last.is_empty()) + lines[..start].iter().filter(|&&byte| byte == b'\n').count();
            out.writer().write_all(&last)?;
            out.writer().write_all(&lines[..start])?;
            last = lines[start..].to_vec();
        }
        let end: Value = serde_json::from_slice(&last).unwrap_or_default();
        out.flush()?;
        let Some(meta) = end.get("meta").filter(|_| held.is_empty()) else {
            return Err(Failure::new(Status::Incomplete, "incomplete", "the export ended without its last line"));
        };
        let complete = meta["complete"] == Value::Bool(true);
        if out.is_text() {
            tell(summary(rows, meta, number(&meta["cost"]), complete));
        } else {
            tell(end.to_string());
        }
        Ok(if complete { Status::Done } else { Status::Incomplete })
    }
}
