//! The loop that owns the state, and its HTTP API.
//!
//! [`serve`] starts all parts: the journal's rows become the state of [`engine`]; the readings of `host` and the
//! requests of [`http`] become input of the [`looper`]; the [`writer`] makes its batches durable, and only then
//! anything leaves. What is absent: decisions (core's), NVML (the worker's), files other than the journal, the socket,
//! the soft GPUs beside it and the configuration.

mod access;
mod aside;
mod calendar;
mod config;
mod credentials;
mod effects;
pub mod engine;
mod estimate_cache;
mod fair_limiter;
mod gpu_lock;
mod gpu_selection;
mod history;
mod http;
mod idempotency;
mod inbox;
mod lease_proofs;
mod loop_thread;
mod looper;
mod loss;
mod messages;
mod notices;
mod peer;
mod refusals;
mod registers;
mod reload;
mod serve;
mod signals;
mod tokens;
mod unleased;
mod user_directory;
mod view;
mod wait_reason;
mod watermarks;
mod writer;

pub use config::{CheckedConfig, ConfigError, Finding, TcpConfig, check as check_config};
pub use http::document as openapi;
pub use loss::{REMEDY as LOSS_REMEDY, sentence as loss_sentence};
pub use serve::{ServeError, ServeOptions, serve};
pub use sublet_core::settings::Policy;
pub use sublet_core::unleased::RuleSubject;
pub use sublet_host::gpu::nvidia_visible;
pub use sublet_journal as journal;

/// Becomes a worker process: see `sublet_host::worker`.
pub fn worker(args: &[String]) -> std::process::ExitCode {
    sublet_host::worker::run(args)
}

/// True if a process of this host is one that a rule is about; false if it cannot be read.
pub fn is_meant(who: &RuleSubject, pid: u32) -> bool {
    sublet_host::audit::service_identity(pid).is_ok_and(|found| {
        who.matches_process(found.exe.as_deref(), found.unit.as_deref(), found.container.as_deref(), found.uid)
    })
}

/// The policy that a configuration makes at this time; without a file, the defaults.
pub fn rules(config: Option<&std::path::Path>) -> Result<Policy, ConfigError> {
    Ok(config::Config::read(config)?.settle()?.policy)
}
