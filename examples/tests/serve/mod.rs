//! The stand-in for servers of models: what its routes do to the GPU.
//!
//! These are the requests of docs/recipes; whether the servers themselves take them is said there.

use super::soft::{Child, Soft, succeeded, wait_until};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{ChildStdout, Stdio};
use std::time::Duration;
use sublet_softgpu::state::{CONTEXT_BYTES, IDLE_BYTES};

const SERVE: &str = env!("CARGO_BIN_EXE_sublet-example-serve");
const SIZE: u64 = 96 << 20;

/// A server on the GPU of a folder.
struct Server {
    child: Child,
    out: BufReader<ChildStdout>,
    address: String,
}

impl Server {
    fn start(soft: &Soft, arguments: &[&str]) -> Server {
        let arguments = [&["96MiB", "--like"], arguments].concat();
        let child = soft.program(SERVE, &arguments).stdout(Stdio::piped()).spawn().expect("the program is there");
        let mut child = Child(child);
        let mut out = BufReader::new(child.0.stdout.take().expect("its output"));
        let mut line = String::new();
        out.read_line(&mut line).expect("it says something");
        let address = line.trim().strip_prefix("serves 96 MiB at http://").expect("where it serves").to_owned();
        Server { child, out, address }
    }

    fn connect(&self, request: &str) -> TcpStream {
        let (head, body) = request.split_once(" {").map_or((request, String::new()), |(h, b)| (h, format!("{{{b}")));
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        let text = format!("{head} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(text.as_bytes()).expect("it reads");
        stream
    }

    fn ask(&self, request: &str) -> String {
        let mut answer = String::new();
        self.connect(request).read_to_string(&mut answer).expect("an answer");
        let status = answer.split(' ').nth(1).unwrap_or_default();
        format!("{status} {}", answer.split_once("\r\n\r\n").map_or("", |(_, body)| body))
    }

    /// Tells it to go; it must find its memory as it was.
    fn finish(mut self) {
        let asked = std::process::Command::new("kill").args(["-TERM", &self.child.0.id().to_string()]).output();
        succeeded(&asked.expect("kill is there"));
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).expect("it says something");
        assert_eq!(rest, format!("all {SIZE} bytes as written\n"));
    }
}

fn await_gpu_bytes(soft: &Soft, what: &str, bytes: u64) {
    wait_until(what, || soft.state.used(0) == IDLE_BYTES + CONTEXT_BYTES + bytes);
}

#[test]
fn each_server_gives_its_memory_back_by_its_own_request_and_takes_it_again() {
    let soft = Soft::new("1x1GiB");
    for (like, leave, back, work, left) in [
        ("vllm", "POST /sleep?level=1", "POST /wake_up", "POST /v1/completions {}", ("GET /is_sleeping", "true")),
        (
            "ollama",
            "POST /api/generate {\"model\": \"m\", \"keep_alive\": 0}",
            "POST /api/generate {\"model\": \"m\"}",
            "POST /api/generate {\"model\": \"m\", \"prompt\": \"x\"}",
            ("GET /api/ps", "\"models\":[]"),
        ),
        (
            "comfyui",
            "POST /free {\"unload_models\": true, \"free_memory\": true}",
            "POST /prompt {}",
            "POST /prompt {}",
            ("GET /system_stats", "\"torch_vram_total\":0"),
        ),
        (
            "llama-cpp",
            "POST /models/unload {\"model\": \"m\"}",
            "POST /models/load {\"model\": \"m\"}",
            "POST /v1/completions {\"model\": \"m\"}",
            ("GET /models", "\"unloaded\""),
        ),
    ] {
        let server = Server::start(&soft, &[like]);
        await_gpu_bytes(&soft, "the model is there", SIZE);
        for _ in 0..2 {
            assert!(server.ask(leave).starts_with("200 "), "{like}");
            await_gpu_bytes(&soft, "it gave all back", 0);
            assert!(server.ask(left.0).contains(left.1), "{like}: {}", server.ask(left.0));
            assert!(server.ask(back).starts_with("200 "), "{like}");
            await_gpu_bytes(&soft, "it took it again", SIZE);
        }
        assert!(server.ask(work).starts_with("200 "), "{like}");
        assert_eq!(server.ask("POST /no/such"), "404 {}", "{like}");
        server.finish();
    }
    assert!(soft.is_idle());
}

#[test]
fn a_server_that_lies_keeps_its_memory_and_one_that_half_obeys_half_of_it() {
    let soft = Soft::new("1x1GiB");
    for (fault, keeps) in [("lies", SIZE), ("half", SIZE - (32 << 20))] {
        let server = Server::start(&soft, &["vllm", "--fault", fault]);
        assert!(server.ask("POST /sleep").starts_with("200 "), "{fault}");
        await_gpu_bytes(&soft, "what it keeps is there", keeps);
        server.finish();
    }
}

#[test]
fn a_server_that_hangs_answers_everything_else() {
    let soft = Soft::new("1x1GiB");
    let server = Server::start(&soft, &["vllm", "--fault", "hangs"]);
    let mut never = server.connect("POST /sleep");
    never.set_read_timeout(Some(Duration::from_millis(300))).expect("a socket");
    assert!(never.read(&mut [0; 16]).is_err(), "no answer, and no end of the connection");
    assert_eq!(server.ask("GET /is_sleeping"), "200 {\"is_sleeping\":false}");
    await_gpu_bytes(&soft, "the model is there", SIZE);
    server.finish();
}
