//! Memory that one process shares with another by a handle of 64 bytes.
//!
//! The driver does this only for memory that it allocated itself, but plain memory is mapped by the shim. So the handle
//! is the shim's: it says where the exporting process listens, and for which memory. The shim of the importing process
//! asks there, gets the memory as a descriptor, and maps it. Only processes of one user may do this, as the kernel
//! reports it. Handles that are not the shim's are passed to the driver, and so are handles of events.
//!
//! ```text
//!   cuIpcGetMemHandle ──► a handle: magic, pid, where, which ─── the program's own way ───► cuIpcOpenMemHandle
//!   a thread listens ◄─────────────── which? ── here is a descriptor, and where in it ──────────────► map it
//! ```

use crate::driver::{self, Access, READ_WRITE, current, done};
use crate::gate;
use crate::log;
use crate::page::{self, Reason};
use crate::socket::{Kept, Socket};
use crate::table::{self, Block};
use crate::wrap;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// The first bytes of a handle of the shim.
const MAGIC: [u8; 8] = *b"sublet-m";
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which the caller must set.
const LAZY: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub const DESCRIPTOR: i32 = 1;
/// How long the other process has to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// `CUipcMemHandle`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Handle([u8; 64]);

/// The contents of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Said {
    pid: u32,
    /// Where the exporting process listens.
    place: u64,
    /// Which memory.
    token: u64,
    /// Length, and offset in the memory that is received.
    bytes: u64,
    offset: u64,
}

impl Handle {
    fn write(said: &Said) -> Handle {
        let mut handle = [0; 64];
        handle[..8].copy_from_slice(&MAGIC);
        handle[8..12].copy_from_slice(&said.pid.to_le_bytes());
        for (number, value) in [said.place, said.token, said.bytes, said.offset].into_iter().enumerate() {
            handle[16 + 8 * number..24 + 8 * number].copy_from_slice(&value.to_le_bytes());
        }
        Handle(handle)
    }

    /// The contents, or `None` if the handle is not the shim's.
    fn read(&self) -> Option<Said> {
        let word = |at: usize| {
            let bytes: [u8; 8] = std::array::from_fn(|place| self.0[at + place]);
            u64::from_le_bytes(bytes)
        };
        (self.0[..8] == MAGIC).then(|| Said {
            pid: word(8) as u32,
            place: word(16),
            token: word(24),
            bytes: word(32),
            offset: word(40),
        })
    }
}

/// Memory that was exported: its block, by number.
struct Given {
    at: u64,
    id: u64,
}

/// Memory of another process.
struct Taken {
    said: Said,
    /// Address and length of the whole mapping.
    first: u64,
    length: u64,
    /// How many times it was opened.
    count: usize,
}

static GIVEN: Mutex<BTreeMap<u64, Given>> = Mutex::new(BTreeMap::new());
static TAKEN: Mutex<BTreeMap<u64, Taken>> = Mutex::new(BTreeMap::new());

fn given<T>(body: impl FnOnce(&mut BTreeMap<u64, Given>) -> T) -> T {
    body(&mut GIVEN.lock().unwrap_or_else(PoisonError::into_inner))
}

fn taken<T>(body: impl FnOnce(&mut BTreeMap<u64, Taken>) -> T) -> T {
    body(&mut TAKEN.lock().unwrap_or_else(PoisonError::into_inner))
}

fn random() -> u64 {
    let mut number = 0_u64;
    // SAFETY: it fills the number, which lives until the call returns.
    unsafe { libc::syscall(libc::SYS_getrandom, &raw mut number, size_of::<u64>(), 0) };
    number
}

/// The abstract socket name at which a process listens.
fn name(place: u64) -> Vec<u8> {
    format!("\0sublet-memory-{place:016x}").into_bytes()
}

fn own_uid() -> libc::uid_t {
    // SAFETY: it takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Where this process listens; it starts with the first handle that it exports. `None` if it cannot.
fn listening() -> Option<u64> {
    static PLACE: OnceLock<Option<u64>> = OnceLock::new();
    *PLACE.get_or_init(|| {
        let place = random();
        let socket = Socket::listen(&name(place)).ok()?;
        crate::control::spawn("sublet-memory", move || serve(&socket)).then_some(place)
    })
}

/// Answers processes that have a handle.
fn serve(socket: &Socket) {
    gate::free_this_thread();
    let socket = Kept::new(socket, 1);
    loop {
        match socket.accept() {
            // A peer that closes the connection has its answer, or gets none.
            Ok(line) => drop(answer(&line)),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn answer(line: &Socket) -> Option<()> {
    if line.peer_uid().ok()? != own_uid() {
        return None;
    }
    let mut asked = [0; 8];
    line.receive(&mut asked, ANSWER).ok()??;
    let (at, id) = given(|all| all.get(&u64::from_le_bytes(asked)).map(|own| (own.at, own.id)))?;
    let table = table::lock();
    // It may be freed, and another allocation be at the same address.
    table.blocks.get(&at).filter(|block| block.id == id)?;
    let (_, mapping) = table.mapping(at)?;
    let real = table.physical.get(&mapping.handle)?.real?;
    drop(table);
    let mut descriptor = -1;
    done(driver::cuMemExportToShareableHandle((&raw mut descriptor).cast(), real, DESCRIPTOR, 0)).ok()?;
    // SAFETY: the driver has just made it for us.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    // It may have been freed just now, and the driver's handle reused.
    table::lock().blocks.get(&at).filter(|block| block.id == id)?;
    line.send(&asked, Some(&descriptor)).ok()
}

/// A handle for the plain allocation that an address is in; `None` if it cannot be shared.
pub fn get(at: u64) -> Option<Handle> {
    let table = table::lock();
    let (first, block) = table.block(at).filter(|(_, block)| block.pool == 0 && !block.is_import)?;
    let (start, mapping) = table.mapping(first)?;
    let is_shareable = table.physical.get(&mapping.handle)?.properties.handle_types & DESCRIPTOR != 0;
    drop(table);
    let place = listening().filter(|_| is_shareable)?;
    let token = given(|all| {
        let known = all.iter().find(|(_, own)| own.id == block.id).map(|(token, _)| *token);
        known.unwrap_or_else(|| {
            let token = random();
            all.insert(token, Given { at: first, id: block.id });
            page::hold(Reason::Shared, "cuIpcGetMemHandle");
            token
        })
    });
    let pid = std::process::id();
    Some(Handle::write(&Said { pid, place, token, bytes: block.bytes, offset: first - start }))
}

/// An allocation is freed: no process can open it any more.
pub fn forget(block: &Block) {
    let count = given(|all| {
        let before = all.len();
        all.retain(|_, own| own.id != block.id);
        before - all.len()
    });
    (0..count).for_each(|_| page::let_go(Reason::Shared));
}

/// Maps memory of another process. `None` if the handle is the driver's.
pub fn open(handle: &Handle, flags: u32) -> Option<Result<u64, u32>> {
    let said = handle.read()?;
    Some(if flags == LAZY { opened(&said) } else { Err(driver::INVALID_VALUE) })
}

fn opened(said: &Said) -> Result<u64, u32> {
    let (context, device) = current()?;
    // A process cannot open a handle that it exported itself.
    if given(|all| all.contains_key(&said.token)) {
        return Err(driver::INVALID_CONTEXT);
    }
    let again = taken(|all| {
        let (at, own) = all.iter_mut().find(|(_, own)| own.said == *said)?;
        own.count += 1;
        Some(*at)
    });
    if let Some(at) = again {
        return Ok(at);
    }
    let file = ask(said).ok_or(driver::INVALID_VALUE)?;
    let length = said.offset.checked_add(said.bytes).and_then(|end| end.checked_next_multiple_of(wrap::GRANULE));
    let length = length.ok_or(driver::INVALID_VALUE)? as usize;
    let (mut real, mut first) = (0, 0);
    let descriptor = file.as_raw_fd() as usize as *mut c_void;
    done(driver::cuMemImportFromShareableHandle(&raw mut real, descriptor, DESCRIPTOR))?;
    let access = Access { location: driver::Location { kind: driver::ON_CARD, id: device }, flags: READ_WRITE };
    let mapped = done(driver::cuMemAddressReserve(&raw mut first, length, 0, 0, 0)).and_then(|()| {
        let mapped = done(driver::cuMemMap(first, length, 0, real, 0));
        let shown = mapped.and_then(|()| done(driver::cuMemSetAccess(first, length, &raw const access, 1)));
        if shown.is_err() {
            if mapped.is_ok() {
                driver::cuMemUnmap(first, length);
            }
            driver::cuMemAddressFree(first, length);
        }
        shown
    });
    // The mapping keeps the memory alive.
    driver::cuMemRelease(real);
    mapped?;
    let at = first + said.offset;
    taken(|all| all.insert(at, Taken { said: *said, first, length: length as u64, count: 1 }));
    table::lock().add_block(at, Block { bytes: said.bytes, context, is_import: true, ..Block::default() });
    page::hold(Reason::Shared, "cuIpcOpenMemHandle");
    Ok(at)
}

/// Asks the exporting process for the memory of a handle.
fn ask(said: &Said) -> Option<std::fs::File> {
    let line = match Socket::connect(&name(said.place)) {
        Ok(line) => line,
        Err(_) => {
            log::once(&format!("process {} shared memory, and is not there any more", said.pid));
            return None;
        }
    };
    if line.peer_uid().ok()? != own_uid() {
        return None;
    }
    line.send(&said.token.to_le_bytes(), None).ok()?;
    let mut answer = [0; 8];
    let (length, file) = line.receive(&mut answer, ANSWER).ok()??;
    (length == 8).then_some(file).flatten()
}

/// Closes memory of another process once. `None` if it was not opened here.
pub fn close(at: u64) -> Option<Result<(), u32>> {
    let is_last = taken(|all| {
        let own = all.get_mut(&at)?;
        own.count -= 1;
        Some(own.count == 0)
    })?;
    if is_last {
        let context = table::lock().blocks.get(&at).map_or(0, |block| block.context);
        let is_settled = match wrap::settled(context) {
            Ok(is_settled) => is_settled,
            Err(error) => return Some(Err(error)),
        };
        let mut table = table::lock();
        let block = table.blocks.remove(&at);
        // A capture is open, and may still use the memory.
        table.deferred.extend(block.filter(|_| !is_settled).map(|block| (at, block)));
        drop(table);
        if is_settled {
            unmap(at);
        }
    }
    Some(Ok(()))
}

/// Unmaps memory of another process, after its block was taken out of the table.
pub fn unmap(at: u64) {
    let Some(own) = taken(|all| all.remove(&at)) else { return };
    driver::cuMemUnmap(own.first, own.length as usize);
    driver::cuMemAddressFree(own.first, own.length as usize);
    page::let_go(Reason::Shared);
}

#[cfg(test)]
mod tests {
    use super::{Handle, Said, name};

    #[test]
    fn a_handle_says_what_was_written_and_others_say_nothing() {
        let said = Said { pid: 4312, place: 0x0123_4567_89ab_cdef, token: u64::MAX, bytes: 1 << 33, offset: 512 };
        let mut handle = Handle::write(&said);
        assert_eq!(handle.read(), Some(said));
        handle.0[3] ^= 1;
        assert_eq!(handle.read(), None);
        assert_eq!(Handle([0; 64]).read(), None);
        assert_eq!(name(1)[0], 0, "no file system has it");
    }
}
