//! What lies at a path of a lake table, a registry, a log.

/// One word for it.
pub(super) fn kind(path: &str) -> &'static str {
    let name = path.rsplit('/').next().unwrap_or(path);
    // A temporary is of the kind of what it is for.
    let name = if name.starts_with('.') && !name.starts_with(".lakeward-check") { &name[1..] } else { name };
    let begins = |words: &[&str]| words.iter().any(|word| name.starts_with(word));
    match () {
        () if path.is_empty() => "request",
        () if begins(&[".lakeward-check"]) => "probe",
        () if begins(&["data-"]) => "data file",
        () if begins(&["changelog-"]) => "changelog file",
        () if begins(&["manifest-list-"]) => "manifest list",
        () if begins(&["manifest-"]) => "manifest",
        () if begins(&["snapshot-"]) => "snapshot",
        () if begins(&["LATEST", "EARLIEST"]) => "hint",
        () if begins(&["consumer-"]) => "pin",
        () if begins(&["schema-"]) => "schema",
        () if path.contains(".offsets") => "offsets file",
        () if path.ends_with("/laketable") => "lake record",
        () if path.starts_with("/metadata") || path.starts_with("/coordinators") || path.starts_with("/tables") => {
            "registry record"
        }
        () if path.ends_with(".log") => "segment",
        () if path.contains("/log/") => "log folder",
        () => "other",
    }
}

#[test]
fn kinds_are_told_by_names() {
    for (path, expected) in [
        ("demo.db/orders/day=a/bucket-0/data-7-0.parquet", "data file"),
        ("demo.db/orders/manifest/manifest-list-1-0", "manifest list"),
        ("demo.db/orders/manifest/manifest-1-0", "manifest"),
        ("/w/demo.db/orders/snapshot/.snapshot-3.0001-1.tmp", "snapshot"),
        ("demo.db/orders/snapshot/.lakeward-check-7", "probe"),
        ("demo.db/orders/consumer/consumer-lakeward-7", "pin"),
        ("", "request"),
    ] {
        assert_eq!(kind(path), expected, "{path}");
    }
}
