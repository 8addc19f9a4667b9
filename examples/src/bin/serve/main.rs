//! A stand-in for servers of models: a few of their routes, and real memory of a GPU behind them.
//!
//! Like vLLM, Ollama, ComfyUI or llama.cpp's router it has a model on the GPU, gives the memory back when
//! it is told to by that server's own request, and takes it again. Like them it also misbehaves: with
//! `--fault` it says that it gave all back and did not, gives back half or almost all, or never answers.
//!
//! It keeps the WebSockets that clients open, and says nothing on them.
//!
//! Absent: models. One request is served at a time.

mod http;
mod imitated;
mod model;

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use imitated::ImitatedServer;
use model::Model;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::Write;
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use sublet_examples::cuda::{CudaContext, Device};
use sublet_examples::size::ByteSize;

/// Serves some routes of a server of models, with real memory of a GPU behind them.
#[derive(Parser)]
struct ServeOptions {
    /// The server to imitate.
    #[arg(long, value_enum)]
    like: ImitatedServer,
    /// How much the model takes, such as 8GiB.
    size: ByteSize,
    /// Where to listen; 0: anywhere free, and it is printed.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// What it does wrong when its memory is wanted.
    #[arg(long, value_enum)]
    fault: Option<ServerFault>,
    /// On this GPU.
    #[arg(long, default_value_t = 0)]
    device: u32,
}

/// What can be wrong with a server that is told to give its memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ServerFault {
    /// It says that it did, and keeps all.
    Lies,
    /// It keeps half.
    Half,
    /// It keeps a little.
    Little,
    /// It never answers.
    Hangs,
    /// It does not go when it is told to.
    Stays,
}

/// How often it is looked whether the end has come.
const POLL_PERIOD: Duration = Duration::from_millis(10);

fn run(options: &ServeOptions) -> Result<()> {
    let end = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&end)).context("signals cannot be listened for")?;
    }
    let device = Device::get(options.device)?;
    let context = CudaContext::primary(device)?;
    context.make_current()?;
    let mut model = Model::load(options.size.0)?;
    let listener = TcpListener::bind(("127.0.0.1", options.port)).context("nobody can listen there")?;
    listener.set_nonblocking(true)?;
    println!("serves {} at http://{}", options.size, listener.local_addr()?);
    std::io::stdout().flush()?;
    // A connection that is never answered must stay open.
    let mut unanswered = Vec::new();
    let mut open_sockets = Vec::new();
    while !end.load(SeqCst) || options.fault == Some(ServerFault::Stays) {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(POLL_PERIOD);
            continue;
        };
        let Ok((mut stream, request)) = http::read_request(stream) else { continue };
        if request.is_upgrade {
            // The client may be gone.
            let _ = http::accept_websocket(&mut stream);
            open_sockets.push(stream);
            continue;
        }
        let requested_action = options.like.requested_action(&request);
        if requested_action == imitated::RequestedAction::Unload && options.fault == Some(ServerFault::Hangs) {
            unanswered.push(stream);
            continue;
        }
        let answer = options.like.serve(&request, requested_action, &mut model, options.fault)?;
        // The client may be gone.
        let _ = http::write_answer(&mut stream, &answer);
        drop(stream);
        if let Some(free_delay) = answer.free_delay {
            std::thread::sleep(free_delay);
            model.unload(options.fault, options.like.keeps_in_host_memory())?;
        }
    }
    model.reload()?;
    model.verify()?;
    println!("all {} bytes as written", options.size.0);
    Ok(())
}

fn main() -> ExitCode {
    match run(&ServeOptions::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("serve: {error:#}");
            ExitCode::FAILURE
        }
    }
}
