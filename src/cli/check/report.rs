//! The lines of a check, and what they come to.

use serde::Serialize;

use crate::cli::End;
use crate::cli::output::Output;
use crate::cli::run::gravest;
use crate::error::{Error, Result};

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    /// Works, but an operator should know.
    Warn,
    /// A round, or all of them, could not do their work.
    Fault,
}

/// The JSON shape, one line per check.
#[derive(Debug, Serialize)]
struct Line<'a> {
    /// What was tried: configuration, connect, login, cluster, apis, remote, warehouse, lake, table.
    check: &'static str,
    /// On what: a server, URL or table; empty where it is the whole.
    on: &'a str,
    state: State,
    message: &'a str,
    /// Kind of a fault.
    kind: Option<&'static str>,
    /// The way out.
    hint: Option<&'a str>,
}

/// Prints each line as it comes, and remembers the faults.
pub(super) struct Report<'a> {
    output: &'a mut Output,
    json: bool,
    lines: u64,
    warnings: u64,
    faults: Vec<(String, Error)>,
}

impl<'a> Report<'a> {
    pub(super) const fn new(output: &'a mut Output, json: bool) -> Self {
        Self { output, json, lines: 0, warnings: 0, faults: Vec::new() }
    }

    pub(super) fn ok(&mut self, check: &'static str, on: &str, message: &str) -> Result<(), End> {
        self.line(&Line { check, on, state: State::Ok, message, kind: None, hint: None })
    }

    pub(super) fn warn(&mut self, check: &'static str, on: &str, message: &str, hint: Option<&str>) -> Result<(), End> {
        self.warnings += 1;
        self.line(&Line { check, on, state: State::Warn, message, kind: None, hint })
    }

    pub(super) fn fault(&mut self, check: &'static str, on: &str, error: Error) -> Result<(), End> {
        let message = error.chain();
        self.line(&Line {
            check,
            on,
            state: State::Fault,
            message: &message,
            kind: Some(error.kind().as_str()),
            hint: error.hint(),
        })?;
        self.faults.push((if on.is_empty() { check.to_owned() } else { format!("{check} {on}") }, error));
        Ok(())
    }

    pub(super) const fn has_no_fault(&self) -> bool {
        self.faults.is_empty()
    }

    fn line(&mut self, line: &Line<'_>) -> Result<(), End> {
        self.lines += 1;
        if self.json {
            return self.output.json(line);
        }
        let state = match line.state {
            State::Ok => "ok   ",
            State::Warn => "warn ",
            State::Fault => "FAULT",
        };
        let gap = if line.on.is_empty() { "" } else { " " };
        let hint = line.hint.map(|hint| format!("\n      → {hint}")).unwrap_or_default();
        self.output.data(&format!("{state} {}{gap}{}: {}{hint}", line.check, line.on, line.message))
    }

    /// The end of the command: that of the gravest fault.
    pub(super) fn end(self) -> Result<(), End> {
        let (lines, warnings, faults) = (self.lines, self.warnings, self.faults.len());
        if !self.json {
            self.output.talk(&format!("{lines} checks, {warnings} warnings, {faults} faults"));
        }
        match gravest(self.faults) {
            None => Ok(()),
            Some((what, error)) => Err(error.context(format!("{faults} of {lines} checks failed, `{what}` among them")).into()),
        }
    }
}
