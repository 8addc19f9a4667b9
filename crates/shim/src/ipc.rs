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

use crate::driver::{self, LocationAccess, READ_WRITE, as_result, current_context};
use crate::gate;
use crate::gpu_memory::{self, ContextWork, DESCRIPTOR};
use crate::lease_page;
use crate::log;
use crate::memory_table::{self, ProgramBlock};
use crate::message::ParkObstacle;
use crate::packet_socket::{ClosedOnFork, PacketSocket, SocketUse};
use crate::threads;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// The first bytes of a handle of the shim.
const MAGIC: [u8; 8] = *b"sublet-m";
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which the caller must set.
const LAZY: u32 = 1;
/// How long the other process has to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// `CUipcMemHandle`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IpcHandle([u8; 64]);

/// The contents of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HandleContents {
    pid: u32,
    /// Where the exporting process listens.
    listener: u64,
    /// Which memory.
    token: u64,
    /// Length, and offset in the memory that is received.
    bytes: u64,
    offset: u64,
}

impl IpcHandle {
    fn write(contents: &HandleContents) -> IpcHandle {
        let mut handle = [0; 64];
        handle[..8].copy_from_slice(&MAGIC);
        handle[8..12].copy_from_slice(&contents.pid.to_le_bytes());
        for (number, value) in
            [contents.listener, contents.token, contents.bytes, contents.offset].into_iter().enumerate()
        {
            handle[16 + 8 * number..24 + 8 * number].copy_from_slice(&value.to_le_bytes());
        }
        IpcHandle(handle)
    }

    /// The contents, or `None` if the handle is not the shim's.
    fn read(&self) -> Option<HandleContents> {
        let word = |at: usize| {
            let bytes: [u8; 8] = std::array::from_fn(|place| self.0[at + place]);
            u64::from_le_bytes(bytes)
        };
        (self.0[..8] == MAGIC).then(|| HandleContents {
            pid: word(8) as u32,
            listener: word(16),
            token: word(24),
            bytes: word(32),
            offset: word(40),
        })
    }
}

/// Memory that was exported: its block, by number.
struct ExportedBlock {
    at: u64,
    id: u64,
}

/// Memory of another process.
struct ImportedMemory {
    contents: HandleContents,
    /// Address and length of the whole mapping.
    first: u64,
    length: u64,
    /// How many times it was opened.
    count: usize,
}

static EXPORTED: Mutex<BTreeMap<u64, ExportedBlock>> = Mutex::new(BTreeMap::new());
static IMPORTED: Mutex<BTreeMap<u64, ImportedMemory>> = Mutex::new(BTreeMap::new());

fn with_exported<T>(body: impl FnOnce(&mut BTreeMap<u64, ExportedBlock>) -> T) -> T {
    body(&mut EXPORTED.lock().unwrap_or_else(PoisonError::into_inner))
}

fn with_imported<T>(body: impl FnOnce(&mut BTreeMap<u64, ImportedMemory>) -> T) -> T {
    body(&mut IMPORTED.lock().unwrap_or_else(PoisonError::into_inner))
}

fn random() -> u64 {
    let mut number = 0_u64;
    // SAFETY: it fills the number, which lives until the call returns.
    unsafe { libc::syscall(libc::SYS_getrandom, &raw mut number, size_of::<u64>(), 0) };
    number
}

/// The abstract socket name at which a process listens.
fn socket_name(listener: u64) -> Vec<u8> {
    format!("\0sublet-memory-{listener:016x}").into_bytes()
}

fn own_uid() -> libc::uid_t {
    // SAFETY: it takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Where this process listens; it starts with the first handle that it exports. `None` if it cannot.
fn own_listener() -> Option<u64> {
    static LISTENER: OnceLock<Option<u64>> = OnceLock::new();
    *LISTENER.get_or_init(|| {
        let listener = random();
        let socket = PacketSocket::listen(&socket_name(listener)).ok()?;
        threads::spawn_without_signals("sublet-memory", move || answer_requests(&socket)).then_some(listener)
    })
}

/// Answers processes that have a handle.
fn answer_requests(socket: &PacketSocket) {
    gate::exempt_this_thread();
    let socket = ClosedOnFork::new(socket, SocketUse::MemoryListener);
    loop {
        match socket.accept() {
            // A peer that closes the connection has its answer, or gets none.
            Ok(line) => drop(answer_request(&line)),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn answer_request(line: &PacketSocket) -> Option<()> {
    if line.peer_uid().ok()? != own_uid() {
        return None;
    }
    let mut asked = [0; 8];
    line.receive(&mut asked, ANSWER_TIMEOUT).ok()??;
    let (at, id) = with_exported(|all| all.get(&u64::from_le_bytes(asked)).map(|own| (own.at, own.id)))?;
    let table = memory_table::lock();
    // It may be freed, and another allocation be at the same address.
    table.blocks.get(&at).filter(|block| block.id == id)?;
    let (_, mapping) = table.mapping(at)?;
    let real = table.physical.get(&mapping.handle)?.real?;
    drop(table);
    let mut descriptor = -1;
    // SAFETY: a handle of this kind is a descriptor, and there is room for one.
    let exported =
        unsafe { driver::cuMemExportToShareableHandle((&raw mut descriptor).cast::<c_void>(), real, DESCRIPTOR, 0) };
    as_result(exported).ok()?;
    // SAFETY: the driver has just made the descriptor, for this call alone.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    // It may have been freed just now, and the driver's handle reused.
    memory_table::lock().blocks.get(&at).filter(|block| block.id == id)?;
    line.send(&asked, Some(&descriptor)).ok()
}

/// A handle for the plain allocation that an address is in; `None` if it cannot be shared.
pub fn handle_for(at: u64) -> Option<IpcHandle> {
    let table = memory_table::lock();
    let (first, block) = table.block(at).filter(|(_, block)| block.pool == 0 && !block.is_import)?;
    let (start, mapping) = table.mapping(first)?;
    let is_shareable = table.physical.get(&mapping.handle)?.properties.handle_types & DESCRIPTOR != 0;
    drop(table);
    let listener = own_listener().filter(|_| is_shareable)?;
    let token = with_exported(|all| {
        let known = all.iter().find(|(_, own)| own.id == block.id).map(|(token, _)| *token);
        known.unwrap_or_else(|| {
            let token = random();
            all.insert(token, ExportedBlock { at: first, id: block.id });
            lease_page::count_obstacle(ParkObstacle::Shared, "cuIpcGetMemHandle");
            token
        })
    });
    let pid = std::process::id();
    Some(IpcHandle::write(&HandleContents { pid, listener, token, bytes: block.bytes, offset: first - start }))
}

/// An allocation is freed: no process can open it any more.
pub fn forget_export(block: &ProgramBlock) {
    let count = with_exported(|all| {
        let before = all.len();
        all.retain(|_, own| own.id != block.id);
        before - all.len()
    });
    (0..count).for_each(|_| lease_page::uncount_obstacle(ParkObstacle::Shared));
}

/// Maps memory of another process. `None` if the handle is the driver's.
pub fn open_handle(handle: &IpcHandle, flags: u32) -> Option<Result<u64, u32>> {
    let contents = handle.read()?;
    Some(if flags == LAZY { import_memory(&contents) } else { Err(driver::INVALID_VALUE) })
}

fn import_memory(contents: &HandleContents) -> Result<u64, u32> {
    let (context, device) = current_context()?;
    // A process cannot open a handle that it exported itself.
    if with_exported(|all| all.contains_key(&contents.token)) {
        return Err(driver::INVALID_CONTEXT);
    }
    let again = with_imported(|all| {
        let (at, own) = all.iter_mut().find(|(_, own)| own.contents == *contents)?;
        own.count += 1;
        Some(*at)
    });
    if let Some(at) = again {
        return Ok(at);
    }
    let file = request_memory(contents).ok_or(driver::INVALID_VALUE)?;
    let end = contents.offset.checked_add(contents.bytes);
    let length = end.and_then(|end| end.checked_next_multiple_of(gpu_memory::GRANULE));
    let length = length.ok_or(driver::INVALID_VALUE)? as usize;
    let (mut real, mut first) = (0, 0);
    let descriptor = file.as_raw_fd() as usize as *mut c_void;
    // SAFETY: there is room for the handle, and a descriptor is passed as if it were a pointer.
    as_result(unsafe { driver::cuMemImportFromShareableHandle(&raw mut real, descriptor, DESCRIPTOR) })?;
    let access =
        LocationAccess { location: driver::MemLocation { kind: driver::ON_GPU, id: device }, flags: READ_WRITE };
    let mapped = as_result(driver::cuMemAddressReserve(&mut first, length, 0, 0, 0)).and_then(|()| {
        let mapped = as_result(driver::cuMemMap(first, length, 0, real, 0));
        let shown = mapped.and_then(|()| driver::set_access(first, length, &[access]));
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
    let at = first + contents.offset;
    with_imported(|all| all.insert(at, ImportedMemory { contents: *contents, first, length: length as u64, count: 1 }));
    memory_table::lock()
        .add_block(at, ProgramBlock { bytes: contents.bytes, context, is_import: true, ..ProgramBlock::default() });
    lease_page::count_obstacle(ParkObstacle::Shared, "cuIpcOpenMemHandle");
    Ok(at)
}

/// Asks the exporting process for the memory of a handle.
fn request_memory(contents: &HandleContents) -> Option<std::fs::File> {
    let line = match PacketSocket::connect(&socket_name(contents.listener)) {
        Ok(line) => line,
        Err(_) => {
            log::once(&format!("process {} shared memory, and is not there any more", contents.pid));
            return None;
        }
    };
    if line.peer_uid().ok()? != own_uid() {
        return None;
    }
    line.send(&contents.token.to_le_bytes(), None).ok()?;
    let mut answer = [0; 8];
    let (length, file) = line.receive(&mut answer, ANSWER_TIMEOUT).ok()??;
    (length == 8).then_some(file).flatten()
}

/// Closes memory of another process once. `None` if it was not opened here.
pub fn close_import(at: u64) -> Option<Result<(), u32>> {
    let is_last = with_imported(|all| {
        let own = all.get_mut(&at)?;
        own.count -= 1;
        Some(own.count == 0)
    })?;
    if is_last {
        let context = memory_table::lock().blocks.get(&at).map_or(0, |block| block.context);
        let work = match gpu_memory::wait_for_context_work(context) {
            Ok(work) => work,
            Err(error) => return Some(Err(error)),
        };
        let mut table = memory_table::lock();
        let block = table.blocks.remove(&at);
        match work {
            ContextWork::Done => {
                drop(table);
                unmap(at);
            }
            // The capture may still use the memory.
            ContextWork::Captured => table.deferred.extend(block.map(|block| (at, block))),
        }
    }
    Some(Ok(()))
}

/// Unmaps memory of another process, after its block was taken out of the table.
pub fn unmap(at: u64) {
    let Some(own) = with_imported(|all| all.remove(&at)) else { return };
    driver::cuMemUnmap(own.first, own.length as usize);
    driver::cuMemAddressFree(own.first, own.length as usize);
    lease_page::uncount_obstacle(ParkObstacle::Shared);
}

#[cfg(test)]
mod tests {
    use super::{HandleContents, IpcHandle, socket_name};

    #[test]
    fn a_handle_holds_its_contents_and_others_are_not_read() {
        let contents =
            HandleContents { pid: 4312, listener: 0x0123_4567_89ab_cdef, token: u64::MAX, bytes: 1 << 33, offset: 512 };
        let mut handle = IpcHandle::write(&contents);
        assert_eq!(handle.read(), Some(contents));
        handle.0[3] ^= 1;
        assert_eq!(handle.read(), None);
        assert_eq!(IpcHandle([0; 64]).read(), None);
        assert_eq!(socket_name(1)[0], 0, "no file system has it");
    }
}
