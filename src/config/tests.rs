//! The shipped files against the code, and a deliberately wrong one.

use std::collections::BTreeSet;

use super::*;
use crate::error::Kind;

const TIERING: &str = include_str!("../../config/tiering.toml");
const LOCAL: &str = include_str!("../../config/local.toml");

fn keys_of(text: &str) -> BTreeSet<String> {
    let file: Table = text.parse().unwrap();
    let keys = |(table, value): (String, Value)| match value {
        Value::Table(values) => values.keys().map(|key| format!("{table}.{key}")).collect::<Vec<_>>(),
        _ => vec![table],
    };
    file.into_iter().flat_map(keys).collect()
}

#[test]
fn the_shipped_file_names_every_option_at_its_default() {
    assert_eq!(Settings::parse(TIERING).unwrap(), Settings::default());
    // The one option without a default stands there as a comment.
    let (before, server) = TIERING.split_once("\n# server = ").unwrap();
    let with_server = format!("{before}\nserver = {server}");
    let known: BTreeSet<String> = Settings::default().keys().keys().map(ToString::to_string).collect();
    assert_eq!(keys_of(&with_server), known);
    assert_eq!(Settings::parse(&with_server).unwrap().server.as_deref(), Some("coordinator:9123"));
}

#[test]
fn every_option_of_the_shipped_file_is_explained() {
    let lines: Vec<&str> = TIERING.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        if !line.starts_with(['#', '[']) && !line.is_empty() {
            assert!(lines[at - 1].starts_with("# "), "{line}");
        }
    }
}

#[test]
fn the_laptop_file_is_sound_and_small() {
    let settings = Settings::parse(LOCAL).unwrap();
    assert!(settings.server.is_some() && settings.memory_limit.unwrap() <= 256 << 20);
    assert!(settings.round.splits_max < round::Options::default().splits_max);
}

#[test]
fn a_wrong_file_tells_all_its_faults_at_once() {
    let wrong = "
        limit = '1GiB'
        memory = 7
        run = { server = 9123, wait = '5' }
        encoders = { threads = 'many' }
        round = { splits_max = 0, replans_max = -1, requests_max = 3 }
        read = { requets_max = 3, wait = '1h', bucket_bytes = '1GiB', stall = 60 }
        tables = { parallel = 0, include = 'sales.*', exclude = ['sales'] }
        admin = { listen = '9180' }
        commit = { pause_first = '10s', tries_max = '8' }
        [wirte]
        part_bytes = '8MiB'
    ";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("wrong.toml");
    fs::write(&file, wrong).unwrap();
    let error = Settings::load(&file).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    let text = error.to_string();
    let faults = [
        "`limit`: unknown key; the nearest is `memory.limit`",
        "`memory`: is a table, `[memory]`",
        "`run.server`: `9123` is not text in quotes",
        "`run.wait`: `5` is not a duration such as",
        "`encoders.threads`: `\"many\"` is not a whole number",
        "`round.splits_max`: `0` is not within 1 and 100000",
        "`round.replans_max`: `-1` is not within 0 and 1000",
        "`round.requests_max`: unknown key; the nearest is `read.requests_max`",
        "`read.requets_max`: unknown key; the nearest is `read.requests_max`",
        "`read.wait`: `\"1h\"` is not within 0ns and 10s",
        "`read.bucket_bytes`: `\"1GiB\"` is not within 1KiB and 64MiB",
        "`read.stall`: `60` is not a duration in quotes",
        "`tables.parallel`: `0` is not within 1 and 1000",
        "`tables.include`: `\"sales.*\"` is not a list",
        "`tables.exclude`: `sales` is not of the form DB.TABLE; all tables of a database are `sales.*`",
        "`admin.listen`: `9180` is neither of the form HOST:PORT nor `off`",
        "`commit.pause_first`: is longer than `commit.pause_max`",
        "`commit.tries_max`: `\"8\"` is not a whole number",
        "`[wirte]`: unknown table; the nearest is `[write]`",
    ];
    for fault in faults {
        assert!(text.contains(fault), "{fault}\nis not in\n{text}");
    }
    assert!(text.contains("wrong.toml") && text.contains(&format!("{} faults", faults.len())), "{text}");
}

#[test]
fn a_server_has_a_host_and_a_port() {
    for right in ["localhost:9123", "10.0.0.1:1", "[::1]:65535"] {
        assert_eq!(server(right).unwrap(), right);
    }
    for wrong in ["", "localhost", "localhost:", ":9123", "localhost:0", "localhost:65536", "localhost:x"] {
        assert!(server(wrong).is_err(), "{wrong}");
    }
    assert_eq!(Settings::parse("run.server = 'x'").unwrap_err(), ["`run.server`: `x` is not of the form HOST:PORT"]);
}

#[test]
fn a_file_that_is_no_toml_or_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c.toml");
    assert!(Settings::load(&file).unwrap_err().to_string().contains("c.toml"));
    fs::write(&file, "[read]\nwait = 5s").unwrap();
    let error = Settings::load(&file).unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("line 2"), "{error}");
    fs::write(&file, "[read]\nahead = true").unwrap();
    let error = Settings::load(&file).unwrap_err().to_string();
    assert!(error.ends_with("c.toml`: `read.ahead`: `true` is not a whole number"), "{error}");
}
