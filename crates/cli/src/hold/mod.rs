//! Gets a lease and keeps a command on it: what `run` and `lease` share.

pub mod ask;
pub mod child;
mod container;
pub mod environment;
pub mod events;
pub mod hook;
pub mod leftover;
pub mod line;
pub mod notice;
pub mod outer;
mod parked;
pub mod scope;
pub mod shell;
pub mod shim;
pub mod soft;
pub mod stuck;
pub mod visible;
pub mod wait;
pub mod watch;
