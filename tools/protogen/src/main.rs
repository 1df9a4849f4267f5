//! Makes `src/fluss/proto/messages.rs` from `fluss.proto`, without protoc. Run from anywhere.

use std::error::Error;
use std::fs;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = protox::compile([here.join("fluss.proto")], [here])?;
    let out = here.join("target/generated");
    fs::create_dir_all(&out)?;
    prost_build::Config::new().bytes(["."]).out_dir(&out).compile_fds(files)?;
    fs::copy(out.join("fluss.rs"), here.join("../../src/fluss/proto/messages.rs"))?;
    Ok(())
}
