//! How a command ends, and the exit code that tells it (architecture.md 8).

use std::process::ExitCode;

use super::output::Output;
use crate::error::{Error, Kind};

/// Why a command did not run to its end.
#[derive(Debug)]
pub(crate) enum End {
    /// It failed.
    Failed(Error),
    /// Whoever read our stdout has seen enough.
    OutputClosed,
    /// It ran to its end and found what it was asked to look for: a person has to decide.
    Drift(String),
    /// A signal of this number stopped it; what it held is handed back.
    Signal(u8),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Exit code of an error kind.
pub(crate) const fn code(kind: Kind) -> u8 {
    match kind {
        Kind::Internal => 1,
        Kind::Invalid => 2,
        Kind::Unavailable => 3,
        Kind::Unsupported => 4,
        Kind::Data => 5,
        Kind::Stale => 7,
    }
}

/// Exit code of a check that found something.
const DRIFT: u8 = 6;

/// Says what has to be said and gives the exit code.
pub(super) fn of(end: Result<(), End>, output: &mut Output) -> ExitCode {
    match end {
        Ok(()) | Err(End::OutputClosed) => ExitCode::SUCCESS,
        Err(End::Drift(text)) => {
            output.talk(&text);
            ExitCode::from(DRIFT)
        }
        Err(End::Signal(number)) => ExitCode::from(128_u8.saturating_add(number)),
        Err(End::Failed(error)) => {
            output.error(&error);
            ExitCode::from(code(error.kind()))
        }
    }
}

/// Help and version go to stdout and are no error; wrong arguments are usage errors.
pub(super) fn of_usage(error: &clap::Error, output: &mut Output) -> ExitCode {
    if error.use_stderr() {
        output.talk(&error.render().to_string());
        ExitCode::from(code(Kind::Invalid))
    } else {
        // A closed stdout is a clean end here too.
        drop(output.data(error.render().to_string().trim_end()));
        ExitCode::SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_the_code_that_the_readme_lists() {
        let table = [
            (Kind::Internal, 1),
            (Kind::Invalid, 2),
            (Kind::Unavailable, 3),
            (Kind::Unsupported, 4),
            (Kind::Data, 5),
            (Kind::Stale, 7),
        ];
        for (kind, expected) in table {
            assert_eq!(code(kind), expected, "{kind}");
        }
    }
}
