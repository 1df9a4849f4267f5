//! What a process remembers of its stores.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The stores of a process. Clones share what was found out.
#[derive(Clone, Default)]
pub struct Stores {
    sound: Sound,
    options: Arc<BTreeMap<String, String>>,
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be secrets.
        f.debug_struct("Stores").field("sound", &self.sound).field("options", &self.options.keys()).finish()
    }
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
    pub fn sound() -> Self {
        Self { sound: Sound::All, ..Self::default() }
    }

    /// Reached by these options (`s3.…`), which win over what the cluster says of a table.
    #[must_use]
    pub fn with_options(self, options: BTreeMap<String, String>) -> Self {
        Self { options: Arc::new(options), ..self }
    }

    /// The options of this process for object stores. Some are secret.
    #[must_use]
    pub fn options(&self) -> Arc<BTreeMap<String, String>> {
        Arc::clone(&self.options)
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
