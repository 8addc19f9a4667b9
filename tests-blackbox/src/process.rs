//! Ordinary processes that hold leases in the tests.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// A process that is killed and reaped when this is dropped.
pub struct TestProcess(Child);

impl TestProcess {
    /// One that does nothing, for longer than any test.
    pub fn idle() -> TestProcess {
        TestProcess::spawn(Command::new("sleep").arg("3600"))
    }
    /// One that does nothing and belongs to another user. Only root can start it.
    pub fn idle_of(uid: u32) -> TestProcess {
        TestProcess::spawn(Command::new("sleep").arg("3600").uid(uid).gid(uid))
    }
    /// One that is busy on the CPU, like a job that loads its data, and does not use a GPU.
    pub fn busy() -> TestProcess {
        // Nice, so that two of them do not starve the service under test.
        TestProcess::spawn(Command::new("nice").args(["-n", "10", "sh", "-c", "while :; do :; done"]))
    }
    fn spawn(command: &mut Command) -> TestProcess {
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        TestProcess(quiet.spawn().expect("a process can be started"))
    }
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
    /// Whether it still runs.
    pub fn alive(&mut self) -> bool {
        self.0.try_wait().expect("an own child can be waited for").is_none()
    }
    /// Ends it for good.
    pub fn kill(mut self) {
        self.end();
    }
    fn end(&mut self) {
        // It may have ended by itself; then there is nothing to kill, and reaping still works.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        self.end();
    }
}
