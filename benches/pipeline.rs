//! Rows per second from node to committed files, beside the floor.
fn main() {}
