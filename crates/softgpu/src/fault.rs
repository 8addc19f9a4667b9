//! The faults that can be ordered, and how they are stored in the file.

/// How NVML behaves for a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NvmlFault {
    /// It works.
    #[default]
    None,
    /// Calls about it do not return.
    Hang,
    /// Calls about it fail with an unknown error.
    Error,
    /// The GPU fell off the bus.
    Lost,
    /// The bytes of single processes are not available.
    NoBytes,
}

/// How a checkpoint of a process on a GPU behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckpointFault {
    /// It works.
    #[default]
    None,
    /// It reports success and frees nothing.
    FreesNothing,
    /// Its target dies.
    KillsTarget,
    /// It does not become ready in time.
    TimesOut,
}

/// A fault of a GPU, as an operator orders it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftGpuFault {
    /// Of NVML.
    Nvml(NvmlFault),
    /// Of checkpoints.
    Checkpoint(CheckpointFault),
    /// This many of the next allocations fail.
    Allocations(u32),
    /// Kernels take this many percent longer.
    SlowPercent(u32),
    /// Copies take at least as long as at this many bytes a second; zero: no limit.
    CopyBytesPerS(u64),
    /// Everything works again.
    Clear,
}

impl NvmlFault {
    /// All faults; the index of each is its number in the file.
    pub const ALL: [NvmlFault; 5] =
        [NvmlFault::None, NvmlFault::Hang, NvmlFault::Error, NvmlFault::Lost, NvmlFault::NoBytes];

    /// From the number in the file; an unknown number is no fault.
    pub fn from_number(number: u32) -> NvmlFault {
        NvmlFault::ALL.get(number as usize).copied().unwrap_or_default()
    }

    /// The word for it on the command line.
    pub const fn cli_name(self) -> &'static str {
        match self {
            NvmlFault::None => "ok",
            NvmlFault::Hang => "hang",
            NvmlFault::Error => "error",
            NvmlFault::Lost => "lost",
            NvmlFault::NoBytes => "no-bytes",
        }
    }
}

impl CheckpointFault {
    /// All faults; the index of each is its number in the file.
    pub const ALL: [CheckpointFault; 4] =
        [CheckpointFault::None, CheckpointFault::FreesNothing, CheckpointFault::KillsTarget, CheckpointFault::TimesOut];

    /// From the number in the file; an unknown number is no fault.
    pub fn from_number(number: u32) -> CheckpointFault {
        CheckpointFault::ALL.get(number as usize).copied().unwrap_or_default()
    }

    /// The word for it on the command line.
    pub const fn cli_name(self) -> &'static str {
        match self {
            CheckpointFault::None => "ok",
            CheckpointFault::FreesNothing => "frees-nothing",
            CheckpointFault::KillsTarget => "kills-target",
            CheckpointFault::TimesOut => "times-out",
        }
    }
}
