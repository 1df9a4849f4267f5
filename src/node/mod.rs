//! The embedded server: coordinator and tablet server in one process.

pub mod log;
pub mod tiering;
