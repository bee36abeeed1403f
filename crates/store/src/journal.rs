//! A look at the engine's journal before the engine sees it.
//!
//! When the engine finds damage in the middle of its journal it either refuses to open or, now and
//! then, opens without a word and cuts off everything behind the damage; either way the rest is gone
//! from then on. A torn last commit, on the other hand, is the normal trace of a killed process. This
//! module tells the two apart by reading the journal with the engine's own rules: after the last
//! commit that checks out, a torn tail holds no complete commit any more, damage does.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

/// Ends every complete commit in a journal.
const TRAILER: [u8; 4] = [b'F', b'J', b'L', 3];

/// What a journal file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Findings {
    /// End of the last commit that checks out, counted from the start without a gap.
    pub(crate) good: u64,
    /// Length of the file without the zeros at its end.
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

/// Looks at a journal file.
pub(crate) fn inspect(path: &Path) -> io::Result<Findings> {
    Ok(inspect_bytes(&read(path)?))
}

/// The bytes of a journal file without the zeros at its end: the engine reserves 64 MiB for each.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    const PIECE: usize = 256 << 10;
    let zeros = vec![0; PIECE];
    let mut piece = vec![0; PIECE];
    let mut file = File::open(path)?;
    let (mut bytes, mut zeros_behind) = (Vec::new(), 0);
    loop {
        let len = file.read(&mut piece)?;
        if len == 0 {
            break;
        }
        if piece[..len] == zeros[..len] {
            zeros_behind += len;
        } else {
            bytes.resize(bytes.len() + zeros_behind, 0);
            bytes.extend_from_slice(&piece[..len]);
            zeros_behind = 0;
        }
    }
    let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1);
    bytes.truncate(end);
    Ok(bytes)
}

/// Copies a journal file; the zeros at its end take no space in the copy.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let bytes = read(from)?;
    let len = std::fs::metadata(from)?.len();
    let mut file = File::create(to)?;
    file.write_all(&bytes)?;
    file.set_len(len)?;
    file.sync_all()
}

pub(crate) fn inspect_bytes(bytes: &[u8]) -> Findings {
    let mut good = 0;
    let mut last_sequence = None;
    while let Some((len, sequence)) = commit_at(&bytes[good..]) {
        // The engine's checksum leaves the sequence number out, yet a commit that moves behind what
        // is flushed already would be passed over in silence. The order gives it away.
        if last_sequence.is_some_and(|last| sequence <= last || sequence - last > SEQUENCE_STEP_MAX) {
            break;
        }
        last_sequence = Some(sequence);
        good += len;
    }
    let damaged = bytes[good..].windows(TRAILER.len()).any(|window| window == TRAILER);
    Findings { good: good as u64, len: bytes.len() as u64, damaged }
}

/// Sequence numbers are handed out one by one, also to flushes and compactions between two commits.
const SEQUENCE_STEP_MAX: u64 = 1 << 32;

/// Length and sequence number of the commit at the start of `bytes`; `None` when there is no
/// complete, correct one.
fn commit_at(bytes: &[u8]) -> Option<(usize, u64)> {
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
    let sequence = u64::from_le_bytes(take(8)?.0.try_into().ok()?);
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
    (trailer == TRAILER && checksum == hash.digest()).then_some((end, sequence))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A journal as the engine writes it: commits of one to three items.
    fn journal(commits: usize) -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut ends) = (Vec::new(), vec![0]);
        for n in 0..commits {
            let items = 1 + n % 3;
            bytes.push(1);
            bytes.extend_from_slice(&(items as u32).to_le_bytes());
            bytes.extend_from_slice(&(n as u64).to_le_bytes());
            let mut hash = Xxh3::new();
            for item in 0..items {
                let (key, value) = (format!("key {n}.{item}"), vec![7; 40 * item]);
                let mut raw = vec![2, 0, 0];
                raw.extend_from_slice(&1_u64.to_le_bytes());
                raw.extend_from_slice(&(key.len() as u16).to_le_bytes());
                raw.extend_from_slice(&(value.len() as u32).to_le_bytes());
                raw.extend_from_slice(&(value.len() as u32).to_le_bytes());
                raw.extend_from_slice(key.as_bytes());
                raw.extend_from_slice(&value);
                hash.update(&raw);
                bytes.extend(raw);
            }
            bytes.push(3);
            bytes.extend_from_slice(&hash.digest().to_le_bytes());
            bytes.extend_from_slice(&TRAILER);
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    #[test]
    fn a_whole_journal_is_good_to_its_end() {
        let (bytes, _) = journal(20);
        let len = bytes.len() as u64;
        assert_eq!(inspect_bytes(&bytes), Findings { good: len, len, damaged: false });
    }

    proptest! {
        #[test]
        fn a_cut_is_a_torn_tail_and_a_flip_before_the_last_commit_is_damage(
            at in any::<proptest::sample::Index>(), bit in 0u8..8
        ) {
            let (bytes, ends) = journal(20);
            let cut = at.index(bytes.len());
            let found = inspect_bytes(&bytes[..cut]);
            prop_assert!(!found.damaged);
            prop_assert_eq!(found.good as usize, *ends.iter().rfind(|end| **end <= cut).expect("zero is one"));

            let flip = at.index(ends[19]);
            let mut flipped = bytes.clone();
            flipped[flip] ^= 1 << bit;
            let found = inspect_bytes(&flipped);
            let start = *ends.iter().rfind(|end| **end <= flip).expect("zero is one");
            if (start + 5..start + 13).contains(&flip) {
                // Sequence numbers here go up by one, so most flips, not all, break the order.
                prop_assert!(found.damaged || found.good as usize == bytes.len());
            } else {
                prop_assert!(found.damaged, "flip at {}", flip);
                prop_assert_eq!(found.good as usize, start);
            }
        }

        #[test]
        fn any_bytes_are_looked_at_without_a_panic(bytes in proptest::collection::vec(0u8..5, 0..200)) {
            let _ = inspect_bytes(&bytes);
        }
    }
}
