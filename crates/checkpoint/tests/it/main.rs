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
#[cfg(feature = "object-store")]
mod object_faults;
mod rebuild;
mod recipe;
mod replicas;
#[cfg(feature = "object-store")]
mod s3_service;
mod saves;
#[cfg(feature = "object-store")]
mod simulated_bucket;
mod simulated_disk;
mod special_files;
mod stored;
mod trainer;
#[cfg(feature = "object-store")]
#[path = "../../../softgpu-nvml/tests/python/venv.rs"]
mod venv;
#[cfg(feature = "object-store")]
#[path = "../service/weed.rs"]
mod weed;
