//! Frames: how requests and answers lie on a TCP connection (F2.1).
//!
//! Pure: bytes in, frames out, for both directions. Both codecs hold the bound on a frame's length, which is checked
//! before anything is allocated for it; what a length field announces is believed only in part, until bytes come.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use tokio_util::codec::{Decoder, Encoder};

use super::code::Code;
use super::proto::ErrorResponse;
use crate::error::Error;

/// Largest value of a length field that official servers accept.
pub const SERVER_FRAME_BYTES_MAX: usize = 104_857_596;
/// Largest answer that a client takes, if not configured otherwise: above a server's own bound, since fetch answers may be larger.
pub const CLIENT_FRAME_BYTES_MAX: usize = 256 << 20;

const REQUEST_HEADER: usize = 8;
/// Room that is made at once for an announced frame; for more, bytes have to come.
const BELIEVED: usize = 256 << 10;
/// A frame up to this size may share its memory with what is read behind it.
const SHARED: usize = 64 << 10;
/// Largest answer that is not to a request: the error that a server closes the connection with.
pub(super) const FAILURE_BYTES_MAX: usize = 1 << 20;

/// A request on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestFrame {
    /// Number of the api key; may be one that this build does not know.
    pub key: i16,
    /// Version of the api.
    pub version: i16,
    /// Chosen by the client, not negative; the answer carries it.
    pub id: i32,
    /// The request message.
    pub body: Bytes,
}

/// An answer on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponseFrame {
    /// Type 0: the response message.
    Success {
        /// Of the request.
        id: i32,
        /// The response message.
        body: Bytes,
    },
    /// Type 1: the whole request failed.
    Error {
        /// Of the request.
        id: i32,
        /// Why.
        error: ErrorResponse,
    },
    /// Type 2: the server could not tell what was asked; it closes the connection.
    Failure(ErrorResponse),
}

impl ResponseFrame {
    /// As it goes over the wire: head, and body, which is not copied.
    ///
    /// # Errors
    /// When it is longer than a length field can say.
    pub fn into_wire(self) -> Result<(Bytes, Bytes), FrameError> {
        let mut head = BytesMut::new();
        let body = match self {
            Self::Success { id, body } => {
                head.put_i32(length(5 + body.len(), i32::MAX as usize)?);
                head.put_u8(0);
                head.put_i32(id);
                body
            }
            small => {
                ResponseCodec { bytes_max: i32::MAX as usize }.encode(small, &mut head)?;
                Bytes::new()
            }
        };
        Ok((head.freeze(), body))
    }

    /// The request that the frame which begins in `source` answers, as soon as that is there; type 2 answers none.
    #[must_use]
    pub fn answered(source: &[u8]) -> Option<i32> {
        match source {
            [_, _, _, _, 0 | 1, a, b, c, d, ..] => Some(i32::from_be_bytes([*a, *b, *c, *d])),
            _ => None,
        }
    }

    /// The answer `message` to request `id`.
    pub fn success(id: i32, message: &impl Message) -> Self {
        Self::Success { id, body: message.encode_to_vec().into() }
    }

    /// The answer that request `id` failed for `error`.
    #[must_use]
    pub fn error(id: i32, error: &Error) -> Self {
        Self::Error { id, error: error.into() }
    }
}

/// What is wrong with a stream of frames. The connection can't be used further.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Reading or writing failed.
    #[error("connection failed")]
    Io(#[from] std::io::Error),
    /// A length field below the header's size or above the bound.
    #[error("frame of `{length}` bytes, at least `{min}` and at most `{max}` are taken")]
    Length {
        /// What the field said.
        length: i64,
        /// Size of the header.
        min: usize,
        /// The bound.
        max: usize,
    },
    /// The type byte is none of 0, 1, 2.
    #[error("answer of unknown type `{0}`")]
    Type(u8),
    /// The error message of an answer can't be read.
    #[error("error answer can't be read")]
    Body(#[from] prost::DecodeError),
    /// Nobody asked, or it was answered before.
    #[error("answer to request `{0}`, which is not open")]
    NotOpen(i32),
    /// The peer closed in the middle of a frame.
    #[error("connection closed after {0} bytes of a frame")]
    CutOff(usize),
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Self {
        let message = error.to_string();
        match error {
            FrameError::Io(source) => Self::unavailable(message).with_code(Code::NETWORK_EXCEPTION.0).with_source(source),
            FrameError::Body(source) => Self::data(message).with_code(Code::CORRUPT_MESSAGE.0).with_source(source),
            FrameError::CutOff(_) => Self::unavailable(message).with_code(Code::NETWORK_EXCEPTION.0),
            FrameError::Length { .. } | FrameError::Type(_) | FrameError::NotOpen(_) => {
                Self::data(message).with_code(Code::CORRUPT_MESSAGE.0)
            }
        }
    }
}

/// Requests: written by clients, read by servers.
#[derive(Debug, Clone, Copy)]
pub struct RequestCodec {
    /// Largest value of a length field.
    pub bytes_max: usize,
}

/// Answers: written by servers, read by clients.
#[derive(Debug, Clone, Copy)]
pub struct ResponseCodec {
    /// Largest value of a length field.
    pub bytes_max: usize,
}

impl Default for RequestCodec {
    fn default() -> Self {
        Self { bytes_max: SERVER_FRAME_BYTES_MAX }
    }
}

impl Default for ResponseCodec {
    fn default() -> Self {
        Self { bytes_max: CLIENT_FRAME_BYTES_MAX }
    }
}

/// Bytes of the frame that begins in `source`, as it announces; what is wrong with that, decoding tells.
#[must_use]
pub fn announced(source: &[u8]) -> Option<usize> {
    source.first_chunk::<4>().and_then(|head| usize::try_from(i32::from_be_bytes(*head)).ok())
}

/// Takes one frame without its length field out of `source`, if it is there whole; else makes room: for what is announced up to
/// [`BELIEVED`] bytes, then for four times what has come.
fn take_frame(source: &mut BytesMut, min: usize, max: usize) -> Result<Option<Bytes>, FrameError> {
    let Some(head) = source.first_chunk::<4>() else { return Ok(None) };
    let length = i32::from_be_bytes(*head);
    let bytes = match usize::try_from(length) {
        Ok(bytes) if (min..=max).contains(&bytes) => bytes,
        _ => return Err(FrameError::Length { length: length.into(), min, max }),
    };
    if source.len() - 4 < bytes {
        let room = (4 + bytes).min(BELIEVED.max(source.len().saturating_mul(4)));
        source.reserve(room.saturating_sub(source.len()));
        return Ok(None);
    }
    source.advance(4);
    let frame = source.split_to(bytes).freeze();
    if bytes > SHARED.max(source.len()) {
        // Or else the connection keeps that memory, which nobody counts any more, for as long as it lives.
        *source = BytesMut::from(&**source);
    }
    Ok(Some(frame))
}

/// The length field, once it is checked against the bound.
fn length(bytes: usize, max: usize) -> Result<i32, FrameError> {
    match i32::try_from(bytes) {
        Ok(length) if bytes <= max => Ok(length),
        _ => Err(FrameError::Length { length: i64::try_from(bytes).unwrap_or(i64::MAX), min: 0, max }),
    }
}

fn put_length(target: &mut BytesMut, bytes: usize, max: usize) -> Result<(), FrameError> {
    let length = length(bytes, max)?;
    target.reserve(4 + bytes);
    target.put_i32(length);
    Ok(())
}

impl Decoder for RequestCodec {
    type Item = RequestFrame;
    type Error = FrameError;

    fn decode(&mut self, source: &mut BytesMut) -> Result<Option<RequestFrame>, FrameError> {
        Ok(take_frame(source, REQUEST_HEADER, self.bytes_max)?.map(|mut frame| RequestFrame {
            key: frame.get_i16(),
            version: frame.get_i16(),
            id: frame.get_i32(),
            body: frame,
        }))
    }
}

impl Encoder<RequestFrame> for RequestCodec {
    type Error = FrameError;

    fn encode(&mut self, frame: RequestFrame, target: &mut BytesMut) -> Result<(), FrameError> {
        put_length(target, REQUEST_HEADER + frame.body.len(), self.bytes_max)?;
        target.put_i16(frame.key);
        target.put_i16(frame.version);
        target.put_i32(frame.id);
        target.put(frame.body);
        Ok(())
    }
}

impl Decoder for ResponseCodec {
    type Item = ResponseFrame;
    type Error = FrameError;

    fn decode(&mut self, source: &mut BytesMut) -> Result<Option<ResponseFrame>, FrameError> {
        // The shortest frame is a type byte alone; types 0 and 1 have an id besides.
        let Some(mut frame) = take_frame(source, 1, self.bytes_max)? else { return Ok(None) };
        let length = i64::try_from(frame.len()).unwrap_or(i64::MAX);
        let kind = frame.get_u8();
        if kind == 2 {
            return Ok(Some(ResponseFrame::Failure(ErrorResponse::decode(frame)?)));
        }
        if kind > 2 {
            return Err(FrameError::Type(kind));
        }
        if frame.len() < 4 {
            return Err(FrameError::Length { length, min: 5, max: self.bytes_max });
        }
        let id = frame.get_i32();
        Ok(Some(match kind {
            0 => ResponseFrame::Success { id, body: frame },
            _ => ResponseFrame::Error { id, error: ErrorResponse::decode(frame)? },
        }))
    }
}

impl Encoder<ResponseFrame> for ResponseCodec {
    type Error = FrameError;

    fn encode(&mut self, frame: ResponseFrame, target: &mut BytesMut) -> Result<(), FrameError> {
        match frame {
            ResponseFrame::Success { id, body } => {
                put_length(target, 5 + body.len(), self.bytes_max)?;
                target.put_u8(0);
                target.put_i32(id);
                target.put(body);
            }
            ResponseFrame::Error { id, error } => {
                let body = error.encode_to_vec();
                put_length(target, 5 + body.len(), self.bytes_max)?;
                target.put_u8(1);
                target.put_i32(id);
                target.put_slice(&body);
            }
            ResponseFrame::Failure(error) => {
                let body = error.encode_to_vec();
                put_length(target, 1 + body.len(), self.bytes_max)?;
                target.put_u8(2);
                target.put_slice(&body);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
