//! `lakeward node`: the embedded server alone, until a signal.

use super::End;
use super::args::Node as Args;
use super::output::Output;
use crate::node::{Node, NodeOptions};
use crate::runtime::Runtime;

/// Starts the node, says where it is, and serves until the process is asked to stop.
pub(super) async fn run(args: &Args, runtime: Runtime, output: &mut Output) -> Result<(), End> {
    let mut options = NodeOptions::new(&args.dir);
    options.listen.clone_from(&args.listen);
    options.advertise.clone_from(&args.advertise);
    options.warehouse = args.warehouse.as_ref().map(|path| path.display().to_string());
    options.lease = args.lease;
    let shutdown = runtime.shutdown.clone();
    let node = Node::start(options, runtime).await?;
    output.data(&format!("node {} with data in {}, lake tables in {}", node.address(), args.dir.display(), node.warehouse()))?;
    shutdown.cancelled().await;
    node.stop().await;
    Ok(())
}
