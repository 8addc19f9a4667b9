//! Checkpoints and effects as a program uses them.

mod common;
mod effects;
mod replicas;
mod saves;
