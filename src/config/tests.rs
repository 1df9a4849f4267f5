//! The shipped files against the code, deliberately wrong sources, and that no secret shows.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;
use crate::error::Kind;

const TIERING: &str = include_str!("../../config/tiering.toml");
const LOCAL: &str = include_str!("../../config/local.toml");

/// A password that must not be seen anywhere.
const CANARY: &str = "c4nary\"b1rd";

/// A file of this text, in a folder that goes with it.
fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.toml");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    (folder, path)
}

fn load(text: &str, variables: &[(&str, &str)], typed: &[Typed]) -> Result<Settings> {
    let (_folder, path) = file(text);
    load_from(path, variables, typed).map(|settings| Settings { file: None, ..settings })
}

fn load_from(path: PathBuf, variables: &[(&str, &str)], typed: &[Typed]) -> Result<Settings> {
    let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))).collect();
    Settings::load(&Sources { file: Some(path), variables, typed: typed.to_vec() })
}

/// The faults, each with its place; the file is just its line.
fn faults(text: &str, variables: &[(&str, &str)], typed: &[Typed]) -> Vec<String> {
    let (_folder, path) = file(text);
    let error = load_from(path.clone(), variables, typed).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    let text = error.to_string().replace(&format!("{}:", path.display()), "");
    let (lead, faults) = text.split_once(": ").unwrap();
    assert_eq!(lead, "configuration");
    let mut lines: Vec<String> = faults.lines().map(|line| line.trim_start().to_owned()).collect();
    if lines.len() > 1 {
        assert_eq!(lines.remove(0), format!("{} faults:", lines.len()));
    }
    lines
}

fn keys_of(text: &str) -> BTreeSet<String> {
    given::parse(Path::new("c.toml"), text).unwrap_or_default().into_iter().map(|given| given.key).collect()
}

/// The shipped file with the options that have no default, which stand there as comments.
fn whole() -> String {
    let mut keys: Vec<&str> = vec!["servers", "sasl.username", "sasl.password", "sasl.password_file"];
    keys.extend(s3::WORDS.map(|key| key.strip_prefix("s3.").unwrap()));
    keys.extend(["secret_access_key", "session_token"]);
    let line = |line: &str| {
        let commented = keys.iter().any(|key| line.starts_with(&format!("# {key} = ")));
        if commented { line.trim_start_matches("# ").to_owned() } else { line.to_owned() }
    };
    TIERING.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_shipped_file_names_every_option_at_its_default() {
    assert_eq!(load(TIERING, &[], &[]).unwrap(), Settings::default());
    let known: BTreeSet<String> = Settings::default().keys().keys().map(ToString::to_string).collect();
    assert_eq!(keys_of(&whole()), known);
    assert_eq!(known.len() - keys_of(TIERING).len(), 4 + 13, "without default");
}

#[test]
fn every_option_of_the_shipped_file_is_explained() {
    let text = whole();
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        if !line.starts_with(['#', '[']) && !line.is_empty() {
            assert!(lines[at - 1].starts_with("# "), "{line}");
        }
    }
}

#[test]
fn the_laptop_file_is_sound_and_small() {
    let settings = load(LOCAL, &[], &[]).unwrap();
    assert!(!settings.cluster.servers.is_empty() && settings.memory_limit.unwrap() <= 256 << 20);
    assert!(settings.round.splits_max < round::Options::default().splits_max);
}

#[test]
fn each_key_has_a_variable_of_its_own_that_is_no_other_program_s() {
    let mut settings = Settings::default();
    let keys: Vec<&str> = settings.keys().into_keys().collect();
    let variables: BTreeSet<String> = keys.iter().map(|key| variable(key)).collect();
    assert_eq!(variables.len(), keys.len());
    assert_eq!(variable("read.bucket_bytes"), "LAKEWARD_READ_BUCKET_BYTES");
    for key in keys {
        assert_eq!(Settings::key_of(&variable(key)).unwrap(), key);
    }
    let others =
        ["LAKEWARD_FAIL", "LAKEWARD_SIM_SEEDS", "LAKEWARD_INTEROP_DIR", "LAKEWARD_BIN", "LAKEWARD_CLUSTER", "PATH", "LAKE"];
    load("", &others.map(|name| (name, "x")), &[]).unwrap();
}

#[test]
fn wrong_sources_tell_all_their_faults_at_once_each_with_its_place() {
    let wrong = "limit = '1GiB'
memory = 7
run = { wait = '5' }
encoders = { threads = 'many' }
round = { splits_max = 0, replans_max = -1, requests_max = 3 }
cluster = { servers = 9123 }
commit = { pause_first = '10s', tries_max = '8' }
[wirte]
part_bytes = '8MiB'
row_group_rows = 7
[read]
requets_max = 3
wait = '1h'
bucket_bytes = '1GiB'
stall = 60
ahead = true
[tables]
parallel = 0
include = ['sales.*', 7]
exclude = 'sales'
[admin]
listen = '9180'
[fluss]
client.request-timeout = '5 weeks'
client.reqest-timeout = '5 s'
";
    let variables = [
        ("LAKEWARD_READ_BUCKET_BYTE", "1MiB"),
        ("LAKEWARD_READ_STALL", "soon"),
        ("LAKEWARD_MEMORY_LIMIT", "1TB"),
        ("LAKEWARD_LOG_LEVEL", "loud"),
        ("LAKEWARD_READ_WAIT", "2s"),
        ("LAKEWARD_CLUSTER_REQUEST_TIMEOUT", "1s"),
    ];
    let typed = [
        Typed::pair("read.ahead=0"),
        Typed::pair("read.ahed=1"),
        Typed::pair("read.ahead=1"),
        Typed::new("--server", "cluster.servers", "a:1,b"),
    ];
    let expected = [
        "1: `limit`: unknown key; the nearest is `memory.limit`",
        "2: `memory`: is a table, `[memory]`",
        "3: `run.wait`: `5` is not a duration such as `500ms`, `30s`, `2m`, `1h` or `1d`",
        "4: `encoders.threads`: `\"many\"` is not a whole number",
        "5: `round.splits_max`: `0` is not within 1 and 100000",
        "5: `round.replans_max`: `-1` is not within 0 and 1000",
        "5: `round.requests_max`: unknown key; the nearest is `read.requests_max`",
        "6: `cluster.servers`: `9123` is not text in quotes",
        "7: `commit.tries_max`: `\"8\"` is not a whole number",
        "9: `[wirte]`: unknown table; the nearest is `[write]`",
        "12: `read.requets_max`: unknown key; the nearest is `read.requests_max`",
        "13: `read.wait`: `\"1h\"` is not within 0ns and 10s",
        "14: `read.bucket_bytes`: `\"1GiB\"` is not within 1KiB and 64MiB",
        "15: `read.stall`: `60` is not a duration in quotes, such as `\"30s\"`",
        "16: `read.ahead`: `true` is not a whole number",
        "18: `tables.parallel`: `0` is not within 1 and 1000",
        "19: `tables.include`: `a list of other things than text` is not text in quotes",
        "20: `tables.exclude`: `sales` is not of the form DB.TABLE; all tables of a database are `sales.*`",
        "22: `admin.listen`: `9180` is neither of the form HOST:PORT nor `off`",
        "24: `fluss.client.request-timeout`: is not a duration as Fluss writes it, such as `30 s` or `10min`",
        "25: `fluss.client.reqest-timeout`: unknown key; the nearest is `fluss.client.request-timeout`",
        "LAKEWARD_READ_BUCKET_BYTE: unknown variable; the nearest is `LAKEWARD_READ_BUCKET_BYTES`",
        "LAKEWARD_READ_STALL: `soon` is not a duration such as `500ms`, `30s`, `2m`, `1h` or `1d`",
        "LAKEWARD_MEMORY_LIMIT: `1TB` is not a size such as `64KiB`, `128MiB` or `2GiB`",
        "LAKEWARD_LOG_LEVEL: is not one of `auto`, `error`, `warn`, `info`, `debug`, `trace`",
        "--set read.ahead: `0` is not within 1 and 64",
        "--set read.ahed: `read.ahed`: unknown key; the nearest is `read.ahead`",
        "--set read.ahead: gives `read.ahead` again, which --set read.ahead gives already",
        "--server: `b` is not of the form HOST:PORT",
        "7: `commit.pause_first` (10s) is longer than `commit.pause_max` (5s)",
        "LAKEWARD_READ_WAIT: `read.wait` (2s) is longer than `cluster.request_timeout` (1s)",
    ];
    let found = faults(wrong, &variables, &typed);
    for fault in expected {
        assert!(found.iter().any(|found| found == fault), "{fault}\nis not in\n{}", found.join("\n"));
    }
    assert_eq!(found.len(), expected.len(), "{}", found.join("\n"));
}

#[test]
fn a_server_has_a_host_and_a_port() {
    for right in ["localhost:9123", "10.0.0.1:1", "[::1]:65535"] {
        assert_eq!(server(right).unwrap(), right);
    }
    for wrong in ["", "localhost", "localhost:", ":9123", "localhost:0", "localhost:65536", "localhost:x"] {
        assert!(server(wrong).is_err(), "{wrong}");
    }
    assert_eq!(faults("cluster.servers = 'x'", &[], &[]), ["1: `cluster.servers`: `x` is not of the form HOST:PORT"]);
    let [told] = &*faults("cluster.servers = 'me:hunter2@x:9123'", &[], &[]) else { panic!("one fault") };
    assert!(told.contains("can't be part of a server") && !told.contains("hunter2"), "{told}");
    let two = ["cluster.servers = 'a:1, b:2'", "cluster.servers = ['a:1', 'b:2']", "'cluster.servers' = 'a:1,b:2,'"];
    for text in two {
        assert_eq!(load(text, &[], &[]).unwrap().cluster.servers, ["a:1", "b:2"], "{text}");
    }
}

#[test]
fn a_list_is_text_with_commas_too_and_those_in_braces_belong_to_a_glob() {
    let settings = load("tables.exclude = ['a.*', 'b.{x,y}']", &[("LAKEWARD_TABLES_INCLUDE", "a.*, b.{x,y},")], &[]).unwrap();
    let tables = &settings.daemon.tables;
    assert!(tables.include.len() == 2 && tables.include == tables.exclude, "{tables:?}");
    assert_eq!(load("tables.include = ''", &[], &[]).unwrap().daemon.tables.include, []);
}

#[test]
fn a_file_that_is_no_toml_or_is_not_there_is_named_with_its_lines() {
    let nowhere = Sources { file: Some("/nowhere/c.toml".into()), ..Sources::default() };
    let error = Settings::load(&nowhere).unwrap_err().to_string();
    assert!(error.starts_with("configuration: `/nowhere/c.toml` can't be read"), "{error}");
    let found = faults("[read]\nwait = 5s\nahead = = 3", &[("LAKEWARD_X", "")], &[]);
    assert!(found[0].starts_with("2: no TOML: ") && found.iter().any(|fault| fault.starts_with("3: no TOML: ")), "{found:?}");
    assert!(found.last().unwrap().starts_with("LAKEWARD_X: unknown variable"), "{found:?}");
    let found = faults("[read]\nahead = 1\nahead = 2", &[], &[]);
    assert!(found[0].starts_with("3: no TOML: ") && found[0].contains("duplicate key"), "{found:?}");
}

#[test]
fn a_key_that_is_given_twice_in_one_source_is_a_fault_whatever_it_is_called() {
    let found = faults("'fluss.bootstrap.servers' = 'a:1'\ncluster.servers = 'b:1'", &[], &[]);
    assert!(found[0].starts_with("2: `cluster.servers`: gives `cluster.servers` again, which "), "{found:?}");
    let typed = [
        Typed::new("--server", "cluster.servers", "a:1"),
        Typed::new("--fluss.bootstrap.servers", "fluss.bootstrap.servers", "b:1"),
    ];
    let found = faults("", &[], &typed);
    assert_eq!(found, ["--fluss.bootstrap.servers: gives `cluster.servers` again, which --server gives already"]);
}

#[test]
fn keys_of_fluss_in_the_file_mean_the_same_quoted_and_below_a_table() {
    let quoted = "'fluss.bootstrap.servers' = 'a:1,b:2'\n'fluss.client.request-timeout' = '1min'\n'fluss.tiering.poll.table.interval' = '30 s'\n'datalake.format' = 'Paimon'";
    let below = "fluss.bootstrap.servers = 'a:1,b:2'\n[fluss.client]\nrequest-timeout = '60 s'\n[fluss.tiering.poll.table]\ninterval = 30000\n[datalake]\nformat = 'paimon'";
    let settings = load(quoted, &[], &[]).unwrap();
    assert_eq!(settings, load(below, &[], &[]).unwrap());
    assert_eq!(settings.cluster.servers, ["a:1", "b:2"]);
    assert_eq!((settings.cluster.request_timeout, settings.daemon.poll), (Duration::from_secs(60), Duration::from_secs(30)));
    assert!(settings.notices.is_empty(), "{:?}", settings.notices);
}

#[test]
fn keys_of_fluss_that_can_not_be_honoured_are_refused_and_those_without_meaning_told() {
    let refused = "lake.tiering.auto-expire-snapshot = true
datalake.format = 'iceberg'
datalake.paimon.metastore = 'hive'
datalake.orc.x = 1
fluss.client.scanner.log.check-crc = false
fluss.client.security.sasl.jaas.config = 'x'
fluss.client.security.sasl.password = '${env:PASSWORD}'
fluss.client.security.sasl.mechanism = 'SCRAM'
lake.tiering.io.tmp.dirs = 1.5";
    let found = faults(refused, &[], &[]);
    let starts = ["1: ", "2: ", "3: ", "4: ", "5: ", "6: ", "7: ", "8: ", "9: "];
    assert_eq!(found.len(), starts.len(), "{found:#?}");
    for (fault, start) in found.iter().zip(starts) {
        assert!(fault.starts_with(start), "{fault}");
    }
    let noticed = "fluss.client.scanner.log.max-poll-records = 500
fluss.client.scanner.kv.fetch.max-bytes = '4mb'
fluss.client.writer.batch-size = '2mb'
lake.tiering.io.tmp.dirs = '/tmp/a,/tmp/b'
datalake.iceberg.type = 'rest'";
    let settings = load(noticed, &[], &[]).unwrap();
    assert_eq!(settings.notices.len(), 5, "{:?}", settings.notices);
    assert!(settings.notices.iter().all(|notice| notice.contains(": has no meaning here: ")), "{:?}", settings.notices);
}

#[test]
fn every_option_of_a_fluss_client_means_something_here() {
    // `client.*` of fluss-client 1.0.0 and 0.9.1.
    let options = "connect-timeout id request-timeout metrics.enabled remote-file.download-thread-num lookup.queue-size lookup.max-retries
        filesystem.security.token.renewal.backoff filesystem.security.token.renewal.time-ratio scanner.io.tmpdir
        scanner.kv.batch-strategy scanner.kv.fetch.max-bytes scanner.log.check-crc scanner.log.fetch.max-bytes
        scanner.log.fetch.max-bytes-for-bucket scanner.log.fetch.min-bytes scanner.log.fetch.wait-max-time scanner.log.max-poll-records
        scanner.log.read-preference scanner.remote-log.prefetch-num security.enable-plugin-discovery security.protocol
        security.sasl.jaas.config security.sasl.mechanism security.sasl.password security.sasl.username writer.acks writer.retries";
    for option in options.split_whitespace() {
        if let Err(error) = load(&format!("'fluss.client.{option}' = 'x'"), &[], &[]) {
            assert!(!error.to_string().contains("unknown"), "{error}");
        }
    }
}

fn sasl(more: &str) -> String {
    format!("[security]\nprotocol = 'SASL'\nsasl.username = 'otto'\n{more}")
}

fn credentials(settings: &Settings) -> String {
    let found = settings.cluster.options().connection.credentials.unwrap();
    assert_eq!(found, crate::fluss::connection::Credentials::new("otto", CANARY).unwrap());
    format!("{settings:?}{settings:#?}{found:?}")
}

#[test]
fn a_password_comes_from_the_file_the_environment_or_a_file_of_its_own_and_is_never_shown() {
    let (_folder, password) = file(&format!("{CANARY}\r\n"));
    let own = format!("sasl.password_file = '{}'", password.display());
    let variable = ("LAKEWARD_SECURITY_SASL_PASSWORD", CANARY);
    let all = [
        load(&sasl(&format!("sasl.password = '{CANARY}'")), &[], &[]),
        load(&sasl(""), &[variable], &[]),
        load(&sasl(&own), &[], &[]),
        // The later source wins, whichever key it is.
        load(&sasl("sasl.password_file = '/nowhere'"), &[variable], &[]),
        load(&sasl("sasl.password = 'x'"), &[("LAKEWARD_SECURITY_SASL_PASSWORD_FILE", password.to_str().unwrap())], &[]),
    ];
    for settings in all {
        let settings = settings.unwrap();
        assert!(settings.notices.is_empty(), "{:?}", settings.notices);
        let shown = credentials(&settings);
        assert!(shown.contains("otto") && !shown.contains("c4nary"), "{shown}");
    }
    fs::set_permissions(&password, fs::Permissions::from_mode(0o640)).unwrap();
    let settings = load(&sasl(&own), &[], &[]).unwrap();
    assert!(settings.notices[0].contains("(mode 640): `chmod 600 "), "{:?}", settings.notices);
    let typed = Typed::pair(&format!("security.sasl.password={CANARY}"));
    let settings = load(&sasl(""), &[], &[typed]).unwrap();
    assert!(settings.notices[0].contains("`ps`") && !credentials(&settings).contains("c4nary"), "{:?}", settings.notices);
}

#[test]
fn what_is_missing_or_pointless_about_a_login_is_said() {
    assert_eq!(
        faults("security.protocol = 'sasl'", &[], &[]),
        [
            "1: `security.protocol` = `sasl` needs `security.sasl.username`",
            "1: `security.protocol` = `sasl` needs `security.sasl.password` or `security.sasl.password_file`"
        ]
    );
    let both = faults(&sasl("sasl.password = 'x'\nsasl.password_file = '/x'"), &[], &[]);
    assert!(both[0].contains("can't both be given"), "{both:?}");
    let settings = load("security.sasl.username = 'otto'", &[], &[]).unwrap();
    assert!(settings.notices[0].contains("are not sent") && settings.cluster.security.credentials.is_none());
    let (folder, empty) = file("\n");
    for path in [empty.as_path(), folder.path(), Path::new("/nowhere")] {
        let found = faults(&sasl(&format!("sasl.password_file = '{}'", path.display())), &[], &[]);
        assert!(found.len() == 1 && found[0].contains("security.sasl.password_file"), "{found:?}");
    }
}

#[test]
fn no_fault_shows_a_password_however_it_was_put_wrong() {
    let (folder, zero) = file("c4nary\0");
    let latin = folder.path().join("latin");
    fs::write(&latin, b"c4nary\xff").unwrap();
    let files = [
        "security.sasl.password = c4nary",
        "security.sasl.password = 'c4nary",
        "security.sasl.password = \"c4nary\\q\"",
        "security.sasl.password = 'x' c4nary",
        "security.sasl.password = ['c4nary']",
        "security.sasl.password = { x = 'c4nary' }",
        "security.sasl.password = 'x'\nsecurity.sasl.password = 'c4nary'",
        "security.sasl.pasword = 'c4nary'",
        "security.password = 'c4nary'",
        "security.protocol = 'c4nary'",
        "security.sasl.mechanism = 'c4nary'",
        "security.sasl = 'c4nary'",
        "password = 'c4nary'",
        "security = { protocol = 'sasl', sasl = { password = 'c4nary', username = '' } }",
        "security = { protocol = 'sasl', sasl = { password = \"c4nary\\u0000\", username = 'x' } }",
        "'fluss.client.security.sasl.password' = 'c4nary${x}'",
        "'fluss.client.security.sasl.pasword' = 'c4nary'",
        "'fluss.client.security.sasl.jaas.config' = 'c4nary'",
        "'datalake.paimon.s3.secret-key' = 'c4nary'\nx = 1",
        "lake.tiering.auto-expire-snapshot = 'c4nary'",
        &sasl(&format!("sasl.password_file = '{}'", zero.display())),
        &sasl(&format!("sasl.password_file = '{}'", latin.display())),
        &sasl("sasl.password = 'c4nary'\nsasl.password_file = '/x'"),
    ];
    let shown = |error: Error| {
        let shown = format!("{error} {error:?} {}", error.chain());
        assert!(!shown.contains("c4nary"), "{shown}");
    };
    for text in files {
        shown(load(text, &[], &[]).expect_err(text));
    }
    let variables = ["LAKEWARD_SECURITY_SASL_PASWORD", "LAKEWARD_SECURITY_PROTOCOL", "LAKEWARD_PASSWORD"];
    for name in variables {
        shown(load("", &[(name, "c4nary")], &[]).expect_err(name));
    }
    let raw = OsString::from_vec(b"c4nary\xff".to_vec());
    shown(
        Settings::load(&Sources { variables: vec![("LAKEWARD_SECURITY_SASL_PASSWORD".into(), raw)], ..Sources::default() })
            .unwrap_err(),
    );
    let sources = Sources { variables: vec![("LAKEWARD_SECURITY_SASL_PASSWORD".into(), "c4nary".into())], ..Sources::default() };
    assert!(!format!("{sources:?}").contains("c4nary"));
    for typed in [Typed::pair("c4nary"), Typed::pair("security.sasl.pasword=c4nary"), Typed::pair("security.protocol=c4nary")] {
        assert!(!format!("{typed:?}").contains("c4nary"));
        shown(load("", &[], &[typed]).unwrap_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_sources_never_panic(
        text in "([a-z.\"\\[\\]= \n]|[0-9]|memory|read|ahead|limit|'1GiB'|fluss\\.|datalake\\.|\\PC){0,60}",
        name in "[A-Z_]{0,12}", value in "\\PC{0,20}", set in "([a-z_.=]|read\\.ahead|\\PC){0,20}",
    ) {
        let variable = format!("LAKEWARD_{name}");
        drop(load(&text, &[(&variable, &value)], &[Typed::pair(&set)]));
    }

    #[test]
    fn arbitrary_values_of_known_keys_never_panic(value in "\\PC{0,20}", number in any::<i64>()) {
        let keys: Vec<&'static str> = Settings::default().keys().into_keys().collect();
        let text: String = keys.iter().map(|key| format!("{key} = {number}\n")).collect();
        let variables: Vec<(String, &str)> = keys.iter().map(|key| (variable(key), value.as_str())).collect();
        let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let typed: Vec<Typed> = keys.iter().map(|key| Typed::pair(&format!("{key}={value}"))).collect();
        drop(load(&text, &variables, &typed));
    }
}

#[test]
fn stores_are_reached_as_we_and_paimon_and_hadoop_spell_it_and_no_secret_shows() {
    let ours = "[s3]\nendpoint = 'http://minio:9000'\naccess_key_id = 'me'\nsecret_access_key = 'c4nary'\nparts_max = 2\n";
    let found = load(ours, &[("LAKEWARD_S3_REGION", "eu-x")], &[]).unwrap();
    let expected = [
        ("s3.access_key_id", "me"),
        ("s3.endpoint", "http://minio:9000"),
        ("s3.parts_max", "2"),
        ("s3.region", "eu-x"),
        ("s3.secret_access_key", "c4nary"),
    ];
    assert_eq!(found.stores.0, expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    assert!(!format!("{found:?}").contains("c4nary"), "{found:?}");
    let typed = [
        Typed::new("--datalake.paimon.s3.endpoint", "datalake.paimon.s3.endpoint", "http://minio:9000"),
        Typed::new("--s3.access-key", "s3.access-key", "me"),
        Typed::new("--fs.s3a.secret.key", "fs.s3a.secret.key", "c4nary"),
        Typed::new("--s3.path.style.access", "s3.path.style.access", "true"),
    ];
    let found = load("", &[], &typed).unwrap();
    assert_eq!(found.lake, BTreeMap::new());
    let keys: Vec<&str> = found.stores.0.keys().map(String::as_str).collect();
    assert_eq!(keys, ["fs.s3a.endpoint", "fs.s3a.path.style.access", "fs.s3a.secret.key", "s3.access_key_id"]);
    for (text, typed, words) in [
        (ours, Typed::new("--x", "fs.s3a.endpoint", "http://other"), "`fs.s3a.endpoint` and `s3.endpoint` contradict"),
        (ours, Typed::new("--x", "fs.s3a.secret.key", "c4nary2"), "contradict"),
        (ours, Typed::new("--x", "fs.s3a.shoe.size", "44"), "`fs.s3a.shoe.size`"),
        ("[s3]\nstyle = 'odd'", Typed::new("--x", "s3.region", "r"), "`path`"),
        ("[s3]\naccess_key_id = 'me'", Typed::new("--x", "s3.region", "r"), "only one is given"),
    ] {
        let found = faults(text, &[], &[typed]).join("\n");
        assert!(found.contains(words) && !found.contains("c4nary"), "{found}");
    }
}
