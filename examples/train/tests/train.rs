//! The trainer on soft GPUs: its lease is revoked, it is killed, and another one takes over.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use sublet::testing::LocalHost;
use tempfile::TempDir;

/// More than any test waits for.
const ENDLESS: &str = "1000000000";

struct TrainingHost {
    host: LocalHost,
    dir: TempDir,
}

/// A trainer that runs, and its lines.
struct RunningTrainer {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl TrainingHost {
    fn start() -> TrainingHost {
        TrainingHost { host: LocalHost::start().expect("a daemon"), dir: tempfile::tempdir().expect("a directory") }
    }

    fn train(&self, words: &[&str]) -> RunningTrainer {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sublet-example-train"));
        command.env("SUBLET_SOCKET", self.host.socket()).env("SUBLET_CHECKPOINTS", self.dir.path().join("store"));
        command.env_remove("SUBLET_URL").env_remove("SUBLET_LEASE").args(words).current_dir(self.dir.path());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a trainer");
        let lines = BufReader::new(child.stdout.take().expect("it is piped"));
        RunningTrainer { child, lines }
    }

    /// The last line of a trainer that ends by itself.
    fn weights(&self, words: &[&str]) -> String {
        let line = self.train(words).await_line("weights ");
        line.trim().to_owned()
    }
}

impl RunningTrainer {
    /// Reads on to a line that contains this.
    fn await_line(&mut self, wanted: &str) -> String {
        let mut all = String::new();
        loop {
            let from = all.len();
            let read = self.lines.read_line(&mut all).expect("a pipe can be read");
            assert!(read > 0, "it ended without `{wanted}`:\n{all}{}", self.errors());
            if all[from..].contains(wanted) {
                return all[from..].to_owned();
            }
        }
    }

    fn errors(&mut self) -> String {
        let mut text = String::new();
        let stderr = self.child.stderr.as_mut().expect("it is piped");
        stderr.read_to_string(&mut text).expect("a pipe can be read");
        text
    }
}

impl Drop for RunningTrainer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_trainer_that_loses_its_lease_and_its_process_has_the_weights_of_an_undisturbed_one() {
    let host = TrainingHost::start();
    let mut trainer = host.train(&["--steps", ENDLESS, "--every", "5"]);
    let lease = trainer.await_line("lease ");
    let lease = lease.split([' ', ':']).nth(1).expect("its id").to_owned();
    trainer.await_line("saved as version ");
    host.host.revoke(&lease).expect("a lease can be revoked");
    trainer.await_line("the GPU is lost: ");
    trainer.await_line("from step ");
    trainer.await_line("saved as version ");
    drop(trainer);
    // It is trained that far already.
    let mut again = host.train(&["--steps", "1", "--curve", "loss.svg"]);
    let saved = again.await_line("saved as version ");
    let step = saved.split([' ', ':']).nth(1).expect("a step").to_owned();
    let weights = again.await_line("weights ").trim().to_owned();
    assert_eq!(weights, host.weights(&["--job", "undisturbed", "--steps", &step]));
    assert!(
        std::fs::read_to_string(host.dir.path().join("loss.svg")).expect("a file").contains(&format!(">step {step}<"))
    );
}

#[test]
fn a_second_trainer_of_a_job_makes_the_first_one_stale() {
    let host = TrainingHost::start();
    let mut first = host.train(&["--steps", ENDLESS, "--every", "5"]);
    first.await_line("saved as version ");
    let mut second = host.train(&["--steps", ENDLESS, "--every", "5"]);
    assert_eq!(second.await_line("opened").trim(), "job demo: opened with fence 3");
    let said = first.errors();
    // A supervisor can tell this end from others.
    assert_eq!(first.child.wait().expect("it ended").code(), Some(73));
    second.await_line("saved as version ");
    assert!(
        said.starts_with(
            "error: fence 2 is stale: another process opened this name with fence 3\nhint: stop this process"
        ),
        "{said}"
    );
}
