//! The places that credentials come from, each asked once per call.

use std::fmt::Display;
use std::time::Duration;

use object_store::HeaderValue;
use object_store::aws::AwsCredential;
use object_store::client::{HttpClient, HttpRequest};
use serde::Deserialize;

use super::{Got, name};
use crate::runtime::Clock;
use crate::storage::s3::settings::From;
use crate::storage::s3::wire::{self, Fault};
use crate::storage::s3::xml;
use crate::storage::tokens;

/// Who is asked for credentials is near, or not there: a laptop has no instance metadata.
const PATIENCE: Duration = Duration::from_secs(5);
const METADATA: &str = "latest/meta-data/iam/security-credentials/";

/// What files, containers, instances and the cluster say, each in its own spelling.
#[derive(Deserialize)]
struct Json {
    #[serde(alias = "AccessKeyId", alias = "aws_access_key_id")]
    access_key_id: String,
    #[serde(alias = "SecretAccessKey", alias = "aws_secret_access_key", alias = "access_key_secret")]
    secret_access_key: String,
    #[serde(alias = "SessionToken", alias = "Token", alias = "aws_session_token", alias = "security_token", default)]
    session_token: Option<String>,
    #[serde(alias = "Expiration", default)]
    expiration: Option<String>,
}

pub(super) async fn ask(from: &From, client: &HttpClient) -> Result<Got, Fault> {
    match from {
        From::Anonymous => Ok(got(String::new(), String::new(), None, None)),
        From::Static { key_id, secret, token } => {
            Ok(got(key_id.clone(), secret.0.clone(), token.as_ref().map(|token| token.0.clone()), None))
        }
        From::File { path, profile } => {
            let text = tokio::fs::read_to_string(path).await.map_err(|source| unusable(from, format!("`{path}`: {source}")))?;
            if text.trim_start().starts_with('{') {
                json(from, &text)
            } else {
                profile_of(&text, profile).map_err(|why| unusable(from, format!("`{path}`: {why}")))
            }
        }
        From::WebIdentity { token_file, role, session, endpoint } => {
            let token = tokio::fs::read_to_string(token_file)
                .await
                .map_err(|source| unusable(from, format!("`{token_file}`: {source}")))?;
            let form = [
                ("Action", "AssumeRoleWithWebIdentity"),
                ("Version", "2011-06-15"),
                ("RoleArn", role),
                ("RoleSessionName", session),
                ("WebIdentityToken", token.trim()),
            ];
            let form: Vec<String> = form.iter().map(|(key, value)| format!("{key}={}", xml::percent(value))).collect();
            let headers = [("content-type", "application/x-www-form-urlencoded")];
            let answer = call(from, client, "POST", endpoint, &headers, form.join("&")).await?;
            web_identity(from, &answer)
        }
        From::Container { url, token, token_file } => {
            let read = match token_file {
                Some(file) => {
                    Some(tokio::fs::read_to_string(file).await.map_err(|source| unusable(from, format!("`{file}`: {source}")))?)
                }
                None => token.as_ref().map(|token| token.0.clone()),
            };
            let headers: Vec<(&str, &str)> = read.as_deref().map(|token| ("authorization", token.trim())).into_iter().collect();
            json(from, &call(from, client, "GET", url, &headers, String::new()).await?)
        }
        From::Instance { endpoint } => {
            let url = format!("{endpoint}/latest/api/token");
            let token = call(from, client, "PUT", &url, &[("x-aws-ec2-metadata-token-ttl-seconds", "600")], String::new()).await?;
            let headers = [("x-aws-ec2-metadata-token", token.trim())];
            let role = call(from, client, "GET", &format!("{endpoint}/{METADATA}"), &headers, String::new()).await?;
            let role = role.lines().next().unwrap_or_default().trim();
            json(from, &call(from, client, "GET", &format!("{endpoint}/{METADATA}{role}"), &headers, String::new()).await?)
        }
        From::Tokens(number) => {
            let later = |error: crate::error::Error| Fault::Credentials {
                later: true,
                message: format!("{}: {}", name(from), error.chain()),
            };
            let token = tokens::ask(*number).await.map_err(later)?;
            let text = std::str::from_utf8(&token.json).map_err(|_not_shown| unusable(from, "no UTF-8"))?;
            let got = json(from, text)?;
            Ok(Got { ends_ms: token.ends_ms, ..got })
        }
    }
}

fn got(key_id: String, secret_key: String, token: Option<String>, ends_ms: Option<i64>) -> Got {
    Got { credential: AwsCredential { key_id, secret_key, token: token.filter(|token| !token.is_empty()) }, ends_ms }
}

/// No credentials, and waiting does not help.
fn unusable(from: &From, why: impl Display) -> Fault {
    Fault::Credentials { later: false, message: format!("there are no credentials from {}: {why}", name(from)) }
}

/// The answer's text. No message shows an answer: it holds secrets.
async fn call(
    from: &From,
    client: &HttpClient,
    method: &str,
    url: &str,
    headers: &[(&'static str, &str)],
    body: String,
) -> Result<String, Fault> {
    let mut request = HttpRequest::new(body.into());
    *request.method_mut() = method.parse().map_err(|source| unusable(from, source))?;
    *request.uri_mut() = url.parse().map_err(|source| unusable(from, format!("`{url}`: {source}")))?;
    for (key, value) in headers {
        let value =
            HeaderValue::from_str(value).map_err(|_shows_it| unusable(from, format!("what `{key}` needs has odd bytes")))?;
        request.headers_mut().insert(*key, value);
    }
    let later = |why: String| Fault::Credentials {
        later: true,
        message: format!("there are no credentials from {}: {url}: {why}", name(from)),
    };
    let answer = async { wire::text(client.execute(request).await?).await };
    match Clock::system().timeout(PATIENCE, answer).await {
        None => Err(later("no answer".to_owned())),
        Some(Ok(text)) => Ok(text),
        Some(Err(error)) => match std::error::Error::source(&error).and_then(|source| source.downcast_ref::<Fault>()) {
            Some(refused @ Fault::Refused { .. }) if !refused.is_passing() => Err(unusable(from, format!("{url}: {refused}"))),
            Some(fault) => Err(later(fault.to_string())),
            None => Err(later(error.to_string())),
        },
    }
}

#[cfg(any(test, fuzzing))]
pub(super) fn read_answer(text: &str) -> Result<(), Fault> {
    let from = From::Instance { endpoint: "http://metadata".to_owned() };
    drop(profile_of(text, "default"));
    web_identity(&from, text).or_else(|_| json(&from, text)).map(drop)
}

fn web_identity(from: &From, xml: &str) -> Result<Got, Fault> {
    let text = |tag: &str| xml::first(xml, tag).ok_or_else(|| unusable(from, format!("the answer has no `{tag}`")));
    let ends_ms = ends(from, &text("Expiration")?)?;
    Ok(got(text("AccessKeyId")?, text("SecretAccessKey")?, Some(text("SessionToken")?), Some(ends_ms)))
}

fn json(from: &From, text: &str) -> Result<Got, Fault> {
    let Json { access_key_id, secret_access_key, session_token, expiration } =
        serde_json::from_str(text).map_err(|_shows_it| unusable(from, "not the JSON of credentials"))?;
    let ends_ms = expiration.map(|text| ends(from, &text)).transpose()?;
    Ok(got(access_key_id, secret_access_key, session_token, ends_ms))
}

fn ends(from: &From, text: &str) -> Result<i64, Fault> {
    let moment: jiff::Timestamp =
        text.trim().parse().map_err(|source| unusable(from, format!("their end can't be read: {source}")))?;
    Ok(moment.as_millisecond())
}

/// One profile of a file in the shape of `~/.aws/credentials`. No message shows a line.
fn profile_of(text: &str, profile: &str) -> Result<Got, String> {
    let mut inside = false;
    let (mut found, mut key_id, mut secret, mut token, mut ends_at) = (false, None, None, None, None);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';'])) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let name = name.trim();
            inside = name.strip_prefix("profile ").unwrap_or(name).trim() == profile;
            found |= inside;
            continue;
        }
        let Some((key, value)) = line.split_once('=').filter(|_| inside) else { continue };
        let value = value.trim().to_owned();
        match key.trim().to_ascii_lowercase().as_str() {
            "aws_access_key_id" => key_id = Some(value),
            "aws_secret_access_key" => secret = Some(value),
            "aws_session_token" => token = Some(value),
            "expiration" | "aws_expiration" | "x_security_token_expires" => ends_at = value.parse::<jiff::Timestamp>().ok(),
            _ => {}
        }
    }
    match (key_id, secret) {
        (Some(key_id), Some(secret)) => Ok(got(key_id, secret, token, ends_at.map(jiff::Timestamp::as_millisecond))),
        _ if found => Err(format!("profile `{profile}` lacks `aws_access_key_id` or `aws_secret_access_key`")),
        _ => Err(format!("there is no profile `{profile}`")),
    }
}
