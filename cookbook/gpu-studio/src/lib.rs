//! GPU sessions for many users on few GPUs.
//!
//! ```text
//!   open ── admission: caps, then a lease in full, or smaller, or the queue ──► session
//!   work ── GPU work on the session's lease; it is what renews the lease
//!   tick ── renews sessions that worked, ends those that are idle or were preempted ──► StudioEvent
//!   save ── the session's state, in blocks; open_again restores it on a new lease, also after a restart of the studio
//! ```
//! Each session has a record that survives the studio: its id, its user, its size, its last activity. What a session
//! used is kept per user, which shows which user crowds out the others.
//!
//! The sessions of this recipe share one process, so their leases are not bound to it: they cannot be parked, and last
//! while the studio renews them. A service for users that do not trust each other starts a process for each session.

mod record;
mod usage;

pub use record::{SessionRecord, SessionRequest};
pub use usage::UserUsage;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use sublet::{
    BlockBuilder, Durable, DurableError, Fabric, FabricError, GpuExclusivityClass, GpuLease, GpuSession, RenewalEvent,
    RenewalManager, RenewalPolicy,
};

/// The blocks of a record: it is a few hundred bytes.
const RECORD_BLOCKS: u64 = 8;
/// The longest that a session goes on without giving its GPU back once.
const HOLD_CAP: Duration = Duration::from_secs(30 * 60);

/// What a studio allows.
#[derive(Clone, Debug)]
pub struct StudioLimits {
    /// Sessions of one user at a time.
    pub sessions_per_user: usize,
    /// A session without work for this long is ended.
    pub idle: Duration,
    /// Blocks of 4 KiB for the state of each session.
    pub state_blocks: u64,
}

impl Default for StudioLimits {
    fn default() -> StudioLimits {
        StudioLimits { sessions_per_user: 2, idle: Duration::from_secs(120), state_blocks: 512 }
    }
}

/// A studio could not do what it was asked for.
#[derive(Debug)]
pub enum StudioError {
    /// The user has as many sessions as one user may have.
    TooManySessions {
        /// How many that is.
        most: usize,
    },
    /// There is no such session now: it was never opened, or it ended.
    NoSuchSession,
    /// The lease could not be had, or ended, or a call on it failed.
    Fabric(FabricError),
    /// The state or the record was not saved, or cannot be restored.
    Durable(DurableError),
}

impl From<FabricError> for StudioError {
    fn from(error: FabricError) -> StudioError {
        StudioError::Fabric(error)
    }
}

impl From<DurableError> for StudioError {
    fn from(error: DurableError) -> StudioError {
        StudioError::Durable(error)
    }
}

impl std::fmt::Display for StudioError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StudioError::TooManySessions { most } => write!(f, "you have {most} sessions already; close one first"),
            StudioError::NoSuchSession => f.write_str("the session ended; open it again to go on from its saved state"),
            StudioError::Fabric(error) => write!(f, "{error} ({})", error.remedy()),
            StudioError::Durable(error) => write!(f, "{error} ({})", error.remedy()),
        }
    }
}

impl std::error::Error for StudioError {}

/// What happened to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StudioEvent {
    /// It had no work for too long, and its GPU went to the next user.
    Idle {
        /// The session.
        session: String,
    },
    /// Its lease ended: tell the user to open it again.
    Preempted {
        /// The session.
        session: String,
        /// Why, for people.
        reason: String,
    },
}

/// A session that has a lease.
struct LiveSession {
    gpu: GpuSession,
    lease: GpuLease,
    record: Durable<SessionRecord>,
    state: Durable<Vec<u8>>,
    worked: Instant,
}

/// Sessions of many users.
pub struct Studio {
    fabric: Fabric,
    directory: PathBuf,
    limits: StudioLimits,
    live: BTreeMap<String, LiveSession>,
    renewals: RenewalManager,
    used: BTreeMap<String, UserUsage>,
}

impl Studio {
    /// A studio that keeps its records in a directory.
    pub fn new(fabric: Fabric, directory: impl Into<PathBuf>, limits: StudioLimits) -> Studio {
        let (live, renewals, used) = (BTreeMap::new(), RenewalManager::new(), BTreeMap::new());
        Studio { fabric, directory: directory.into(), limits, live, renewals, used }
    }

    /// Opens a session on a lease of its own. It waits in the queue for a GPU, or takes a smaller lease if the request
    /// allows one.
    pub fn open(&mut self, session: &str, request: &SessionRequest, now: f64) -> Result<(), StudioError> {
        self.admit(&request.user)?;
        let record = Durable::new(SessionRecord::new(session, request, now), self.blocks(session, "record")?);
        record.checkpoint()?;
        let state = Durable::new(Vec::new(), self.blocks(session, "state")?);
        state.checkpoint()?;
        self.start(session, record, state)
    }

    /// Opens a session that ended, or that an earlier studio had, with its saved state.
    pub fn open_again(&mut self, session: &str) -> Result<(), StudioError> {
        if self.live.contains_key(session) {
            return Ok(());
        }
        let record: Durable<SessionRecord> = Durable::restore(self.blocks(session, "record")?)?;
        self.admit(&record.request.user)?;
        let state = Durable::restore(self.blocks(session, "state")?)?;
        self.start(session, record, state)
    }

    /// Refuses a user with too many sessions: what is not admitted cannot crowd out others.
    fn admit(&self, user: &str) -> Result<(), StudioError> {
        let most = self.limits.sessions_per_user;
        let own = self.live.values().filter(|live| live.record.request.user == user).count();
        if own < most { Ok(()) } else { Err(StudioError::TooManySessions { most }) }
    }

    fn start(
        &mut self,
        session: &str,
        record: Durable<SessionRecord>,
        state: Durable<Vec<u8>>,
    ) -> Result<(), StudioError> {
        let request = &record.request;
        let builder = self.fabric.alloc_gpu().min_vram(request.vram_bytes).lease_secs(request.lease_secs);
        let builder = builder.exclusivity(GpuExclusivityClass::SessionExclusive).tier(request.tier()).unbound();
        let builder = builder.name(session);
        let lease = match request.least_bytes {
            Some(least) => builder.acquire_or_smaller(least),
            None => builder.acquire(),
        }?;
        let policy = RenewalPolicy { hold_cap: Some(HOLD_CAP), ..RenewalPolicy::default() };
        self.renewals.register(lease.lease_id(), lease.expires_at_unix_secs(), policy);
        let gpu = GpuSession::new(&lease);
        self.live.insert(session.to_owned(), LiveSession { gpu, lease, record, state, worked: Instant::now() });
        Ok(())
    }

    fn blocks(&self, session: &str, part: &str) -> Result<sublet::BlockLease, FabricError> {
        let blocks = if part == "record" { RECORD_BLOCKS } else { self.limits.state_blocks };
        let builder = BlockBuilder::new().min_blocks(blocks).lease_secs(3600).in_directory(&self.directory);
        builder.name(format!("{session}.{part}")).acquire()
    }

    /// Does GPU work of a session, at `now` in Unix seconds. It gets the saved state and may change it; `save` keeps it.
    pub fn work<T>(
        &mut self,
        session: &str,
        now: f64,
        work: impl FnOnce(&GpuSession, &mut Vec<u8>) -> Result<T, FabricError>,
    ) -> Result<T, StudioError> {
        let live = self.live.get_mut(session).ok_or(StudioError::NoSuchSession)?;
        live.worked = Instant::now();
        live.record.last_activity_unix_s = now;
        Ok(work(&live.gpu, &mut live.state)?)
    }

    /// Saves the state and the record of a session. If this fails, no user may be told that the progress is safe.
    pub fn save(&mut self, session: &str) -> Result<(), StudioError> {
        let live = self.live.get_mut(session).ok_or(StudioError::NoSuchSession)?;
        live.state.checkpoint()?;
        live.record.checkpoint()?;
        let bytes = live.state.len() as u64;
        self.used.entry(live.record.request.user.clone()).or_default().checkpoint_bytes += bytes;
        Ok(())
    }

    /// Gives a session's GPU back. Its saved state is kept.
    pub fn close(&mut self, session: &str) {
        if let Some(live) = self.live.remove(session) {
            let usage = live.lease.usage();
            self.used.entry(live.record.request.user.clone()).or_default().add(&usage);
        }
    }

    /// Renews the leases of sessions that worked, and ends the others when their time has come. `now` is in Unix
    /// seconds.
    pub fn tick(&mut self, now: f64) -> Vec<StudioEvent> {
        let mut events = Vec::new();
        for event in self.renewals.tick(now) {
            if let RenewalEvent::Preempted { lease, reason } = event
                && let Some(session) = self.session_of(&lease)
            {
                self.close(&session);
                events.push(StudioEvent::Preempted { session, reason });
            }
        }
        let idle = |live: &LiveSession| live.worked.elapsed() >= self.limits.idle;
        let idle: Vec<String> = self.live.iter().filter(|(_, live)| idle(live)).map(|(id, _)| id.clone()).collect();
        for session in idle {
            self.close(&session);
            events.push(StudioEvent::Idle { session });
        }
        events
    }

    fn session_of(&self, lease: &str) -> Option<String> {
        self.live.iter().find(|(_, live)| live.lease.lease_id() == lease).map(|(session, _)| session.clone())
    }

    /// The lease of a session, if it has one.
    pub fn lease(&self, session: &str) -> Option<&GpuLease> {
        self.live.get(session).map(|live| &live.lease)
    }

    /// What each user used so far, live sessions included.
    pub fn usage(&self) -> BTreeMap<String, UserUsage> {
        let mut used = self.used.clone();
        for live in self.live.values() {
            used.entry(live.record.request.user.clone()).or_default().add(&live.lease.usage());
        }
        used
    }
}
