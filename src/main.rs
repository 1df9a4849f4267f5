//! The `lakeward` binary: everything is in the library. It takes the system's allocator: beside mimalloc 2 and 3, glibc's had rows
//! tiered with less memory (docs/performance.md, "Against Flink") and no more time.

use std::process::ExitCode;

fn main() -> ExitCode {
    lakeward::cli::main()
}
