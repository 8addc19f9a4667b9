//! The kernel's process connector: netlink messages about processes that start, exec and end.
//!
//! The connector works only in the host's first namespaces, and on older kernels only with CAP_NET_ADMIN; both refuse
//! silently. So it counts as available once it has reported a thread of this process.
//!
//! Absent: the identity of the processes. Messages are counted, read for their kind and for the parent and child of a
//! fork, and dropped.

use super::ancestors::ForkEvent;
use super::netlink::{socket, u32_at};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, netlink, recv, send};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// `CN_IDX_PROC` and `CN_VAL_PROC`: the connector's group, and its id in messages.
const GROUP: u32 = 1;
/// `PROC_CN_MCAST_LISTEN` and `PROC_CN_MCAST_IGNORE`.
const LISTEN: u32 = 1;
const IGNORE: u32 = 2;
/// Kinds of messages (`enum proc_cn_event`).
const NONE: u32 = 0;
const FORK: u32 = 1;
const EXEC: u32 = 2;
const EXIT: u32 = 0x8000_0000;
/// Offsets: after netlink's header (16 bytes) and the connector's (20).
const KIND_AT: usize = 36;
const TIME_AT: usize = 44;
const DATA_AT: usize = 52;
/// Messages taken in one call. One CPU makes about ten thousand processes a second at most.
const MESSAGES_AT_ONCE: usize = 1024;
/// How long to wait for the message about a thread of this process.
const DELIVERY_TIMEOUT: Duration = Duration::from_millis(500);

/// What one call of `receive` received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectorBatch {
    /// Messages of any kind.
    pub(super) count: usize,
    /// A process, not only a thread, was made, started a program, or ended.
    pub(super) processes: bool,
    /// Messages were lost.
    pub(super) lost: bool,
    /// Processes that were made.
    pub(super) forks: Vec<ForkEvent>,
}

/// A socket that receives messages about processes.
pub(super) struct ProcessConnector {
    socket: OwnedFd,
}

impl ProcessConnector {
    /// Subscribes, with a receive buffer of `buffer` bytes.
    pub(super) fn open(buffer: usize) -> io::Result<ProcessConnector> {
        let connector = ProcessConnector { socket: socket(netlink::CONNECTOR, GROUP, buffer)? };
        connector.send_words(&[LISTEN])?;
        // Since Linux 6.6 the kernel filters by these kinds; older kernels ignore the filter in a message of this
        // length.
        connector.send_words(&[LISTEN, FORK | EXEC | EXIT])?;
        Ok(connector)
    }

    /// Checks that the kernel reports on this process. A thread is enough, so no program has to be installed.
    pub(super) fn check_delivery(&self) -> io::Result<()> {
        std::thread::Builder::new().name("sublet-proof".to_owned()).spawn(|| ())?.join().ok();
        let until = Instant::now() + DELIVERY_TIMEOUT;
        let mut message = [0; 256];
        while Instant::now() < until {
            match recv(&self.socket, &mut message, RecvFlags::empty()) {
                Ok((length, _)) => {
                    let message = &message[..length];
                    if let Some(code) = refusal(message) {
                        return Err(io::Error::from_raw_os_error(code));
                    }
                    if is_fork_of(message, std::process::id()) {
                        return Ok(());
                    }
                }
                Err(Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
                Err(Errno::INTR) => {}
                // Messages were lost, ours may be among them: the connector works.
                Err(Errno::NOBUFS) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::other("it speaks to the host's first namespaces only"))
    }

    /// Takes the waiting messages, up to a bound.
    pub(super) fn receive(&self) -> io::Result<ConnectorBatch> {
        let mut batch = ConnectorBatch::default();
        let mut message = [0; 256];
        while batch.count < MESSAGES_AT_ONCE {
            match recv(&self.socket, &mut message, RecvFlags::empty()) {
                Ok((length, _)) => {
                    batch.count += 1;
                    batch.processes |= is_of_process(&message[..length]);
                    batch.forks.extend(fork_of(&message[..length]));
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                // The kernel reports the loss once; the remaining messages can be read afterwards.
                Err(Errno::NOBUFS) => {
                    batch.count += 1;
                    batch.lost = true;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(batch)
    }

    fn send_words(&self, words: &[u32]) -> io::Result<()> {
        send(&self.socket, &request(words), SendFlags::empty())?;
        Ok(())
    }
}

impl Drop for ProcessConnector {
    fn drop(&mut self) {
        // Older kernels count listeners, and go on making messages for a listener that left without this.
        let _ = self.send_words(&[IGNORE]);
    }
}

impl AsFd for ProcessConnector {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A message to the connector: two headers and the words.
fn request(words: &[u32]) -> Vec<u8> {
    let payload = size_of_val(words);
    let mut bytes = Vec::with_capacity(KIND_AT + payload);
    let done: u16 = 3; // NLMSG_DONE
    bytes.extend(((KIND_AT + payload) as u32).to_ne_bytes());
    bytes.extend(done.to_ne_bytes());
    bytes.extend([0; 2 + 4 + 4]); // flags, number, and the kernel as addressee
    for word in [GROUP, GROUP, 0, 0] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend((payload as u16).to_ne_bytes());
    bytes.extend([0; 2]);
    words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    bytes
}

/// The error number, if the answer is a refusal.
fn refusal(message: &[u8]) -> Option<i32> {
    let code = u32_at(message, DATA_AT).filter(|_| u32_at(message, KIND_AT) == Some(NONE))?;
    i32::try_from(code).ok().filter(|code| *code != 0)
}

/// True if a message is about a whole process. The id of a thread differs from that of its process.
fn is_of_process(message: &[u8]) -> bool {
    let field = |number: usize| u32_at(message, DATA_AT + 4 * number);
    match u32_at(message, KIND_AT) {
        // The parent's two numbers, then the child's.
        Some(FORK) => field(2).is_some() && field(2) == field(3),
        Some(EXEC | EXIT) => field(0).is_some() && field(0) == field(1),
        _ => false,
    }
}

/// The parent and the child, if the message is about a fork of a process.
fn fork_of(message: &[u8]) -> Option<ForkEvent> {
    if u32_at(message, KIND_AT) != Some(FORK) || !is_of_process(message) {
        return None;
    }
    let at_ns = u64::from_ne_bytes(message.get(TIME_AT..TIME_AT + 8)?.try_into().ok()?);
    Some(ForkEvent { child: u32_at(message, DATA_AT + 12)?, parent: u32_at(message, DATA_AT + 4)?, at_ns })
}

/// True if a message says that `process` made a thread.
fn is_fork_of(message: &[u8], process: u32) -> bool {
    u32_at(message, KIND_AT) == Some(FORK) && u32_at(message, DATA_AT + 12) == Some(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u32, fields: [u32; 4]) -> Vec<u8> {
        let mut bytes = vec![0; DATA_AT];
        bytes[KIND_AT..KIND_AT + 4].copy_from_slice(&kind.to_ne_bytes());
        fields.iter().for_each(|field| bytes.extend(field.to_ne_bytes()));
        bytes
    }

    #[test]
    fn threads_are_not_processes() {
        for (kind, fields, is) in [
            (FORK, [5, 5, 9, 9], true),
            (FORK, [5, 5, 9, 5], false),
            (EXEC, [9, 9, 0, 0], true),
            (EXIT, [9, 9, 0, 17], true),
            (EXIT, [9, 5, 0, 17], false),
            (NONE, [0; 4], false),
            (0x200, [9, 9, 0, 0], false),
        ] {
            assert_eq!(is_of_process(&message(kind, fields)), is, "{kind:#x} {fields:?}");
        }
        assert!(is_fork_of(&message(FORK, [5, 5, 9, 5]), 5) && !is_fork_of(&message(EXIT, [5, 5, 9, 5]), 5));
    }

    #[test]
    fn a_truncated_message_is_ignored() {
        let whole = message(FORK, [5, 5, 9, 9]);
        assert!((0..whole.len()).all(|length| !is_of_process(&whole[..length])));
        assert_eq!((refusal(&message(NONE, [1, 0, 0, 0])), refusal(&message(NONE, [0; 4]))), (Some(1), None));
        assert_eq!(refusal(&message(EXIT, [1, 1, 0, 0])), None);
    }

    #[test]
    fn a_request_has_the_kernels_form() {
        let bytes = request(&[LISTEN]);
        assert_eq!((bytes.len(), u32_at(&bytes, 0), u32_at(&bytes, KIND_AT)), (40, Some(40), Some(LISTEN)));
        assert_eq!((u32_at(&bytes, 16), u32_at(&bytes, 20), bytes[32]), (Some(1), Some(1), 4));
    }
}
