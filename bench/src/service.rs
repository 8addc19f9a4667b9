//! Services as child processes: started, awaited until they are ready, always ended.

use crate::client::{BenchClient, bodiless_request};
use crate::rig::{BenchRig, target, workspace};
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Python takes a second or two to import FastAPI on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long a service may take to stop before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// A running service; ended when dropped.
pub struct ServiceProcess {
    child: Child,
    /// Where it listens.
    pub socket: PathBuf,
}

impl ServiceProcess {
    /// Starts a command; its output goes to `log` in `folder`.
    pub fn spawn(mut command: Command, folder: &Path, socket: PathBuf) -> Result<ServiceProcess> {
        let log = File::options().create(true).append(true).open(folder.join("log"))?;
        let program = command.get_program().to_owned();
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start `{}`", program.display()))?;
        Ok(ServiceProcess { child, socket })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `GET /readyz` answers 200.
    pub fn await_ready(mut self, folder: &Path) -> Result<ServiceProcess> {
        let request = bodiless_request("GET", "/readyz");
        self.try_until(folder, Duration::from_millis(5), |socket| {
            matches!(BenchClient::connect(socket).and_then(|mut client| Ok(client.call(&request)?.0)), Ok(200))
        })?;
        Ok(self)
    }

    /// Tries `done` again and again, while the process lives and for a limited time.
    pub fn try_until(&mut self, folder: &Path, pause: Duration, done: impl Fn(&Path) -> bool) -> Result<()> {
        let limit = Instant::now() + START_LIMIT;
        while !done(&self.socket) {
            if let Some(status) = self.child.try_wait()? {
                bail!("the service ended ({status}): {}", log_tail(folder));
            }
            if Instant::now() > limit {
                bail!("the service was not ready within {} s: {}", START_LIMIT.as_secs(), log_tail(folder));
            }
            std::thread::sleep(pause);
        }
        Ok(())
    }

    /// kill -9, and waits until the process is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let limit = Instant::now() + STOP_LIMIT;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > limit {
                return self.kill();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for ServiceProcess {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("warning: process {} could not be stopped: {error:#}", self.pid());
        }
    }
}

/// The last lines a service wrote, for an error message.
fn log_tail(folder: &Path) -> String {
    let log = std::fs::read(folder.join("log")).unwrap_or_default();
    let text = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("; ")
}

/// `sublet serve` in `folder` with a scripted GPU; returns before it is ready.
pub fn sublet(rig: &BenchRig, folder: &Path, card: &str) -> Result<ServiceProcess> {
    let socket = folder.join("s");
    let mut command = Command::new(rig.sublet()?);
    command.args(["serve", "--gpu", card]).arg("--state-dir").arg(folder).arg("--socket").arg(&socket);
    ServiceProcess::spawn(command, folder, socket)
}

/// The FastAPI service in `folder`, ready.
pub fn fastapi(folder: &Path) -> Result<ServiceProcess> {
    let socket = folder.join("s");
    let mut command = Command::new(venv()?.join("bin/uvicorn"));
    command
        .args(["app:app", "--loop", "uvloop", "--http", "httptools", "--lifespan", "off", "--log-level", "warning"])
        .args(["--no-access-log", "--no-proxy-headers", "--no-server-header", "--no-date-header"])
        .arg("--app-dir")
        .arg(peer_folder())
        .arg("--uds")
        .arg(&socket)
        .env("PEER_DB", folder.join("peer.db"))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    ServiceProcess::spawn(command, folder, socket)?.await_ready(folder)
}

fn peer_folder() -> PathBuf {
    workspace().join("bench/peer_fastapi")
}

/// The Python environment with the peers, made on first use and again when its list changes.
pub fn venv() -> Result<PathBuf> {
    let folder = target()?.join("bench-venv");
    let wanted = std::fs::read_to_string(peer_folder().join("requirements.txt"))?;
    let stamp = folder.join("installed.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(folder);
    }
    eprintln!("installing the peers into `{}` …", folder.display());
    run_to_success(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    let pip = folder.join("bin/pip");
    run_to_success(Command::new(pip).args(["install", "--quiet", "-r"]).arg(peer_folder().join("requirements.txt")))?;
    std::fs::write(stamp, wanted)?;
    Ok(folder)
}

fn run_to_success(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_owned();
    let status = command.status().with_context(|| format!("cannot start `{}`", program.display()))?;
    if !status.success() {
        bail!("`{}` failed ({status})", program.display());
    }
    Ok(())
}
