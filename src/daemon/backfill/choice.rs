//! Which partitions an operator means. Pure.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::model::{Partition, PartitionId, TableInfo};

/// How many partitions a message lists.
const LISTED: usize = 10;

/// Partitions by the values of some of their keys, as `day=2026-11-30`, `a=1/b=2` or `a=1,b=2`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionSpec(Vec<(String, String)>);

impl FromStr for PartitionSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let pair = |part: &str| match part.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() && !value.trim().is_empty() => {
                Ok((key.trim().to_owned(), value.trim().to_owned()))
            }
            _ => Err(Error::invalid(format!("`{text}` is no partition such as `day=2026-11-30` or `a=1/b=2`"))),
        };
        let pairs: Vec<_> = text.split(['/', ',']).map(pair).collect::<Result<_>>()?;
        let keys: BTreeSet<&String> = pairs.iter().map(|(key, _)| key).collect();
        if keys.len() < pairs.len() {
            return Err(Error::invalid(format!("`{text}` names a partition key twice")));
        }
        Ok(Self(pairs))
    }
}

impl fmt::Display for PartitionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(&self.0))
    }
}

fn text(pairs: &[(String, String)]) -> String {
    let pairs: Vec<String> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join("/")
}

impl PartitionSpec {
    /// Keys and values, as they were typed.
    #[must_use]
    pub fn pairs(&self) -> &[(String, String)] {
        &self.0
    }

    fn names(&self, partition: &Partition) -> bool {
        self.0.iter().all(|pair| partition.spec.contains(pair))
    }
}

/// The partitions of `table` that `specs` name, each spec at least one; a spec without all keys names all that fit.
///
/// # Errors
/// `Invalid` names the spec and what there is.
pub fn choose(table: &TableInfo, partitions: &[Arc<Partition>], specs: &[PartitionSpec]) -> Result<BTreeSet<PartitionId>> {
    if !table.is_partitioned() {
        return Err(Error::invalid(format!("table `{}` has no partitions", table.path)).with_hint("leave `--partition` away"));
    }
    let mut chosen = BTreeSet::new();
    for spec in specs {
        if let Some((key, _)) = spec.0.iter().find(|(key, _)| !table.partition_keys.contains(key)) {
            return Err(Error::invalid(format!("`{key}` is no partition key of table `{}`", table.path))
                .with_hint(format!("its keys are `{}`", table.partition_keys.join("`, `"))));
        }
        let found: Vec<_> = partitions.iter().filter(|partition| spec.names(partition)).map(|partition| partition.id).collect();
        if found.is_empty() {
            return Err(unknown(table, partitions, spec));
        }
        chosen.extend(found);
    }
    Ok(chosen)
}

fn unknown(table: &TableInfo, partitions: &[Arc<Partition>], spec: &PartitionSpec) -> Error {
    let wrong = spec.to_string();
    let mut known: Vec<String> = partitions.iter().map(|partition| text(&partition.spec)).collect();
    known.sort_by_cached_key(|name| (strsim::damerau_levenshtein(name, &wrong), name.clone()));
    let more = known.len().saturating_sub(LISTED);
    known.truncate(LISTED);
    let hint = match known.first() {
        None => "the table has no partition yet".to_owned(),
        Some(_) if more == 0 => format!("there is, nearest first: `{}`", known.join("`, `")),
        Some(_) => format!("there is, nearest first: `{}`, and {more} more", known.join("`, `")),
    };
    Error::invalid(format!("table `{}` has no partition `{wrong}`", table.path)).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    fn table(keys: &[&str]) -> TableInfo {
        TableInfo { partition_keys: keys.iter().map(|key| (*key).to_owned()).collect(), ..TableInfo::for_tests("demo.t", 1) }
    }

    fn partition(id: i64, spec: &[(&str, &str)]) -> Arc<Partition> {
        let spec = spec.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Arc::new(Partition { id: PartitionId(id), spec, bucket_count: None })
    }

    fn chosen(partitions: &[Arc<Partition>], keys: &[&str], specs: &[&str]) -> Result<Vec<i64>> {
        let specs = specs.iter().map(|spec| spec.parse()).collect::<Result<Vec<PartitionSpec>>>()?;
        Ok(choose(&table(keys), partitions, &specs)?.into_iter().map(|id| id.0).collect())
    }

    #[test]
    fn keys_come_in_any_order_with_either_separator_and_fewer_of_them_name_more() {
        let keys = ["day", "shop"];
        let partitions = [
            partition(1, &[("day", "2026-11-30"), ("shop", "x")]),
            partition(2, &[("day", "2026-11-30"), ("shop", "y")]),
            partition(3, &[("day", "2026-12-01"), ("shop", "x")]),
        ];
        for (specs, expected) in [
            (&["day=2026-11-30/shop=y"][..], &[2][..]),
            (&["shop=x,day=2026-12-01"], &[3]),
            (&["day=2026-11-30"], &[1, 2]),
            (&["shop=x", "day=2026-11-30/shop=x"], &[1, 3]),
        ] {
            assert_eq!(chosen(&partitions, &keys, specs).unwrap(), expected, "{specs:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_told_with_what_is_nearest_first() {
        let partitions = [partition(1, &[("day", "2026-11-29")]), partition(2, &[("day", "2025-01-31")])];
        let error = chosen(&partitions, &["day"], &["day=2026-11-30"]).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains("no partition `day=2026-11-30`"), "{error}");
        assert_eq!(error.hint(), Some("there is, nearest first: `day=2026-11-29`, `day=2025-01-31`"));
        let error = chosen(&partitions, &["day"], &["dya=2026-11-29"]).unwrap_err();
        assert!(error.to_string().contains("`dya` is no partition key") && error.hint().unwrap().contains("`day`"), "{error}");
        let many: Vec<Arc<Partition>> = (0..15).map(|day| partition(day, &[("day", &day.to_string())])).collect();
        assert!(chosen(&many, &["day"], &["day=99"]).unwrap_err().hint().unwrap().ends_with("and 5 more"));
        assert!(chosen(&[], &["day"], &["day=1"]).unwrap_err().hint().unwrap().contains("no partition yet"));
        assert!(chosen(&[], &[], &["day=1"]).unwrap_err().to_string().contains("has no partitions"));
    }

    #[test]
    fn what_is_no_spec_is_refused() {
        for wrong in ["", "day", "day=", "=1", "day=1/", "day=1/day=2"] {
            assert!(wrong.parse::<PartitionSpec>().is_err(), "{wrong}");
        }
        assert_eq!("day=1, shop = x".parse::<PartitionSpec>().unwrap().to_string(), "day=1/shop=x");
    }
}
