//! Preemption methods: how a lease is taken off its GPUs.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A way to leave the GPUs and, except for the last, to come back. The gentlest is first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The program's own hook, run by its wrapper.
    #[serde(rename = "yield")]
    Hook,
    /// Sublet's library in its programs.
    #[default]
    #[serde(rename = "park")]
    Shim,
    /// The driver's checkpoint of its processes.
    Driver,
    /// Its lease ends, and its processes with it.
    End,
}

impl Method {
    /// Those that keep the processes.
    pub const REVERSIBLE: [Method; 3] = [Method::Hook, Method::Shim, Method::Driver];

    /// Whether processes that left by this method still have their context on the GPU.
    pub fn keeps_context(self) -> bool {
        matches!(self, Method::Hook | Method::Shim)
    }

    /// Its name in the API and on screens.
    pub fn name(self) -> &'static str {
        match self {
            Method::Hook => "hook",
            Method::Shim => "shim",
            Method::Driver => "driver",
            Method::End => "end",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
