//! `sublet checkpoint`: lists, exports, pins, removes, scrubs and rebuilds checkpoints.
//!
//! ```text
//!   --store, SUBLET_CHECKPOINTS, ~/.local/state ──► a store that exists ──► NAME ──► one checkpoint ──► the verb
//! ```
//! A daemon is needed only if the store's configuration says that one keeps the register.
//!
//! Absent on purpose: saving. Looking makes no store.

mod change;
mod list;
mod pin;
mod rebuild;
mod show;

use crate::args::Globals;
use crate::client::Client;
use crate::completion;
use crate::failure::Failure;
use crate::output::say;
use crate::table::plain;
use crate::text;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use sublet::DaemonRegister;
use sublet::replicated::register::{ChainRegister, RegisterError};
use sublet::replicated::{
    CheckpointName, CheckpointStore, DaemonPlace, LogicalResourceName, ReplicatedError, StoreOpener, StoredCheckpoint,
    Version,
};
use sublet::training::training_checkpoint_name;
use sublet_wire::exit;

/// List, export, keep, remove and repair checkpoints
///
/// Works on the files of a store, with or without a daemon, unless a daemon keeps its register. NAME is a checkpoint's
/// name, or the name of the job that trains it.
#[derive(Args, Clone, Debug)]
pub struct CheckpointArgs {
    #[command(subcommand)]
    verb: CheckpointVerb,
    /// The store: its directory, or its configuration file [default: SUBLET_CHECKPOINTS, else
    /// ~/.local/state/sublet/checkpoints]
    #[arg(long, global = true, value_name = "DIR|FILE.toml")]
    store: Option<PathBuf>,
    /// The resource, if checkpoints of two resources have the name
    #[arg(long, global = true, value_name = "RESOURCE", hide_short_help = true)]
    resource: Option<String>,
}

/// What to do with checkpoints.
#[derive(Subcommand, Clone, Debug)]
pub enum CheckpointVerb {
    /// List the checkpoints of the store, or the versions of one
    Ls {
        /// The checkpoint
        #[arg(add = completion::checkpoint())]
        name: Option<String>,
    },
    /// Show a version: what it contains, and where its copies lie
    Show {
        /// The checkpoint
        #[arg(add = completion::checkpoint())]
        name: String,
        /// The version [default: the newest]
        #[arg(add = completion::version())]
        version: Option<u64>,
    },
    /// Copy the files of a version to a directory, and verify every byte
    ///
    /// A damaged file is taken from another copy. Files appear in DIR when all are whole, or not at all.
    #[command(allow_missing_positional = true)]
    Export {
        /// The checkpoint
        #[arg(required = true, add = completion::checkpoint())]
        name: String,
        /// The version [default: the newest]
        #[arg(add = completion::version_or_directory())]
        version: Option<u64>,
        /// A directory that is empty or does not exist yet
        #[arg(required = true, value_name = "DIR")]
        to: PathBuf,
    },
    /// Keep a version from being deleted while a job or an evaluation needs it
    ///
    /// Neither a save nor `rm` deletes it then. The program that saves this checkpoint goes on. `ls NAME` lists the jobs
    /// that keep a version.
    Pin {
        /// The checkpoint
        #[arg(add = completion::checkpoint())]
        name: String,
        /// The version
        #[arg(add = completion::version())]
        version: u64,
        /// The job or the evaluation that needs it; any name
        #[arg(long = "for", value_name = "JOB", value_parser = NonEmptyStringValueParser::new())]
        job: String,
    },
    /// End that a job or an evaluation keeps a version
    ///
    /// Other jobs may still keep it. Nothing is deleted before the next save or `rm`.
    Unpin {
        /// The checkpoint
        #[arg(add = completion::checkpoint())]
        name: String,
        /// The version
        #[arg(add = completion::version())]
        version: u64,
        /// The name that was given to `pin`
        #[arg(long = "for", value_name = "JOB", value_parser = NonEmptyStringValueParser::new())]
        job: String,
    },
    /// Delete versions, under a new fence: a program that saves this checkpoint has to be started again
    ///
    /// The newest version is refused, and so are versions that a job has pinned. Then nothing is deleted, and no fence
    /// is issued.
    Rm {
        /// The checkpoint
        #[arg(add = completion::checkpoint())]
        name: String,
        /// The versions
        #[arg(required = true, value_name = "VERSION", add = completion::version())]
        versions: Vec<u64>,
    },
    /// Read every byte of every copy, and replace damaged and missing copies by good ones
    ///
    /// Programs may go on meanwhile. The exit code is 1 if a copy is still damaged, or if a replica cannot be read.
    Scrub {
        /// The checkpoint
        #[arg(add = completion::checkpoint())]
        name: String,
        /// Also put copies on this replica, which has none of this checkpoint yet, such as a new disk
        #[arg(long, value_name = "REPLICA")]
        fill: Vec<String>,
    },
    /// Make a new register from the replicas, after the old one was lost
    ///
    /// Stop the programs of this store first. No acknowledged version is lost, if all replicas can be read. Versions that
    /// may not have been acknowledged are named. Pins and records of effects without a save are lost.
    Rebuild {
        /// Go on without this replica; versions that only it holds are lost
        #[arg(long, value_name = "REPLICA")]
        without: Vec<String>,
    },
}

/// Runs `sublet checkpoint`.
pub fn run(globals: &Globals, args: &CheckpointArgs) -> Result<u8, Failure> {
    match &args.verb {
        CheckpointVerb::Ls { name: None } => list::checkpoints(globals, &StoreInUse::open(globals, args)?),
        CheckpointVerb::Ls { name: Some(name) } => {
            list::versions(globals, &StoreInUse::open(globals, args)?.find(name)?)
        }
        CheckpointVerb::Show { name, version } => {
            let found = StoreInUse::open(globals, args)?.find(name)?;
            show::run(globals, &found, version_or_newest(&found, *version)?)
        }
        CheckpointVerb::Export { name, version, to } => {
            let found = StoreInUse::open(globals, args)?.find(name)?;
            change::export(globals, &found, version_or_newest(&found, *version)?, to)
        }
        CheckpointVerb::Pin { name, version, job } => {
            pin::pin(globals, &StoreInUse::open(globals, args)?.find(name)?, Version(*version), job)
        }
        CheckpointVerb::Unpin { name, version, job } => {
            pin::unpin(globals, &StoreInUse::open(globals, args)?.find(name)?, Version(*version), job)
        }
        CheckpointVerb::Rm { name, versions } => {
            change::remove(globals, &StoreInUse::open(globals, args)?.find(name)?, versions)
        }
        CheckpointVerb::Scrub { name, fill } => {
            change::scrub(globals, &StoreInUse::open(globals, args)?.find(name)?, fill)
        }
        CheckpointVerb::Rebuild { without } => rebuild::run(globals, &store_path(args)?, without),
    }
}

/// The store of a call.
struct StoreInUse {
    store: CheckpointStore,
    path: PathBuf,
    resource: Option<LogicalResourceName>,
}

impl StoreInUse {
    fn open(globals: &Globals, args: &CheckpointArgs) -> Result<StoreInUse, Failure> {
        let path = store_path(args)?;
        let connect = |place: &DaemonPlace| daemon_register(globals, place);
        let store = StoreOpener::with_daemon(&connect).open_existing(&path).map_err(failure)?;
        let resource = args.resource.as_deref().map(LogicalResourceName::new);
        Ok(StoreInUse { store, path, resource })
    }

    /// All checkpoints, or those of the resource that was typed.
    fn list(&self) -> Result<Vec<(LogicalResourceName, CheckpointName)>, Failure> {
        let mut all = self.store.list().map_err(failure)?;
        all.retain(|(resource, _)| self.resource.as_ref().is_none_or(|wanted| wanted == resource));
        Ok(all)
    }

    /// Those that replicas hold and the register does not know.
    fn list_unknown(&self) -> Result<Vec<(LogicalResourceName, CheckpointName)>, Failure> {
        let mut unknown = self.store.list_unknown().map_err(failure)?;
        unknown.retain(|(resource, _)| self.resource.as_ref().is_none_or(|wanted| wanted == resource));
        Ok(unknown)
    }

    /// The checkpoint with this name, or else the one of the job with this name.
    fn find(&self, name: &str) -> Result<StoredCheckpoint, Failure> {
        let mut all = self.list()?;
        all.extend(self.list_unknown()?);
        let named = |wanted: &CheckpointName| all.iter().filter(|(_, name)| name == wanted).collect::<Vec<_>>();
        let exact = named(&CheckpointName::new(name));
        let found = if exact.is_empty() { named(&training_checkpoint_name(name)) } else { exact };
        match found[..] {
            [(resource, name)] => self.store.stored(resource, name).map_err(failure),
            [] => {
                let message = format!("there is no checkpoint `{}` in {}", plain(name), self.path.display());
                Err(Failure::new(exit::FAILURE, message).coded("no_such_checkpoint").hint(LS_HINT))
            }
            _ => {
                let resources: Vec<String> = found.iter().map(|(resource, _)| plain(resource.as_str())).collect();
                let message = format!("checkpoints of {} have the name `{}`", resources.join(" and "), plain(name));
                Err(Failure::usage(message).hint(format!("choose one, such as with `--resource {}`", resources[0])))
            }
        }
    }
}

const LS_HINT: &str = "`sublet checkpoint ls` lists those there are, `--store` names another store";

fn store_path(args: &CheckpointArgs) -> Result<PathBuf, Failure> {
    match &args.store {
        Some(path) => Ok(path.clone()),
        None => CheckpointStore::default_path().map_err(failure),
    }
}

/// Why there is no connection. Only a daemon that does not answer is one to wait for.
fn not_connected(failure: Failure) -> RegisterError {
    let reason = match failure.next_step() {
        Some(hint) => format!("{}; {hint}", failure.message()),
        None => failure.message().to_owned(),
    };
    match failure.exit() {
        exit::NO_DAEMON => RegisterError::Unavailable { reason },
        _ => RegisterError::Refused { reason },
    }
}

/// The register of the daemon that the configuration names, or else of the one that the command line means.
fn daemon_register(globals: &Globals, place: &DaemonPlace) -> Result<Arc<dyn ChainRegister>, RegisterError> {
    let register = match &place.daemon {
        Some(_) => DaemonRegister::at(place)?,
        None => {
            let client = Client::open(globals).map_err(not_connected)?;
            DaemonRegister::new(client.api(), &place.name)?
        }
    };
    Ok(Arc::new(register))
}

/// The version that was typed, or the newest one. A register that is older than a replica does not know the newest.
fn version_or_newest(found: &StoredCheckpoint, typed: Option<u64>) -> Result<Version, Failure> {
    let checked = found.check_register().map_err(failure);
    if let Some(version) = typed {
        checked.unwrap_or_else(|behind| say!("{}", behind.message()));
        return Ok(Version(version));
    }
    checked?;
    let newest = found.versions().map_err(failure)?.pop();
    newest.map(|newest| newest.version).ok_or_else(|| {
        let message = format!("nothing was saved in `{}` yet", plain(found.name().as_str()));
        Failure::new(exit::FAILURE, message).coded("nothing_saved")
    })
}

/// The library's error, with its cause, its code and what to do.
fn failure(error: ReplicatedError) -> Failure {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        message.push_str(&format!(": {source}"));
        cause = source.source();
    }
    let code = match error {
        ReplicatedError::InvalidName { .. } | ReplicatedError::NotEmptyDirectory { .. } => exit::USAGE,
        ReplicatedError::Configuration { .. } => exit::CONFIG,
        _ => exit::FAILURE,
    };
    let hint = match error {
        ReplicatedError::NoStore { .. } => {
            "name a store with `--store` or SUBLET_CHECKPOINTS; a program makes its store when it first saves"
        }
        ReplicatedError::TooFewCopies { .. } => {
            "mend or mount the replicas named above; `sublet checkpoint ls NAME` lists the other versions"
        }
        // A command of this program began nothing that the next look does not show.
        ReplicatedError::Register(RegisterError::Unavailable { .. }) => {
            "check what is named above, then try again; `sublet checkpoint ls` shows whether something was changed"
        }
        _ => error.remedy(),
    };
    Failure::new(code, message).coded(error.code()).hint(hint)
}

/// Tells which replicas could not be looked at.
fn tell_unreadable(found: &StoredCheckpoint) {
    for failed in found.unreadable() {
        say!("replica `{}` cannot be read: {}", plain(failed.replica.as_str()), failed.reason);
    }
}

/// `12 s ago`, or `-`.
fn ago(unix_s: Option<u64>) -> String {
    // Another machine's clock may be ahead.
    let since = unix_s.map(|then| sublet_wire::span::show((text::now_unix_s() - then as f64).max(0.0)));
    since.map_or_else(|| text::NONE.into(), |since| format!("{since} ago"))
}
