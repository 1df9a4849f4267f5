//! Create-if-absent on a local disk: hidden temporary, sync, hard link, sync of the folder (P8.3).
//!
//! object_store stages as `NAME#1`, which Java takes for a snapshot (P8.3, temp-name trap); hence our own.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Created;
use crate::error::{Error, Kind, Result};

static COUNTER: AtomicU64 = AtomicU64::new(0);

pub(super) fn create(target: &Path, bytes: &[u8], name: &str) -> Result<Created> {
    let fault = |act: &str, source: std::io::Error| {
        let kind = if source.kind() == ErrorKind::PermissionDenied { Kind::Invalid } else { Kind::Unavailable };
        Error::new(kind, format!("{act} `{name}`")).with_source(source)
    };
    let (Some(folder), Some(file_name)) = (target.parent(), target.file_name().and_then(|name| name.to_str())) else {
        return Err(Error::invalid(format!("`{name}` has no folder or no file name")));
    };
    fs::create_dir_all(folder).map_err(|source| fault("create the folder of", source))?;
    let staged = folder.join(format!(".{file_name}.{}-{}.tmp", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed)));
    let written = OpenOptions::new().write(true).create_new(true).open(&staged).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let linked = written.and_then(|()| fs::hard_link(&staged, target));
    // Hidden and harmless if it stays.
    let removed = fs::remove_file(&staged);
    match linked {
        Ok(()) => {
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(|source| fault("sync the folder of", source))?;
            removed.map_err(|source| fault("remove the temporary of", source))?;
            Ok(Created::Yes)
        }
        Err(source) if source.kind() == ErrorKind::AlreadyExists && target.exists() => Ok(Created::Exists),
        Err(source) => Err(fault("create", source)),
    }
}
