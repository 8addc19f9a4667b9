//! `sublet soft env`: runs a program on soft GPUs.

use super::{SoftGpuSearch, find};
use crate::args::Globals;
use crate::failure::{Failure, tell_hint};
use crate::hold::environment::{self, ShellArg};
use crate::hold::{child, soft};
use crate::output;
use clap::Args;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use sublet_softgpu::{NOTICE, SoftGpuState, Spec};
use sublet_wire::exit;

/// Run a program on soft GPUs, or print the environment that does
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct EnvArgs {
    /// Private GPUs for this command alone, such as 2x24GiB or 1x80GiB,1x24GiB
    #[arg(long, value_name = "GPUS")]
    gpus: Option<Spec>,
    /// For which shell the lines are
    #[arg(long, value_enum, value_name = "SHELL", default_value_t = ShellArg::Sh, conflicts_with = "command")]
    shell: ShellArg,
    /// The command and its arguments; without one, the environment is printed
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const AFTER_HELP: &str = "\
The GPUs are the service's, if it has soft ones: the program is there without a
lease, as any program on a real GPU could be. Without a service they are private
ones (2x24GiB) that go away with the command. The command takes the place of
`sublet`: signals reach it, and its exit code is its own.

Examples:
  sublet soft env -- ./program                    on soft GPUs
  sublet soft env --gpus 1x80GiB -- ./program    on a private GPU of 80 GiB
  eval \"$(sublet soft env)\"                       for all of this shell";

/// The private GPUs if no others are specified.
const PRIVATE: &str = "2x24GiB";
/// Programs and shells use low descriptors by number, and bash one as high as 255.
const DESCRIPTOR_MIN: i32 = 400;

/// What `--json` prints.
type Printed = BTreeMap<&'static str, String>;

/// Replaces this process by the command, or prints the variables for it.
pub fn run(globals: &Globals, args: &EnvArgs) -> Result<u8, Failure> {
    if args.command.is_empty() {
        return print(globals, args);
    }
    child::find(&args.command[0])?;
    let private = match (&args.gpus, args.gpus.is_none().then(|| find(globals)).transpose()?) {
        (Some(spec), _) => Some(spec.clone()),
        (None, Some(SoftGpuSearch::File(file))) => return become_on(&file, &args.command),
        (None, Some(SoftGpuSearch::OtherKind { place, kind })) => {
            eprintln!("the GPUs of the daemon at {place} are {kind}: private soft ones are made");
            None
        }
        (None, _) => None,
    };
    let spec = private.map_or_else(|| PRIVATE.parse().map_err(Failure::usage), Ok)?;
    let file = PrivateGpus::make(&spec)?;
    become_on(&file.path, &args.command)
}

/// Returns only if it fails.
fn become_on(file: &Path, command: &[OsString]) -> Result<u8, Failure> {
    let variables = soft::variables(file)?;
    eprintln!("{NOTICE}");
    Err(child::replace(command, &variables))
}

fn print(globals: &Globals, args: &EnvArgs) -> Result<u8, Failure> {
    if args.gpus.is_some() {
        return Err(Failure::usage("private GPUs go away with their command, and there is none")
            .hint("`sublet soft env --gpus 2x24GiB -- COMMAND` runs one on them"));
    }
    let state = super::open(globals)?;
    let variables = soft::variables(state.path())?;
    if globals.json {
        output::json(&variables.into_iter().collect::<Printed>())?;
        return Ok(exit::OK);
    }
    output::print(&environment::lines(args.shell, &environment::set(&variables)))?;
    if io::stdout().is_terminal() {
        tell_hint("to use it in this shell: eval \"$(sublet soft env)\"");
    }
    Ok(exit::OK)
}

/// Soft GPUs in a file without a name, which other processes open through this one. Nothing of them is left when this
/// process ends, for any reason.
struct PrivateGpus {
    path: PathBuf,
    _file: OwnedFd,
}

impl PrivateGpus {
    fn make(spec: &Spec) -> Result<PrivateGpus, Failure> {
        let failed = |error: &dyn std::error::Error| {
            Failure::new(exit::FAILURE, format!("private soft GPUs cannot be made: {}", crate::daemon::chain(error)))
        };
        let file = memfd_create("sublet-soft-gpus", MemfdFlags::CLOEXEC).map_err(|error| failed(&error))?;
        let file = fcntl_dupfd_cloexec(&file, DESCRIPTOR_MIN).map_err(|error| failed(&error))?;
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        // Opened again by its path, so that locks are separate from those of the descriptor that the command keeps.
        let opened = File::options().read(true).write(true).open(&path).map_err(|error| failed(&error))?;
        SoftGpuState::create_in(opened, &path, spec).map_err(|error| failed(&error))?;
        // The descriptor stays open in the command, which is the same process.
        fcntl_setfd(&file, FdFlags::empty()).map_err(|error| failed(&error))?;
        Ok(PrivateGpus { path, _file: file })
    }
}
