//! A look at the engine's journal before the engine sees it.
//!
//! When the engine finds damage in the middle of its journal it either refuses to open or, now and
//! then, opens without a word and cuts off everything behind the damage; either way the rest is gone
//! from then on. A torn last commit, on the other hand, is the normal trace of a killed process. This
//! module tells the two apart by reading the journal with the engine's own rules: after the last
//! commit that checks out, a torn tail holds no complete commit any more, damage does.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

/// Ends every complete commit in a journal.
const TRAILER: [u8; 4] = [b'F', b'J', b'L', 3];

/// What a journal file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Findings {
    /// End of the last commit that checks out, counted from the start without a gap.
    pub(crate) good: u64,
    /// Length of the file.
    pub(crate) len: u64,
    /// Whether a complete commit, or the end of one, lies behind `good`.
    pub(crate) damaged: bool,
}

/// Journal files in `root`, oldest first.
pub(crate) fn files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut numbered = Vec::new();
    let entries = match std::fs::read_dir(root) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|ext| ext == "jnl")
            && let Some(number) = path.file_stem().and_then(|s| s.to_str()?.parse::<u64>().ok())
        {
            numbered.push((number, path));
        }
    }
    numbered.sort();
    Ok(numbered.into_iter().map(|(_, path)| path).collect())
}

/// Reads a journal file; at most 64 MiB and a batch, so it fits in memory.
pub(crate) fn inspect(path: &Path) -> io::Result<Findings> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(inspect_bytes(&bytes))
}

pub(crate) fn inspect_bytes(bytes: &[u8]) -> Findings {
    let mut good = 0;
    while let Some(len) = commit_len(&bytes[good..]) {
        good += len;
    }
    let rest = &bytes[good..];
    let damaged = rest.windows(TRAILER.len()).any(|window| window == TRAILER);
    Findings { good: good as u64, len: bytes.len() as u64, damaged }
}

/// Length of the commit at the start of `bytes`; `None` when there is no complete, correct one.
fn commit_len(bytes: &[u8]) -> Option<usize> {
    const START: u8 = 1;
    const ITEM: u8 = 2;
    const END: u8 = 3;
    const CLEAR: u8 = 4;
    let mut at = 0_usize;
    let mut take = |len: usize| {
        let taken = bytes.get(at..at.checked_add(len)?)?;
        at += len;
        Some((taken, at))
    };
    if take(1)?.0 != [START] {
        return None;
    }
    let items = u32::from_le_bytes(take(4)?.0.try_into().ok()?);
    take(8)?;
    let mut hash = Xxh3::new();
    for _ in 0..items {
        let (tag, after) = take(1)?;
        let start = after - 1;
        let end = match tag {
            [ITEM] => {
                let head = take(2 + 8 + 2 + 4 + 4)?.0;
                if head[0] > 4 || head[1] > 1 {
                    return None;
                }
                let key = usize::from(u16::from_le_bytes(head[10..12].try_into().ok()?));
                let value = u32::from_le_bytes(head[16..20].try_into().ok()?) as usize;
                take(key.checked_add(value)?)?.1
            }
            [CLEAR] => take(8)?.1,
            _ => return None,
        };
        hash.update(&bytes[start..end]);
    }
    if take(1)?.0 != [END] {
        return None;
    }
    let checksum = u64::from_le_bytes(take(8)?.0.try_into().ok()?);
    let (trailer, end) = take(4)?;
    (trailer == TRAILER && checksum == hash.digest()).then_some(end)
}
