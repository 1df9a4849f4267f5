//! Time, chance, shutdown, fail points, memory and encoder threads: everything that a simulation must be able to replace.
//!
//! Owns [`Runtime`], handed to each part when it is built. Knows nothing of tables. Nobody else may ask the machine for
//! time, randomness or threads (clippy.toml holds that).

mod backoff;
mod budget;
mod clock;
mod encoders;
mod fail;
mod feed;
mod machine;
mod rng;
mod stores;

pub use backoff::{Backoff, BackoffOptions};
pub use budget::{Budget, Permit, SetAside};
pub use clock::{Clock, Moment};
pub use encoders::{Aside, Encoders};
pub use fail::{FailAction, FailPoints, POINTS};
pub use feed::feed;
pub use machine::{memory_default, open_files_max, threads_default};
pub use rng::Rng;
pub use stores::Stores;

/// What a part needs of the machine. Cheap to clone; clones share everything.
#[derive(Debug, Clone)]
pub struct Runtime {
    /// Time.
    pub clock: Clock,
    /// Chance.
    pub rng: Rng,
    /// Ends everything: cancelled once, by a signal or a test.
    pub shutdown: tokio_util::sync::CancellationToken,
    /// Places where a test makes the process fail.
    pub fail: FailPoints,
    /// What is known of the lake's stores.
    pub stores: Stores,
    /// Bytes that batches in flight may take.
    pub budget: Budget,
    /// Bytes that work on them may take.
    pub aside: std::sync::Arc<SetAside>,
    /// Where decoding and encoding run.
    pub encoders: Encoders,
}

impl Runtime {
    /// Real time and chance, fail points from the environment, `threads` encoder threads, `memory` bytes for batches, and a
    /// third of that for work on them.
    ///
    /// # Errors
    /// `Invalid` when the fail point variable can't be read; `Internal` when a thread can't be started.
    pub fn system(threads: usize, memory: usize) -> crate::error::Result<Self> {
        Ok(Self {
            clock: Clock::system(),
            rng: Rng::from_entropy(),
            shutdown: tokio_util::sync::CancellationToken::new(),
            fail: FailPoints::from_env()?,
            stores: Stores::default(),
            budget: Budget::new(memory),
            aside: std::sync::Arc::new(SetAside::beside(memory)),
            encoders: Encoders::threads(threads)?,
        })
    }

    /// Tokio's (pausable) time from `start_ms`, chance from `seed`, encoders inline: one thread, the same run for the same seed.
    #[must_use]
    pub fn simulated(seed: u64, start_ms: i64, memory: usize) -> Self {
        Self {
            clock: Clock::simulated(start_ms),
            rng: Rng::from_seed(seed),
            shutdown: tokio_util::sync::CancellationToken::new(),
            fail: FailPoints::default(),
            stores: Stores::sound(),
            budget: Budget::new(memory),
            aside: std::sync::Arc::new(SetAside::beside(memory)),
            encoders: Encoders::inline(),
        }
    }
}
