//! Who may talk to the node: SASL/PLAIN where it has users, as a real server does it (F2.2).

use crate::error::Result;
use crate::fluss::api::ApiKey;
use crate::fluss::code::Code;
use crate::fluss::connection::Credentials;
use crate::fluss::frame::{RequestFrame, ResponseFrame};
use crate::fluss::proto::{AuthenticateRequest, AuthenticateResponse, decode};

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Login {
    /// Nobody has to log in (PLAINTEXT).
    Open,
    /// Nothing is served yet.
    Wanted,
    /// Done.
    Done,
}

impl Login {
    /// A new connection to a node with these users.
    pub(super) const fn of(users: &[Credentials]) -> Self {
        if users.is_empty() { Self::Open } else { Self::Wanted }
    }

    /// The answer to what has to do with the login; `None` = serve it.
    pub(super) fn answer(&mut self, frame: &RequestFrame, users: &[Credentials]) -> Option<ResponseFrame> {
        let answer = match ApiKey::from_number(frame.key) {
            Some(ApiKey::Authenticate) => self.log_in(frame, users),
            Some(ApiKey::ApiVersions) => return None,
            _ if *self == Self::Wanted => Err(Code::AUTHENTICATE.answer("the connection has not completed authentication yet")),
            _ => return None,
        };
        Some(match answer {
            Ok(answer) => ResponseFrame::success(frame.id, &answer),
            Err(error) => {
                tracing::debug!(error = %error.chain(), "login refused");
                ResponseFrame::error(frame.id, &error)
            }
        })
    }

    fn log_in(&mut self, frame: &RequestFrame, users: &[Credentials]) -> Result<AuthenticateResponse> {
        let request: AuthenticateRequest = decode(ApiKey::Authenticate.name(), frame.body.clone())?;
        match self {
            Self::Open => {
                let found = request.protocol;
                return Err(Code::AUTHENTICATE.answer(format!("the protocol here is `PLAINTEXT`, the client's is `{found}`")));
            }
            Self::Wanted => {
                let credentials = Credentials::read(&request)?;
                if !users.contains(&credentials) {
                    return Err(Code::AUTHENTICATE.answer("authentication failed: wrong user name or password"));
                }
                *self = Self::Done;
            }
            Self::Done => {}
        }
        // An empty challenge, as a real server sends it.
        Ok(AuthenticateResponse { challenge: Some(bytes::Bytes::new()) })
    }
}
