//! Files that change, credentials that end, and sources that fail. Servers that hand out keys: tests/it/s3.

use super::*;

fn of(path: &std::path::Path, profile: &str) -> Credentials {
    let from = From::File { path: path.display().to_string(), profile: profile.to_owned() };
    let settings = super::super::settings::Settings::new("b", &Default::default(), &Default::default(), &|_| None).unwrap();
    Credentials::new(from, super::super::wire::client(&settings).unwrap().0, Clock::system())
}

/// A file as AWS's own tools write it.
const FILE: &str = "# mine\n[default]\naws_access_key_id = A\naws_secret_access_key=hush\n\n[profile other]\naws_access_key_id=B\naws_secret_access_key=hush\naws_session_token=hush-token\n[half]\naws_access_key_id=C\n";

#[tokio::test(start_paused = true)]
async fn a_profile_of_a_file_is_read_and_read_again_when_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("credentials");
    std::fs::write(&path, FILE).unwrap();
    let (first, other) = (of(&path, "default"), of(&path, "other"));
    assert_eq!(first.current().await.unwrap().key_id, "A");
    let found = other.current().await.unwrap();
    assert_eq!((found.key_id.as_str(), found.token.as_deref()), ("B", Some("hush-token")));
    std::fs::write(&path, FILE.replace("= A", "= A2")).unwrap();
    Clock::system().sleep(FILE_TRUSTED).await;
    assert_eq!(first.current().await.unwrap().key_id, "A2");
    std::fs::write(&path, FILE.replace("= A", "= A3")).unwrap();
    first.refuse().await;
    assert_eq!(first.current().await.unwrap().key_id, "A3", "the store had refused what was read before");
    for (profile, words) in [("half", "lacks `aws_access_key_id`"), ("none", "no profile `none`")] {
        let fault = of(&path, profile).current().await.unwrap_err();
        assert!(fault.to_string().contains(words) && !fault.to_string().contains("hush"), "{fault}");
        assert_eq!(fault.kind(), crate::error::Kind::Invalid);
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_ended_is_never_used_and_what_lasts_is_when_its_source_fails() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("credentials.json");
    let write = |key: &str, seconds: i64| {
        let end = jiff::Timestamp::from_millisecond(Clock::system().now_ms() + seconds * 1_000).unwrap();
        let text = format!(
            "{{\"Version\":1,\"AccessKeyId\":\"{key}\",\"SecretAccessKey\":\"hush\",\"SessionToken\":\"t\",\"Expiration\":\"{end}\"}}"
        );
        std::fs::write(&path, text).unwrap();
    };
    write("A", 60);
    let credentials = of(&path, "");
    assert_eq!(credentials.current().await.unwrap().key_id, "A");
    std::fs::remove_file(&path).unwrap();
    Clock::system().sleep(Duration::from_secs(50)).await;
    assert_eq!(credentials.current().await.unwrap().key_id, "A", "it lasts");
    Clock::system().sleep(Duration::from_secs(9)).await;
    let fault = credentials.current().await.unwrap_err();
    assert!(fault.to_string().contains("credentials.json"), "{fault}");
    write("B", 0);
    let fault = credentials.current().await.unwrap_err();
    assert!(fault.to_string().contains("run out"), "{fault}");
    write("C", 60);
    assert_eq!(credentials.current().await.unwrap().key_id, "C");
    std::fs::write(&path, "{\"AccessKeyId\": 1, \"hush\"").unwrap();
    credentials.refuse().await;
    assert_eq!(credentials.current().await.unwrap().key_id, "C", "the store may have refused something else");
    let fault = of(&path, "").current().await.unwrap_err();
    assert!(!fault.to_string().contains("hush"), "{fault}");
}
