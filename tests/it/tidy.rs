//! What the compiler can't hold: who imports whom, where other projects' types stop, what a fixture is for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// docs/architecture.md section 3: a module and what it may import. Modules that are still to come stand here too.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("model", &["error"]),
    ("runtime", &["error"]),
    ("telemetry", &["error", "model"]),
    ("storage", &["error", "runtime", "telemetry"]),
    ("paimon", &["error", "model"]),
    ("fluss", &["error", "model", "runtime", "telemetry", "paimon"]),
    ("mapping", &["error", "model", "fluss", "paimon"]),
    ("lake", &["error", "model", "runtime", "telemetry", "storage", "paimon"]),
    ("source", &["error", "model", "runtime", "telemetry", "storage", "fluss"]),
    ("catalog", &["error", "model", "telemetry", "paimon", "mapping", "lake"]),
    ("plan", &["error", "model", "runtime", "telemetry", "source", "lake", "mapping"]),
    ("read", &["error", "model", "runtime", "telemetry", "source"]),
    ("write", &["error", "model", "runtime", "telemetry", "storage", "paimon", "mapping", "lake"]),
    ("commit", &["error", "model", "runtime", "telemetry", "storage", "paimon", "source", "lake"]),
    (
        "round",
        &["error", "model", "runtime", "telemetry", "source", "lake", "mapping", "catalog", "plan", "read", "write", "commit"],
    ),
    ("client", &["error", "model", "runtime", "telemetry", "paimon", "fluss", "mapping"]),
    (
        "audit",
        &["error", "model", "runtime", "telemetry", "storage", "paimon", "mapping", "source", "lake", "read", "write", "commit"],
    ),
    ("node", &["error", "model", "runtime", "telemetry", "storage", "paimon", "fluss", "mapping", "lake", "catalog"]),
    ("daemon", &["error", "model", "runtime", "telemetry", "storage", "source", "lake", "round", "config"]),
];

/// Modules whose row names no closed list: settings of any part; what was typed; decoders of any part.
const MAY_IMPORT_ANY: &[&str] = &["config", "cli", "hostile"];

/// Where the types of other projects stop.
const STOPS_AT: &[(&str, &[&str])] = &[
    ("object_store", &["storage"]),
    ("reqwest", &["storage"]),
    ("rustls", &["storage"]),
    ("prost", &["fluss"]),
    ("arrow_ipc", &["fluss"]),
    ("parquet", &["paimon", "write", "lake", "client"]),
    ("redb", &["node"]),
    ("backon", &["runtime"]),
    ("fastrand", &["runtime"]),
    ("tracing_subscriber", &["telemetry"]),
    ("metrics", &["telemetry"]),
    ("metrics_exporter_prometheus", &["telemetry"]),
    ("axum", &["daemon"]),
    ("hyper", &["daemon", "cli"]),
    ("toml", &["config"]),
];

/// Names that say nothing (docs style: a module is named for what it owns).
const EMPTY_NAMES: &[&str] = &["utils", "util", "helpers", "helper", "common", "manager", "misc"];

const LINES_MAX: usize = 750;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files_below(&path, found);
        } else {
            found.push(path);
        }
    }
}

struct Source {
    /// First folder or file name below `src`.
    module: String,
    /// Path below the crate.
    path: String,
    text: String,
}

impl Source {
    fn is_generated(&self) -> bool {
        self.path.starts_with("src/fluss/proto/")
    }

    fn is_test(&self) -> bool {
        Path::new(&self.path).components().any(|part| matches!(part.as_os_str().to_str(), Some("tests.rs" | "tests")))
    }

    /// Lines that are neither comment nor test code, which stands last.
    fn code(&self) -> impl Iterator<Item = &str> {
        let end = self.text.find("#[cfg(test)]\nmod ").unwrap_or(self.text.len());
        self.text[..end].lines().map(str::trim).filter(|line| !line.starts_with("//"))
    }
}

fn sources() -> Vec<Source> {
    let mut files = Vec::new();
    files_below(&root().join("src"), &mut files);
    files
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| {
            let below = path.strip_prefix(root()).unwrap().to_str().unwrap().replace('\\', "/");
            let module = below.split('/').nth(1).unwrap().trim_end_matches(".rs").to_owned();
            Source { module, path: below, text: fs::read_to_string(path).unwrap() }
        })
        .filter(|source| !source.is_test())
        .collect()
}

/// First path segments after `crate::` in a line of code; a group counts with each of its members.
fn imports(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        if code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_') {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        let members = match rest.strip_prefix('{') {
            Some(group) => group.split('}').next().unwrap().split(',').collect(),
            None => vec![rest],
        };
        for member in members {
            let name: String = member.trim().chars().take_while(|next| next.is_alphanumeric() || *next == '_').collect();
            if !name.is_empty() {
                found.insert(name);
            }
        }
    }
    found
}

#[test]
fn modules_import_only_what_the_architecture_allows() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_IMPORT.iter().copied().collect();
    let modules: BTreeSet<&str> = MAY_IMPORT.iter().map(|(name, _)| *name).chain(MAY_IMPORT_ANY.iter().copied()).collect();
    let mut wrong = Vec::new();
    for source in sources() {
        if matches!(source.path.as_str(), "src/lib.rs" | "src/main.rs") || MAY_IMPORT_ANY.contains(&source.module.as_str()) {
            continue;
        }
        let Some(allowed) = allowed.get(source.module.as_str()) else {
            wrong.push(format!("{}: module `{}` has no row", source.path, source.module));
            continue;
        };
        let code: Vec<&str> = source.code().collect();
        for name in imports(&code.join("\n")) {
            let is_module = modules.contains(name.as_str());
            if is_module && name != source.module && !allowed.contains(&name.as_str()) {
                wrong.push(format!("{} imports `{name}`", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "against docs/architecture.md 3:\n{}", wrong.join("\n"));
}

#[test]
fn the_import_table_is_the_one_of_the_architecture_page() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let section = page.split("\n## ").find(|section| section.starts_with("3. Modules")).unwrap();
    let mut stated: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [name, _, imports] = cells.as_slice() else { panic!("{row}") };
        stated.insert(name.trim_matches('`'), imports.split(", ").filter(|name| *name != "–").collect());
    }
    for (name, imports) in MAY_IMPORT {
        assert_eq!(stated.remove(name).unwrap_or_default(), imports.iter().copied().collect(), "`{name}`");
    }
    assert_eq!(stated.into_keys().collect::<BTreeSet<_>>(), MAY_IMPORT_ANY.iter().copied().collect());
}

#[test]
fn stages_do_not_know_each_other() {
    let stages = ["plan", "read", "write", "commit"];
    for (name, imports) in MAY_IMPORT.iter().filter(|(name, _)| stages.contains(name)) {
        assert!(imports.iter().all(|import| !stages.contains(import)), "`{name}`");
    }
}

#[test]
fn types_of_other_projects_stop_where_they_belong() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (name, modules) in STOPS_AT {
            let found = source.code().any(|line| {
                line.match_indices(&format!("{name}::"))
                    .any(|(at, _)| !line[..at].ends_with(|before: char| before.is_alphanumeric() || matches!(before, '_' | ':')))
            });
            if found && !modules.contains(&source.module.as_str()) {
                wrong.push(format!("{} uses `{name}`", source.path));
            }
        }
        let mints = source.code().any(|line| line.contains("Uuid::new_v") || line.contains("Uuid::now_v"));
        if mints {
            wrong.push(format!("{} makes a uuid without runtime::Rng", source.path));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_says_what_it_owns_is_named_for_it_and_stays_readable() {
    let mut wrong = Vec::new();
    for source in sources().into_iter().filter(|source| !source.is_generated()) {
        let file = Path::new(&source.path).file_stem().unwrap().to_str().unwrap();
        if EMPTY_NAMES.contains(&file) {
            wrong.push(format!("{}: a name that says nothing", source.path));
        }
        if !source.text.starts_with("//!") {
            wrong.push(format!("{}: no header", source.path));
        }
        if source.text.lines().count() > LINES_MAX {
            wrong.push(format!("{}: more than {LINES_MAX} lines", source.path));
        }
    }
    let main = fs::read_to_string(root().join("src/main.rs")).unwrap();
    if main.lines().count() >= 30 {
        wrong.push("src/main.rs: thirty lines or more".to_owned());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_fixture_is_told_about() {
    let readme = fs::read_to_string(root().join("fixtures/README.md")).unwrap();
    let mut untold = Vec::new();
    for group in fs::read_dir(root().join("fixtures")).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
        let heading = format!("## {}/", group.file_name().unwrap().to_str().unwrap());
        let Some(section) = readme.split("\n## ").find(|section| format!("## {section}").starts_with(&heading)) else {
            untold.push(heading);
            continue;
        };
        for entry in fs::read_dir(&group).unwrap().map(|entry| entry.unwrap().path()) {
            let name = entry.file_name().unwrap().to_str().unwrap();
            // A table's folder, its rows and its dump go by one name.
            let table = name.split('.').next().unwrap();
            let told = [name, table].iter().any(|name| section.contains(&format!("`{name}`")));
            let family = section.contains("`log-*.bin`") && name.starts_with("log-") && name.ends_with(".bin");
            let variant = name.split_once("_false").is_some() && section.contains("`…_false`");
            if !(told || family || variant) {
                untold.push(entry.display().to_string());
            }
        }
    }
    assert!(untold.is_empty(), "fixtures/README.md says nothing of:\n{}", untold.join("\n"));
}

#[test]
fn tests_read_nothing_outside_the_repository() {
    let mut files = Vec::new();
    for folder in ["src", "tests/it", "benches"] {
        files_below(&root().join(folder), &mut files);
    }
    let outside = format!("\"{}work{}", '/', '/');
    let wrong: Vec<PathBuf> = files
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter(|path| fs::read_to_string(path).unwrap().contains(&outside))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}
