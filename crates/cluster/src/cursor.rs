//! Cursors: where a page ended, sealed.
//!
//! A cursor is a position, not a row and not an offset: deleting the row it came from changes nothing, and the next page
//! costs the same as the first. It travels through the client, so it is sealed with a keyed BLAKE3 hash over its content,
//! the tenant it was made for and a fingerprint of the query. Whoever changes any of it, or presents it for another
//! tenant or another query, gets `cursor_invalid` instead of somebody else's rows. The page size is not part of the
//! fingerprint: it may change from page to page.
//!
//! Layout of version 1, before base64 without padding (URL alphabet): `version u8 = 1, flags u8, topology epoch u64,
//! issued u64 (seconds since 1970), position, count u16, count × (group length u8, group, shard length u8, shard,
//! position), seal 16 bytes`; integers are big-endian and a position is `kind u8 (0: id only, 1: time and id), time u64
//! (kind 1), id u64`. Per-source positions are there for merges whose sources stand at different places; walks ordered
//! by row position need one only.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use metaroute_store::TimeKey;

use crate::protocol::{Position, ShardId};

/// Format of the cursors this build makes.
const VERSION: u8 = 1;
/// Bytes of the seal: 128 bits are beyond guessing online.
const SEAL_BYTES: usize = 16;
/// Longest text worth decoding: room for 1,000 sources with long names.
const TEXT_BYTES_MAX: usize = 256 * 1024;
/// Most sources of one cursor.
const SOURCES_MAX: usize = 4_096;

/// What a cursor says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Topology epoch of the page. An older one is fine: positions are positions of rows, not of shards.
    pub epoch: u64,
    /// When it was made, in seconds since 1970.
    pub issued: u64,
    /// The walk goes on behind this position.
    pub after: Position,
    /// Shards that stand elsewhere than `after`; usually none.
    pub sources: BTreeMap<ShardId, Position>,
}

/// What a cursor is bound to besides its content.
#[derive(Clone, Copy, Debug)]
pub struct Binding<'a> {
    /// The tenant; `None` for walks over all of them.
    pub tenant: Option<u64>,
    /// Everything that decides which rows the walk has, in which order.
    pub query: &'a [u8],
}

/// A cursor that was not made here for this walk. It does not say more: the details would help only a forger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cursor is damaged, or belongs to another query, tenant or cluster")]
pub struct InvalidCursor;

/// Keys that seal cursors: the first seals, all of them open, so that a key can be replaced while walks go on.
#[derive(Clone)]
pub struct CursorKeys {
    keys: Vec<[u8; 32]>,
}

/// Never prints the keys.
impl fmt::Debug for CursorKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CursorKeys({} keys)", self.keys.len())
    }
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A given key is not 64 hexadecimal digits.
    #[error("cursor key {number} is not 64 hexadecimal digits")]
    BadKey {
        /// Which of the given ones, from 1.
        number: usize,
    },
    /// No key was given.
    #[error("no cursor key given")]
    Empty,
    /// The key file has other content than a key.
    #[error("{path} holds no cursor key; remove it to get a new one (cursors in use become invalid)")]
    Damaged {
        /// The file.
        path: String,
    },
    /// The key file cannot be read or written, or the system gives no random numbers.
    #[error("cannot {what}")]
    Io {
        /// What was being done.
        what: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

impl CursorKeys {
    /// One key.
    pub fn single(key: [u8; 32]) -> CursorKeys {
        CursorKeys { keys: vec![key] }
    }

    /// Keys from configuration, as 64 hexadecimal digits each; the first one seals.
    ///
    /// # Errors
    /// When there is none or one is no key. The key itself is not in the message.
    pub fn from_hex<'k>(keys: impl IntoIterator<Item = &'k str>) -> Result<CursorKeys, KeyError> {
        let parse = |(at, text): (usize, &str)| from_hex(text.trim()).ok_or(KeyError::BadKey { number: at + 1 });
        let keys: Vec<[u8; 32]> = keys.into_iter().enumerate().map(parse).collect::<Result<_, _>>()?;
        if keys.is_empty() { Err(KeyError::Empty) } else { Ok(CursorKeys { keys }) }
    }

    /// The key kept in a file, made on first use with access for the owner alone.
    ///
    /// # Errors
    /// When the file cannot be read or made, or holds something else.
    pub fn in_file(path: &Path) -> Result<CursorKeys, KeyError> {
        let io = |what: &str| {
            let what = format!("{what} {}", path.display());
            move |source| KeyError::Io { what, source }
        };
        match fs::File::open(path) {
            Ok(mut file) => {
                let mut text = String::new();
                file.read_to_string(&mut text).map_err(io("read"))?;
                let key =
                    from_hex(text.trim()).ok_or_else(|| KeyError::Damaged { path: path.display().to_string() })?;
                Ok(CursorKeys::single(key))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let mut key = [0; 32];
                getrandom::fill(&mut key)
                    .map_err(|error| io("draw a key for")(std::io::Error::other(error.to_string())))?;
                let text: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
                let mut options = fs::OpenOptions::new();
                options.write(true).create_new(true);
                #[cfg(unix)]
                std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
                let made = options.open(path).and_then(|mut file| {
                    file.write_all(text.as_bytes())?;
                    file.write_all(b"\n")?;
                    file.sync_all()
                });
                made.map_err(io("make"))?;
                Ok(CursorKeys::single(key))
            }
            Err(error) => Err(io("read")(error)),
        }
    }

    /// Seals a cursor for a walk.
    pub fn seal(&self, cursor: &Cursor, binding: Binding<'_>) -> String {
        let mut bytes = cursor.encode();
        let seal = seal(&self.keys[0], &bytes, binding);
        bytes.extend_from_slice(&seal.as_bytes()[..SEAL_BYTES]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Opens a cursor of a walk.
    ///
    /// # Errors
    /// When it was not sealed by one of these keys for this very walk.
    pub fn open(&self, text: &str, binding: Binding<'_>) -> Result<Cursor, InvalidCursor> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(InvalidCursor);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| InvalidCursor)?;
        let (content, given) = bytes.split_at_checked(bytes.len().saturating_sub(SEAL_BYTES)).ok_or(InvalidCursor)?;
        let given: [u8; SEAL_BYTES] = given.try_into().map_err(|_| InvalidCursor)?;
        let genuine = self.keys.iter().any(|key| {
            let full = seal(key, content, binding);
            let mut expected = [0; SEAL_BYTES];
            expected.copy_from_slice(&full.as_bytes()[..SEAL_BYTES]);
            // Hashing both sides once more makes the comparison one of whole hashes, which takes the same time
            // wherever they differ.
            blake3::keyed_hash(key, &expected) == blake3::keyed_hash(key, &given)
        });
        // Nothing is parsed before the seal holds.
        if genuine { Cursor::decode(content).ok_or(InvalidCursor) } else { Err(InvalidCursor) }
    }
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut key = [0; 32];
    for (byte, pair) in key.iter_mut().zip(digits.chunks(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Some(key)
}

fn seal(key: &[u8; 32], content: &[u8], binding: Binding<'_>) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(b"metaroute cursor\0");
    match binding.tenant {
        None => hasher.update(&[0]),
        Some(tenant) => hasher.update(&[1]).update(&tenant.to_be_bytes()),
    };
    hasher.update(&(binding.query.len() as u64).to_be_bytes()).update(binding.query).update(content);
    hasher.finalize()
}

impl Cursor {
    fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, 0];
        out.extend_from_slice(&self.epoch.to_be_bytes());
        out.extend_from_slice(&self.issued.to_be_bytes());
        put_position(&mut out, &self.after);
        let count = self.sources.len().min(SOURCES_MAX);
        out.extend_from_slice(&(count as u16).to_be_bytes());
        for (shard, position) in self.sources.iter().take(count) {
            for name in [&shard.group, &shard.shard] {
                // Topology names have at most 64 bytes.
                let name = &name.as_bytes()[..name.len().min(255)];
                out.push(name.len() as u8);
                out.extend_from_slice(name);
            }
            put_position(&mut out, position);
        }
        out
    }

    /// Reads the content of a sealed cursor, without its seal; `None` for anything else, other versions included.
    pub fn decode(bytes: &[u8]) -> Option<Cursor> {
        let mut rest = Rest(bytes);
        let [version, flags] = rest.take()?;
        if version != VERSION || flags != 0 {
            return None;
        }
        let epoch = rest.u64()?;
        let issued = rest.u64()?;
        let after = rest.position()?;
        let count = u16::from_be_bytes(rest.take()?);
        if usize::from(count) > SOURCES_MAX {
            return None;
        }
        let mut sources = BTreeMap::new();
        for _ in 0..count {
            let group = rest.name()?;
            let shard = rest.name()?;
            let position = rest.position()?;
            if sources.insert(ShardId::new(group, shard), position).is_some() {
                return None;
            }
        }
        rest.0.is_empty().then_some(Cursor { epoch, issued, after, sources })
    }
}

fn put_position(out: &mut Vec<u8>, position: &Position) {
    match position.time {
        None => out.push(0),
        Some(time) => {
            out.push(1);
            out.extend_from_slice(&time.0.to_be_bytes());
        }
    }
    out.extend_from_slice(&position.id.to_be_bytes());
}

/// What is left to read.
struct Rest<'b>(&'b [u8]);

impl<'b> Rest<'b> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn name(&mut self) -> Option<&'b str> {
        let [length] = self.take()?;
        let (name, rest) = self.0.split_at_checked(usize::from(length))?;
        self.0 = rest;
        std::str::from_utf8(name).ok()
    }

    fn position(&mut self) -> Option<Position> {
        let time = match self.take()? {
            [0] => None,
            [1] => Some(TimeKey(self.u64()?)),
            _ => return None,
        };
        Some(Position { time, id: self.u64()? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys() -> CursorKeys {
        CursorKeys::single([7; 32])
    }

    fn cursor() -> Cursor {
        let after = Position { time: Some(TimeKey(1 << 63)), id: 42 };
        let sources = [(ShardId::new("g0", "s1"), Position::of_id(7))].into();
        Cursor { epoch: 3, issued: 1_800_000_000, after, sources }
    }

    const BINDING: Binding<'static> = Binding { tenant: Some(9), query: b"files of march" };

    #[test]
    fn a_cursor_opens_for_its_own_walk_only() {
        let text = keys().seal(&cursor(), BINDING);
        assert_eq!(keys().open(&text, BINDING), Ok(cursor()));
        for other in [
            Binding { tenant: Some(8), ..BINDING },
            Binding { tenant: None, ..BINDING },
            Binding { query: b"files of april", ..BINDING },
            Binding { query: b"", ..BINDING },
        ] {
            assert_eq!(keys().open(&text, other), Err(InvalidCursor), "{other:?}");
        }
        assert_eq!(CursorKeys::single([8; 32]).open(&text, BINDING), Err(InvalidCursor));
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let text = keys().seal(&cursor(), BINDING);
        let bytes = URL_SAFE_NO_PAD.decode(&text).expect("own text");
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(keys().open(&URL_SAFE_NO_PAD.encode(changed), BINDING), Err(InvalidCursor), "bit {bit}");
        }
    }

    #[test]
    fn a_replaced_key_still_opens() {
        let text = keys().seal(&cursor(), BINDING);
        let rotated = CursorKeys::from_hex(["08".repeat(32).as_str(), "07".repeat(32).as_str()]).expect("keys");
        assert_eq!(rotated.open(&text, BINDING), Ok(cursor()));
        assert_eq!(keys().open(&rotated.seal(&cursor(), BINDING), BINDING), Err(InvalidCursor));
        assert!(matches!(CursorKeys::from_hex(["abc"]), Err(KeyError::BadKey { number: 1 })));
        assert!(matches!(CursorKeys::from_hex([]), Err(KeyError::Empty)));
    }

    #[test]
    fn the_key_file_is_made_once_and_is_private() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("cursor.key");
        let text = CursorKeys::in_file(&path).expect("made").seal(&cursor(), BINDING);
        assert_eq!(CursorKeys::in_file(&path).expect("read").open(&text, BINDING), Ok(cursor()));
        #[cfg(unix)]
        {
            let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).expect("there").permissions());
            assert_eq!(mode & 0o777, 0o600);
        }
        fs::write(&path, "nonsense").expect("writable");
        assert!(matches!(CursorKeys::in_file(&path), Err(KeyError::Damaged { .. })));
    }

    /// The format is pinned: a walk must survive an upgrade of the server.
    #[test]
    fn version_1_cursors_still_open() {
        let text = "AQAAAAAAAAAAAwAAAABrSdIAAYAAAAAAAAAAAAAAAAAAACoAAQJnMAJzMQAAAAAAAAAAB4CJJslAtZggBI24g3AJh9Q";
        assert_eq!(keys().seal(&cursor(), BINDING), text);
        assert_eq!(keys().open(text, BINDING), Ok(cursor()));
    }

    #[test]
    fn keys_are_not_printed() {
        assert_eq!(format!("{:?}", keys()), "CursorKeys(1 keys)");
    }

    fn position() -> impl Strategy<Value = Position> {
        (any::<Option<u64>>(), any::<u64>()).prop_map(|(time, id)| Position { time: time.map(TimeKey), id })
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens_again(
            epoch: u64,
            issued: u64,
            after in position(),
            sources in prop::collection::btree_map(("[a-z]{0,9}", "[a-z0-9]{0,64}"), position(), 0..5),
            tenant: Option<u64>,
            query: Vec<u8>,
        ) {
            let sources = sources.into_iter().map(|((group, shard), at)| (ShardId::new(group, shard), at)).collect();
            let cursor = Cursor { epoch, issued, after, sources };
            let binding = Binding { tenant, query: &query };
            prop_assert_eq!(keys().open(&keys().seal(&cursor, binding), binding), Ok(cursor));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
            if let Some(cursor) = Cursor::decode(&bytes) {
                prop_assert_eq!(cursor.encode(), bytes);
            }
        }

        #[test]
        fn any_text_is_refused(text in ".{0,100}") {
            prop_assert_eq!(keys().open(&text, BINDING), Err(InvalidCursor));
        }
    }
}
