//! Checkpoints and effects as a program uses them.

mod common;
mod effects;
mod faults;
mod replicas;
mod saves;
mod simulated_disk;
