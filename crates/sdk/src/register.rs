//! Stores of checkpoints whose register a daemon keeps.
//!
//! ```text
//!   checkpoint_store ─► configuration: register = "daemon" ─► DaemonRegister ─► the daemon's file
//!                                      [replicas]          ─► directories, also on NFS
//! ```
//! A create is sent again only if it never left this process. When its connection broke off, the entry may exist: that is
//! [`RegisterError::Unavailable`], and the caller reads the chain. Reads, and forgetting, are sent again for a while. So a
//! daemon that is started again within that time delays a save, and fails none. A wait of more than 2 s says so on stderr.
//!
//! Absent on purpose: a cache. What another process created must be seen by the next call.

use crate::client::{CallError, DaemonClient, RESTART};
use crate::error::FabricError;
use crate::fabric::Fabric;
use serde::de::DeserializeOwned;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use sublet_checkpoint::register::{ChainRegister, Creation, ENTRY_BYTES_MAX, NumberedEntry, RegisterError};
use sublet_checkpoint::{
    ChainName, CheckpointStore, ConnectDaemon, DaemonPlace, ReplicatedError, StoreOpener, is_register_name,
};
use sublet_wire::{Code, Problem, RegisterChain, RegisterChains, RegisterEntries};

/// How long a call waits for a daemon that is started again.
const PATIENCE: Duration = RESTART;
/// The first pause between two tries; each later one is twice as long, up to `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// How long a call waits before it says so.
const SILENCE: Duration = Duration::from_secs(2);
/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Chains and entries that one call asks for.
const PAGE: usize = 1_000;

/// The store of programs that name none: `SUBLET_CHECKPOINTS`, or else a directory of this user.
///
/// This is [`CheckpointStore::from_environment`] for stores of all kinds, those whose register a daemon keeps included.
pub fn checkpoint_store() -> Result<CheckpointStore, ReplicatedError> {
    store_opener().open_default()
}

/// Opens stores by their paths, those whose register a daemon keeps included.
pub fn store_opener() -> StoreOpener<'static> {
    const CONNECT: ConnectDaemon<'static> = &connect;
    StoreOpener::with_daemon(CONNECT)
}

fn connect(place: &DaemonPlace) -> Result<Arc<dyn ChainRegister>, RegisterError> {
    Ok(Arc::new(DaemonRegister::at(place)?))
}

/// A register that a daemon keeps.
#[derive(Clone, Debug)]
pub struct DaemonRegister {
    client: DaemonClient,
    name: String,
    patience: Duration,
}

/// Which calls may be sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RepeatWhen {
    /// Those that never left this process, and those that were refused before they were begun.
    IfNotBegun,
    /// Those that got no answer, too.
    Always,
}

impl DaemonRegister {
    /// The register with this name of a daemon. It is made with its first entry.
    pub fn new(client: &DaemonClient, name: &str) -> Result<DaemonRegister, RegisterError> {
        match is_register_name(name) {
            true => Ok(DaemonRegister { client: client.clone(), name: name.to_owned(), patience: PATIENCE }),
            false => Err(RegisterError::Refused { reason: format!("`{name}` cannot be the name of a register") }),
        }
    }

    /// The register at a place: of the daemon that is named, or of the one that [`Fabric::connect`] finds.
    pub fn at(place: &DaemonPlace) -> Result<DaemonRegister, RegisterError> {
        let fabric = match place.daemon.as_deref() {
            None => Fabric::connect(),
            Some(socket) if socket.starts_with('/') => Ok(Fabric::at(Path::new(socket))),
            Some(url) => Fabric::remote(url),
        };
        DaemonRegister::new(fabric.map_err(not_connected)?.client(), &place.name)
    }

    /// The same with another time to wait for a daemon that does not answer.
    pub fn with_patience(self, patience: Duration) -> DaemonRegister {
        DaemonRegister { patience, ..self }
    }

    fn target(&self, rest: &str) -> String {
        format!("/v1/registers/{}/chains{rest}", self.name)
    }

    fn get<T: DeserializeOwned>(&self, target: &str) -> Result<T, RegisterError> {
        self.patiently(RepeatWhen::Always, || self.client.get(target)).map_err(|error| self.failure(error))
    }

    /// Calls, and calls again within the patience where that is safe.
    fn patiently<T>(&self, repeat: RepeatWhen, call: impl Fn() -> Result<T, CallError>) -> Result<T, CallError> {
        let (deadline, mut silent_until) = (Instant::now() + self.patience, Some(Instant::now() + SILENCE));
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match call() {
                Err(error) if repeat.allows(&error) => error,
                answer => return answer,
            };
            let wait = match &error {
                CallError::Refused(problem) => problem.retry_after_s.map_or(pause, Duration::from_secs),
                _ => pause,
            };
            if Instant::now() + wait >= deadline {
                return Err(error);
            }
            if silent_until.is_some_and(|until| Instant::now() + wait >= until) {
                let left = deadline.saturating_duration_since(Instant::now()).as_secs();
                eprintln!("{}; waiting up to {left} s for it", self.said(&error));
                silent_until = None;
            }
            thread::sleep(wait);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn failure(&self, error: CallError) -> RegisterError {
        match error {
            CallError::Refused(problem) => refusal(problem),
            other => RegisterError::Unavailable { reason: self.said(&other) },
        }
    }

    /// What went wrong, for people.
    fn said(&self, error: &CallError) -> String {
        match error {
            CallError::Refused(problem) => problem.detail.clone(),
            CallError::Senseless(reason) => reason.clone(),
            CallError::Gone(error) => self.client.silence(error).message,
        }
    }
}

impl RepeatWhen {
    fn allows(self, error: &CallError) -> bool {
        match error {
            // No daemon listens there: nothing was sent.
            CallError::Gone(error)
                if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) =>
            {
                true
            }
            CallError::Refused(problem) => {
                matches!(problem.code, Code::TooBusy | Code::TooManyRequests | Code::Stopping)
            }
            error => self == RepeatWhen::Always && error.may_pass(),
        }
    }
}

/// Why there is no connection. Nothing was sent, so that only a daemon that may come back is one to wait for.
fn not_connected(error: FabricError) -> RegisterError {
    let reason = format!("{error}; {}", error.remedy());
    if error.is_transient() { RegisterError::Unavailable { reason } } else { RegisterError::Refused { reason } }
}

/// What a refusal of the daemon means. Only a refusal that says so means that nothing was created.
fn refusal(problem: Problem) -> RegisterError {
    let reason = match problem.hint {
        Some(hint) => format!("{}; {hint}", problem.detail),
        None => problem.detail,
    };
    match problem.code {
        Code::RegisterFull => RegisterError::Full { reason },
        Code::RegisterDamaged => RegisterError::Damaged { reason },
        Code::TooManyRequests | Code::TooSlow => RegisterError::Unavailable { reason },
        _ if problem.status < 500 => RegisterError::Refused { reason },
        _ => RegisterError::Unavailable { reason },
    }
}

impl ChainRegister for DaemonRegister {
    fn create(&self, chain: &ChainName, number: u64, entry: &[u8]) -> Result<Creation, RegisterError> {
        if entry.len() > ENTRY_BYTES_MAX {
            return Err(RegisterError::TooLarge { bytes: entry.len(), most: ENTRY_BYTES_MAX });
        }
        if number == 0 {
            return Ok(Creation::Taken);
        }
        let target = self.target(&format!("/{}/entries/{number}", segment(chain)));
        match self.patiently(RepeatWhen::IfNotBegun, || self.client.send_once("PUT", &target, Some(entry))) {
            Ok(_) => Ok(Creation::New),
            Err(CallError::Refused(problem)) if problem.code == Code::EntryTaken => Ok(Creation::Taken),
            Err(CallError::Refused(problem)) if problem.code == Code::EntryOutOfOrder => {
                Err(RegisterError::OutOfOrder { chain: chain.clone(), number, last: self.last(chain)? })
            }
            Err(error) => Err(self.failure(error)),
        }
    }

    fn read(&self, chain: &ChainName, from: u64, limit: usize) -> Result<Vec<NumberedEntry>, RegisterError> {
        let (mut entries, mut next): (Vec<NumberedEntry>, u64) = (Vec::new(), from.max(1));
        while entries.len() < limit {
            let wanted = PAGE.min(limit - entries.len());
            let target = format!("/{}/entries?from={next}&limit={wanted}", segment(chain));
            let page: RegisterEntries = self.get(&self.target(&target))?;
            let read = page.entries.into_iter();
            entries.extend(read.map(|entry| NumberedEntry { number: entry.number, bytes: entry.bytes.0 }));
            match entries.last() {
                Some(last) if page.more => next = last.number + 1,
                _ => break,
            }
        }
        Ok(entries)
    }

    fn last(&self, chain: &ChainName) -> Result<u64, RegisterError> {
        let found: RegisterChain = self.get(&self.target(&format!("/{}", segment(chain))))?;
        Ok(found.last)
    }

    fn forget_before(&self, chain: &ChainName, number: u64) -> Result<(), RegisterError> {
        let target = self.target(&format!("/{}/entries?before={}", segment(chain), number.max(1)));
        let forgotten = self.patiently(RepeatWhen::Always, || self.client.send_once("DELETE", &target, None));
        forgotten.map(drop).map_err(|error| self.failure(error))
    }

    fn chains(&self) -> Result<Vec<ChainName>, RegisterError> {
        let mut chains: Vec<ChainName> = Vec::new();
        loop {
            let after = chains.last().map_or_else(String::new, |last| format!("&after={}", segment(last)));
            let page: RegisterChains = self.get(&self.target(&format!("?limit={PAGE}{after}")))?;
            let more = page.more && !page.chains.is_empty();
            for found in page.chains {
                let damaged = || RegisterError::Damaged { reason: format!("`{}` cannot be a chain", found.name) };
                chains.push(ChainName::parse(&found.name).ok_or_else(damaged)?);
            }
            if !more {
                return Ok(chains);
            }
        }
    }
}

/// A chain as one segment of a path. Of the characters that a chain may have, only the slash has a meaning there.
fn segment(chain: &ChainName) -> String {
    chain.as_str().replace('/', "%2F")
}
