//! What a process remembers of its stores.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The stores of a process. Clones share what was found out.
#[derive(Debug, Clone, Default)]
pub struct Stores {
    sound: Sound,
}

#[derive(Debug, Clone)]
enum Sound {
    /// Simulations: nothing has to be tried.
    All,
    /// These, by the URLs of their roots.
    Tried(Arc<Mutex<BTreeSet<String>>>),
}

impl Default for Sound {
    fn default() -> Self {
        Self::Tried(Arc::default())
    }
}

impl Stores {
    /// Takes every store for one that can do what the commit rests on.
    #[must_use]
    pub const fn sound() -> Self {
        Self { sound: Sound::All }
    }

    /// Whether the store at `url` was tried, and can do what the commit rests on.
    #[must_use]
    pub fn is_sound(&self, url: &str) -> bool {
        match &self.sound {
            Sound::All => true,
            Sound::Tried(urls) => urls.lock().unwrap_or_else(PoisonError::into_inner).contains(url),
        }
    }

    /// The store at `url` has passed.
    pub fn passed(&self, url: &str) {
        if let Sound::Tried(urls) = &self.sound {
            urls.lock().unwrap_or_else(PoisonError::into_inner).insert(url.to_owned());
        }
    }
}
