//! Calls that go to the leaders of many buckets.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::{BoxFuture, join_all};

use super::Cluster;
use crate::error::{Error, Result};
use crate::fluss::code::{Class, Code};
use crate::model::{TableBucket, TablePath};

/// What a server said to each bucket it was asked for.
pub type Answers<T> = Vec<(TableBucket, Result<T>)>;

impl Cluster {
    /// Asks the leaders of `buckets`, all servers at once, until each bucket has its answer. `ask` sends one request to one server;
    /// buckets that fail with a retriable error are looked up and asked for again, so the call must be one that may be repeated.
    ///
    /// # Errors
    /// The first final error, of a bucket or of a whole request; `Invalid` with code 36 when a partition is gone, `Stale` or `Invalid`
    /// with code 7 when the table is; `Unavailable` when attempts or time are used up. `what`, table and bucket are named.
    pub async fn routed<'a, T>(
        &'a self,
        what: &str,
        path: &TablePath,
        buckets: impl IntoIterator<Item = TableBucket>,
        ask: impl Fn(i32, Vec<TableBucket>) -> BoxFuture<'a, Result<Answers<T>>>,
    ) -> Result<BTreeMap<TableBucket, T>> {
        let mut pending: BTreeSet<TableBucket> = buckets.into_iter().collect();
        let mut done = BTreeMap::new();
        let mut retry = self.retry(format!("{what} of table `{path}`"));
        let named = |bucket: TableBucket, error: Error| error.context(format!("{what} of table `{path}`, {bucket}"));
        while !pending.is_empty() {
            let wanted: Vec<TableBucket> = pending.iter().copied().collect();
            let located = match self.locate(path, &wanted).await {
                Ok(located) => located,
                Err(error) => {
                    retry.after(error.context(format!("{what} of table `{path}`"))).await?;
                    continue;
                }
            };
            let mut failure = None;
            for (bucket, code) in located.missing {
                let error = named(bucket, code.error(missing(code)));
                if code.class() == Class::Final {
                    return Err(error);
                }
                failure = Some(error);
            }
            let calls = located.servers.into_iter().map(|(server, buckets)| {
                let call = ask(server, buckets.clone());
                async move { (buckets, call.await) }
            });
            for (buckets, answers) in join_all(calls).await {
                let answers = match answers {
                    Ok(answers) => answers,
                    // The whole request failed: so did each of its buckets.
                    Err(error) => {
                        if !is_transient(&error) {
                            return Err(error.context(format!("{what} of table `{path}`")));
                        }
                        for bucket in &buckets {
                            self.suspect(path, *bucket);
                        }
                        failure = Some(error);
                        continue;
                    }
                };
                for (bucket, answer) in answers {
                    match answer {
                        Ok(answer) if pending.remove(&bucket) => drop(done.insert(bucket, answer)),
                        Ok(_) => {}
                        Err(error) if is_transient(&error) => {
                            self.suspect(path, bucket);
                            failure = Some(named(bucket, error));
                        }
                        Err(error) => return Err(named(bucket, error)),
                    }
                }
                if failure.is_none()
                    && let Some(bucket) = buckets.iter().find(|bucket| pending.contains(bucket))
                {
                    failure = Some(named(*bucket, Code::CORRUPT_MESSAGE.error("the server left the bucket out of its answer")));
                }
            }
            if let Some(failure) = failure {
                retry.after(failure).await?;
            }
        }
        Ok(done)
    }
}

fn missing(code: Code) -> &'static str {
    match code {
        Code::PARTITION_NOT_EXISTS => "the partition is gone",
        Code::LEADER_NOT_AVAILABLE => "the bucket has no leader",
        _ => "the bucket is unknown",
    }
}

fn is_transient(error: &Error) -> bool {
    error.code().is_some_and(|code| !matches!(Code(code).class(), Class::Final | Class::Stale))
}
