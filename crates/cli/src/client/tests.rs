//! The client against a socket that answers from a script.

use super::*;
use expect_test::expect;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::thread;

/// Answers one connection after the other; for an empty answer it closes the connection.
fn daemon(answers: Vec<&'static str>) -> (tempfile::TempDir, Client, thread::JoinHandle<Vec<String>>) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let thread = thread::spawn(move || {
        let serve = |answer: &str| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; 4096];
            let n = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&request[..n]).into_owned()
        };
        answers.into_iter().map(serve).collect()
    });
    (dir, Client(DaemonClient::at(&socket)), thread)
}

#[test]
fn a_socket_without_a_daemon_is_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let failure = Client::open(&Globals::at(&socket)).unwrap_err();
    assert_eq!(failure.exit(), exit::NO_DAEMON);
    expect![[r#"
        no daemon answers at DIR/s
        hint: start one with `sublet serve`, or `cargo xtask up` in a checkout"#]]
    .assert_eq(&failure.to_string().replace(&dir.path().display().to_string(), "DIR"));
}

#[test]
fn a_problem_becomes_a_failure_with_its_code() {
    let body = r#"{"type":"about:sublet/denied","status":403,"code":"denied","detail":"only an operator may do this","remedy":"stop"}"#;
    let answer = format!(
        "HTTP/1.1 403 x\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (_dir, client, thread) = daemon(vec![answer.leak()]);
    let failure = client.gpu("GPU-1", "drain").unwrap_err();
    assert_eq!((failure.exit(), failure.code()), (exit::DENIED, Some(Code::Denied)));
    assert_eq!(failure.to_string(), "only an operator may do this");
    thread.join().unwrap();
}

#[test]
fn another_program_on_the_socket_is_not_taken_for_the_daemon() {
    let (dir, client, thread) = daemon(vec!["SSH-2.0-OpenSSH_9.2\r\n"]);
    let failure = client.get::<sublet_wire::Gpus>("/v1/gpus").unwrap_err();
    expect![[r#"
        DIR/s answered something else: the answer is not HTTP (invalid HTTP version)
        hint: is another program listening there, or a daemon of another version?"#]]
    .assert_eq(&failure.to_string().replace(&dir.path().display().to_string(), "DIR"));
    thread.join().unwrap();
}
