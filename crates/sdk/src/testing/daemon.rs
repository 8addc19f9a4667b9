//! The process of a private daemon, which never outlives the process that started it.
//!
//! A thread of its own starts the daemon and waits for its end. The kernel kills the daemon when that thread ends,
//! which it does only with its process, even by SIGKILL. At a normal exit its directory is removed too.

use crate::client::{ConnectError, DaemonClient};
use crate::error::FabricError;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use sublet_wire::{Gpus, Health};

/// A daemon is ready in well under a second; a busy machine takes longer.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// The pause between two looks at a daemon that starts.
const PAUSE: Duration = Duration::from_millis(10);
/// What to do if the daemon does not start.
const HINT: &str = "the log that is quoted says why";

/// What is removed when the process exits.
static AT_EXIT: OnceLock<ExitDuty> = OnceLock::new();

/// The directory of the daemon, and its process.
#[derive(Debug)]
struct ExitDuty {
    dir: PathBuf,
    running: Mutex<Option<Pid>>,
    ended: Condvar,
}

impl ExitDuty {
    fn running(&self) -> MutexGuard<'_, Option<Pid>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the daemon and waits until it is gone.
    fn kill(&self) {
        let mut running = self.running();
        while let Some(pid) = *running {
            // It may have ended by itself; the thread that waits for it says so.
            let _ = kill_process(pid, Signal::KILL);
            running = self.ended.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

extern "C" fn clean_up() {
    if let Some(duty) = AT_EXIT.get() {
        if let Some(pid) = *duty.running() {
            let _ = kill_process(pid, Signal::KILL);
        }
        // What the dying daemon still writes stays behind, in a directory for temporary files.
        let _ = fs::remove_dir_all(&duty.dir);
    }
}

/// The process's own daemon.
#[derive(Debug)]
pub(super) struct PrivateDaemon {
    binary: PathBuf,
    gpus: &'static str,
    socket: PathBuf,
    duty: &'static ExitDuty,
}

fn failed(reason: impl Into<String>) -> FabricError {
    FabricError::NoLocalHost { reason: reason.into(), hint: HINT }
}

impl PrivateDaemon {
    /// Starts it in a new directory, and waits until it grants leases.
    pub fn start(binary: &Path, gpus: &'static str) -> Result<PrivateDaemon, FabricError> {
        let duty = match AT_EXIT.get() {
            Some(duty) => duty,
            None => {
                let dir = new_dir().map_err(|error| failed(format!("no directory could be made: {error}")))?;
                // SAFETY: the handler only kills the daemon and removes files.
                unsafe { libc::atexit(clean_up) };
                AT_EXIT.get_or_init(|| ExitDuty { dir, running: Mutex::new(None), ended: Condvar::new() })
            }
        };
        let daemon = PrivateDaemon { binary: binary.to_owned(), gpus, socket: duty.dir.join("s"), duty };
        daemon.restart()?;
        Ok(daemon)
    }

    /// The `sublet` that it runs.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// SIGKILL. Returns once the process is gone.
    pub fn kill(&self) {
        self.duty.kill();
    }

    /// Starts it on the state that it had, unless it runs.
    pub fn restart(&self) -> Result<(), FabricError> {
        if self.duty.running().is_some() {
            return Ok(());
        }
        let mut command = self.command().map_err(|error| failed(error.to_string()))?;
        let (started, answer) = mpsc::channel();
        let duty = self.duty;
        let keeper = thread::Builder::new().name("sublet-local-host".to_owned());
        let spawned = keeper.spawn(move || {
            let mut child = match command.spawn() {
                Ok(child) => child,
                Err(error) => return drop(started.send(Err(error))),
            };
            *duty.running() = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            // Nothing receives it if the process ends now.
            let _ = started.send(Ok(()));
            let _ = child.wait();
            *duty.running() = None;
            duty.ended.notify_all();
        });
        spawned.map_err(FabricError::NoThread)?;
        match answer.recv() {
            Ok(Ok(())) => self.await_ready(),
            Ok(Err(error)) => Err(failed(format!("{} cannot be started: {error}", self.binary.display()))),
            Err(_) => Err(failed("the thread that starts it ended")),
        }
    }

    fn command(&self) -> io::Result<Command> {
        let dir = &self.duty.dir;
        let log = File::options().append(true).create(true).open(dir.join("log"))?;
        let mut command = Command::new(&self.binary);
        command.args(["serve", "--config", "/dev/null", "--gpu", self.gpus]);
        command.arg("--state-dir").arg(dir.join("state")).arg("--socket").arg(&self.socket);
        // The settings of the program under test are not for its daemon.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("SUBLET_") || name == "LD_PRELOAD") {
                command.env_remove(name);
            }
        }
        command.env("HOME", dir).current_dir(dir);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // SAFETY: the closure makes one system call, and allocates nothing.
        unsafe {
            command.pre_exec(|| set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from));
        }
        Ok(command)
    }

    /// Waits until it grants leases: it has read each GPU.
    fn await_ready(&self) -> Result<(), FabricError> {
        let (client, deadline) = (DaemonClient::at(&self.socket), Instant::now() + READY_WITHIN);
        loop {
            let is_ready = client.get::<Health>("/readyz").is_ok()
                && client
                    .get::<Gpus>("/v1/gpus")
                    .is_ok_and(|gpus| gpus.gpus.iter().all(|gpu| gpu.unreadable.is_none()));
            if is_ready {
                return Ok(());
            }
            if self.duty.running().is_none() {
                return Err(failed(format!("it ended at once; its log ends with:\n{}", self.log_tail())));
            }
            if Instant::now() > deadline {
                let silence = ConnectError::no_daemon(&self.socket);
                return Err(failed(format!("{silence}; its log ends with:\n{}", self.log_tail())));
            }
            thread::sleep(PAUSE);
        }
    }

    fn log_tail(&self) -> String {
        let text = fs::read(self.duty.dir.join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

/// A new directory that only this user can use. Paths of sockets are short, so it lies in `/tmp`.
fn new_dir() -> io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    for number in 0..1_000 {
        let dir = PathBuf::from(format!("/tmp/sublet-local-{}-{number}", std::process::id()));
        match fs::DirBuilder::new().mode(0o700).create(&dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(()) => {
                fs::create_dir(dir.join("state"))?;
                return Ok(dir);
            }
        }
    }
    Err(io::Error::from(io::ErrorKind::AlreadyExists))
}
