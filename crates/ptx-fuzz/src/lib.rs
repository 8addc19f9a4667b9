//! Hostile and random PTX against its reader and its processor.
//!
//! A seed is a text ([`text::of_seed`]): a file of the corpus that was mangled, a kernel
//! that was made up by a grammar, or both. Whatever can be read is launched on a little
//! memory between guard pages, several times, and must behave ([`check::check`]):
//!
//! - nothing panics, and nothing runs on after it was told to stop;
//! - nothing outside of the given memory is touched, and read-only memory stays as it is;
//! - the same launch gives the same results, with and without the host's vector
//!   instructions.
//!
//! A campaign (`src/main.rs`) runs seeds in a process of their own with a bound on its
//! memory, so that a crash costs one seed and is kept as a file.
//!
//! Absent on purpose: coverage feedback. It needs a nightly compiler; the grammar knows
//! what there is to be covered.

pub mod arena;
pub mod check;
mod generate;
mod mutate;
pub mod random;
pub mod text;
pub mod watch;
