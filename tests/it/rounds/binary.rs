//! The binary that `cargo test` built, as a user runs it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};

/// The binary with these arguments, without settings or fail points from this environment.
fn lakeward(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lakeward"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LAKEWARD_")) {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// How it ended, and what it said.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit code; `None` when a signal killed it.
    pub(crate) code: Option<i32>,
    /// The signal that killed it.
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (code, signal) = (output.status.code(), output.status.signal());
        Self { code, signal, stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Ended {
    /// Each line of stdout as JSON.
    pub(crate) fn json(&self) -> Vec<serde_json::Value> {
        json(&self.stdout)
    }
}

/// Each line as JSON.
pub(crate) fn json(lines: &str) -> Vec<serde_json::Value> {
    lines.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// Runs it to its end; `fail` = its fail points.
pub(crate) async fn run(args: &[&str], fail: Option<String>) -> Ended {
    run_in(args, &Vec::from_iter(fail.as_deref().map(|fail| ("LAKEWARD_FAIL", fail)))).await
}

/// Runs it to its end in an environment with these variables.
pub(crate) async fn run_in(args: &[&str], variables: &[(&str, &str)]) -> Ended {
    let mut command = lakeward(args);
    command.envs(variables.iter().copied());
    tokio::task::spawn_blocking(move || command.output().unwrap().into()).await.unwrap()
}

/// Runs it to its end with a stdout that nobody reads.
pub(crate) async fn run_unread(args: &[&str]) -> Ended {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = lakeward(args);
    command.stdout(writer);
    tokio::task::spawn_blocking(move || command.output().unwrap().into()).await.unwrap()
}

/// It runs; dropped, it is killed as by SIGKILL.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: Option<BufReader<ChildStderr>>,
}

impl Running {
    /// Starts it; stderr goes nowhere.
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut command = lakeward(args);
        command.stderr(Stdio::null());
        Self::spawn(command)
    }

    /// As [`Running::start`], in a folder that is its folder for temporary files, too.
    pub(crate) fn start_in(args: &[&str], folder: &Path) -> Self {
        let mut command = lakeward(args);
        command.env("TMPDIR", folder).current_dir(folder).stderr(Stdio::null());
        Self::spawn(command)
    }

    /// As [`Running::start`], with fail points.
    pub(crate) fn failing(args: &[&str], fail: &str) -> Self {
        let mut command = lakeward(args);
        command.env("LAKEWARD_FAIL", fail).stderr(Stdio::null());
        Self::spawn(command)
    }

    /// As [`Running::failing`]; stderr is there for [`Running::says`].
    pub(crate) fn failing_aloud(args: &[&str], fail: &str) -> Self {
        let mut command = lakeward(args);
        command.env("LAKEWARD_FAIL", fail);
        Self::spawn(command)
    }

    /// As [`Running::start`]; stderr goes into a file.
    pub(crate) fn logging(args: &[&str], log: &Path) -> Self {
        let mut command = lakeward(args);
        command.stderr(File::create(log).unwrap());
        Self::spawn(command)
    }

    /// As [`Running::logging`], with fail points, if any.
    pub(crate) fn failing_into(args: &[&str], fail: Option<&str>, log: &Path) -> Self {
        let mut command = lakeward(args);
        command.envs(fail.map(|fail| ("LAKEWARD_FAIL", fail))).stderr(File::create(log).unwrap());
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let stderr = child.stderr.take().map(BufReader::new);
        Self { child, stdout, stderr }
    }

    /// Waits for a line on stderr with these words.
    pub(crate) fn says(&mut self, words: &str) {
        let lines = self.stderr.as_mut().unwrap().lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains(words)), "it ended without saying `{words}`");
    }

    /// Its next line; `None` = it has closed stdout.
    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let bytes = self.stdout.read_line(&mut line).unwrap();
        (bytes > 0).then(|| line.trim_end().to_owned())
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Its exit code, if it has ended; `Some(None)` = a signal killed it.
    pub(crate) fn try_wait(&mut self) -> Option<Option<i32>> {
        self.child.try_wait().unwrap().map(|status| status.code())
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The signal that killed it, if one did.
    pub(crate) fn killed(&mut self) -> Option<i32> {
        self.child.try_wait().unwrap().and_then(|status| status.signal())
    }

    /// Its exit code, once it has ended by itself.
    pub(crate) fn wait(mut self) -> Option<i32> {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        self.child.wait().unwrap().code()
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
