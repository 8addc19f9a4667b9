//! Hints that it is time to read the GPUs.
//!
//! ```text
//!   inotify ────┐
//!   connector ──┼─► one descriptor to poll ─► drain() ─► read now, or not
//!   timer ──────┘
//!
//!             something heard                      too many messages
//!   armed ───────────────────► deaf for HINT_GAP   listening ──────────► off for OFF_FOR
//!     ▲                           │                  ▲                    │ (said, and "lost")
//!     └───────────────────────────┘                  └────────────────────┘ (said, and "lost")
//! ```
//! A hint says that something may have changed, and decides nothing: the truth is on the GPUs and in `/proc`. A
//! caller that ignores all hints is late by one period, and never wrong. Other processes cannot make this spin: it is
//! readable at most once a HINT_GAP, each time a bounded number of messages is taken, and a flood of process events
//! switches the connector off for OFF_FOR.
//!
//! Absent: which process came or went, and all else that would be needed to act on it.

use super::ancestors::AncestorHistory;
use super::connector::ProcessConnector;
use super::device_watch::DeviceFileWatches;
use super::taskstats::TaskstatsSocket;
use crate::wake::timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// At most one hint in this time; after a quiet time the first event is reported at once.
const HINT_GAP: Duration = Duration::from_millis(10);
/// Processes and threads made, started and ended in a second. Above this the connector is switched off: the load is
/// high, or a program tries to keep this service busy.
const EVENTS_PER_S_MAX: usize = 5000;
/// How long the connector then stays off.
const OFF_FOR: Duration = Duration::from_secs(10);
/// Receive buffer: a tenth of a second at the highest accepted rate.
const BUFFER: usize = 1 << 20;
/// Sentences kept until they are taken by [`HintListener::news`].
const NEWS_MAX: usize = 16;
const PROCESSES: &str = "processes that start and end";

/// What may have changed since the last call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadingHint {
    /// A GPU's device file was opened, closed or made.
    pub opened: bool,
    /// A process was made, started a program, or ended.
    pub processes: bool,
    /// Events were lost: read everything.
    pub lost: bool,
}

impl ReadingHint {
    /// True if there is a reason to read the GPUs.
    pub const fn calls_for_reading(self) -> bool {
        self.opened || self.processes || self.lost
    }
}

/// The bounds as values, so that tests need not make five thousand processes a second.
#[derive(Clone, Copy, Debug)]
struct HintLimits {
    gap: Duration,
    events_per_s_max: usize,
    off_for: Duration,
    buffer: usize,
}

/// State of the messages about processes.
enum ConnectorState {
    /// Not available here; the reason was reported at the start.
    Unavailable,
    Listening {
        connector: ProcessConnector,
        /// The start of the counted second, and the messages in it.
        since: Instant,
        count: usize,
    },
    Off {
        until: Instant,
    },
}

/// A listener for hints. Its descriptor is readable when something may have changed.
pub struct HintListener {
    epoll: OwnedFd,
    timer: OwnedFd,
    files: Option<DeviceFileWatches>,
    processes: ConnectorState,
    taskstats: Option<TaskstatsSocket>,
    ancestors: AncestorHistory,
    limits: HintLimits,
    is_armed: bool,
    news: Vec<String>,
}

impl HintListener {
    /// Listens for NVIDIA's device files, the files of soft GPUs and processes. Returns a sentence for each source
    /// that is missing, with the reason. Fails only if there is no descriptor to poll.
    pub fn open(soft: &[PathBuf]) -> io::Result<(HintListener, Vec<String>)> {
        let limits = HintLimits { gap: HINT_GAP, events_per_s_max: EVENTS_PER_S_MAX, off_for: OFF_FOR, buffer: BUFFER };
        HintListener::with_limits(soft, limits)
    }

    fn with_limits(soft: &[PathBuf], limits: HintLimits) -> io::Result<(HintListener, Vec<String>)> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &timer, EventData::new_u64(0), EventFlags::IN)?;
        let mut missing = Vec::new();
        let files = match DeviceFileWatches::open(soft) {
            Ok((files, unwatched)) => {
                missing.extend(unwatched.iter().map(|what| format!("not noticed at once: {what}")));
                Some(files)
            }
            Err(error) => {
                missing.push(format!("not noticed at once: processes that open a GPU's device file: {error}"));
                None
            }
        };
        let now = Instant::now();
        let proven =
            ProcessConnector::open(limits.buffer).and_then(|connector| connector.check_delivery().map(|()| connector));
        let processes = match proven {
            Ok(connector) => ConnectorState::Listening { connector, since: now, count: 0 },
            Err(error) => {
                missing.push(format!("not noticed at once: {PROCESSES}: {}", connector_error_text(&error)));
                ConnectorState::Unavailable
            }
        };
        // Names of ended processes are useful only where forks are reported.
        let taskstats = match &processes {
            ConnectorState::Listening { .. } => TaskstatsSocket::open(limits.buffer),
            _ => Err(io::Error::other("it needs the process connector")),
        };
        let taskstats = taskstats.map_err(|error| {
            missing.push(format!("not known: processes that started and ended between two readings: {error}"))
        });
        let (taskstats, ancestors) = (taskstats.ok(), AncestorHistory::default());
        let mut hints = HintListener {
            epoll,
            timer,
            files,
            processes,
            taskstats,
            ancestors,
            limits,
            is_armed: false,
            news: Vec::new(),
        };
        hints.arm()?;
        Ok((hints, missing))
    }

    /// Takes what arrived since the last call. Meant for when the descriptor is readable; harmless at other times.
    pub fn drain(&mut self) -> ReadingHint {
        let now = Instant::now();
        // Whether the timer has fired does not matter: its reasons are checked in any case.
        let _ = rustix::io::read(&self.timer, &mut [0u8; 8]);
        let mut hint = ReadingHint::default();
        let received = self.drain_files(&mut hint) + self.drain_processes(now, &mut hint);
        if let Err(error) = self.rearm(now, received > 0) {
            // The caller also reads by itself, and will call again.
            self.add_news(format!("hints may come late: {error}"));
            hint.lost = true;
        }
        hint
    }

    /// What was received about the ancestors of processes; the value is updated as more arrives.
    pub(crate) fn ancestors(&self) -> AncestorHistory {
        self.ancestors.clone()
    }

    /// Changes in the availability of the hints themselves, as sentences for a log.
    pub fn news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }

    fn drain_files(&mut self, hint: &mut ReadingHint) -> usize {
        let Some(files) = &self.files else { return 0 };
        match files.receive() {
            Ok(batch) => {
                hint.opened |= batch.opened;
                hint.lost |= batch.lost;
                batch.count
            }
            Err(error) => {
                hint.lost = true;
                self.disarm();
                self.files = None;
                self.add_news(format!(
                    "not noticed at once from now on: processes that open a GPU's device file: {error}"
                ));
                0
            }
        }
    }

    fn drain_processes(&mut self, now: Instant, hint: &mut ReadingHint) -> usize {
        match &mut self.processes {
            ConnectorState::Unavailable => 0,
            ConnectorState::Off { until } if now < *until => 0,
            ConnectorState::Off { .. } => {
                // Events of the meantime were lost.
                hint.lost = true;
                self.switch_on(now);
                0
            }
            ConnectorState::Listening { connector, since, count } => {
                let batch = match connector.receive() {
                    Ok(batch) => batch,
                    Err(error) => {
                        hint.lost = true;
                        self.switch_off(now, &error.to_string());
                        return 0;
                    }
                };
                if now.duration_since(*since) >= Duration::from_secs(1) {
                    (*since, *count) = (now, 0);
                }
                *count += batch.count;
                self.ancestors.add_forks(&batch.forks);
                if let Some(Err(error)) =
                    self.taskstats.as_ref().map(|taskstats| receive_ended(taskstats, &self.ancestors))
                {
                    self.taskstats = None;
                    self.news.push(format!(
                        "not known from now on: processes that started and ended between two readings: {error}"
                    ));
                }
                if batch.lost {
                    self.ancestors.forget();
                }
                let is_flood = *count > self.limits.events_per_s_max;
                hint.processes |= batch.processes;
                hint.lost |= batch.lost;
                if is_flood {
                    hint.lost = true;
                    self.switch_off(now, &format!("more than {} of them in a second", self.limits.events_per_s_max));
                }
                batch.count
            }
        }
    }

    /// Closes the connector: a socket that stays open would be filled for nothing.
    fn switch_off(&mut self, now: Instant, why: &str) {
        self.disarm();
        self.ancestors.forget();
        self.taskstats = None;
        self.processes = ConnectorState::Off { until: now + self.limits.off_for };
        self.add_news(format!("not noticed at once for {} s: {PROCESSES}: {why}", self.limits.off_for.as_secs_f32()));
    }

    fn switch_on(&mut self, now: Instant) {
        self.disarm();
        match ProcessConnector::open(self.limits.buffer) {
            Ok(connector) => {
                self.processes = ConnectorState::Listening { connector, since: now, count: 0 };
                self.taskstats = TaskstatsSocket::open(self.limits.buffer).ok();
                self.add_news(format!("noticed at once again: {PROCESSES}"));
            }
            Err(error) => self.switch_off(now, &error.to_string()),
        }
    }

    /// Deaf for HINT_GAP after an event, armed otherwise.
    fn rearm(&mut self, now: Instant, has_received: bool) -> io::Result<()> {
        if has_received {
            self.disarm();
        } else {
            self.arm()?;
        }
        let gap = (!self.is_armed).then_some(self.limits.gap);
        let off_for = match self.processes {
            // A rest that is just over gives a short time, and not zero: zero would stop the timer.
            ConnectorState::Off { until } => Some(until.saturating_duration_since(now).max(Duration::from_micros(1))),
            _ => None,
        };
        let due = gap.into_iter().chain(off_for).min().unwrap_or(Duration::ZERO);
        let value = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: timespec(due) };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value)?;
        Ok(())
    }

    fn arm(&mut self) -> io::Result<()> {
        if !self.is_armed {
            for source in self.sources() {
                match epoll::add(&self.epoll, source, EventData::new_u64(0), EventFlags::IN) {
                    Ok(()) | Err(Errno::EXIST) => {} // from a time when the next one could not be added
                    Err(error) => return Err(error.into()),
                }
            }
            self.is_armed = true;
        }
        Ok(())
    }

    /// Removed, not masked: an error on the socket would be reported all the same.
    fn disarm(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            for source in self.sources() {
                // It is registered, or it would not be armed.
                let _ = epoll::delete(&self.epoll, source);
            }
        }
    }

    fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let connector = match &self.processes {
            ConnectorState::Listening { connector, .. } => Some(connector.as_fd()),
            ConnectorState::Unavailable | ConnectorState::Off { .. } => None,
        };
        self.files.iter().map(AsFd::as_fd).chain(connector)
    }

    fn add_news(&mut self, sentence: String) {
        if self.news.len() < NEWS_MAX {
            self.news.push(sentence);
        }
    }
}

impl AsFd for HintListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Records the processes that ended.
fn receive_ended(taskstats: &TaskstatsSocket, ancestors: &AncestorHistory) -> io::Result<()> {
    let (ended, _) = taskstats.receive()?;
    ancestors.add_ended(ended);
    Ok(())
}

fn connector_error_text(error: &io::Error) -> String {
    let kernel = error.raw_os_error().map(Errno::from_raw_os_error);
    match kernel {
        Some(Errno::PERM | Errno::ACCESS) => "it needs CAP_NET_ADMIN".to_owned(),
        Some(Errno::PROTONOSUPPORT | Errno::CONNREFUSED) => {
            "the kernel has no process connector, or not for this network namespace".to_owned()
        }
        _ => format!("the kernel's process connector: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake::wait_readable;
    use std::fs;
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};

    const PATIENCE: Duration = Duration::from_secs(30);
    const LIMITS: HintLimits = HintLimits {
        gap: Duration::from_millis(10),
        events_per_s_max: 1 << 30,
        off_for: Duration::from_secs(60),
        buffer: BUFFER,
    };

    fn is_readable(hints: &HintListener, patience: Duration) -> bool {
        wait_readable([hints.as_fd()], Instant::now() + patience).unwrap()[0]
    }

    /// Waits for a hint of the wanted kind.
    fn until(hints: &mut HintListener, wanted: &str, is: impl Fn(ReadingHint) -> bool) {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if is_readable(hints, Duration::from_millis(100)) && is(hints.drain()) {
                return;
            }
        }
        panic!("waited in vain for {wanted}");
    }

    /// Without messages about processes, which come from all of the host.
    fn file_hints(soft: &[PathBuf]) -> HintListener {
        let (mut hints, missing) = HintListener::with_limits(soft, LIMITS).unwrap();
        assert!(missing.iter().all(|what| what.contains(PROCESSES)), "{missing:?}");
        hints.disarm();
        hints.processes = ConnectorState::Unavailable;
        hints.arm().unwrap();
        hints
    }

    /// With them; `None` where the kernel reports nothing here.
    fn process_hints(limits: HintLimits) -> Option<HintListener> {
        let (hints, missing) = HintListener::with_limits(&[], limits).unwrap();
        if matches!(hints.processes, ConnectorState::Unavailable) {
            let why = missing.iter().find(|what| what.contains(PROCESSES));
            eprintln!("skipped: {}", why.expect("a missing source has a reason"));
            return None;
        }
        Some(hints)
    }

    #[test]
    fn opening_or_closing_a_gpu_file_is_a_hint() {
        let dir = tempfile::tempdir().unwrap();
        let (gpu_file, other) = (dir.path().join("card"), dir.path().join("other"));
        fs::write(&gpu_file, "").unwrap();
        fs::write(&other, "").unwrap();
        let mut hints = file_hints(std::slice::from_ref(&gpu_file));
        assert!(!is_readable(&hints, Duration::from_millis(50)));
        drop(fs::File::open(&other).unwrap());
        assert!(!is_readable(&hints, Duration::from_millis(50)), "only GPUs count");
        let open = fs::File::open(&gpu_file).unwrap();
        assert!(is_readable(&hints, PATIENCE));
        assert_eq!(hints.drain(), ReadingHint { opened: true, processes: false, lost: false });
        // The moment of deafness ends with a drain that finds nothing.
        assert!(is_readable(&hints, PATIENCE));
        assert_eq!(hints.drain(), ReadingHint::default());
        assert!(!is_readable(&hints, Duration::from_millis(50)));
        drop(open);
        until(&mut hints, "a close", |hint| hint.opened);
    }

    #[test]
    fn a_gpu_file_made_later_is_watched_from_then_on() {
        let dir = tempfile::tempdir().unwrap();
        let gpu_file = dir.path().join("card");
        let mut hints = file_hints(std::slice::from_ref(&gpu_file));
        for _ in 0..2 {
            let new = dir.path().join("new");
            fs::write(&new, "").unwrap();
            fs::rename(&new, &gpu_file).unwrap();
            until(&mut hints, "a new GPU", |hint| hint.opened);
            while is_readable(&hints, Duration::from_millis(100)) {
                hints.drain();
            }
            drop(fs::File::open(&gpu_file).unwrap());
            until(&mut hints, "its being opened", |hint| hint.opened);
            fs::remove_file(&gpu_file).unwrap();
            while is_readable(&hints, Duration::from_millis(100)) {
                hints.drain();
            }
        }
    }

    #[test]
    fn a_gpu_file_opened_all_the_time_gives_few_hints() {
        let dir = tempfile::tempdir().unwrap();
        let gpu_file = dir.path().join("card");
        fs::write(&gpu_file, "").unwrap();
        let mut hints = file_hints(std::slice::from_ref(&gpu_file));
        let (stop, begun) = (AtomicBool::new(false), Instant::now());
        let drains = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(fs::File::open(&gpu_file).unwrap());
                }
            });
            let mut drains = 0;
            while begun.elapsed() < Duration::from_millis(500) {
                if is_readable(&hints, Duration::from_millis(100)) {
                    hints.drain();
                    drains += 1;
                }
            }
            stop.store(true, Ordering::Relaxed);
            drains
        });
        assert!((2..=60).contains(&drains), "{drains} in {:?}", begun.elapsed());
    }

    #[test]
    fn a_process_that_starts_and_ends_is_a_hint() {
        let Some(mut hints) = process_hints(LIMITS) else { return };
        Command::new("true").status().unwrap();
        until(&mut hints, "a process", |hint| hint.processes);
    }

    #[test]
    fn lost_messages_are_reported() {
        let Some(mut hints) = process_hints(HintLimits { buffer: 4096, ..LIMITS }) else { return };
        for _ in 0..200 {
            std::thread::spawn(|| ()).join().unwrap();
        }
        until(&mut hints, "a loss", |hint| hint.lost);
        Command::new("true").status().unwrap();
        until(&mut hints, "a process after a loss", |hint| hint.processes);
    }

    #[test]
    fn a_flood_of_processes_switches_the_connector_off_and_is_reported() {
        let off_for = Duration::from_millis(300);
        let Some(mut hints) = process_hints(HintLimits { events_per_s_max: 300, off_for, ..LIMITS }) else { return };
        let (stop, begun) = (AtomicBool::new(false), Instant::now());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::thread::spawn(|| ()).join().unwrap();
                }
            });
            let (mut drains, mut news_so_far) = (0_u32, Vec::new());
            // Off and on again, twice.
            while news_so_far.len() < 4 && begun.elapsed() < PATIENCE {
                if is_readable(&hints, Duration::from_millis(100)) {
                    let hint = hints.drain();
                    drains += 1;
                    let news = hints.news();
                    assert!(news.is_empty() || hint.lost, "{news:?} and {hint:?}");
                    news_so_far.extend(news);
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(
                news_so_far[0].starts_with("not noticed at once for 0.3 s: processes that start"),
                "{news_so_far:?}"
            );
            assert!(news_so_far[0].ends_with("more than 300 of them in a second"), "{news_so_far:?}");
            assert_eq!(news_so_far[1], "noticed at once again: processes that start and end");
            assert!(begun.elapsed() >= 2 * off_for);
            let bound = begun.elapsed().as_millis() / 10 + 10;
            assert!(u128::from(drains) <= bound, "{drains} drains in {:?}", begun.elapsed());
        });
        let connector = matches!(hints.processes, ConnectorState::Listening { .. });
        assert!(connector || !is_readable(&hints, Duration::ZERO), "a connector that is off gives no hint");
    }
}
