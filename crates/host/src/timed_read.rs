//! Reads files that a process can keep others from reading.
//!
//! To show a command line, an environment or mappings the kernel goes through the memory of the process. Where that
//! is a file on a server that does not answer, or the process hangs with the lock on its own memory, the reader hangs
//! as well. A process can cause that on purpose, and would hold up everything that is known about GPUs. So each
//! thread that reads such files has a reader thread, which is abandoned when it does not return. A folder that it did
//! not return from is not tried again for RETRY_AFTER, so that many such processes cost no more than a few seconds each
//! time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

const BLOCKED: &str = "it holds up its readers";
/// How long a reader is waited for.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Readers in all, including abandoned ones. Above this, such files are not read any more.
const READERS_MAX: usize = 64;

/// How long a folder that a reader did not return from is left alone.
const RETRY_AFTER: Duration = Duration::from_secs(60);
/// Folders remembered as stuck.
const STUCK_MAX: usize = 1024;

type Job = Box<dyn FnOnce() + Send>;

static READERS: AtomicUsize = AtomicUsize::new(0);
/// Folders, one for each process, and until when each is left alone.
static STUCK: Mutex<BTreeMap<PathBuf, Instant>> = Mutex::new(BTreeMap::new());

thread_local! {
    static READER: RefCell<Option<Sender<Job>>> = const { RefCell::new(None) };
}

/// The first `most` bytes of a file.
pub(crate) fn read(path: String, most: u64) -> io::Result<Vec<u8>> {
    let folder = Path::new(&path).parent().map(Path::to_owned).unwrap_or_default();
    if stuck_folders().get(&folder).is_some_and(|until| *until > Instant::now()) {
        return Err(io::Error::new(io::ErrorKind::TimedOut, BLOCKED));
    }
    let read = run_with_timeout(move || {
        let mut bytes = Vec::new();
        File::open(path)?.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    if read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
        let (mut stuck, now) = (stuck_folders(), Instant::now());
        stuck.retain(|_, until| *until > now);
        if stuck.len() < STUCK_MAX {
            stuck.insert(folder, now + RETRY_AFTER);
        }
    }
    read
}

fn stuck_folders() -> MutexGuard<'static, BTreeMap<PathBuf, Instant>> {
    STUCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs an operation that may never return.
pub(crate) fn run_with_timeout<T: Send + 'static>(
    operation: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (reply, answer) = mpsc::sync_channel(1);
    let job: Job = Box::new(move || drop(reply.send(operation())));
    READER.with_borrow_mut(|own| {
        let reader = match own.take() {
            Some(reader) => reader,
            None => start_reader()?,
        };
        reader.send(job).map_err(|_| io::Error::other("the thread that reads it is gone"))?;
        let stuck = |_| io::Error::new(io::ErrorKind::TimedOut, BLOCKED);
        let read = answer.recv_timeout(TIMEOUT).map_err(stuck)?;
        *own = Some(reader);
        read
    })
}

fn start_reader() -> io::Result<Sender<Job>> {
    if READERS.fetch_add(1, Ordering::AcqRel) >= READERS_MAX {
        READERS.fetch_sub(1, Ordering::AcqRel);
        // The limit is reached because of other files, not of this one.
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, "too many others hold up their readers"));
    }
    let (sender, jobs) = mpsc::channel::<Job>();
    let work = move || {
        jobs.into_iter().for_each(|job| job());
        READERS.fetch_sub(1, Ordering::AcqRel);
    };
    match Builder::new().name("sublet-read".to_owned()).spawn(work) {
        Ok(_) => Ok(sender),
        Err(error) => {
            READERS.fetch_sub(1, Ordering::AcqRel);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    #[test]
    fn a_read_that_blocks_times_out_and_is_not_repeated_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let name = pipe.to_str().unwrap().to_owned();
        // Opening it blocks until there is a writer.
        let begun = Instant::now();
        assert_eq!(read(name.clone(), 100).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() < 10 * TIMEOUT, "{:?}", begun.elapsed());
        // The second attempt returns at once.
        let begun = Instant::now();
        assert_eq!(read(name, 100).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());
        // A new reader serves other files.
        assert_eq!(read("/proc/self/comm".to_owned(), 4).unwrap().len(), 4);
    }

    #[test]
    fn an_unreadable_file_gives_its_error() {
        assert_eq!(read("/proc/0/environ".to_owned(), 1).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
