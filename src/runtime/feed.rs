//! A thread that reads what can only be waited for by blocking: files, the standard input.

use tokio::sync::mpsc;

use crate::error::{Error, Result};

/// Runs `produce` on a thread of its own, at most `depth` values ahead of the receiver. `produce` gets a function that hands a
/// value over and says whether anybody still wants more. Nobody waits for the thread: a process may end while it blocks.
///
/// # Errors
/// `Internal` when the thread can't be started.
pub fn feed<T: Send + 'static>(
    name: &str,
    depth: usize,
    produce: impl FnOnce(&mut dyn FnMut(T) -> bool) + Send + 'static,
) -> Result<mpsc::Receiver<T>> {
    let (sender, receiver) = mpsc::channel(depth.max(1));
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || produce(&mut |value| sender.blocking_send(value).is_ok()))
        .map_err(|source| Error::internal(format!("start thread `{name}`")).with_source(source))?;
    Ok(receiver)
}
