//! The `lakeward` binary: everything is in the library.

fn main() {}
