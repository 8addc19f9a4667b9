//! The commands: their flags, their work and their output. Larger ones have a folder beside their file; `park.rs` has
//! `resume` too, and `status.rs` is `sublet` without a command.

pub mod accept;
pub mod adopt;
pub mod aside;
pub mod audit;
pub mod checkpoint;
pub mod completions;
pub mod config;
pub mod doctor;
pub mod enforce;
pub mod explain;
pub mod gpus;
pub mod journal;
pub mod lease;
pub mod man;
pub mod park;
pub mod proxy;
pub mod ps;
pub mod queue;
pub mod reference;
pub mod release;
pub mod renew;
pub mod replay;
pub mod run;
pub mod serve;
pub mod setup;
pub mod soft;
pub mod status;
pub mod stop;
pub mod tls;
pub mod token;
pub mod usage;
pub mod wrap;
