//! Checkpoints and effects as a program uses them.

mod common;
mod effects;
mod faults;
mod kills;
mod replicas;
mod saves;
mod simulated_disk;
mod trainer;
