//! The `lakeward` binary: everything is in the library.

use std::process::ExitCode;

/// Faster than the system's under many threads and Arrow's large buffers.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    lakeward::cli::main()
}
