//! Bucket totals and ids (P6.4, P11): several in one partition, others than Fluss's count, ids out of range. Pure.

use std::collections::BTreeSet;

use super::live::Live;
use super::{Check, Fault, Findings, Pass};

pub(super) fn check(pass: &Pass<'_>, live: &Live, found: &mut Findings) {
    let table = &pass.context.table;
    let id = pass.view.newest.as_ref().map_or(0, |newest| newest.id);
    for (row, partition) in live.partitions.iter().filter(|(row, _)| pass.wants(row)) {
        let folder = pass.folder(row);
        let known = pass.of_row(row);
        let place = if folder.is_empty() { "the table".to_owned() } else { format!("partition `{folder}`") };
        let totals: BTreeSet<i32> = partition.buckets.values().flat_map(|bucket| bucket.totals.iter().copied()).collect();
        let listed = || totals.iter().map(|total| format!("`{total}`")).collect::<Vec<_>>().join(", ");
        let fault = |check, message| Fault::new(check, message).partition(&folder).snapshot(id).hint(pass.rewrite_hint(&folder));
        let wanted = known.map(|known| known.total(table));
        if totals.len() > 1 {
            let fluss = wanted.map_or_else(String::new, |wanted| format!("; Fluss has `{wanted}` buckets"));
            let what =
                if table.has_primary_key() { "keys may be there twice" } else { "readers miss rows that they look up by key" };
            found.fault(fault(Check::Totals, format!("{place} has files of several bucket totals, {}: {what}{fluss}", listed())));
        } else if let Some(wanted) = wanted.filter(|wanted| totals.iter().any(|total| total != wanted)) {
            found.fault(fault(
                Check::Totals,
                format!("{place} has files of {} buckets in the lake, but `{wanted}` in Fluss", listed()),
            ));
        }
        let own = totals.iter().copied().max().unwrap_or(-1);
        for (bucket, of) in &partition.buckets {
            // Without buckets everything is in bucket 0.
            let bound = wanted.unwrap_or(own);
            let bound = if bound < 0 { 1 } else { bound };
            let stamped = of.totals.iter().copied().max().filter(|total| *total > 0).unwrap_or(1);
            if *bucket < 0 || *bucket >= bound || *bucket >= stamped {
                let text = match wanted {
                    Some(count) if count > 0 && (*bucket < 0 || *bucket >= count) => format!("which has `{count}` in Fluss"),
                    _ => format!("whose files say `{stamped}`"),
                };
                let message = format!(
                    "bucket `{bucket}` has {} files and {} rows, but is none of the buckets of {place}, {text}",
                    of.files.len(),
                    of.rows
                );
                found.fault(fault(Check::Bucket, message).bucket(*bucket));
            }
        }
    }
}
