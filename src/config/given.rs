//! What was given, and where: the file's keys, the environment's variables, the flags, as one list of values.
//!
//! Owns the rule from key to variable name and the shape of a fault's place. Does not know which keys there are. Values may be
//! secrets: nothing here prints one.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Where settings come from; the later win: defaults, file, environment, flags.
#[derive(Default)]
pub struct Sources {
    /// The file of `--config`.
    pub file: Option<PathBuf>,
    /// Variables of the environment; others than `LAKEWARD_…` are passed over.
    pub variables: Vec<(OsString, OsString)>,
    /// Flags that set a key.
    pub typed: Vec<Typed>,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").field("file", &self.file).field("typed", &self.typed).finish_non_exhaustive()
    }
}

/// A flag that sets a key.
#[derive(Clone, PartialEq, Eq)]
pub struct Typed {
    /// The flag as it is shown, such as `--server`.
    pub flag: String,
    /// The key that it sets.
    pub key: String,
    /// Its value; `None` where a value was left out.
    pub value: Option<String>,
}

impl Typed {
    /// `flag` has set `key` to `value`.
    pub fn new(flag: impl Into<String>, key: impl Into<String>, value: impl Into<String>) -> Self {
        Self { flag: flag.into(), key: key.into(), value: Some(value.into()) }
    }

    /// Reads the argument of `--set`.
    #[must_use]
    pub fn pair(text: &str) -> Self {
        match text.split_once('=') {
            Some((key, value)) => Self::new(format!("--set {}", key.trim()), key.trim(), value),
            // What stands there may be a secret.
            None => Self { flag: "--set".to_owned(), key: String::new(), value: None },
        }
    }
}

impl fmt::Debug for Typed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Typed").field("flag", &self.flag).finish_non_exhaustive()
    }
}

/// Prefix of the variables that are settings.
pub(super) const PREFIX: &str = "LAKEWARD_";

/// Variables of tests and of the interop suite, which are no settings; with a `*` at the end all that start so.
const OTHERS: [&str; 6] =
    ["LAKEWARD_FAIL", "LAKEWARD_BIN", "LAKEWARD_CLUSTER", "LAKEWARD_CLUSTER_LEASE", "LAKEWARD_SIM_*", "LAKEWARD_INTEROP_*"];

/// The variable of a key: `read.bucket_bytes` is `LAKEWARD_READ_BUCKET_BYTES`.
pub fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.replace(['.', '-'], "_").to_ascii_uppercase())
}

/// Where a value was given. The order is the order of precedence.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// File and line.
    File(String, usize),
    /// Name of the variable.
    Variable(String),
    /// The flag as typed.
    Flag(String),
}

impl Origin {
    /// Which source: a value of a later one wins.
    pub(super) const fn rank(&self) -> u8 {
        match self {
            Self::File(..) => 0,
            Self::Variable(_) => 1,
            Self::Flag(_) => 2,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file, line) => write!(f, "{file}:{line}"),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// A value as it stands there.
pub(super) enum Raw {
    /// Text in quotes, in the file.
    Quoted(String),
    /// Text of a variable or flag, which can stand for anything.
    Plain(String),
    Whole(i64),
    Truth(bool),
    List(Vec<String>),
    /// A table without keys.
    Empty,
    /// Something that no key takes, by its name.
    Other(&'static str),
}

/// Text of a value in a fault is cut behind this many characters.
const SHOWN_MAX: usize = 80;

impl fmt::Display for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = |text: &str| text.escape_debug().take(SHOWN_MAX).collect::<String>();
        match self {
            Self::Quoted(text) => write!(f, "\"{}\"", cut(text)),
            Self::Plain(text) => f.write_str(&cut(text)),
            Self::Whole(number) => write!(f, "{number}"),
            Self::Truth(truth) => write!(f, "{truth}"),
            Self::List(_) => f.write_str("[…]"),
            Self::Empty => f.write_str("{}"),
            Self::Other(name) => f.write_str(name),
        }
    }
}

impl Raw {
    /// Text as the command line would have it, for keys of Fluss, which know nothing else.
    pub(super) fn into_plain(self) -> Result<String, String> {
        match self {
            Self::Quoted(text) | Self::Plain(text) => Ok(text),
            Self::Whole(number) => Ok(number.to_string()),
            Self::Truth(truth) => Ok(truth.to_string()),
            Self::List(texts) => Ok(texts.join(",")),
            Self::Empty | Self::Other(_) => Err("is not text".to_owned()),
        }
    }
}

/// A key with its value.
pub(super) struct Given {
    pub(super) key: String,
    pub(super) raw: Raw,
    pub(super) origin: Origin,
}

/// Everything that was given, file first, and what can't be read of it.
pub(super) fn gather(sources: &Sources, key_of: impl Fn(&str) -> Result<String, String>) -> (Vec<Given>, Vec<String>) {
    let (mut given, mut faults) = (Vec::new(), Vec::new());
    if let Some(path) = &sources.file {
        match fs::read_to_string(path) {
            Ok(text) => match parse(path, &text) {
                Ok(values) => given.extend(values),
                Err(found) => faults.extend(found),
            },
            Err(source) => faults.push(format!("`{}` can't be read: {source}", path.display())),
        }
    }
    for (name, value) in &sources.variables {
        let name = name.to_string_lossy();
        if !name.starts_with(PREFIX) || is_other(&name) {
            continue;
        }
        match (key_of(&name), value.to_str()) {
            (Err(fault), _) => faults.push(format!("{name}: {fault}")),
            (Ok(_), None) => faults.push(format!("{name}: is not UTF-8")),
            (Ok(key), Some(text)) => {
                given.push(Given { key, raw: Raw::Plain(text.to_owned()), origin: Origin::Variable(name.into_owned()) });
            }
        }
    }
    for typed in &sources.typed {
        match &typed.value {
            Some(text) => given.push(Given {
                key: typed.key.clone(),
                raw: Raw::Plain(text.clone()),
                origin: Origin::Flag(typed.flag.clone()),
            }),
            None if typed.key.is_empty() => faults.push(format!("{}: needs KEY=VALUE", typed.flag)),
            None => faults.push(format!("{}: needs a value", typed.flag)),
        }
    }
    (given, faults)
}

fn is_other(name: &str) -> bool {
    OTHERS.iter().any(|other| match other.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == *other,
    })
}

/// The keys of a TOML text as dotted paths, in the order of their lines. Only syntax can be wrong here; the parser's own text of a
/// fault quotes the line, which may hold a secret, so it is not used.
pub(super) fn parse(path: &Path, text: &str) -> Result<Vec<Given>, Vec<String>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    let line_of = |at: usize| text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
    if !errors.is_empty() {
        let at = |error: &toml::de::Error| line_of(error.span().map_or(0, |span| span.start));
        let mut errors: Vec<(usize, &str)> = errors.iter().map(|error| (at(error), error.message())).collect();
        errors.sort_by_key(|(line, _)| *line);
        return Err(errors.into_iter().map(|(line, fault)| format!("{}:{line}: no TOML: {fault}", path.display())).collect());
    }
    let mut given = Vec::new();
    flatten(table.into_inner(), "", &mut |key, raw, at| {
        given.push((at, key, raw));
    });
    given.sort_by_key(|(at, ..)| *at);
    let file = path.display().to_string();
    Ok(given.into_iter().map(|(at, key, raw)| Given { key, raw, origin: Origin::File(file.clone(), line_of(at)) }).collect())
}

fn flatten(table: DeTable<'_>, above: &str, each: &mut impl FnMut(String, Raw, usize)) {
    for (name, value) in table {
        let at = name.span().start;
        let name: Cow<'_, str> = name.into_inner();
        let key = if above.is_empty() { name.into_owned() } else { format!("{above}.{name}") };
        match value.into_inner() {
            DeValue::Table(inner) if inner.is_empty() => each(key, Raw::Empty, at),
            DeValue::Table(inner) => flatten(inner, &key, each),
            value => each(key, raw_of(value), at),
        }
    }
}

fn raw_of(value: DeValue<'_>) -> Raw {
    match value {
        DeValue::String(text) => Raw::Quoted(text.into_owned()),
        DeValue::Integer(number) => {
            i64::from_str_radix(number.as_str(), number.radix()).map_or(Raw::Other("a huge number"), Raw::Whole)
        }
        DeValue::Boolean(truth) => Raw::Truth(truth),
        DeValue::Array(values) => values
            .into_iter()
            .map(Spanned::into_inner)
            .map(|value| if let DeValue::String(text) = value { Some(text.into_owned()) } else { None })
            .collect::<Option<Vec<String>>>()
            .map_or(Raw::Other("a list of other things than text"), Raw::List),
        DeValue::Float(_) => Raw::Other("a fraction"),
        DeValue::Datetime(_) => Raw::Other("a date"),
        DeValue::Table(_) => Raw::Other("a table"),
    }
}
