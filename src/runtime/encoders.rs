//! Threads for decoding and encoding, apart from the async runtime; inline in simulations.

use std::sync::{Arc, mpsc};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::error::{Error, Result};

type Job = Box<dyn FnOnce() + Send>;

/// A pool of threads for CPU-bound work. Clones share the threads, which end with the last clone.
#[derive(Debug, Clone)]
pub struct Encoders {
    sender: Option<mpsc::SyncSender<Job>>,
    threads: usize,
    aside: Arc<Semaphore>,
}

/// The room for one long piece of work that others don't wait for; see [`Encoders::aside`].
#[derive(Debug)]
pub struct Aside {
    inline: bool,
    turn: tokio::sync::Mutex<()>,
    _room: OwnedSemaphorePermit,
}

impl Aside {
    /// Runs `work` on a thread that no encoder is: one after the other, whoever asks.
    ///
    /// # Errors
    /// `Internal` when `work` panicked.
    pub async fn run<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let _turn = self.turn.lock().await;
        if self.inline {
            return Ok(work());
        }
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|source| Error::internal("long work beside the encoders ended").with_source(source))
    }
}

impl Encoders {
    /// Work runs on the caller's thread: for simulations.
    #[must_use]
    pub fn inline() -> Self {
        Self { sender: None, threads: 1, aside: Arc::new(Semaphore::new(1)) }
    }

    /// `threads` threads (at least one).
    ///
    /// # Errors
    /// `Internal` when a thread can't be started.
    pub fn threads(threads: usize) -> Result<Self> {
        let threads = threads.max(1);
        // The queue is short: callers hold memory permits while they wait, and wait as async tasks.
        let (sender, receiver) = mpsc::sync_channel::<Job>(1024);
        let receiver = Arc::new(std::sync::Mutex::new(receiver));
        for index in 0..threads {
            let receiver = Arc::clone(&receiver);
            std::thread::Builder::new()
                .name(format!("encoder-{index}"))
                .spawn(move || {
                    loop {
                        let job = receiver.lock().unwrap_or_else(std::sync::PoisonError::into_inner).recv();
                        let Ok(job) = job else { return };
                        job();
                    }
                })
                .map_err(|source| Error::internal("start encoder thread").with_source(source))?;
        }
        Ok(Self { sender: Some(sender), threads, aside: Arc::new(Semaphore::new(1)) })
    }

    /// Room for long work that can as well be done another time: one piece in the process, beside the encoders, so that nobody who has
    /// to encode or decode waits for it; `None` while there is one.
    #[must_use]
    pub fn aside(&self) -> Option<Aside> {
        let room = Arc::clone(&self.aside).try_acquire_owned().ok()?;
        Some(Aside { inline: self.sender.is_none(), turn: tokio::sync::Mutex::default(), _room: room })
    }

    /// Number of threads.
    #[must_use]
    pub fn count(&self) -> usize {
        self.threads
    }

    /// Runs `work` on an encoder thread and waits for it. A panic in `work` is an error here, and the pool lives on.
    ///
    /// # Errors
    /// `Internal` when `work` panicked.
    pub async fn run<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let guarded = move || std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let outcome = match &self.sender {
            None => guarded(),
            Some(sender) => {
                let (reply, answer) = oneshot::channel();
                let mut job: Job = Box::new(move || {
                    // The caller may have been dropped; its result is then of no use.
                    drop(reply.send(guarded()));
                });
                loop {
                    match sender.try_send(job) {
                        Ok(()) => break,
                        Err(mpsc::TrySendError::Full(back)) => {
                            job = back;
                            tokio::task::yield_now().await;
                        }
                        Err(mpsc::TrySendError::Disconnected(_)) => return Err(Error::internal("the encoder threads are gone")),
                    }
                }
                answer.await.map_err(|source| Error::internal("an encoder thread ended").with_source(source))?
            }
        };
        outcome.map_err(|panic| {
            let text = panic
                .downcast_ref::<&str>()
                .map(ToString::to_string)
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "unknown".to_owned());
            Error::internal(format!("panic on an encoder thread: `{text}`"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[tokio::test]
    async fn a_panic_is_an_error_and_the_pool_lives_on() {
        let encoders = Encoders::threads(1).unwrap();
        let error = encoders.run(|| panic!("boom")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Internal);
        assert!(error.to_string().contains("boom"));
        assert_eq!(encoders.run(|| 7).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn there_is_room_for_one_long_piece_of_work_that_no_encoder_waits_for() {
        for encoders in [Encoders::inline(), Encoders::threads(1).unwrap()] {
            let aside = encoders.aside().unwrap();
            assert!(encoders.clone().aside().is_none(), "clones share it");
            assert_eq!(aside.run(|| 7).await.unwrap(), 7);
            drop(aside);
            assert!(encoders.aside().is_some());
        }
        let encoders = Encoders::threads(1).unwrap();
        let aside = encoders.aside().unwrap();
        let (release, wait) = mpsc::channel::<()>();
        let long = aside.run(move || wait.recv().is_ok());
        let ((), long) = tokio::join!(
            async {
                assert_eq!(encoders.run(|| 7).await.unwrap(), 7);
                release.send(()).unwrap();
            },
            long
        );
        assert!(long.unwrap());
    }
}
