//! Credentials that end: handed out by STS, instance metadata, a container's endpoint, a file, the cluster; a server that turns old ones away.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lakeward::error::{Kind, Result};
use lakeward::runtime::Clock;
use lakeward::storage::{Remote, Store, StoreOptions, Token, Tokens, open};

use super::server::{PASS, Server};
use crate::rounds::binary::{Ended, run_in};

fn options(server: &Server, more: &[(&str, &str)]) -> BTreeMap<String, String> {
    let mut options = BTreeMap::from([("s3.endpoint".to_owned(), server.endpoint())]);
    options.extend(more.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    options
}

fn store(server: &Server, more: &[(&str, &str)]) -> Store {
    open("s3://lake/w", &StoreOptions { options: options(server, more), ..StoreOptions::default() }).unwrap()
}

/// Writes and reads for so long; all has to go well.
async fn used_for(store: &Store, time: Duration) -> u64 {
    let (clock, mut calls) = (Clock::system(), 0);
    let start = clock.moment();
    while clock.moment().saturating_duration_since(start) < time {
        store.put("a", "x".into()).await.unwrap();
        assert_eq!(store.get("a").await.unwrap().unwrap(), "x");
        assert_eq!(store.size("b").await.unwrap(), None);
        calls += 3;
        clock.sleep(Duration::from_millis(20)).await;
    }
    calls
}

/// `cargo test --test it s3::credentials -- --ignored` runs it with a minute each, for ten minutes.
async fn last(life: Duration, time: Duration) {
    let server = Server::start();
    server.hand_out(life);
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "hush-web\n").unwrap();
    let (token, endpoint) = (token.to_str().unwrap(), server.endpoint());
    let web = [
        ("s3.credentials", "web_identity"),
        ("s3.web_identity_token_file", token),
        ("s3.role_arn", "arn:aws:iam::1:role/lakeward"),
        ("s3.sts_endpoint", &endpoint),
    ];
    let instance = [("s3.credentials", "instance"), ("s3.instance_endpoint", endpoint.as_str())];
    let stores = [store(&server, &web), store(&server, &instance)];
    let calls = futures::future::join_all(stores.iter().map(|store| used_for(store, time))).await;
    assert!(calls.iter().all(|calls| *calls > 30), "{calls:?}");
    let most = 2 + 2 * (time.as_millis() / (life * 3 / 4 - Duration::from_millis(200)).as_millis());
    assert_eq!(server.refused(), 0, "none was used past its end");
    assert!(u128::from(server.handed_out()) <= most && server.handed_out() > 3, "{} of {most}", server.handed_out());
}

#[tokio::test]
async fn short_lived_credentials_are_renewed_before_they_end() {
    last(Duration::from_secs(4), Duration::from_secs(7)).await;
}

#[tokio::test]
#[ignore = "ten minutes: cargo test --test it s3::credentials -- --ignored"]
async fn with_credentials_of_a_minute_ten_minutes_pass_without_a_request_turned_away() {
    last(Duration::from_secs(60), Duration::from_secs(600)).await;
}

#[tokio::test]
async fn credentials_that_the_store_turns_away_are_asked_for_again() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("credentials");
    let write =
        |key: &str| std::fs::write(&file, format!("[lake]\naws_access_key_id={key}\naws_secret_access_key=hush\n")).unwrap();
    write("OLD");
    server.let_in("OLD", Duration::from_secs(600));
    let store = store(&server, &[("s3.credentials_file", file.to_str().unwrap()), ("s3.profile", "lake")]);
    store.put("a", "x".into()).await.unwrap();
    // Somebody takes the old ones back and puts others there, and nobody waits a second.
    server.let_in("OLD", Duration::ZERO);
    server.let_in("NEW", Duration::from_secs(600));
    write("NEW");
    store.put("a", "y".into()).await.unwrap();
    assert!(server.refused() <= 1);
    server.let_in("NEW", Duration::ZERO);
    let error = store.put("a", "z".into()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.hint().unwrap().contains("s3.credentials"), "{:?}", error.hint());
}

#[tokio::test]
async fn a_source_of_credentials_that_is_not_there_is_named_and_may_come_back() {
    let server = Server::start();
    let gone = { Server::start().endpoint() };
    let error = store(&server, &[("s3.credentials", "instance"), ("s3.instance_endpoint", &gone)]).get("a").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.chain().contains("the instance's metadata"), "{}", error.chain());
}

/// A command in an environment with these variables alone to find credentials by.
async fn command(server: &Server, args: &[&str], variables: &[(&str, &str)]) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let args = [args, &["--json", "--log-level", "debug"]].concat();
    let endpoint = server.endpoint();
    let found = [("HOME", folder.path().to_str().unwrap()), ("AWS_ENDPOINT_URL_S3", &endpoint)];
    let ended = run_in(&args, &[&found[..], variables].concat()).await;
    assert!(!format!("{ended:?}").contains("hush"), "{ended:?}");
    ended
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_source_of_credentials_carries_whole_rounds_of_a_process() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let profiles = file(
        "credentials",
        "[other]\naws_access_key_id=x\naws_secret_access_key=hush\n[lake]\naws_access_key_id = me\naws_secret_access_key = hush-hush\n",
    );
    let (web, pass) = (file("web", "hush-web\n"), file("pass", &format!("{PASS}\n")));
    let server = Server::start();
    server.hand_out(Duration::from_secs(600));
    server.let_in("me", Duration::from_secs(600));
    let (at, url) = (server.endpoint(), format!("{}/credentials", server.endpoint()));
    let sources = [
        (vec![("AWS_ACCESS_KEY_ID", "me"), ("AWS_SECRET_ACCESS_KEY", "hush-hush"), ("AWS_SESSION_TOKEN", "hush-token")], false),
        (vec![("AWS_SHARED_CREDENTIALS_FILE", profiles.as_str()), ("AWS_PROFILE", "lake")], false),
        (
            vec![
                ("AWS_WEB_IDENTITY_TOKEN_FILE", &web),
                ("AWS_ROLE_ARN", "arn:aws:iam::1:role/lakeward"),
                ("AWS_ENDPOINT_URL_STS", &at),
            ],
            true,
        ),
        (vec![("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url), ("AWS_CONTAINER_AUTHORIZATION_TOKEN", PASS)], true),
        (vec![("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url), ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &pass)], true),
        (vec![("AWS_EC2_METADATA_SERVICE_ENDPOINT", &at)], true),
    ];
    for (index, (variables, handed_out)) in sources.into_iter().enumerate() {
        let before = server.handed_out();
        let ended = command(&server, &["quickstart", "--warehouse", &format!("s3://lake/{index}")], &variables).await;
        assert_eq!(ended.code, Some(0), "{variables:?}: {ended:?}");
        assert_eq!((server.refused(), server.handed_out() > before), (0, handed_out), "{variables:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_of_credentials_that_turns_us_away_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let pass = folder.path().join("pass");
    std::fs::write(&pass, "hush-another").unwrap();
    let (pass, none) = (pass.to_str().unwrap().to_owned(), folder.path().join("none").to_str().unwrap().to_owned());
    let server = Server::start();
    server.hand_out(Duration::from_secs(600));
    let url = format!("{}/credentials", server.endpoint());
    for (variables, words) in [
        (
            vec![("AWS_CONTAINER_CREDENTIALS_FULL_URI", url.as_str()), ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "hush-another")],
            vec!["the container's endpoint", "401"],
        ),
        (
            vec![("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url), ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &pass)],
            vec!["the container's endpoint", "401"],
        ),
        (
            vec![("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url), ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &none)],
            vec!["the container's endpoint", &none],
        ),
        (
            vec![("AWS_WEB_IDENTITY_TOKEN_FILE", &none), ("AWS_ROLE_ARN", "arn:aws:iam::1:role/lakeward")],
            vec!["web identity", &none],
        ),
        (vec![("AWS_SHARED_CREDENTIALS_FILE", &pass)], vec!["the credentials file", "profile `default`"]),
        (
            vec![("AWS_ACCESS_KEY_ID", "stranger"), ("AWS_SECRET_ACCESS_KEY", "hush-hush")],
            vec!["InvalidAccessKeyId", "does not know these keys"],
        ),
    ] {
        for args in [&["inspect", "s3://lake/w/demo.db/orders"][..], &["quickstart", "--warehouse", "s3://lake/w"]] {
            let ended = command(&server, args, &variables).await;
            assert_eq!(ended.code, Some(2), "{variables:?}: {ended:?}");
            assert!(words.iter().all(|word| ended.stderr.contains(word)), "{words:?}: {ended:?}");
            assert!(ended.stderr.contains("\nhint: ") && ended.stdout.is_empty(), "{ended:?}");
        }
    }
    assert_eq!(server.keys(), [""; 0]);
}

/// No name below `localhost` is known everywhere, so the server is asked as a proxy, which gets the name as it is.
#[tokio::test]
async fn a_bucket_in_the_hosts_name_carries_whole_rounds_of_a_process_also_through_a_proxy() {
    let server = Server::start();
    let proxy = server.endpoint();
    let variables = [("http_proxy", proxy.as_str()), ("AWS_ACCESS_KEY_ID", "me"), ("AWS_SECRET_ACCESS_KEY", "hush-hush")];
    for flags in [
        ["--s3.endpoint=http://s3.lakeward.test", "--s3.style=host"],
        ["--s3.endpoint=http://s3.lakeward.test", "--fs.s3a.path.style.access=false"],
    ] {
        let warehouse = if flags[1].contains("host") { "s3://lake/w/1" } else { "s3a://lake/w/2" };
        let args = [&["quickstart", "--warehouse", warehouse], &flags[..]].concat();
        let ended = command(&server, &args, &variables).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let asked = server.asked();
        assert!(asked.len() > 20 && asked.iter().all(|asked| asked.host_style && !asked.key.starts_with("lake")), "{asked:?}");
        assert!(server.keys().iter().all(|key| key.starts_with("lake/w/")), "{:?}", server.keys());
    }
}

/// A cluster that hands out tokens for its remote storage.
#[derive(Debug)]
struct Cluster {
    endpoint: String,
    life_ms: i64,
    /// When it was, epoch milliseconds.
    asked: Mutex<Vec<i64>>,
    none: bool,
}

#[async_trait]
impl Tokens for Cluster {
    async fn token(&self) -> Result<Token> {
        let now_ms = Clock::system().now_ms();
        let mut asked = self.asked.lock().unwrap();
        let number = asked.len();
        asked.push(now_ms);
        let json = format!("{{\"access_key_id\":\"T{number}\",\"access_key_secret\":\"hush\",\"security_token\":\"hush-token\"}}");
        Ok(Token {
            scheme: if self.none { "file" } else { "s3" }.to_owned(),
            json: if self.none { Default::default() } else { json.into() },
            ends_ms: Some(now_ms + self.life_ms),
            options: BTreeMap::from([
                ("fs.s3a.endpoint".to_owned(), self.endpoint.clone()),
                ("fs.s3a.path.style.access".to_owned(), "true".to_owned()),
            ]),
        })
    }
}

#[tokio::test]
async fn the_remote_log_is_read_with_the_clusters_tokens_which_are_renewed_at_three_quarters_of_their_life() {
    let server = Server::start();
    server.put("remote", "log/d/t-1/0/x/00000000000000000000.log", "0123456789");
    let cluster = Arc::new(Cluster { endpoint: server.endpoint(), life_ms: 4_000, asked: Mutex::default(), none: false });
    let remote = Remote::new(Arc::default(), Some(Arc::<Cluster>::clone(&cluster)));
    let url = "s3://remote/log/d/t-1/0/x/00000000000000000000.log";
    // One to learn where the storage is, one to sign with, then the renewal.
    let clock = Clock::system();
    while cluster.asked.lock().unwrap().len() < 3 {
        assert_eq!(remote.read_range(url, 3, 5).await.unwrap().unwrap(), "34");
        clock.sleep(Duration::from_millis(20)).await;
    }
    let asked = cluster.asked.lock().unwrap().clone();
    assert!(asked[2] - asked[1] >= 2_990, "{asked:?}");
    assert_eq!(remote.read_range(url, 8, 99).await.unwrap().unwrap(), "89");
    assert_eq!(remote.read_range(url, 10, 99).await.unwrap().unwrap(), "");
    assert_eq!(remote.read("s3a://remote/none").await.unwrap(), None);
}

#[tokio::test]
async fn a_cluster_without_tokens_is_read_by_our_own_settings() {
    let server = Server::start();
    server.let_in("me", Duration::from_secs(600));
    server.put("remote", "offsets", "{}");
    let cluster = Arc::new(Cluster { endpoint: String::new(), life_ms: 0, asked: Mutex::default(), none: true });
    let remote = Remote::new(Arc::new(server.options()), Some(Arc::<Cluster>::clone(&cluster)));
    assert_eq!(remote.read("s3://remote/offsets").await.unwrap().unwrap(), "{}");
    assert!(remote.readable("s3://remote/").await.unwrap());
    assert_eq!(cluster.asked.lock().unwrap().len(), 1);
}
