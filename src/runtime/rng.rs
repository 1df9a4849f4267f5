//! Chance: uuids, jitter, shuffles.

use std::sync::{Arc, Mutex, PoisonError};

/// A source of randomness; clones draw from the same stream.
#[derive(Debug, Clone)]
pub struct Rng(Arc<Mutex<fastrand::Rng>>);

impl Rng {
    /// Seeded by the machine.
    #[must_use]
    pub fn from_entropy() -> Self {
        Self(Arc::new(Mutex::new(fastrand::Rng::new())))
    }

    /// The same stream for the same seed.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))))
    }

    /// A random (version 4) uuid.
    #[must_use]
    pub fn uuid(&self) -> uuid::Uuid {
        let mut bytes = [0_u8; 16];
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fill(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }

    /// A number below `bound`; 0 when `bound` is 0.
    #[must_use]
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.0.lock().unwrap_or_else(PoisonError::into_inner).u64(..bound) }
    }

    /// Shuffles in place.
    pub fn shuffle<T>(&self, items: &mut [T]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).shuffle(items);
    }
}
