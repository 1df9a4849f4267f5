//! Who we are to the cluster: protocol, user, password, and where the password came from.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::given::Origin;
use super::keys::Winners;
use super::secret::Secret;
use crate::fluss::connection::Credentials;

/// How a connection is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// Nobody is asked for a name.
    #[default]
    Plaintext,
    /// User and password first, by SASL/PLAIN.
    Sasl,
}

/// The keys `security.*`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Security {
    /// Whether credentials are sent.
    pub protocol: Protocol,
    /// The user.
    pub username: Option<String>,
    /// The password, as given.
    pub password: Option<Secret>,
    /// File with the password.
    pub password_file: Option<String>,
    /// What all of them come to; `None` = nothing is sent.
    pub credentials: Option<Credentials>,
}

const FILE: &str = "security.sasl.password_file";
const GIVEN: &str = "security.sasl.password";

impl Security {
    /// Makes the credentials: reads the password file where it is the stronger word, and says what is missing.
    pub(super) fn settle(&mut self, winners: &Winners, faults: &mut Vec<String>, notices: &mut Vec<String>) {
        let (given, file) = (winners.get(GIVEN), winners.get(FILE));
        let mut password = self.password.clone();
        match (given, file) {
            (Some(given), Some(file)) if given.rank() == file.rank() => {
                faults.push(format!("{file}: `{FILE}` and `{GIVEN}` ({given}) can't both be given"));
            }
            (given, Some(file)) if given.is_none_or(|given| given.rank() < file.rank()) => {
                let path = self.password_file.clone().unwrap_or_default();
                match read(Path::new(&path)) {
                    Ok(found) => password = Some(found),
                    Err(fault) => faults.push(format!("{file}: `{FILE}`: {fault}")),
                }
                notices.extend(open_to_others(Path::new(&path)));
            }
            (Some(Origin::File(path, _)), _) => notices.extend(open_to_others(Path::new(path))),
            (Some(flag @ Origin::Flag(_)), _) => notices.push(format!(
                "{flag}: a password among the arguments can be seen by every user of the machine (`ps`); better `{FILE}`"
            )),
            _ => {}
        }
        let protocol = winners.get("security.protocol").map(|origin| format!("{origin}: ")).unwrap_or_default();
        match self.protocol {
            Protocol::Sasl => {
                if self.username.as_deref().unwrap_or_default().is_empty() {
                    faults.push(format!("{protocol}`security.protocol` = `sasl` needs `security.sasl.username`"));
                }
                if given.is_none() && file.is_none() {
                    faults.push(format!("{protocol}`security.protocol` = `sasl` needs `{GIVEN}` or `{FILE}`"));
                }
                if let (Some(username), Some(password)) = (&self.username, password) {
                    match Credentials::new(username, password.expose()) {
                        Ok(credentials) => self.credentials = Some(credentials),
                        Err(error) => faults.push(format!("{protocol}{error}")),
                    }
                }
            }
            Protocol::Plaintext if given.is_some() || file.is_some() || self.username.is_some() => {
                notices.push("user and password are not sent: `security.protocol` is `plaintext`, not `sasl`".to_owned());
            }
            Protocol::Plaintext => {}
        }
    }
}

/// A file's text without the line end behind it.
fn read(path: &Path) -> Result<Secret, String> {
    let text = fs::read(path).map_err(|source| format!("`{}` can't be read: {source}", path.display()))?;
    let text = String::from_utf8(text).map_err(|_shows_it| format!("`{}` is not UTF-8", path.display()))?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() {
        return Err(format!("`{}` is empty", path.display()));
    }
    Ok(Secret::new(text.to_owned()))
}

/// A hint where others than the owner can read a file that holds a password.
fn open_to_others(path: &Path) -> Option<String> {
    let mode = fs::metadata(path).ok()?.permissions().mode();
    let shown = path.display();
    (mode & 0o077 != 0)
        .then(|| format!("`{shown}` holds a password and is open to others (mode {:03o}): `chmod 600 {shown}`", mode & 0o777))
}
