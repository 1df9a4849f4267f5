//! Lakes on S3: what `storage` promises on any store, answers of servers that lose, delay and refuse, rounds and daemons on it.

mod answers;
mod conformance;
mod credentials;
mod rounds;
pub(crate) mod server;
