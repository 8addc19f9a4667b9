//! The client against a socket that answers from a script.

use super::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;

/// Answers one connection after the other; for an empty answer it closes the connection.
fn daemon(answers: Vec<&'static str>) -> (tempfile::TempDir, DaemonClient, thread::JoinHandle<Vec<String>>) {
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
    (dir, DaemonClient::at(&socket), thread)
}

#[test]
fn a_post_is_sent_again_with_its_key_when_the_daemon_restarts() {
    let (_dir, client, thread) = daemon(vec!["", "", "HTTP/1.1 204 x\r\n\r\n"]);
    client.post("/v1/leases/L1/bind", Some(&1), RESTART).unwrap();
    let sent = thread.join().unwrap();
    assert!(sent[0].contains("idempotency-key: "), "{}", sent[0]);
    assert_eq!(sent[0], sent[1]);
    assert_eq!(sent[1], sent[2]);
}

#[test]
fn keys_differ() {
    let (one, two) = (random_key().unwrap(), random_key().unwrap());
    assert_eq!(one.len(), 32);
    assert_ne!(one, two);
}

#[test]
fn a_state_is_spelt_as_in_json() {
    use LeaseState::{Active, Ended, Ending, Parked, Parking, Resuming, Waiting};
    for state in [Waiting, Active, Parking, Parked, Resuming, Ending, Ended] {
        assert_eq!(serde_json::to_value(state).unwrap(), state_text(state));
    }
}
