//! What the black-box tests share: the real binary as a service in a directory
//! of its own, a client that can also misbehave, and images of a cut disk.
//!
//! The tests know `sublet` only from outside: its flags, its socket, its exit
//! codes and the types of `sublet-wire`. No other crate of the workspace is
//! linked in, and nothing here reads the service's files except to cut them.

pub mod binary;
pub mod change_log;
pub mod console;
pub mod disk_image;
pub mod http;
pub mod process;
pub mod programs;
pub mod proxy;
pub mod pty;
pub mod screen;
pub mod service;
pub mod token;
pub mod tracer;
pub mod unleased;
pub mod user;
pub mod wait;

pub use http::{Connection, HttpReply, TestClient};
pub use process::TestProcess;
pub use pty::ProgramTerminal;
pub use service::{ServiceSetup, TestGpu, TestService};
pub use wait::{LONG, until};

/// 2³⁰.
pub const GIB: u64 = 1 << 30;
/// 2²⁰.
pub const MIB: u64 = 1 << 20;

/// A body of `POST /v1/leases` with these fields beside the size.
pub fn ask(vram_bytes: u64, more: serde_json::Value) -> serde_json::Value {
    let mut ask = serde_json::json!({ "vram_bytes": vram_bytes });
    if let (Some(fields), Some(more)) = (ask.as_object_mut(), more.as_object()) {
        fields.extend(more.clone());
    }
    ask
}
