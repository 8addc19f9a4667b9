//! The real binary, serving a scripted GPU, or soft ones, from a directory of its own.

use crate::binary::sublet;
use crate::http::TestClient;
use crate::wait::{LONG, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use sublet_wire::Gpus;
use tempfile::TempDir;

/// Which GPUs a service has.
#[derive(Clone, Debug, Default)]
pub enum TestGpu {
    /// One of 24 GiB on paper.
    #[default]
    Scripted,
    /// As it is typed after `--gpu`.
    Named(&'static str),
    /// The command line says nothing.
    Unspecified,
}

/// How to start a service, where it is not as usual.
#[derive(Default)]
pub struct ServiceSetup {
    /// Which GPUs.
    pub gpu: TestGpu,
    /// A state directory from elsewhere.
    pub state: Option<PathBuf>,
    /// The text of a configuration file.
    pub config: Option<String>,
    /// Further variables in its environment.
    pub env: Vec<(String, String)>,
    /// A program and its arguments that start the service's command line.
    pub through: Vec<String>,
    /// Its disk has too little room from the start: it serves, but grants nothing.
    pub cramped: bool,
}

/// A port that is free now.
pub fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

/// A service that is killed, and its directory removed, when this is dropped.
pub struct TestService {
    dir: TempDir,
    setup: ServiceSetup,
    child: Child,
}

impl TestService {
    /// Starts one as usual.
    pub fn start() -> TestService {
        TestService::start_with(ServiceSetup::default())
    }
    /// Starts one and waits until it is ready.
    pub fn start_with(setup: ServiceSetup) -> TestService {
        let dir = tempfile::Builder::new().prefix("sublet-").tempdir().expect("a directory can be made");
        // Other users must reach the socket where a test has other users.
        open_to_all(dir.path(), 0o711);
        fs::create_dir(dir.path().join("state")).expect("a directory can be made");
        if let Some(config) = &setup.config {
            fs::write(dir.path().join("sublet.toml"), config).expect("the configuration can be written");
        }
        let child = spawn(dir.path(), &setup);
        let mut service = TestService { dir, setup, child };
        service.await_ready();
        service
    }
    /// A client of this service.
    pub fn client(&self) -> TestClient {
        TestClient::new(self.dir.path().join("s"))
    }
    /// Where it serves over TCP, by its own word.
    pub fn address(&self) -> SocketAddr {
        let text = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        let told = text.lines().rev().find(|line| line.contains("serving callers with a token"));
        let address = told.and_then(|line| line.split("address=").nth(1)?.split(' ').next()?.parse().ok());
        let address: SocketAddr = address.unwrap_or_else(|| panic!("no address in:\n{text}"));
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port())
    }
    /// A client over TCP, without TLS and without a token.
    pub fn remote(&self) -> TestClient {
        TestClient::over_tcp(self.address(), None)
    }
    /// SIGHUP: it reads its configuration anew.
    pub fn reload(&self) {
        self.signal(Signal::HUP);
    }
    /// Runs `what` while the daemon is stopped.
    pub fn while_stopped<T>(&self, what: impl FnOnce() -> T) -> T {
        self.signal(Signal::STOP);
        let done = what();
        self.signal(Signal::CONT);
        done
    }
    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a child has a pid");
        kill_process(pid, signal).expect("an own child can be signalled");
    }
    /// The directory with the state, the socket and the log.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
    /// Where its state is.
    pub fn state_dir(&self) -> PathBuf {
        self.setup.state.clone().unwrap_or_else(|| self.dir.path().join("state"))
    }
    /// The daemon's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
    /// Whether the daemon still runs.
    pub fn alive(&mut self) -> bool {
        self.exited().is_none()
    }
    /// How the daemon ended, if it did.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("an own child can be waited for")
    }
    /// kill -9, and nothing else.
    pub fn kill(&mut self) {
        self.child.kill().expect("an own child can be killed");
        self.child.wait().expect("an own child can be waited for");
    }
    /// SIGTERM, and its end.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        until("the daemon stops on SIGTERM", LONG, || self.child.try_wait().ok().flatten().ok_or(()))
    }
    /// Starts it anew on the same state and socket, after it ended.
    pub fn restart(&mut self) {
        self.child = spawn(self.dir.path(), &self.setup);
        self.await_ready();
    }
    /// Starts it anew where it serves, but grants nothing.
    pub fn restart_without_grants(&mut self) {
        self.child = spawn(self.dir.path(), &self.setup);
        self.await_answer("/healthz");
    }
    /// What the scripted GPU shows from the next reading on: a list of processes.
    pub fn script(&self, processes: Value, fault: Value) {
        let card = json!({"index": 0, "processes": processes, "other_bytes": 0, "fault": fault});
        let state = self.state_dir();
        // A reading must never meet half a script.
        fs::write(state.join("scripted.json.new"), json!({"cards": [card]}).to_string()).expect("a script is written");
        fs::rename(state.join("scripted.json.new"), state.join("scripted.json")).expect("a script is put in place");
    }
    /// Starts it with other GPUs from the next start on.
    pub fn set_gpu(&mut self, gpu: TestGpu) {
        self.setup.gpu = gpu;
    }
    /// Runs the command line against this service.
    pub fn cli(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the command line can be started")
    }
    /// The command line against this service, not started yet.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = bare_command(sublet(), self.dir.path());
        command.env("SUBLET_SOCKET", self.dir.path().join("s")).args(arguments).stdin(Stdio::null());
        command
    }
    /// What the daemon said.
    pub fn log(&self) -> String {
        log(self.dir.path())
    }

    fn await_ready(&mut self) {
        self.await_answer(if self.setup.cramped { "/healthz" } else { "/readyz" });
    }

    fn await_answer(&mut self, ready: &str) {
        let (client, dir, child) = (self.client(), self.dir.path(), &mut self.child);
        until("the service is ready", LONG, || {
            if let Ok(Some(status)) = child.try_wait() {
                panic!("the daemon ended at once ({status}); it said:\n{}", log(dir));
            }
            match client.try_send("GET", ready, &[], b"") {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(answer.text()),
                Err(error) => Err(format!("{error}; it said:\n{}", log(dir))),
            }
        });
        // After a start nothing is granted before the first reading of the GPU.
        until("the GPU was looked at", LONG, || {
            let cards: Gpus = client.get("/v1/gpus").read();
            let looked = cards.gpus.first().is_some_and(|card| card.unreadable.is_none());
            if looked { Ok(()) } else { Err(Box::new(cards)) }
        });
    }
}

impl Drop for TestService {
    fn drop(&mut self) {
        // It may be dead already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the daemon said:\n{}", self.log());
        }
    }
}

/// A command in an environment without anything of ours.
pub fn bare_command(program: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", home).current_dir(home);
    command
}

/// `sublet serve` as a command that was not started yet.
pub fn serve_command(home: &Path, state: &Path, socket: &Path) -> Command {
    let mut command = bare_command(sublet(), home);
    command.args(serve_arguments(state, socket, &TestGpu::Scripted)).stdin(Stdio::null());
    command
}

fn serve_arguments(state: &Path, socket: &Path, gpu: &TestGpu) -> Vec<String> {
    let path = |path: &Path| path.to_str().expect("test paths are plain").to_owned();
    let mut flags = vec!["serve".into(), "--state-dir".into(), path(state), "--socket".into(), path(socket)];
    match gpu {
        TestGpu::Scripted => flags.extend(["--gpu".into(), "scripted:1x24GiB".into()]),
        TestGpu::Named(gpu) => flags.extend(["--gpu".into(), (*gpu).into()]),
        TestGpu::Unspecified => {}
    }
    flags
}

fn spawn(dir: &Path, setup: &ServiceSetup) -> Child {
    let state = setup.state.clone().unwrap_or_else(|| dir.join("state"));
    let mut command = match setup.through.split_first() {
        None => bare_command(sublet(), dir),
        Some((program, arguments)) => {
            let mut command = bare_command(Path::new(program), dir);
            command.args(arguments).arg(sublet());
            command
        }
    };
    command.args(serve_arguments(&state, &dir.join("s"), &setup.gpu));
    match &setup.config {
        Some(_) => command.arg("--config").arg(dir.join("sublet.toml")),
        // Whatever this host has in /etc is not for tests.
        None => command.args(["--config", "/dev/null"]),
    };
    let log = fs::OpenOptions::new().append(true).create(true).open(dir.join("log")).expect("a log can be opened");
    command.envs(setup.env.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
    command.stdout(log.try_clone().expect("a file can be shared")).stderr(log);
    command.spawn().expect("the daemon can be started")
}

fn log(dir: &Path) -> String {
    let text = fs::read(dir.join("log")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

fn open_to_all(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("an own file's mode can be set");
}
