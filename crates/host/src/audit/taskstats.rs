//! The kernel's accounts of ended processes (taskstats): their names and their users.
//!
//! taskstats is a netlink family of its own. The kernel reports per CPU, and only to a process with CAP_NET_ADMIN in
//! the host's first namespaces. It counts as available once it has reported the end of a thread of this process.
//!
//! Absent: resource use. Of the many fields only those that identify a process are read.

use super::netlink::{socket, u16_at, u32_at};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, netlink, recv, send};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Netlink's own kinds of messages, and its flags.
const ERROR: u16 = 2;
const CONTROL: u16 = 16;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
/// `CTRL_CMD_GETFAMILY`, `CTRL_ATTR_FAMILY_NAME` and `CTRL_ATTR_FAMILY_ID`.
const GET_FAMILY: u8 = 3;
const FAMILY_NAME: u16 = 2;
const FAMILY_ID: u16 = 1;
/// `TASKSTATS_CMD_GET` and `TASKSTATS_CMD_ATTR_REGISTER_CPUMASK`.
const GET: u8 = 1;
const REGISTER: u16 = 3;
/// `TASKSTATS_TYPE_AGGR_PID` and, in it, `TASKSTATS_TYPE_STATS`.
const AGGREGATE_PID: u16 = 4;
const STATS: u16 = 3;
/// Offsets in `struct taskstats`.
const NAME_AT: std::ops::Range<usize> = 80..112;
const UID_AT: usize = 120;
const PID_AT: usize = 128;
const BEGAN_AT: usize = 136;
/// In this version new fields were inserted between others; the next version undid that.
const DISORDERED_VERSION: u16 = 15;
/// Offset of the body: after netlink's header and the generic netlink header.
const BODY_AT: usize = 16;
const ATTRIBUTES_AT: usize = 20;
/// Messages taken in one call.
const MESSAGES_AT_ONCE: usize = 1024;
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// A process that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EndedProcess {
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) name: String,
    /// Seconds since 1970.
    pub(super) began_s: u64,
}

/// A socket that receives the accounts of ended processes.
pub(super) struct TaskstatsSocket {
    socket: OwnedFd,
}

impl TaskstatsSocket {
    /// Subscribes, and checks that messages arrive.
    pub(super) fn open(buffer: usize) -> io::Result<TaskstatsSocket> {
        let taskstats = TaskstatsSocket { socket: socket(netlink::GENERIC, 0, buffer)? };
        let family = taskstats.family()?;
        let cpus = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
        taskstats.send_request(&request(family, REQUEST | ACKNOWLEDGE, GET, REGISTER, cpus.trim()))?;
        taskstats.check_delivery()?;
        Ok(taskstats)
    }

    /// The number that the family has on this host.
    fn family(&self) -> io::Result<u16> {
        let answer = self.send_request(&request(CONTROL, REQUEST, GET_FAMILY, FAMILY_NAME, "TASKSTATS"))?;
        let id = attributes(answer.get(ATTRIBUTES_AT..).unwrap_or_default()).find(|(kind, _)| *kind == FAMILY_ID);
        let id = id.and_then(|(_, value)| Some(u16::from_ne_bytes(value.get(..2)?.try_into().ok()?)));
        id.ok_or_else(|| io::Error::other("the kernel keeps no accounts of tasks"))
    }

    /// Sends a request and returns its answer.
    fn send_request(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        send(&self.socket, request, SendFlags::empty())?;
        let until = Instant::now() + ANSWER_TIMEOUT;
        let mut message = vec![0; 8192];
        while Instant::now() < until {
            match recv(&self.socket, &mut message, RecvFlags::empty()) {
                Ok((length, _)) => {
                    let answer = &message[..length];
                    match (u16_at(answer, 4), u32_at(answer, BODY_AT)) {
                        (Some(ERROR), Some(0)) => return Ok(answer.to_vec()),
                        (Some(ERROR), Some(code)) => {
                            return Err(io::Error::from_raw_os_error(code.cast_signed().wrapping_neg()));
                        }
                        (Some(CONTROL), _) => return Ok(answer.to_vec()),
                        _ => {}
                    }
                }
                Err(Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::other("the kernel does not answer"))
    }

    /// Checks that the kernel reports on this process: ends a thread and waits for its account. A thread is a task,
    /// too.
    fn check_delivery(&self) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("sublet-proof".to_owned());
        let thread = thread.spawn(|| rustix::thread::gettid().as_raw_pid().unsigned_abs())?.join();
        let task = thread.map_err(|_| io::Error::other("a thread of our own failed"))?;
        let until = Instant::now() + ANSWER_TIMEOUT;
        while Instant::now() < until {
            let (ended, lost) = self.receive()?;
            if lost || ended.iter().any(|ended| ended.pid == task) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(io::Error::other("it speaks to the host's first namespaces only"))
    }

    /// Takes the waiting accounts, up to a bound. The bool is true if some were lost.
    pub(super) fn receive(&self) -> io::Result<(Vec<EndedProcess>, bool)> {
        let (mut ended, mut lost) = (Vec::new(), false);
        let mut message = [0; 4096];
        for _ in 0..MESSAGES_AT_ONCE {
            match recv(&self.socket, &mut message, RecvFlags::empty()) {
                Ok((length, _)) => ended.extend(read(&message[..length.min(message.len())])),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => lost = true,
                Err(error) => return Err(error.into()),
            }
        }
        Ok((ended, lost))
    }
}

/// A request with one text attribute.
fn request(family: u16, flags: u16, command: u8, attribute: u16, text: &str) -> Vec<u8> {
    let value = text.len() + 1;
    let padded = (4 + value).next_multiple_of(4);
    let length = ATTRIBUTES_AT + padded;
    let mut bytes = Vec::with_capacity(length);
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend(family.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]); // number, and the kernel as addressee
    bytes.extend([command, 1, 0, 0]);
    bytes.extend(((4 + value) as u16).to_ne_bytes());
    bytes.extend(attribute.to_ne_bytes());
    bytes.extend(text.as_bytes());
    bytes.resize(length, 0);
    bytes
}

/// The kinds and values of consecutive attributes.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let found = (u16_at(bytes, 2)?, bytes.get(4..length)?);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(found)
    })
}

/// The ended process that a message reports; `None` for other messages.
fn read(message: &[u8]) -> Option<EndedProcess> {
    let mut all = attributes(message.get(ATTRIBUTES_AT..)?);
    let task = all.find_map(|(kind, value)| (kind == AGGREGATE_PID).then_some(value))?;
    let stats = attributes(task).find_map(|(kind, value)| (kind == STATS).then_some(value))?;
    if u16_at(stats, 0)? == DISORDERED_VERSION {
        return None;
    }
    let name = stats.get(NAME_AT)?.split(|byte| *byte == 0).next()?;
    Some(EndedProcess {
        pid: u32_at(stats, PID_AT)?,
        uid: u32_at(stats, UID_AT)?,
        name: String::from_utf8_lossy(name).into_owned(),
        began_s: u32_at(stats, BEGAN_AT)?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn message(version: u16) -> Vec<u8> {
        let mut stats = vec![0; 560];
        stats[..2].copy_from_slice(&version.to_ne_bytes());
        stats[80..84].copy_from_slice(b"bash");
        for (at, value) in [(UID_AT, 1000u32), (PID_AT, 77), (BEGAN_AT, 1_700_000_000)] {
            stats[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        let attribute = |kind: u16, value: &[u8]| {
            let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value);
            bytes
        };
        let inner = [attribute(1, &77u32.to_ne_bytes()), attribute(STATS, &stats)].concat();
        [vec![0; ATTRIBUTES_AT], attribute(AGGREGATE_PID, &inner)].concat()
    }

    #[test]
    fn an_ended_process_is_parsed_and_truncated_messages_are_ignored() {
        let ended = EndedProcess { pid: 77, uid: 1000, name: "bash".to_owned(), began_s: 1_700_000_000 };
        assert_eq!(read(&message(16)), Some(ended));
        assert_eq!(read(&message(DISORDERED_VERSION)), None);
        let whole = message(16);
        assert!((0..whole.len()).all(|length| read(&whole[..length]).is_none()));
    }

    #[test]
    fn a_request_has_the_kernels_form() {
        let bytes = request(31, REQUEST, GET, REGISTER, "0-1");
        assert_eq!((bytes.len(), u32_at(&bytes, 0), u16_at(&bytes, 4)), (28, Some(28), Some(31)));
        assert_eq!(attributes(&bytes[ATTRIBUTES_AT..]).collect::<Vec<_>>(), [(REGISTER, &b"0-1\0"[..])]);
    }

    /// Where this user may subscribe, the end of a program is reported with its name.
    #[test]
    fn the_end_of_a_program_is_reported() {
        let taskstats = match TaskstatsSocket::open(1 << 20) {
            Ok(taskstats) => taskstats,
            Err(error) => return eprintln!("skipped: the kernel's accounts cannot be had here: {error}"),
        };
        let child = Command::new("true").spawn().and_then(|mut child| child.wait().map(|_| child.id())).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until {
            let (ended, _) = taskstats.receive().unwrap();
            if let Some(ended) = ended.iter().find(|ended| ended.pid == child) {
                assert_eq!(ended.name, "true");
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("no account of process {child} arrived");
    }
}
