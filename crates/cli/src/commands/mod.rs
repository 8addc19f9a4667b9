//! One file for each command: its flags, what it does, how it looks.

pub mod accept;
pub mod attach;
pub mod audit;
pub mod cards;
pub mod completions;
pub mod doctor;
pub mod door;
pub mod end;
pub mod enforce;
pub mod explain;
pub mod journal;
pub mod lease;
pub mod man;
pub mod park;
pub mod ps;
pub mod queue;
pub mod reference;
pub mod renew;
pub mod replay;
pub mod run;
pub mod serve;
pub mod soft;
pub mod status;
pub mod token;
pub mod usage;
pub mod wrap;
