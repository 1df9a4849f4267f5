//! `lakeward node`: the embedded server alone, until a signal.

use super::End;
use super::args::Node as Args;
use super::output::Output;
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::fluss::connection::Credentials;
use crate::node::{Node, NodeOptions};
use crate::runtime::Runtime;

/// Starts the node, says where it is, and serves until the process is asked to stop.
pub(super) async fn run(args: &Args, settings: &Settings, runtime: Runtime, output: &mut Output) -> Result<(), End> {
    let mut options = NodeOptions::new(&args.dir);
    options.listen.clone_from(&args.listen);
    options.advertise.clone_from(&args.advertise);
    if let Some(path) = &args.sasl_users {
        let text = std::fs::read_to_string(path)
            .map_err(|source| Error::invalid(format!("read users `{}`", path.display())).with_source(source))?;
        options.users = users(&text).map_err(|error| error.context(format!("read users `{}`", path.display())))?;
    }
    options.warehouse.clone_from(&args.warehouse);
    options.lease = args.lease;
    options.routing = settings.routing;
    options.clients = settings.clients;
    let shutdown = runtime.shutdown.clone();
    let node = Node::start(options, runtime).await?;
    output.data(&format!("node {} with data in {}, lake tables in {}", node.address(), args.dir.display(), node.warehouse()))?;
    shutdown.cancelled().await;
    node.stop().await;
    Ok(())
}

/// Lines `USER:PASSWORD`, empty ones and those that begin with `#` apart. No message shows a line.
fn users(text: &str) -> Result<Vec<Credentials>> {
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty() && !line.starts_with('#'));
    let users: Vec<Credentials> = lines
        .map(|(line, number)| {
            let (username, password) =
                line.split_once(':').ok_or_else(|| Error::invalid(format!("line {number} is no `USER:PASSWORD`")))?;
            Credentials::new(username, password).map_err(|error| error.context(format!("line {number}")))
        })
        .collect::<Result<_>>()?;
    // None would let everybody in.
    if users.is_empty() { Err(Error::invalid("it names nobody")) } else { Ok(users) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_lines_and_a_wrong_one_is_named_by_its_number_alone() {
        let found = users("# who\n\notto:geh:eim\nanna:x\n").unwrap();
        assert_eq!(found, [Credentials::new("otto", "geh:eim").unwrap(), Credentials::new("anna", "x").unwrap()]);
        for (text, words) in [("geheim", "line 1"), ("a:b\n:geheim", "line 2"), ("a:", "line 1"), ("# a:b\n", "nobody")] {
            let error = users(text).unwrap_err();
            assert!(error.chain().contains(words) && !error.chain().contains("geheim"), "{}", error.chain());
        }
    }
}
