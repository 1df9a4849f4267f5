//! Which tables this service wants: globs over `DB.TABLE`, so that it can start on one table beside the Flink job. Pure.

use std::str::FromStr;

use globset::{Glob, GlobMatcher};

use crate::model::TablePath;

/// A glob over `DB.TABLE`, such as `sales.*`, `*.orders_*` or `sales.{orders,items}`.
#[derive(Debug, Clone)]
pub struct TableGlob(GlobMatcher);

impl TableGlob {
    fn matches(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}

impl FromStr for TableGlob {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A database has no dot in its name: without one no table can match, which is hardly meant.
        if !text.contains(['.', '*']) {
            return Err(format!("`{text}` is not of the form DB.TABLE; all tables of a database are `{text}.*`"));
        }
        let glob = Glob::new(text).map_err(|error| format!("`{text}` is no glob: {}", error.kind()))?;
        Ok(Self(glob.compile_matcher()))
    }
}

impl PartialEq for TableGlob {
    fn eq(&self, other: &Self) -> bool {
        self.0.glob() == other.0.glob()
    }
}

impl Eq for TableGlob {}

/// Tables that match `include` (all, if it is empty) and do not match `exclude`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableFilter {
    /// Wanted; empty = all.
    pub include: Vec<TableGlob>,
    /// Not wanted, also where `include` matches.
    pub exclude: Vec<TableGlob>,
}

impl TableFilter {
    /// Whether this service wants the table.
    #[must_use]
    pub fn wants(&self, table: &TablePath) -> bool {
        let name = table.to_string();
        let any = |globs: &[TableGlob]| globs.iter().any(|glob| glob.matches(&name));
        (self.include.is_empty() || any(&self.include)) && !any(&self.exclude)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn globs(texts: &[&str]) -> Vec<TableGlob> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn include_opens_exclude_closes_and_nothing_stated_wants_all() {
        let wants = |include: &[&str], exclude: &[&str], table: &str| {
            TableFilter { include: globs(include), exclude: globs(exclude) }.wants(&table.parse().unwrap())
        };
        for (include, exclude, wanted, unwanted) in [
            (&[][..], &[][..], "a.b", None),
            (&["sales.orders"], &[], "sales.orders", Some("sales.orders_2")),
            (&["sales.*"], &["*.tmp_*"], "sales.orders", Some("sales.tmp_1")),
            (&[], &["sales.{a,b}"], "sales.c", Some("sales.b")),
            (&["*"], &["x.?"], "x.yy", Some("x.y")),
            (&["a.*", "b.*"], &[], "b.c", Some("c.b")),
        ] {
            assert!(wants(include, exclude, wanted), "{include:?} {exclude:?} {wanted}");
            if let Some(unwanted) = unwanted {
                assert!(!wants(include, exclude, unwanted), "{include:?} {exclude:?} {unwanted}");
            }
        }
    }

    #[test]
    fn a_glob_that_can_match_nothing_is_refused() {
        assert!("sales".parse::<TableGlob>().unwrap_err().contains("`sales.*`"));
        assert!("sales.[a".parse::<TableGlob>().unwrap_err().contains("is no glob"));
        assert_eq!("a.*".parse::<TableGlob>(), "a.*".parse());
        assert_ne!("a.*".parse::<TableGlob>(), "a.b".parse());
    }
}
