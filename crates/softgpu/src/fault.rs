//! What can be made to go wrong, and how it is written into the file.

/// What NVML does about a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NvmlFault {
    /// Its work.
    #[default]
    None,
    /// Calls about it do not return.
    Hang,
    /// Calls about it fail with an unknown error.
    Error,
    /// The card fell off the bus.
    Lost,
    /// The bytes of single processes are not available.
    NoBytes,
}

/// What a checkpoint of a process on a card does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckpointFault {
    /// Its work.
    #[default]
    None,
    /// It reports success and frees nothing.
    FreesNothing,
    /// Its target dies.
    KillsTarget,
    /// It does not become ready in time.
    TimesOut,
}

/// A fault of a card, as a person orders it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardFault {
    /// Of NVML.
    Nvml(NvmlFault),
    /// Of checkpoints.
    Checkpoint(CheckpointFault),
    /// So many of the next allocations fail.
    Allocations(u32),
    /// Kernels take so many hundredths longer.
    SlowPercent(u32),
    /// Copies take as long as so many bytes a second would; zero: as long as they take.
    CopyBytesPerS(u64),
    /// Everything works again.
    Clear,
}

impl NvmlFault {
    /// All of them; each one's place is its number in the file.
    pub const ALL: [NvmlFault; 5] =
        [NvmlFault::None, NvmlFault::Hang, NvmlFault::Error, NvmlFault::Lost, NvmlFault::NoBytes];

    /// As it is in the file; what is no fault is none.
    pub fn from_number(number: u32) -> NvmlFault {
        NvmlFault::ALL.get(number as usize).copied().unwrap_or_default()
    }

    /// As a person types it.
    pub const fn word(self) -> &'static str {
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
    /// All of them; each one's place is its number in the file.
    pub const ALL: [CheckpointFault; 4] =
        [CheckpointFault::None, CheckpointFault::FreesNothing, CheckpointFault::KillsTarget, CheckpointFault::TimesOut];

    /// As it is in the file; what is no fault is none.
    pub fn from_number(number: u32) -> CheckpointFault {
        CheckpointFault::ALL.get(number as usize).copied().unwrap_or_default()
    }

    /// As a person types it.
    pub const fn word(self) -> &'static str {
        match self {
            CheckpointFault::None => "ok",
            CheckpointFault::FreesNothing => "frees-nothing",
            CheckpointFault::KillsTarget => "kills-target",
            CheckpointFault::TimesOut => "times-out",
        }
    }
}
