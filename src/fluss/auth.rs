//! Who a connection belongs to: SASL/PLAIN (F2.2).

use std::fmt;
use std::sync::Arc;

use super::code::Code;
use super::proto::AuthenticateRequest;
use crate::error::{Error, Result};

/// What helps when a server refuses or wants a login.
pub(super) const HINT: &str =
    "compare `security.protocol` and `security.sasl.…` with what this listener of the cluster is set up for";

/// The only mechanism that Fluss has; it goes out as the protocol's name.
const MECHANISM: &str = "PLAIN";

/// User and password. Debug hides the password, and nothing else shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    username: Arc<str>,
    password: Arc<str>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

impl Credentials {
    /// A user and his password.
    ///
    /// # Errors
    /// `Invalid` for what PLAIN can't carry: an empty text, or one with a zero byte.
    pub fn new(username: &str, password: &str) -> Result<Self> {
        for (what, text) in [("user name", username), ("password", password)] {
            if text.is_empty() || text.contains('\0') {
                return Err(Error::invalid(format!("a {what} for SASL/PLAIN can't be empty or hold a zero byte")));
            }
        }
        Ok(Self { username: username.into(), password: password.into() })
    }

    /// The user.
    #[must_use]
    pub fn username(&self) -> &str {
        &self.username
    }

    /// Who a client says it is: the server's side of [`Self::request`].
    ///
    /// # Errors
    /// `Invalid` with code 46 for another mechanism, or a token that is none of PLAIN's.
    pub(crate) fn read(request: &AuthenticateRequest) -> Result<Self> {
        if !request.protocol.eq_ignore_ascii_case(MECHANISM) {
            let found = &request.protocol;
            return Err(Code::AUTHENTICATE.answer(format!("the mechanism here is `{MECHANISM}`, the client's is `{found}`")));
        }
        let text = std::str::from_utf8(&request.token).unwrap_or_default();
        match text.split('\0').collect::<Vec<_>>()[..] {
            // Acting for somebody else is not offered.
            [other, username, password] if other.is_empty() || other == username => {
                Self::new(username, password).map_err(|error| Code::AUTHENTICATE.answer("authentication failed").with_source(error))
            }
            _ => Err(Code::AUTHENTICATE.answer("authentication failed: that is no SASL/PLAIN token")),
        }
    }

    /// What proves it to a server.
    pub(super) fn request(&self) -> AuthenticateRequest {
        let token = format!("\0{}\0{}", self.username, self.password);
        AuthenticateRequest { protocol: MECHANISM.to_owned(), token: token.into_bytes().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn the_password_goes_to_the_server_and_nowhere_else() {
        let credentials = Credentials::new("otto", "geheim").unwrap();
        let request = credentials.request();
        assert_eq!((request.protocol.as_str(), request.token.as_ref()), ("PLAIN", b"\0otto\0geheim".as_slice()));
        let shown = format!("{credentials:?} {:#?}", Some(&credentials));
        assert!(shown.contains("otto") && !shown.contains("geheim"), "{shown}");
    }

    #[test]
    fn a_server_reads_what_a_client_sends_and_refuses_what_is_no_plain() {
        let credentials = Credentials::new("otto", "geh:eim").unwrap();
        assert_eq!(Credentials::read(&credentials.request()).unwrap(), credentials);
        for (protocol, token) in [
            ("SCRAM", "\0otto\0geheim"),
            ("PLAIN", ""),
            ("PLAIN", "\0otto"),
            ("PLAIN", "\0otto\0"),
            ("PLAIN", "\0\0geheim"),
            ("PLAIN", "anna\0otto\0geheim"),
            ("PLAIN", "\0otto\0geheim\0"),
        ] {
            let request = AuthenticateRequest { protocol: protocol.into(), token: token.to_owned().into_bytes().into() };
            let error = Credentials::read(&request).unwrap_err();
            assert!(error.code() == Some(46) && !error.chain().contains("geheim"), "{}", error.chain());
        }
    }

    #[test]
    fn what_plain_can_not_carry_is_refused_without_showing_it() {
        for (username, password) in [("", "x"), ("x", ""), ("a\0b", "x"), ("x", "geh\0eim")] {
            let error = Credentials::new(username, password).unwrap_err();
            assert!(error.kind() == Kind::Invalid && !error.chain().contains("geh"), "{}", error.chain());
        }
    }
}
