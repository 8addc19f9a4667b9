//! Hooks against real sockets and real processes, well-behaved and not.

use super::*;
use rustix::process::{Pid, WaitOptions, test_kill_process, waitpid};
use std::fs;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;

/// Long enough for everything that is expected to succeed.
const LONG: Duration = Duration::from_secs(20);
/// The limit for what is expected to fail.
const SHORT: Duration = Duration::from_millis(300);

fn hook(text: &str) -> Hook {
    text.parse().unwrap()
}

fn wrong(text: &str) -> String {
    let error = text.parse::<Hook>().unwrap_err();
    error.split_once("\nhint: write `POST").unwrap_or_else(|| panic!("{error} has no hint")).0.to_owned()
}

/// Serves one connection: reads what was sent so far, then calls `answer` with it.
fn server(answer: impl FnOnce(TcpStream) + Send + 'static) -> (u16, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = vec![0; 4096];
        let n = stream.read(&mut request).unwrap();
        answer(stream);
        String::from_utf8_lossy(&request[..n]).into_owned()
    });
    (port, thread)
}

fn answers(text: &'static str) -> (u16, JoinHandle<String>) {
    server(move |mut stream| stream.write_all(text.as_bytes()).unwrap())
}

fn post(port: u16) -> Result<(), String> {
    hook(&format!("POST http://127.0.0.1:{port}/sleep")).run(&[], LONG)
}

#[test]
fn the_three_kinds_are_told_apart() {
    let kind = |text: &str| hook(text).kind;
    let http = |method, authority: &str, target: &str, body: Option<&str>| HookAction::Http {
        method,
        authority: authority.into(),
        target: target.into(),
        body: body.map(str::to_owned),
    };
    assert_eq!(
        kind("POST http://localhost:8000/sleep?level=1"),
        http("POST", "localhost:8000", "/sleep?level=1", None)
    );
    assert_eq!(kind(" GET  http://[::1] "), http("GET", "[::1]:80", "/", None));
    assert_eq!(kind("PUT http://h?x"), http("PUT", "h:80", "/?x", None));
    let body = r#"{"model": "a b", "keep_alive": 0}"#;
    assert_eq!(kind(&format!("POST http://h:1/a {body}")), http("POST", "h:1", "/a", Some(body)));
    let socket = HookAction::Socket { path: "/run/a.sock".into(), message: "go to sleep".into() };
    assert_eq!(kind("unix:/run/a.sock go to sleep"), socket);
    for line in ["ollama stop m", "curl -fsS https://h/x", "./free.sh", "post http://h/"] {
        assert_eq!(kind(line), HookAction::Command, "{line}");
    }
    assert_eq!(hook("POST http://h:1/a {}").to_string(), "POST http://h:1/a {}");
}

#[test]
fn what_is_wrong_with_a_hook_is_said_at_the_start() {
    assert_eq!(wrong(""), "the hook is empty");
    assert_eq!(wrong("  "), "the hook is empty");
    assert_eq!(wrong("POST"), "`` is not an address such as http://localhost:8000/sleep");
    assert_eq!(
        wrong("POST localhost:8000/sleep"),
        "`localhost:8000/sleep` is not an address such as http://localhost:8000/sleep"
    );
    for url in [
        "http://",
        "http:///x",
        "http://:80/",
        "http://h:0/",
        "http://h:99999/",
        "http://h:x/",
        "http://a@h/",
        "http://h/\u{7}",
        "http://hé/",
    ] {
        assert!(wrong(&format!("POST {url}")).contains("is not an address"), "{url}");
    }
    assert!(wrong("POST https://h/x").contains("speaks no TLS"));
    assert!(wrong("http://h/x").contains("begins with GET, POST or PUT"));
    assert!(wrong("POST http://h/x {model: m}").contains("is not JSON"));
    assert_eq!(wrong("unix:a.sock x"), "`a.sock` is not the whole path of a socket");
    assert_eq!(wrong("unix:/a.sock"), "the hook has no message after the path of the socket");
    assert_eq!(wrong("unix:/a.sock a\nb"), "the message to a socket must be one line");
}

#[test]
fn a_request_is_sent_and_its_status_decides() {
    let (port, thread) = answers("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
    let text = format!("PUT http://127.0.0.1:{port}/free?x=1 {{\"unload_models\":true}}");
    assert_eq!(hook(&text).run(&[], LONG), Ok(()));
    let sent = thread.join().unwrap();
    assert!(sent.starts_with(&format!("PUT /free?x=1 HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n")), "{sent}");
    assert!(sent.ends_with("\r\n\r\n{\"unload_models\":true}"), "{sent}");
    assert!(!sent.contains("authorization"), "nobody else's server gets a token: {sent}");
    let (port, _thread) = answers("HTTP/1.1 204 x\r\n\r\n");
    assert_eq!(post(port), Ok(()));
    for (answer, said) in [
        ("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "POST /sleep was answered 404"),
        ("HTTP/1.1 500 x\r\ncontent-length: 4\r\n\r\noops", "POST /sleep was answered 500"),
        ("HTTP/1.1 302 x\r\nlocation: /y\r\ncontent-length: 0\r\n\r\n", "POST /sleep was answered 302"),
    ] {
        let (port, _thread) = answers(answer);
        assert_eq!(post(port).unwrap_err(), said);
    }
}

#[test]
fn a_request_that_nobody_answers_as_it_should_is_a_sentence() {
    let (port, _thread) = answers("SSH-2.0-OpenSSH_9.2\r\n");
    assert!(post(port).unwrap_err().contains("the answer is not HTTP"));
    let (port, _thread) = answers("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhel");
    assert!(post(port).unwrap_err().contains("closed in the middle"));
    // Nothing listens on a port that was just closed.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let said = post(port).unwrap_err();
    assert!(said.contains("refused") && said.contains(&format!("127.0.0.1:{port}")), "{said}");
}

#[test]
fn however_long_an_answer_is_it_is_read_and_not_kept() {
    let (port, thread) = server(|mut stream| {
        let piece = vec![b'x'; 1 << 20];
        let length = 300 << 20;
        stream.write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n").as_bytes()).unwrap();
        for _ in 0..length >> 20 {
            stream.write_all(&piece).unwrap();
        }
    });
    assert_eq!(post(port), Ok(()), "more than this program would keep of any answer");
    thread.join().unwrap();
}

#[test]
fn a_server_that_never_answers_or_drips_keeps_nobody_waiting() {
    type Answer = Box<dyn FnOnce(TcpStream) + Send>;
    let hangs: Answer = Box::new(|stream| {
        thread::sleep(Duration::from_secs(2));
        drop(stream);
    });
    let drips: Answer = Box::new(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(b"x").is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    for answer in [hangs, drips] {
        let (port, thread) = server(answer);
        let began = Instant::now();
        let said = hook(&format!("POST http://127.0.0.1:{port}/x")).run(&[], SHORT).unwrap_err();
        assert!(said.contains("not over within") || said.contains("no answer in time"), "{said}");
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        thread.join().unwrap();
    }
}

/// Sends this to each client that connects, and records what was received.
fn listens(answer: &'static [u8], stays: Duration) -> (tempfile::TempDir, String, JoinHandle<String>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut said = vec![0; 4096];
        let n = stream.read(&mut said).unwrap();
        // The client may have hung up already.
        let _ = stream.write_all(answer);
        thread::sleep(stays);
        String::from_utf8_lossy(&said[..n]).into_owned()
    });
    (dir, format!("unix:{} sleep now", path.display()), thread)
}

#[test]
fn a_socket_is_told_one_line_and_says_ok_or_nothing() {
    for answer in ["ok\n", "ok, asleep\nand more", "", "\n", "ok"] {
        let (_dir, text, thread) = listens(answer.as_bytes(), Duration::ZERO);
        assert_eq!(hook(&text).run(&[], LONG), Ok(()), "{answer:?}");
        assert_eq!(thread.join().unwrap(), "sleep now\n");
    }
    let (_dir, text, _thread) = listens(b"busy: \x1b[31mtry later\n", Duration::ZERO);
    assert_eq!(hook(&text).run(&[], LONG).unwrap_err(), "it answered `busy:  [31mtry later`");
}

#[test]
fn a_socket_that_is_not_there_hangs_or_raves_is_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let said = hook(&format!("unix:{}/s x", dir.path().display())).run(&[], LONG).unwrap_err();
    assert!(said.contains("No such file"), "{said}");
    let (_dir, text, _thread) = listens(b"no end of it", Duration::from_secs(2));
    let said = hook(&text).run(&[], SHORT).unwrap_err();
    assert!(said.contains("in time") || said.contains("not over within"), "{said}");
    let raving: &'static [u8] = vec![b'z'; 1 << 20].leak();
    let (_dir, text, _thread) = listens(raving, Duration::ZERO);
    assert_eq!(hook(&text).run(&[], LONG).unwrap_err(), format!("it answered `{}`", "z".repeat(SHOWN_MAX)));
}

#[test]
fn a_command_runs_with_its_variables_and_its_exit_code_decides() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("said");
    let text = format!("echo $SUBLET_LEASE $SUBLET_HOOK > {}", file.display());
    let variables = [("SUBLET_LEASE", "L7".to_owned()), ("SUBLET_HOOK", HookMoment::Park.to_string())];
    assert_eq!(hook(&text).run(&variables, LONG), Ok(()));
    assert_eq!(fs::read_to_string(file).unwrap(), "L7 park\n");
    assert_eq!(hook("exit 3").run(&[], LONG).unwrap_err(), "its exit code was 3");
    assert_eq!(hook("no-such-command-anywhere 2>/dev/null").run(&[], LONG).unwrap_err(), "its exit code was 127");
    assert_eq!(hook("kill -9 $$").run(&[], LONG).unwrap_err(), "signal 9 ended it");
    assert_eq!(
        hook("head -c 4000000 /dev/zero >/dev/null; read x || exit 0").run(&[], LONG),
        Ok(()),
        "it has no input"
    );
}

/// The process with the number in a file, once the file has one.
fn pid_in(file: &std::path::Path) -> Pid {
    let began = Instant::now();
    loop {
        let text = fs::read_to_string(file).unwrap_or_default();
        if let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw).filter(|_| text.ends_with('\n')) {
            return pid;
        }
        assert!(began.elapsed() < LONG, "no process was named");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_command_that_takes_too_long_is_killed_with_all_it_started() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let text = format!("sleep 60 & echo $! > {}; wait", file.display());
    let began = Instant::now();
    assert_eq!(hook(&text).run(&[], Duration::from_secs(1)).unwrap_err(), "it was not over within 1 s");
    assert!(began.elapsed() < Duration::from_secs(10));
    let sleeper = pid_in(&file);
    let began = Instant::now();
    let is_alive = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", sleeper.as_raw_pid())).unwrap_or_default();
        test_kill_process(sleeper).is_ok() && !stat.contains(") Z ")
    };
    while is_alive() {
        assert!(began.elapsed() < LONG, "it lives on");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_command_whose_end_the_wrapper_saw_first_is_known_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let text = format!("echo $$ > {}; sleep 0.2; exit 4", file.display());
    let reaper = thread::spawn(move || {
        let pid = pid_in(&file);
        // The wrapper does the same: it reaps every child. Either may be first.
        if let Ok(Some((pid, status))) = waitpid(Some(pid), WaitOptions::empty()) {
            thread::sleep(Duration::from_millis(50));
            adopt(pid, status);
        }
    });
    assert_eq!(hook(&text).run(&[], LONG).unwrap_err(), "its exit code was 4");
    reaper.join().unwrap();
}
