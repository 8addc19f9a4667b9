//! The command and the webhook of `[notices]`: each gets every notice as JSON, from threads of its own.
//!
//! Both are the operator's: they come from the configuration alone, and no text of a user becomes an argument. Two
//! threads run them, one notice after the other, each within 10 s; 64 notices may wait, and more are lost with a line
//! in the log.

use super::UserNotice;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, Uri, header};
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

/// How long a command or a webhook may take.
const WITHIN: Duration = Duration::from_secs(10);
/// Notices that are handed on at a time.
const THREADS: usize = 2;
/// Notices that may wait for a thread.
const QUEUE_MAX: usize = 64;
/// How often a running command is checked.
const LOOK: Duration = Duration::from_millis(20);

/// What the configuration names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// A program by its whole path, and its arguments.
    pub command: Option<Vec<String>>,
    /// An address that takes a POST.
    pub webhook: Option<Uri>,
}

/// The queue before the threads.
pub struct HookQueue(SyncSender<(Hooks, String)>);

impl HookQueue {
    /// Starts the threads.
    pub fn start(runtime: &Handle) -> io::Result<HookQueue> {
        let (to, from) = sync_channel(QUEUE_MAX);
        let from = Arc::new(Mutex::new(from));
        for _ in 0..THREADS {
            let (from, runtime) = (Arc::clone(&from), runtime.clone());
            thread::Builder::new().name("sublet-hooks".to_owned()).spawn(move || work(&from, &runtime))?;
        }
        Ok(HookQueue(to))
    }

    /// Has a notice handed to these hooks; never waits.
    pub fn run(&self, hooks: &Hooks, notice: &UserNotice) {
        if *hooks == Hooks::default() {
            return;
        }
        let Ok(body) = serde_json::to_string(notice) else { return };
        if let Err(TrySendError::Full(_)) = self.0.try_send((hooks.clone(), body)) {
            tracing::warn!("a notice for `[notices]` was dropped: {QUEUE_MAX} others are waiting");
        }
    }
}

fn work(from: &Mutex<Receiver<(Hooks, String)>>, runtime: &Handle) {
    loop {
        let next = from.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((hooks, body)) = next else { return };
        if let Some(command) = &hooks.command
            && let Err(why) = run_command(command, &body)
        {
            tracing::warn!("`[notices] command` failed: {why}");
        }
        if let Some(webhook) = &hooks.webhook {
            let sent = runtime.block_on(async { tokio::time::timeout(WITHIN, post(webhook, body)).await });
            match sent.unwrap_or_else(|_| Err("it was not over within 10 s".to_owned())) {
                Ok(()) => {}
                Err(why) => tracing::warn!("`[notices] webhook` failed: {why}"),
            }
        }
    }
}

/// Runs the command with the notice as its input. It is killed, with all that it started, when its time is up.
fn run_command(command: &[String], body: &str) -> Result<(), String> {
    let Some((program, arguments)) = command.split_first() else { return Ok(()) };
    let spawned = Command::new(program)
        .args(arguments)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .process_group(0)
        .spawn();
    let mut child = spawned.map_err(|error| format!("`{program}` cannot be started: {error}"))?;
    if let Some(mut input) = child.stdin.take() {
        // A notice is smaller than a pipe, so this does not wait. A command that reads nothing is no failure.
        let _ = input.write_all(body.as_bytes());
    }
    match ended(&mut child).map_err(|error| error.to_string())? {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(format!("`{program}` ended with {status}")),
        None => Err(format!("`{program}` was not over within 10 s and was killed")),
    }
}

/// How a command ended; `None` if it was killed because its time was up.
fn ended(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + WITHIN;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(LOOK);
    }
    // It may end at this moment: then there is no group any more.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    child.wait()?;
    Ok(None)
}

async fn post(webhook: &Uri, body: String) -> Result<(), String> {
    let said = |error: &dyn std::fmt::Display| format!("{webhook}: {error}");
    let authority = webhook.authority().ok_or_else(|| said(&"it names no host"))?;
    let stream = TcpStream::connect((bare_host(authority.host()), authority.port_u16().unwrap_or(80)));
    let stream = stream.await.map_err(|error| said(&error))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| said(&error))?;
    let connection = tokio::spawn(connection);
    let target = webhook.path_and_query().map_or("/", |target| target.as_str());
    let request = Request::post(target)
        .header(header::HOST, authority.as_str())
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| said(&error))?;
    let answer = sender.send_request(request).await.map_err(|error| said(&error));
    connection.abort();
    match answer?.status() {
        status if status.is_success() => Ok(()),
        status => Err(said(&format_args!("it was answered {status}"))),
    }
}

/// `[::1]` without its brackets.
fn bare_host(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &[&str]) -> Vec<String> {
        command.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_command_gets_the_notice_as_its_input() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("got");
        let script = format!("cat > {}", file.display());
        assert_eq!(run_command(&words(&["/bin/sh", "-c", &script]), "{\"event\":\"parked\"}"), Ok(()));
        assert_eq!(std::fs::read_to_string(file).unwrap(), "{\"event\":\"parked\"}");
    }

    #[test]
    fn a_command_that_fails_or_is_not_there_is_reported() {
        let failed = run_command(&words(&["/bin/sh", "-c", "exit 3"]), "{}").unwrap_err();
        assert!(failed.contains("exit status: 3"), "{failed}");
        let missing = run_command(&words(&["/no/such/program"]), "{}").unwrap_err();
        assert!(missing.contains("cannot be started"), "{missing}");
        assert_eq!(run_command(&words(&["/bin/true"]), "{}"), Ok(()), "it need not read its input");
    }
}
