//! Files that are made beside the writer: rows go on coming while those before them are sorted, encoded and sent.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::files::{Files, RowGroup};
use super::keyed::Unsorted;
use super::{BucketFiles, WriteContext};
use crate::error::{Error, Result};

/// Where rows become files.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) data: Files,
    pub(super) changelog: Option<Files>,
}

/// What an output does in one go.
pub(super) enum Work {
    /// Encodes a row group, into the open file.
    Group(RowGroup),
    /// Writes sorted files, and leaves none open.
    Sort(Unsorted),
}

impl Output {
    /// # Errors
    /// As `Files::encode`.
    pub(super) async fn work(&mut self, context: &Arc<WriteContext>, work: Work) -> Result<()> {
        match work {
            Work::Group(group) => self.data.encode(group).await,
            Work::Sort(rows) => rows.write(context, &mut self.data, self.changelog.as_mut()).await,
        }
    }

    /// Adds its files to those that are there.
    pub(super) fn take(mut self, files: &mut BucketFiles) {
        files.data.extend(self.data.take());
        files.changelog.extend(self.changelog.iter_mut().flat_map(Files::take));
    }

    /// Gives up and deletes what was written.
    ///
    /// # Errors
    /// `Unavailable` when some file could not be deleted; the others are.
    pub(super) async fn abort(self) -> Result<()> {
        let data = self.data.abort().await;
        match self.changelog {
            Some(changelog) => data.and(changelog.abort().await),
            None => data,
        }
    }
}

/// An output at work.
#[derive(Debug)]
pub(super) struct Beside {
    /// Whatever happens, the output comes back: it knows what has to be deleted.
    task: AbortOnDropHandle<(Output, Result<()>)>,
    stop: CancellationToken,
    /// Arrow bytes of the rows.
    pub(super) bytes: usize,
}

impl Beside {
    pub(super) fn begin(mut output: Output, context: Arc<WriteContext>, work: Work, bytes: usize) -> Self {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let done = tokio::select! {
                done = output.work(&context, work) => done,
                () = stopped.cancelled() => Err(Error::internal("the writer was given up")),
            };
            (output, done)
        });
        Self { task: AbortOnDropHandle::new(task), stop, bytes }
    }

    /// Waits for its end. May be dropped while it waits.
    ///
    /// # Errors
    /// `Internal` when it panicked; what it has written is left to the orphan sweep then.
    pub(super) async fn end(&mut self) -> Result<(Output, Result<()>)> {
        (&mut self.task).await.map_err(|source| Error::internal("writing files has ended without a result").with_source(source))
    }

    /// Gives up and deletes what was written.
    ///
    /// # Errors
    /// As [`Output::abort`].
    pub(super) async fn abort(mut self) -> Result<()> {
        self.stop.cancel();
        let (output, _given_up) = self.end().await?;
        output.abort().await
    }
}
