//! Moves memory off the GPU, and back to the same addresses.
//!
//! ```text
//!   park      close the gate · wait for the GPU · copy out, unmap and free what has arrived
//!   resume    allocate all memory, or none · map it where it was, copy in · open the gate
//! ```
//! Until the GPU has finished its work nothing has changed, and any failure opens the gate again. A resume that finds
//! too little free memory leaves everything parked. Mapping and unmapping run beside the copies: for many small
//! allocations they take up to a tenth of the copies' time.

use crate::allocations;
use crate::arena::ParkArena;
use crate::contexts;
use crate::deferred_calls;
use crate::driver::{self, NO_TIMING, NON_BLOCKING, as_result, name_of, with_context};
use crate::gate::{self, ClosedGate, GateState};
use crate::lease_page;
use crate::memory_table::{self, MemoryMapping, MemoryTable, ParkableMemory};
use crate::message::{MoveDurations, ParkObstacle, size_text};
use crate::outside_access;
use crate::pool;
use crate::unmovable_memory;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Parks and resumes this process: it has an arena, and a stream and an event in each context.
#[derive(Default)]
pub struct Parker {
    arena: ParkArena,
    /// How many bytes of the arena shall be registered with the driver before they are needed. There is a pause between
    /// pieces, because the program's launches wait while a piece is registered.
    prepare_target: u64,
    prepare_pause: Duration,
    streams: BTreeMap<usize, usize>,
    events: BTreeMap<usize, usize>,
}

/// A piece of memory to copy: its context, where it is mapped, its length, and its offset in the arena.
struct ParkPiece {
    handle: u64,
    context: usize,
    at: u64,
    bytes: u64,
    offset: u64,
}

/// An order to park.
#[derive(Clone, Copy, Debug)]
pub struct ParkRequest {
    /// The park is done within this time, or not at all.
    pub within: Duration,
    /// How much may be moved.
    pub limit: ParkLimit,
}

/// How much a park may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkLimit {
    /// All of the memory.
    Unlimited,
    /// All of the memory, if it is at most this many bytes.
    AtMost(u64),
    /// Nothing, as for a program that parked itself: memory that the program kept stays, and its calls wait as those of
    /// any parked program.
    Nothing,
}

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyDirection {
    /// From the GPU to the arena.
    Out,
    /// From the arena to the GPU.
    In,
}

/// How long calls that are answered while parked may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// No park takes longer than this, whatever the daemon says.
const PARK_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// How long an idle GPU takes to report that it is idle.
const IDLE_TIMEOUT: Duration = Duration::from_millis(1);

fn micros(since: Instant) -> u64 {
    since.elapsed().as_micros() as u64
}

impl Parker {
    /// The arena.
    pub fn arena(&mut self) -> &mut ParkArena {
        &mut self.arena
    }

    /// Forgets the streams and events of contexts that are gone.
    pub fn forget_gone(&mut self) {
        for context in contexts::take_gone() {
            self.streams.remove(&context);
            self.events.remove(&context);
        }
    }

    /// Moves the memory off the GPU. Returns how many bytes were moved.
    pub fn park(&mut self, request: ParkRequest) -> Result<(u64, MoveDurations), String> {
        match gate::state() {
            GateState::Parked => return Err("it is parked already".to_owned()),
            GateState::Lost => return Err("what was parked is lost, and calls that need it fail".to_owned()),
            GateState::Open | GateState::Moving | GateState::AwaitingCaptures => {}
        }
        outside_access::update_obstacles();
        unmovable_memory::count_graph_memory();
        check_parkable(request.limit)?;
        self.prepare_target = 0;
        let (begun, deadline) = (Instant::now(), Instant::now() + request.within.min(PARK_TIMEOUT_MAX));
        let mut took = MoveDurations::default();
        let Some(closed) = gate::close(deadline) else {
            return Err("a call of the driver did not return in time, or a graph was being captured".to_owned());
        };
        took.capture_us = closed.took.captures.as_micros() as u64;
        took.gate_us = closed.took.calls.as_micros() as u64;
        // A copy that waits for the GPU waits for the same work that the park would wait for.
        took.drain_us = closed.took.copies.as_micros() as u64;
        unmovable_memory::trim_graph_memory();
        // A call that was inside when the gate began to close may have made the program not parkable.
        let done = check_parkable(request.limit).and_then(|()| self.move_out(deadline, request.limit, &mut took));
        match done {
            Ok(bytes) => {
                lease_page::own_slot().parked.store(bytes, SeqCst);
                closed.park();
                took.all_us = micros(begun);
                Ok((bytes, took))
            }
            Err(why) => {
                closed.open();
                Err(why)
            }
        }
    }

    fn move_out(&mut self, deadline: Instant, limit: ParkLimit, took: &mut MoveDurations) -> Result<u64, String> {
        let begun = Instant::now();
        let pieces = if limit == ParkLimit::Nothing { Vec::new() } else { movable_pieces() };
        self.drain(deadline)?;
        took.drain_us += micros(begun);
        let bytes = pieces.last().map_or(0, |piece| piece.offset + piece.bytes);
        if let ParkLimit::AtMost(most) = limit
            && bytes > most
        {
            let (has, most) = (size_text(bytes), size_text(most));
            return Err(format!("it has {has} by now, and {most} of host memory were booked for it"));
        }
        self.arena.grow(bytes)?;
        let copying = Instant::now();
        let mut taken = 0;
        let copied = self.copy_pieces_out(&pieces, &mut taken);
        took.copy_us = micros(copying);
        let unmapping = Instant::now();
        match copied {
            Ok(()) => unmap_and_free(&pieces[taken..]),
            Err(why) => {
                // Memory that was moved off already goes back; if a context is lost, the program learns it from its
                // next call.
                let gone = &pieces[..taken];
                if allocate_all(gone).is_ok() && self.copy_pieces_in(gone).is_ok() {
                    clear_parked_records(gone);
                }
                return Err(why);
            }
        }
        took.map_us = micros(unmapping);
        Ok(bytes)
    }

    /// Moves the memory back to the GPU. Returns how many bytes were moved.
    pub fn resume(&mut self) -> Result<(u64, MoveDurations), String> {
        if gate::state() != GateState::Parked {
            return Err("it is not parked".to_owned());
        }
        let (begun, mut took) = (Instant::now(), MoveDurations::default());
        let closed = close_in_time()?;
        // The daemon sends this order only after it has seen that the driver gave the context back.
        self.context_returned(&closed);
        took.gate_us = micros(begun);
        let mapping = Instant::now();
        let pieces = parked_pieces();
        let bytes = pieces.iter().map(|piece| piece.bytes).sum();
        if let Err(error) = allocate_all(&pieces) {
            closed.park();
            return Err(format!("there is no room on the GPU: {}", name_of(error)));
        }
        took.map_us = micros(mapping);
        let copying = Instant::now();
        let copied = self.copy_pieces_in(&pieces);
        took.copy_us = micros(copying);
        if let Err(why) = copied
            && contexts_are_usable(&pieces)
        {
            // All bytes are still in the arena: the resume can be tried again.
            unmap_and_free(&pieces);
            closed.park();
            return Err(why);
        }
        // If a context is lost, the program learns it from its next call.
        clear_parked_records(&pieces);
        lease_page::own_slot().parked.store(0, SeqCst);
        closed.open();
        took.all_us = micros(begun);
        Ok((bytes, took))
    }

    /// The driver is about to take the context, too: from now on no thread calls the driver.
    pub fn deepen(&mut self) -> Result<(), String> {
        let is_parked = gate::state() == GateState::Parked;
        let Some(closed) = is_parked.then(|| gate::close(Instant::now() + CALL_TIMEOUT)).flatten() else {
            return Err("it is not parked, or a call of the driver did not return in time".to_owned());
        };
        gate::note_context_away(&closed);
        closed.park();
        Ok(())
    }

    /// The driver has not taken the context, or has given it back: the program is parked as before.
    pub fn shallow(&mut self) -> Result<(), String> {
        if !gate::is_context_away() {
            return Ok(());
        }
        let closed = close_in_time()?;
        self.context_returned(&closed);
        closed.restore();
        Ok(())
    }

    /// The context is back: calls that were put off are done before any other call comes in.
    fn context_returned(&mut self, closed: &ClosedGate) {
        if gate::is_context_away() {
            deferred_calls::run_deferred();
            self.forget_gone();
            gate::note_context_back(closed);
        }
    }

    /// Sets how many bytes of the arena shall be registered with the driver before they are needed.
    pub fn set_prepare_target(&mut self, bytes: u64) {
        self.prepare_target = bytes;
    }

    /// How long the program has the driver for itself before the next piece is registered: as long as the last piece
    /// took. `None` if there is nothing more to register.
    pub fn prepare_pause(&self) -> Option<Duration> {
        (self.prepare_target > 0).then_some(self.prepare_pause)
    }

    /// Registers the next piece. Returns how many bytes are registered, if that was the last piece or if it failed.
    pub fn prepare(&mut self) -> Option<u64> {
        let (begun, bytes) = (Instant::now(), self.prepare_target);
        // A program that ends its context waits for no more than this piece.
        let _stay = contexts::keep_all();
        let context = all_contexts().into_iter().next();
        let more = context.is_some_and(|context| with_context(context, || self.arena.prepare(bytes)).unwrap_or(false));
        self.prepare_pause = begun.elapsed();
        if !more {
            self.prepare_target = 0;
        }
        (!more).then(|| self.arena.registered())
    }

    /// The lease is over: parked bytes are lost, and calls that need them fail.
    pub fn lose_parked(&mut self, why: &str) {
        if gate::state() != GateState::Parked {
            return;
        }
        let Some(closed) = gate::close(Instant::now() + CALL_TIMEOUT) else { return };
        if parked_pieces().is_empty() && !gate::is_context_away() {
            return closed.open();
        }
        crate::log::once(&format!("{why}; what was parked is lost, and calls that need it fail from now on"));
        lease_page::own_slot().parked.store(0, SeqCst);
        closed.lose();
        if gate::is_context_away() {
            // The context never comes back: the memory of the arena is freed with the process.
            return;
        }
        let _stay = contexts::keep_all();
        if let Some(context) = all_contexts().into_iter().next() {
            let arena = &mut self.arena;
            // If the driver does not release the memory, it is freed with the process.
            let _ = with_context(context, || {
                arena.trim();
                Ok(())
            });
        }
    }

    /// Frees the arena; refused while something is parked in it.
    pub fn trim(&mut self) -> Result<(), String> {
        if gate::state() == GateState::Parked {
            return Err("it is parked".to_owned());
        }
        self.prepare_target = 0;
        let _stay = contexts::keep_all();
        if let Some(context) = all_contexts().into_iter().next() {
            let arena = &mut self.arena;
            with_context(context, || {
                arena.trim();
                Ok(())
            })
            .map_err(name_of)?;
        }
        Ok(())
    }

    /// Gives back memory that pools keep beyond their thresholds, if the GPU is idle for the program.
    pub fn release_excess(&mut self) {
        if gate::state() != GateState::Open || !pool::has_excess() || gate::is_capturing() {
            return;
        }
        // With the gate closed no context can end meanwhile, and nothing is captured.
        let Some(closed) = gate::close(Instant::now() + IDLE_TIMEOUT) else { return };
        self.forget_gone();
        if self.drain(Instant::now() + IDLE_TIMEOUT).is_ok() {
            allocations::drop_deferred();
            pool::release_excess();
        }
        closed.open();
    }

    /// Polls until the GPU has finished its work: a kernel that never ends cannot block this thread.
    fn drain(&mut self, deadline: Instant) -> Result<(), String> {
        for context in all_contexts() {
            let event = self.events.get(&context).copied();
            let polled = with_context(context, || {
                let mut event = event.unwrap_or(0);
                if event == 0 {
                    as_result(driver::cuEventCreate(&mut event, NO_TIMING))?;
                }
                as_result(driver::cuCtxRecordEvent(context, event))?;
                loop {
                    match driver::cuEventQuery(event) {
                        driver::NOT_READY if Instant::now() < deadline => {
                            std::thread::sleep(Duration::from_micros(20));
                        }
                        result => return as_result(result).map(|()| event),
                    }
                }
            });
            match polled {
                Ok(event) => drop(self.events.insert(context, event)),
                Err(driver::NOT_READY) => return Err("a kernel did not end in time".to_owned()),
                // A blocking wait would be possible, but a kernel that never ends would then block the program, too.
                Err(driver::NOT_SUPPORTED) => return Err(ParkObstacle::OldDriver.text().to_owned()),
                Err(error) => return Err(format!("the GPU cannot be waited for: {}", name_of(error))),
            }
        }
        Ok(())
    }

    fn stream(&mut self, context: usize) -> Result<usize, u32> {
        if let Some(stream) = self.streams.get(&context) {
            return Ok(*stream);
        }
        let mut stream = 0;
        with_context(context, || as_result(driver::cuStreamCreate(&mut stream, NON_BLOCKING)))?;
        self.streams.insert(context, stream);
        Ok(stream)
    }

    /// Submits a piece's copies to the stream of its context.
    fn submit_piece(&mut self, piece: &ParkPiece, direction: CopyDirection) -> Result<(), u32> {
        let stream = self.stream(piece.context)?;
        let arena = &mut self.arena;
        with_context(piece.context, || submit_copies(arena, piece, stream, direction))
    }

    /// Waits for all copies of some pieces, also after a failure: no copy may be left running.
    fn wait_for_copies(&self, pieces: &[ParkPiece]) -> Result<(), u32> {
        let used: BTreeSet<usize> = pieces.iter().map(|piece| piece.context).collect();
        let mut all = Ok(());
        for context in used {
            let Some(stream) = self.streams.get(&context) else { continue };
            all = all.and(with_context(context, || as_result(driver::cuStreamSynchronize(*stream))));
        }
        all
    }

    /// Copies all pieces out. Parts of the arena that are not registered with the driver yet are registered on the way.
    /// Pieces that have arrived are taken off the GPU while others are copied. `taken` says how many were taken off;
    /// the last ones are left to the caller.
    fn copy_pieces_out(&mut self, pieces: &[ParkPiece], taken: &mut usize) -> Result<(), String> {
        let mut marks: Vec<(usize, usize, usize)> = Vec::new();
        let mut given = Ok(());
        let mut since = 0;
        for (number, piece) in pieces.iter().enumerate() {
            given = self.submit_piece(piece, CopyDirection::Out);
            if given.is_err() {
                break;
            }
            since += piece.bytes;
            let is_last_here = pieces.get(number + 1).is_none_or(|next| next.context != piece.context);
            if since >= BATCH || is_last_here {
                since = 0;
                // Without an event, the piece is taken off later.
                marks.extend(self.record_event(piece.context).map(|event| (number + 1, piece.context, event)));
            }
        }
        for (number, context, event) in &marks {
            let arrived = with_context(*context, || as_result(driver::cuEventSynchronize(*event)));
            if given.is_ok() && arrived.is_ok() && *number < pieces.len() {
                unmap_and_free(&pieces[*taken..*number]);
                *taken = *number;
            }
            // An event that cannot be destroyed goes with its context.
            let _ = with_context(*context, || as_result(driver::cuEventDestroy_v2(*event)));
        }
        let waited = self.wait_for_copies(pieces);
        given.and(waited).map_err(|error| format!("the copy failed: {}", name_of(error)))
    }

    /// Records an event behind the work in a context's stream.
    fn record_event(&mut self, context: usize) -> Option<usize> {
        let stream = self.stream(context).ok()?;
        let mut event = 0;
        let made = with_context(context, || {
            as_result(driver::cuEventCreate(&mut event, NO_TIMING))?;
            as_result(driver::cuEventRecord(event, stream))
        });
        made.ok().map(|()| event)
    }

    /// Maps all pieces where they were and copies them in; while one is copied the next is mapped.
    fn copy_pieces_in(&mut self, pieces: &[ParkPiece]) -> Result<(), String> {
        let failed = |error| format!("the copy failed: {}", name_of(error));
        let given = pieces.iter().try_for_each(|piece| {
            map_piece(piece)?;
            self.submit_piece(piece, CopyDirection::In).map_err(failed)
        });
        let waited = self.wait_for_copies(pieces).map_err(failed);
        given.and(waited)
    }
}

/// Closes the gate of a parked program.
fn close_in_time() -> Result<ClosedGate, String> {
    gate::close(Instant::now() + CALL_TIMEOUT).ok_or_else(|| "a call of the driver did not return in time".to_owned())
}

/// Returns an error if something prevents a park.
fn check_parkable(limit: ParkLimit) -> Result<(), String> {
    match lease_page::first_obstacle() {
        Some(obstacle) if limit != ParkLimit::Nothing => Err(obstacle.text().to_owned()),
        _ => Ok(()),
    }
}

/// How many bytes are copied between two events.
const BATCH: u64 = 1 << 30;

/// Clears the records of pieces that are on the GPU again.
fn clear_parked_records(pieces: &[ParkPiece]) {
    let mut table = memory_table::lock();
    for piece in pieces {
        if let Some(physical) = table.physical.get_mut(&piece.handle) {
            physical.arena = None;
        }
    }
}

/// Submits the copies of a piece to a stream.
fn submit_copies(arena: &mut ParkArena, piece: &ParkPiece, stream: usize, direction: CopyDirection) -> Result<(), u32> {
    let mut copied = 0;
    while copied < piece.bytes {
        let offset = piece.offset + copied;
        while arena.registered() <= offset {
            arena.register_next()?;
        }
        let bytes = arena.bytes_left_in_piece(offset).min(piece.bytes - copied) as usize;
        let (host, gpu) = (arena.at(offset), piece.at + copied);
        // SAFETY: the arena has these bytes, no other copy is given them, and they stay until the copy is done: callers
        // wait for it before they use or free them.
        as_result(unsafe {
            match direction {
                CopyDirection::Out => driver::cuMemcpyDtoHAsync_v2(host, gpu, bytes, stream),
                CopyDirection::In => driver::cuMemcpyHtoDAsync_v2(gpu, host, bytes, stream),
            }
        })?;
        copied += bytes as u64;
    }
    Ok(())
}

/// Contexts that may touch memory: those that the program made, and those that own memory.
fn all_contexts() -> BTreeSet<usize> {
    let table = memory_table::lock();
    let of_memory = table.physical.values().map(|physical| physical.context);
    let with_memory = of_memory.chain(table.blocks.values().map(|block| block.context));
    with_memory.chain(contexts::all()).filter(|context| *context != 0).collect()
}

/// True if the contexts of all pieces can still be used.
fn contexts_are_usable(pieces: &[ParkPiece]) -> bool {
    let contexts: BTreeSet<usize> = pieces.iter().map(|piece| piece.context).collect();
    contexts.into_iter().all(|context| with_context(context, || as_result(driver::cuCtxSynchronize())).is_ok())
}

/// An address where all of the memory is mapped readable and writable, so that it can be copied; `None` if there is
/// none.
fn whole_mapping(table: &MemoryTable, physical: &ParkableMemory) -> Option<u64> {
    let own = |access: &driver::LocationAccess| {
        access.location == physical.properties.location && access.flags == driver::READ_WRITE
    };
    let is_whole = |mapping: &MemoryMapping| {
        mapping.offset == 0 && mapping.bytes == physical.bytes && mapping.access.iter().any(own)
    };
    physical.mapped.iter().copied().find(|at| table.mappings.get(at).is_some_and(is_whole))
}

/// A piece for each memory that `offset` accepts and that is mapped as a whole, in the order of their handles.
fn pieces(table: &MemoryTable, mut offset: impl FnMut(&ParkableMemory) -> Option<u64>) -> Vec<ParkPiece> {
    // Memory of no context can be moved by any context of its GPU.
    let mut some: BTreeMap<i32, usize> = BTreeMap::new();
    for physical in table.physical.values().filter(|physical| physical.context != 0) {
        some.insert(physical.properties.location.id, physical.context);
    }
    let piece = |(handle, physical): (&u64, &ParkableMemory)| {
        let own = physical.context;
        let context = if own == 0 { *some.get(&physical.properties.location.id)? } else { own };
        let (at, bytes) = (whole_mapping(table, physical)?, physical.bytes);
        Some(ParkPiece { handle: *handle, context, at, bytes, offset: offset(physical)? })
    };
    table.physical.iter().filter_map(piece).collect()
}

/// The pieces that can be taken off, one after the other in the arena. Memory that is mapped nowhere as a whole stays.
fn movable_pieces() -> Vec<ParkPiece> {
    let mut next = 0;
    pieces(&memory_table::lock(), |physical| {
        physical.real?;
        let offset = next;
        next += physical.bytes;
        Some(offset)
    })
}

/// The pieces that were taken off.
fn parked_pieces() -> Vec<ParkPiece> {
    pieces(&memory_table::lock(), |physical| physical.arena)
}

/// Where the memory of a piece is mapped, and how.
fn mappings(piece: &ParkPiece) -> Vec<(u64, MemoryMapping)> {
    let table = memory_table::lock();
    let Some(physical) = table.physical.get(&piece.handle) else { return Vec::new() };
    physical.mapped.iter().filter_map(|at| Some((*at, table.mappings.get(at)?.clone()))).collect()
}

fn unmap_and_free(pieces: &[ParkPiece]) {
    for piece in pieces {
        for (at, mapping) in mappings(piece) {
            driver::cuMemUnmap(at, mapping.bytes as usize);
        }
        let mut table = memory_table::lock();
        let physical = table.physical.get_mut(&piece.handle);
        debug_assert!(physical.is_some(), "no memory goes while the gate is closed: {:#x}", piece.handle);
        let Some(physical) = physical else { continue };
        let real = physical.real.take();
        physical.arena = Some(piece.offset);
        drop(table);
        if let Some(real) = real {
            driver::cuMemRelease(real);
        }
    }
}

/// Allocates memory for all pieces, or for none.
fn allocate_all(pieces: &[ParkPiece]) -> Result<(), u32> {
    let mut made: Vec<(u64, u64)> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let table = memory_table::lock();
        let physical = table.physical.get(&piece.handle);
        debug_assert!(physical.is_some(), "no memory goes while the gate is closed: {:#x}", piece.handle);
        let Some(physical) = physical else { continue };
        let (properties, flags, bytes) = (physical.properties, physical.flags, physical.bytes);
        drop(table);
        let mut real = 0;
        let result = driver::cuMemCreate(&mut real, bytes as usize, &properties, flags);
        if let Err(error) = as_result(result) {
            for (_, real) in made {
                driver::cuMemRelease(real);
            }
            return Err(error);
        }
        made.push((piece.handle, real));
    }
    let mut table = memory_table::lock();
    for (handle, real) in made {
        if let Some(physical) = table.physical.get_mut(&handle) {
            physical.real = Some(real);
        }
    }
    Ok(())
}

/// Maps a piece at its former addresses.
fn map_piece(piece: &ParkPiece) -> Result<(), String> {
    let real = memory_table::lock().physical.get(&piece.handle).and_then(|physical| physical.real);
    debug_assert!(real.is_some(), "memory is allocated for all pieces before one is mapped: {:#x}", piece.handle);
    let Some(real) = real else { return Ok(()) };
    for (at, mapping) in mappings(piece) {
        let bytes = mapping.bytes as usize;
        let mapped = as_result(driver::cuMemMap(at, bytes, mapping.offset as usize, real, 0));
        let shown = mapped.and_then(|()| match mapping.access.as_slice() {
            [] => Ok(()),
            access => driver::set_access(at, bytes, access),
        });
        shown.map_err(|error| format!("memory cannot be mapped where it was: {}", name_of(error)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{ParkLimit, ParkObstacle, ParkRequest, Parker, lease_page};
    use crate::gate::{self, GateState};
    use std::time::{Duration, Instant};

    #[test]
    fn an_obstacle_added_while_the_gate_closes_prevents_the_park() {
        let _alone = gate::lock_gate_for_test();
        // SAFETY: a slot without a function copies nothing.
        unsafe { gate::enter(0, std::ptr::null()) };
        let request = ParkRequest { within: Duration::from_secs(20), limit: ParkLimit::Unlimited };
        let parking = std::thread::spawn(move || Parker::default().park(request).map(|_| ()));
        while gate::state() != GateState::Moving {
            assert!(!parking.is_finished(), "it waits for the call");
            std::thread::yield_now();
        }
        // The first check for reasons is over, and found none.
        lease_page::count_obstacle(ParkObstacle::Shared, "cuIpcGetMemHandle");
        gate::leave(0, 0);
        let parked = parking.join().expect("a thread");
        lease_page::uncount_obstacle(ParkObstacle::Shared);
        assert_eq!(parked, Err(ParkObstacle::Shared.text().to_owned()));
        assert_eq!(gate::state(), GateState::Open, "nothing has happened");
    }

    #[test]
    fn a_program_whose_parked_memory_is_lost_is_not_parked_again() {
        let _alone = gate::lock_gate_for_test();
        let close = || gate::close(Instant::now() + Duration::from_secs(20)).expect("no call is inside");
        close().lose();
        let request = ParkRequest { within: Duration::from_secs(20), limit: ParkLimit::Nothing };
        let refused = Parker::default().park(request).expect_err("its memory is lost");
        assert!(refused.contains("lost"), "{refused}");
        assert_eq!(gate::state(), GateState::Lost, "calls go on to fail");
        close().open();
    }
}
