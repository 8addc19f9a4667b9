//! `sublet soft fault`: orders faults, and clears them.

use super::status::{self, SoftStatus};
use crate::args::Globals;
use crate::failure::Failure;
use crate::hold::ask::parse_size;
use crate::output;
use clap::{Args, Subcommand, ValueEnum};
use sublet_softgpu::{CheckpointFault, NvmlFault, SoftGpuFault, SoftGpuState};
use sublet_wire::exit;

/// Make soft GPUs fail on order
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct FaultArgs {
    /// Index or UUID [default: all GPUs]
    gpu: Option<String>,
    #[command(subcommand)]
    what: SoftFaultArg,
}

const AFTER_HELP: &str = "\
A fault stays until it is taken back with `ok`, 0, `off` or `clear`. A GPU that
was lost is out of service until an operator clears it with `sublet gpus
clear`, as a real one would be.

Examples:
  sublet soft fault nvml hang          NVML hangs, whatever GPU it is asked
  sublet soft fault 1 nvml lost        GPU 1 falls off its bus; the others go on
  sublet soft fault 0 allocations 3    the next three allocations on GPU 0 fail
  sublet soft fault copy-rate 2GiB/s   copies are as slow as over a narrow link
  sublet soft fault clear              everything works again";

/// What shall go wrong.
#[derive(Subcommand, Clone, Debug)]
enum SoftFaultArg {
    /// What NVML does when it is asked about the GPU
    Nvml {
        /// What it does
        #[arg(value_enum)]
        how: NvmlArg,
    },
    /// Let the next allocations fail for want of memory
    Allocations {
        /// How many; 0: none
        n: u32,
    },
    /// What a checkpoint of a process on the GPU does
    Checkpoint {
        /// What it does
        #[arg(value_enum)]
        how: CheckpointArg,
    },
    /// Let kernels take longer
    Slow {
        /// By how many percent; 0: not at all
        percent: u32,
    },
    /// Let copies to and from the GPU take as long as over a link of this rate
    CopyRate {
        /// Bytes a second, such as 2GiB/s; `off`: as fast as they are
        #[arg(value_parser = parse_rate)]
        rate: CopyRate,
    },
    /// Let everything work again
    Clear,
}

/// What NVML does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum NvmlArg {
    /// Its work
    Ok,
    /// It does not return
    Hang,
    /// It fails with an unknown error
    Error,
    /// It says that the GPU fell off the bus
    Lost,
    /// It does not tell the bytes of single processes
    NoBytes,
}

/// What a checkpoint does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CheckpointArg {
    /// Its work
    Ok,
    /// It reports success and frees nothing
    FreesNothing,
    /// Its target dies
    KillsTarget,
    /// It does not become ready in time
    TimesOut,
}

/// Bytes per second; zero is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CopyRate(u64);

fn parse_rate(text: &str) -> Result<CopyRate, String> {
    match text {
        "off" => Ok(CopyRate(0)),
        _ => parse_size(text.strip_suffix("/s").unwrap_or(text)).map(CopyRate),
    }
}

impl SoftFaultArg {
    fn fault(&self) -> SoftGpuFault {
        match self {
            SoftFaultArg::Nvml { how } => SoftGpuFault::Nvml(match how {
                NvmlArg::Ok => NvmlFault::None,
                NvmlArg::Hang => NvmlFault::Hang,
                NvmlArg::Error => NvmlFault::Error,
                NvmlArg::Lost => NvmlFault::Lost,
                NvmlArg::NoBytes => NvmlFault::NoBytes,
            }),
            SoftFaultArg::Allocations { n } => SoftGpuFault::Allocations(*n),
            SoftFaultArg::Checkpoint { how } => SoftGpuFault::Checkpoint(match how {
                CheckpointArg::Ok => CheckpointFault::None,
                CheckpointArg::FreesNothing => CheckpointFault::FreesNothing,
                CheckpointArg::KillsTarget => CheckpointFault::KillsTarget,
                CheckpointArg::TimesOut => CheckpointFault::TimesOut,
            }),
            SoftFaultArg::Slow { percent } => SoftGpuFault::SlowPercent(*percent),
            SoftFaultArg::CopyRate { rate } => SoftGpuFault::CopyBytesPerS(rate.0),
            SoftFaultArg::Clear => SoftGpuFault::Clear,
        }
    }
}

/// Orders a fault, and prints the faults in force.
pub fn run(globals: &Globals, args: &FaultArgs) -> Result<u8, Failure> {
    let state = super::open(globals)?;
    let gpus = match &args.gpu {
        Some(name) => vec![named(&state, name)?],
        None => (0..state.gpus().len()).collect(),
    };
    for gpu in &gpus {
        state.set_fault(*gpu, args.what.fault());
    }
    let shown = SoftStatus::of(&state);
    if globals.json {
        output::json(&shown)?;
        return Ok(exit::OK);
    }
    let line = |gpu: &usize| shown.gpus.get(*gpu).map(|gpu| format!("GPU {}: {}\n", gpu.index, gpu.faults));
    output::print(&gpus.iter().filter_map(line).collect::<String>())?;
    Ok(exit::OK)
}

fn named(state: &SoftGpuState, name: &str) -> Result<usize, Failure> {
    let is_meant = |(index, gpu): &(usize, &sublet_softgpu::layout::SoftGpu)| match name.parse::<usize>() {
        Ok(number) => *index == number,
        Err(_) => gpu.uuid_text().eq_ignore_ascii_case(name),
    };
    let found = state.gpus().iter().enumerate().find(is_meant);
    found.map(|(index, _)| index).ok_or_else(|| {
        Failure::usage(format!("there is no soft GPU `{name}`"))
            .hint(format!("the GPUs are {}", status::numbers(state.gpus().len())))
    })
}

#[cfg(test)]
mod tests {
    use crate::args::Cli;
    use clap::Parser;

    #[test]
    fn a_gpu_may_be_named_or_left_out() {
        for line in [
            "nvml hang",
            "1 nvml no-bytes",
            "0 allocations 3",
            "checkpoint kills-target",
            "GPU-50f7ca2d-1 slow 150",
            "1 copy-rate 2GiB/s",
            "copy-rate off",
            "clear",
            "1 clear",
        ] {
            let words = "sublet soft fault ".to_owned() + line;
            assert!(Cli::try_parse_from(words.split_whitespace()).is_ok(), "{line}");
        }
        for line in ["", "1", "nvml", "1 nvml gone", "allocations -1", "copy-rate 2", "slow", "1 2 clear"] {
            let words = "sublet soft fault ".to_owned() + line;
            assert!(Cli::try_parse_from(words.split_whitespace()).is_err(), "{line}");
        }
    }
}
