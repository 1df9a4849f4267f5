//! The embedded server: coordinator and tablet server in one process.
