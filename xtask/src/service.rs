//! `cargo xtask up` and `down`: a service of one's own, and throwaway ones for tests.
//!
//! Nothing here needs root. What `up` started is remembered in `.sublet/`, and
//! `down` signals that very process or none.

use crate::setup;
use crate::shell::program;
use crate::workspace::{Profile, build_sublet, root};
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A slow machine under load starts the service in well under this.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// How long a stopping service may take to put everything away.
const STOP_WITHIN: Duration = Duration::from_secs(30);
/// A socket's path may have 107 bytes; the difference is a margin.
const SOCKET_PATH_MAX: usize = 100;

/// Builds, starts and says how to use it.
pub fn up() -> Result<()> {
    if let Some(running) = ServiceRecord::read().filter(ServiceRecord::alive) {
        println!("already up: process {}", running.pid);
        return running.print_lines();
    }
    setup::c_compiler()?;
    let sublet = build_sublet(Profile::Release)?;
    let home = root().join(".sublet");
    let socket = socket_path()?;
    let state = home.join("journal");
    private_dir(&state)?;
    let log = home.join("log");
    // The service itself chooses the GPUs: real ones, or soft ones where there are none.
    let mut child = serve(&sublet, &state, &socket, None, &log, None)?;
    wait_ready(&mut child, &socket, &log)?;
    let gpu = gpu_kind(&socket)?;
    let record = ServiceRecord { pid: child.id(), start: start_time(child.id())?, exe: sublet, socket, gpu };
    record.write()?;
    println!("up: process {}, log in {}", record.pid, log.display());
    record.print_lines()
}

/// Stops what `up` started.
pub fn down() -> Result<()> {
    let Some(record) = ServiceRecord::read() else {
        println!("nothing to stop: no service was started from here");
        return Ok(());
    };
    match stop_process(&record) {
        Ok(true) => println!("stopped process {}", record.pid),
        Ok(false) => println!("nothing to stop: process {} is gone", record.pid),
        Err(error) => return Err(error),
    }
    fs::remove_file(ServiceRecord::path()).context("the record of the stopped service could not be removed")
}

/// What `up` started, as `.sublet/service.json` keeps it.
struct ServiceRecord {
    pid: u32,
    /// A pid is reused; a pid with its start time is not.
    start: u64,
    exe: PathBuf,
    socket: PathBuf,
    gpu: String,
}

impl ServiceRecord {
    fn path() -> PathBuf {
        root().join(".sublet/service.json")
    }
    fn read() -> Option<ServiceRecord> {
        let record: Value = serde_json::from_str(&fs::read_to_string(ServiceRecord::path()).ok()?).ok()?;
        Some(ServiceRecord {
            pid: u32::try_from(record["pid"].as_u64()?).ok()?,
            start: record["start"].as_u64()?,
            exe: PathBuf::from(record["exe"].as_str()?),
            socket: PathBuf::from(record["socket"].as_str()?),
            gpu: record["gpu"].as_str()?.to_owned(),
        })
    }
    fn write(&self) -> Result<()> {
        let record = json!({
            "pid": self.pid, "start": self.start, "exe": self.exe, "socket": self.socket, "gpu": self.gpu,
        });
        fs::write(ServiceRecord::path(), format!("{record:#}\n"))
            .context("the record of the service could not be written")
    }
    /// The process is there and is the one that was started.
    fn alive(&self) -> bool {
        if start_time(self.pid).ok() != Some(self.start) {
            return false;
        }
        // A rebuild replaces the file under a running process.
        let Ok(exe) = fs::read_link(format!("/proc/{}/exe", self.pid)) else { return false };
        exe.to_string_lossy().trim_end_matches(" (deleted)") == self.exe.to_string_lossy()
    }
    fn print_lines(&self) -> Result<()> {
        match self.gpu.as_str() {
            "real" => println!("GPUs: real (NVIDIA, read through NVML)"),
            kind => {
                println!("GPUs: {kind}; there is no NVIDIA device here");
                println!("programs of CUDA's driver API run on them, PyTorch and the like do not");
            }
        }
        println!("observe: no process is signalled unless its job opted in");
        let bin = self.exe.parent().context("the binary is in no directory")?;
        println!("\nto use it, copy these two lines:");
        println!("  export PATH={}:$PATH", shell_quoted(bin));
        println!("  export SUBLET_SOCKET={}", shell_quoted(&self.socket));
        println!("\nand try:");
        println!("  sublet\n  sublet run --vram 4G -- {} &\n  sublet doctor", example_command());
        println!("\nto stop it:\n  cargo xtask down");
        Ok(())
    }
}

/// A command that uses a GPU, if possible: the example needs only Python.
fn example_command() -> String {
    let example = root().join("examples/hold.py");
    match program("python3").args(["--version"]).succeeds() {
        true => format!("python3 {} 2G 20", shell_quoted(&example)),
        false => "sleep 20".to_owned(),
    }
}

/// A service in a directory of its own that is gone when this is dropped.
pub struct ThrowawayService {
    child: Child,
    dir: PathBuf,
    socket: PathBuf,
}

impl ThrowawayService {
    /// Starts a service with a scripted GPU.
    pub fn start(sublet: &Path) -> Result<ThrowawayService> {
        let dir = std::env::temp_dir().join(format!("sublet-xtask-{}", std::process::id()));
        private_dir(&dir.join("state"))?;
        let socket = dir.join("socket");
        let log = dir.join("log");
        // A test that tries every value of `wait` shall not wait that long.
        let config = dir.join("sublet.toml");
        fs::write(&config, "poll_max = \"1s\"\n")?;
        let child = serve(sublet, &dir.join("state"), &socket, Some("scripted:1x24GiB"), &log, Some(&config))?;
        let mut service = ThrowawayService { child, dir, socket };
        wait_ready(&mut service.child, &service.socket, &log)?;
        Ok(service)
    }
    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
    /// The body of a 200 answer.
    pub fn get(&self, path: &str) -> Result<String> {
        match get(&self.socket, path)? {
            (200, body) => Ok(body),
            (status, body) => bail!("GET {path} was answered {status}: {body}"),
        }
    }
    /// Fails if it died meanwhile.
    pub fn stop(mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the service ended by itself ({status}); its last words:\n{}", log_tail(&self.dir.join("log")));
        }
        Ok(())
    }
}

impl Drop for ThrowawayService {
    fn drop(&mut self) {
        // A process that is already gone counts as stopped, and a leftover directory does no harm.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// `real` or `soft`.
fn gpu_kind(socket: &Path) -> Result<String> {
    let (_, body) = get(socket, "/v1/gpus")?;
    let cards: Value = serde_json::from_str(&body).context("the list of GPUs is not JSON")?;
    cards["kind"].as_str().map(str::to_owned).context("the service does not say which GPUs it has")
}

fn socket_path() -> Result<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let dir = runtime.unwrap_or_else(|| PathBuf::from(format!("/tmp/sublet-{uid}"))).join("sublet");
    private_dir(&dir)?;
    // Any user can make this directory in /tmp first; it is then not used.
    let owner = fs::metadata(&dir)?.uid();
    if owner != uid {
        bail!(
            "{} belongs to user {owner}, not to you\nhint: set XDG_RUNTIME_DIR to a directory of yours",
            dir.display()
        );
    }
    let socket = dir.join("sublet.sock");
    if socket.as_os_str().len() > SOCKET_PATH_MAX {
        bail!("{} is too long for a socket\nhint: set XDG_RUNTIME_DIR to a shorter path", socket.display());
    }
    Ok(socket)
}

fn private_dir(dir: &Path) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .with_context(|| format!("{} could not be made", dir.display()))
}

fn serve(
    sublet: &Path,
    state: &Path,
    socket: &Path,
    gpu: Option<&str>,
    log: &Path,
    config: Option<&Path>,
) -> Result<Child> {
    let log = fs::File::create(log).with_context(|| format!("{} could not be written", log.display()))?;
    // `setsid` keeps the process id: closing the terminal must not end the service.
    Command::new("setsid")
        .arg(sublet)
        .arg("serve")
        .args([Path::new("--state-dir"), state, Path::new("--socket"), socket])
        .args(gpu.into_iter().flat_map(|gpu| ["--gpu", gpu]))
        .args(config.into_iter().flat_map(|config| [Path::new("--config"), config]))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("the service could not be started\nhint: `setsid` is in Debian's util-linux")
}

fn wait_ready(child: &mut Child, socket: &Path, log: &Path) -> Result<()> {
    let deadline = Instant::now() + READY_WITHIN;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            bail!("the service ended at once ({status}); its last words:\n{}", log_tail(log));
        }
        if get(socket, "/readyz").is_ok_and(|(status, _)| status == 200) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(50));
    }
    // This call started the process, so it stops it.
    let _ = child.kill();
    let _ = child.wait();
    bail!("the service was not ready within {READY_WITHIN:?}; its last words:\n{}", log_tail(log));
}

/// One request, one answer, over a connection of its own.
fn get(socket: &Path, path: &str) -> Result<(u16, String)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: sublet\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is not HTTP")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("the answer has no status")?;
    Ok((status, body.to_owned()))
}

/// Stops the process; returns false if it does not run.
fn stop_process(record: &ServiceRecord) -> Result<bool> {
    let Some(pid) = i32::try_from(record.pid).ok().and_then(Pid::from_raw) else { return Ok(false) };
    // The pidfd is opened before the identity is checked, so the signal cannot reach another process.
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(false) };
    if !record.alive() {
        return Ok(false);
    }
    pidfd_send_signal(&pidfd, Signal::TERM)
        .with_context(|| format!("process {} could not be signalled", record.pid))?;
    let deadline = Instant::now() + STOP_WITHIN;
    while record.alive() {
        if Instant::now() > deadline {
            bail!("process {} did not stop within {STOP_WITHIN:?}\nhint: look at .sublet/log", record.pid);
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(true)
}

/// Clock ticks after boot at which a process started (`/proc/PID/stat`, field 22).
fn start_time(pid: u32) -> Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid} is gone"))?;
    parse_start_time(&stat).with_context(|| format!("/proc/{pid}/stat could not be read"))
}

/// The program's name may contain spaces and parentheses: count from its end.
fn parse_start_time(stat: &str) -> Option<u64> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    after_name.split_whitespace().nth(19)?.parse().ok()
}

fn log_tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// As a shell reads it back.
fn shell_quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@".contains(c);
    if text.chars().all(plain) { text.into_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_time_is_read_whatever_the_program_is_called() {
        let fields: Vec<String> = (3..=52).map(|n| n.to_string()).collect();
        let stat = format!("7 (a) b (c) {}", fields.join(" "));
        assert_eq!(parse_start_time(&stat), Some(22));
        assert_eq!(parse_start_time("7 (cut"), None);
        assert!(start_time(std::process::id()).is_ok());
    }

    #[test]
    fn a_process_that_is_not_ours_is_never_taken_for_the_service() {
        let pid = std::process::id();
        let start = start_time(pid).unwrap();
        let exe = std::env::current_exe().unwrap();
        let record = |pid, start, exe: &Path| ServiceRecord {
            pid,
            start,
            exe: exe.to_path_buf(),
            socket: PathBuf::new(),
            gpu: "real".into(),
        };
        assert!(record(pid, start, &exe).alive());
        assert!(!record(pid, start + 1, &exe).alive(), "the pid was used again");
        assert!(!record(pid, start, Path::new("/usr/bin/sublet")).alive(), "another program");
        assert!(!stop_process(&record(pid, start, Path::new("/usr/bin/sublet"))).unwrap());
    }

    #[test]
    fn paths_can_be_copied_into_a_shell() {
        assert_eq!(shell_quoted(Path::new("/tmp/a-b.c")), "/tmp/a-b.c");
        assert_eq!(shell_quoted(Path::new("/tmp/it's here")), r"'/tmp/it'\''s here'");
    }
}
