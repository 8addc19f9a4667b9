//! Checkpoints and effects as a program uses them.

mod background;
mod common;
mod drills;
mod effects;
mod failing_register;
mod faults;
mod fuse;
mod hanging_disk;
mod kills;
mod rebuild;
mod recipe;
mod replicas;
mod saves;
mod simulated_disk;
mod stored;
mod trainer;
