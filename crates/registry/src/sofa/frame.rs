//! SOFABolt's frames, versions 1 and 2, as far as a registry client needs them.
//!
//! All numbers are big endian. Version 1: `01`, kind (1 request, 2 one-way, 0 response), command u16 (1 request, 2 response,
//! 0 heartbeat), `01`, id u32, codec u8, timeout i32 of a request or status u16 of a response, length of the class name u16, of
//! the header u16, of the content u32, then the three. Version 2 starts with `02`, has a version byte after that and a byte of
//! switches after the codec, and with switch 1 of version byte 2 a CRC-32 of everything before at the end. The reference client
//! of SOFARegistry speaks version 1, and a server answers in the version it was spoken to.

/// A class name may have this many bytes; the longest of SOFARegistry has 80.
const CLASS_MAX: usize = 512;
/// Longest content. A push holds a whole service; servers set no limit.
const CONTENT_MAX: usize = 64 * 1024 * 1024;
/// Header without the first byte: the longest of the four.
const FIXED_MAX: usize = 24;

/// Protobuf, as a codec.
pub const PROTOBUF: u8 = 11;
/// Hessian, which heartbeats name although they carry nothing.
const HESSIAN: u8 = 1;

/// What kind of frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Wants an answer within so many milliseconds; negative means whenever.
    Request {
        /// Milliseconds.
        timeout: i32,
    },
    /// Wants none.
    OneWay {
        /// Milliseconds.
        timeout: i32,
    },
    /// An answer; 0 is success.
    Response {
        /// Bolt's status.
        status: u16,
    },
}

/// What a frame is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// A sign of life, or the answer to one.
    Heartbeat,
    /// A message, or the answer to one.
    Message,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Request, one-way or response.
    pub kind: Kind,
    /// Heartbeat or message.
    pub command: Command,
    /// Pairs a response with its request.
    pub id: u32,
    /// How the content is said to be encoded. Not to be trusted: a push of protobuf says Hessian.
    pub codec: u8,
    /// Name of the class of the content; decides how it is decoded.
    pub class: String,
    /// The content.
    pub content: Vec<u8>,
}

/// Bytes that are no frame: the connection cannot be used any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a Bolt frame: {0}")]
pub struct FrameError(String);

fn wrong<T>(what: impl Into<String>) -> Result<T, FrameError> {
    Err(FrameError(what.into()))
}

impl Frame {
    /// A sign of life that wants an answer.
    pub fn heartbeat(id: u32) -> Self {
        let kind = Kind::Request { timeout: -1 };
        Self { kind, command: Command::Heartbeat, id, codec: HESSIAN, class: String::new(), content: Vec::new() }
    }

    /// The bytes, in version 1. Class name and content must not be longer than what is read again: 512 bytes and 64 MiB.
    pub fn encode(&self) -> Vec<u8> {
        debug_assert!(self.class.len() <= CLASS_MAX && self.content.len() <= CONTENT_MAX, "too long to be read again");
        let mut out = Vec::with_capacity(FIXED_MAX + self.class.len() + self.content.len());
        let (kind, command) = match (self.kind, self.command) {
            (Kind::Request { .. }, Command::Message) => (1, 1_u16),
            (Kind::OneWay { .. }, Command::Message) => (2, 1),
            (Kind::Response { .. }, Command::Message) => (0, 2),
            (Kind::Request { .. }, Command::Heartbeat) => (1, 0),
            (Kind::OneWay { .. }, Command::Heartbeat) => (2, 0),
            (Kind::Response { .. }, Command::Heartbeat) => (0, 0),
        };
        out.extend([1, kind]);
        out.extend(command.to_be_bytes());
        out.push(1);
        out.extend(self.id.to_be_bytes());
        out.push(self.codec);
        match self.kind {
            Kind::Request { timeout } | Kind::OneWay { timeout } => out.extend(timeout.to_be_bytes()),
            Kind::Response { status } => out.extend(status.to_be_bytes()),
        }
        out.extend((self.class.len() as u16).to_be_bytes());
        out.extend(0_u16.to_be_bytes());
        out.extend((self.content.len() as u32).to_be_bytes());
        out.extend(self.class.as_bytes());
        out.extend(&self.content);
        out
    }
}

/// Finds frames in a stream of bytes.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
}

impl Decoder {
    /// Takes bytes as they arrive.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame; `None` until more bytes arrive.
    ///
    /// # Errors
    /// When the bytes are no frame.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some((frame, len)) = parse(&self.bytes)? else { return Ok(None) };
        self.bytes.drain(..len);
        Ok(Some(frame))
    }
}

/// Reads big-endian numbers from the front; `None` where the bytes end.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        Some(taken)
    }

    fn number<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.number::<1>().map(|[byte]| byte)
    }
}

/// A frame at the front of the bytes, and its length.
fn parse(bytes: &[u8]) -> Result<Option<(Frame, usize)>, FrameError> {
    let mut cursor = Cursor { bytes, at: 0 };
    let Some(head) = header(&mut cursor)? else { return Ok(None) };
    if head.class > CLASS_MAX {
        return wrong(format!("a class name of {} bytes", head.class));
    }
    if head.content > CONTENT_MAX {
        return wrong(format!("a content of {} bytes", head.content));
    }
    let parts = (|| {
        let class = cursor.take(head.class)?;
        cursor.take(head.header)?;
        let content = cursor.take(head.content)?;
        let end = cursor.at;
        let crc = if head.crc { Some(u32::from_be_bytes(cursor.number()?)) } else { None };
        Some((class, content, end, crc))
    })();
    let Some((class, content, end, crc)) = parts else { return Ok(None) };
    if let Some(crc) = crc {
        let found = crc32fast::hash(&bytes[..end]);
        if found != crc {
            return wrong(format!("the checksum is {found:08x}, not {crc:08x}"));
        }
    }
    let Ok(class) = str::from_utf8(class) else { return wrong("a class name that is no text") };
    let frame = Frame {
        kind: head.kind,
        command: head.command,
        id: head.id,
        codec: head.codec,
        class: class.to_owned(),
        content: content.to_vec(),
    };
    Ok(Some((frame, cursor.at)))
}

struct Header {
    kind: Kind,
    command: Command,
    id: u32,
    codec: u8,
    crc: bool,
    class: usize,
    header: usize,
    content: usize,
}

fn header(cursor: &mut Cursor<'_>) -> Result<Option<Header>, FrameError> {
    // What is wrong in the first bytes is wrong whatever follows.
    let Some(version) = cursor.byte() else { return Ok(None) };
    let second = match version {
        1 => false,
        2 => true,
        other => return wrong(format!("it starts with {other:#04x}")),
    };
    let mut sub_version = 1;
    if second {
        match cursor.byte() {
            None => return Ok(None),
            Some(byte @ (1 | 2)) => sub_version = byte,
            Some(other) => return wrong(format!("version 2.{other}")),
        }
    }
    let Some(kind) = cursor.byte() else { return Ok(None) };
    if kind > 2 {
        return wrong(format!("kind {kind}"));
    }
    let Some(command) = cursor.number().map(u16::from_be_bytes) else { return Ok(None) };
    let command = match command {
        0 => Command::Heartbeat,
        1 | 2 => Command::Message,
        other => return wrong(format!("command {other}")),
    };
    let rest = (|| {
        cursor.byte()?;
        let id = u32::from_be_bytes(cursor.number()?);
        let codec = cursor.byte()?;
        let switches = if second { cursor.byte()? } else { 0 };
        let kind = match kind {
            0 => Kind::Response { status: u16::from_be_bytes(cursor.number()?) },
            1 => Kind::Request { timeout: i32::from_be_bytes(cursor.number()?) },
            _ => Kind::OneWay { timeout: i32::from_be_bytes(cursor.number()?) },
        };
        let class = u16::from_be_bytes(cursor.number()?).into();
        let header = u16::from_be_bytes(cursor.number()?).into();
        let content = u32::from_be_bytes(cursor.number()?) as usize;
        Some(Header { kind, command, id, codec, crc: sub_version == 2 && switches & 1 == 1, class, header, content })
    })();
    Ok(rest)
}

#[cfg(test)]
mod tests;
