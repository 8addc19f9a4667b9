//! What the example programs share: CUDA's driver API in safe clothes, sizes as people write them,
//! and random numbers that are the same everywhere.
//!
//! Absent: everything of Sublet. These are ordinary CUDA programs, so that what is shown
//! with them is true of any program.

pub mod cuda;
pub mod random;
pub mod size;
