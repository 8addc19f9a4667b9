//! `sublet proxy` before a stand-in for a model server, with real memory of soft GPUs.

use crate::binary::example;
use crate::http::JSON;
use crate::programs::{WrappedProgram, await_bytes, text};
use crate::service::port;
use crate::{HttpReply, LONG, MIB, ServiceSetup, TestClient, TestGpu, TestService, until};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use sublet_wire::{Lease, LeaseState};

/// MiB of the stand-in's model.
pub const MODEL: u64 = 768;
/// Bytes of a CUDA context on a soft GPU.
pub const CONTEXT: u64 = 128 * MIB;

/// No lease is preempted unless a test parks it.
const CONFIG: &str = r#"
ttl = "5m"
grace = "1s"
[preemption]
enabled = false
[parking]
ram = "4G"
keep_free = "256M"
ready = "off"
"#;

/// A daemon with one soft GPU of 4 GiB.
pub fn serve() -> TestService {
    let gpu = TestGpu::Named("soft:1x4GiB");
    TestService::start_with(ServiceSetup { gpu, config: Some(CONFIG.to_owned()), ..ServiceSetup::default() })
}

/// A server on L1 that its hook parks and that loads by itself for the next request; without Sublet's library,
/// so that only the proxy holds requests back.
pub fn server(service: &TestService) -> (WrappedProgram, u16) {
    let port = port();
    let hook = |more: &str| format!("POST http://127.0.0.1:{port}/api/generate {{\"model\": \"m\"{more}}}");
    let (on_park, on_resume) = (hook(", \"keep_alive\": 0"), hook(""));
    let (program, number, size) = (example("serve"), port.to_string(), format!("{MODEL}MiB"));
    let flags = ["--vram", "3G", "--name", "llm", "--no-shim", "--on-park", &on_park, "--on-resume", &on_resume];
    let words = ["--", &program, &size, "--like", "ollama", "--port", &number];
    let mut job = WrappedProgram::start(service, &[&flags[..], &words].concat());
    let line = job.line();
    assert!(line.starts_with("serves "), "{line:?}; {}", job.output_text());
    await_bytes(&service.client(), "L1", MODEL);
    (job, port)
}

/// `sublet proxy`, killed when this is dropped.
pub struct ProxyProcess {
    /// The proxy's process.
    pub child: Child,
    address: SocketAddr,
    said: PathBuf,
}

impl ProxyProcess {
    /// Starts it before the service at port `to`.
    pub fn open(service: &TestService, to: u16, words: &[&str]) -> ProxyProcess {
        let said = service.dir().join(format!("proxy-{to}-{}", words.concat().replace([':', '/', ' '], "-")));
        let to = format!("127.0.0.1:{to}");
        let flags = ["proxy", "--listen", "127.0.0.1:0", "--to", &to];
        let mut command = service.command(&[&flags[..], words].concat());
        command.stdout(Stdio::piped()).stderr(fs::File::create(&said).expect("a file"));
        let mut child = command.spawn().expect("a program");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let address = line.split(' ').next().and_then(|address| address.parse().ok());
        let address = address.unwrap_or_else(|| panic!("{line:?}; {}", fs::read_to_string(&said).unwrap_or_default()));
        ProxyProcess { child, address, said }
    }

    /// Its stderr so far.
    pub fn output_text(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// A client of the proxy.
    pub fn client(&self) -> TestClient {
        TestClient::over_tcp(self.address, None)
    }

    /// Sends work for the model.
    pub fn prompt(&self) -> HttpReply {
        prompt(&self.client())
    }

    /// The same, while the test goes on.
    pub fn prompt_in_background(&self) -> Receiver<HttpReply> {
        let (client, (sender, receiver)) = (self.client(), channel());
        thread::spawn(move || sender.send(prompt(&client)));
        receiver
    }
}

impl Drop for ProxyProcess {
    fn drop(&mut self) {
        // It may have ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("the proxy said:\n{}", self.output_text());
        }
    }
}

/// The body of a request that needs the GPU.
pub const PROMPT: &[u8] = br#"{"model": "m", "prompt": "6 times 7"}"#;

/// Sends work for the model.
pub fn prompt(client: &TestClient) -> HttpReply {
    client.send("POST", "/api/generate", &[JSON], PROMPT)
}

/// Asserts that the model answered.
pub fn assert_answered(answer: &HttpReply) {
    assert_eq!((answer.status, answer.text().as_str()), (200, "{\"response\":\"42\"}"));
}

/// The code and `Retry-After` of a refusal by the proxy. The header and the body agree.
pub fn proxy_refusal(answer: &HttpReply) -> (String, Option<u64>) {
    assert_eq!((answer.status, answer.header("content-type")), (503, Some("application/problem+json")), "{answer:?}");
    let body: serde_json::Value = answer.read();
    let retry = body["retry_after_s"].as_u64();
    assert_eq!(answer.header("retry-after").map(str::to_owned), retry.map(|s| s.to_string()), "{body}");
    assert_eq!(body["status"], 503);
    assert!(body["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{body}");
    (body["code"].as_str().unwrap_or_default().to_owned(), retry)
}

/// Parks a lease by hand and waits until its bytes left the GPU.
pub fn park(service: &TestService, id: &str) -> Lease {
    let words = until("it is parked", LONG, || {
        let output = service.cli(&["park", id]);
        if output.status.success() { Ok(text(&output)) } else { Err(text(&output)) }
    });
    let lease = service.client().lease(id);
    assert_eq!(lease.state, LeaseState::Parked, "{words}");
    // A server that answers its hook first may still free memory when the lease counts as parked.
    service.client().await_lease("all of it left", id, |lease| lease.seen_bytes <= Some(CONTEXT))
}

/// A second job, L2, that fills the GPU, so that a parked lease cannot come back.
pub fn job_that_fills_the_gpu(service: &TestService, more: &[&str]) -> WrappedProgram {
    let hold = example("hold");
    let mut job =
        WrappedProgram::start(service, &[&["--vram", "3G"], more, &["--", &hold, "256MiB", "--idle"]].concat());
    assert!(job.line().starts_with("holds "), "{}", job.output_text());
    await_bytes(&service.client(), "L2", 256);
    job
}
