//! The shim's own pools: stream-ordered memory that can be taken off the GPU like any other.
//!
//! A pool is known by the handle of a pool of the driver, which stays empty: allocations from it come from spans that
//! are mapped as plain allocations are. A freed range can be reused by its own stream at once, and by other streams
//! after the event that was recorded with it has completed, or after a wait for that event. Pools that are shared with
//! other processes, or that are on the host, are left to the driver, and so are allocations of a capture.
//!
//! Memory that a pool keeps beyond its threshold is reported as free at once. It is given back when the program is idle
//! or an allocation needs it, because mapping memory takes longer than launching a kernel.

use crate::driver::{self, LocationAccess, ON_GPU, READ_WRITE, as_result, current_context, with_context};
use crate::gate;
use crate::gpu_memory::{self, GRANULE};
use crate::memory_table::{self, MappingOwner, ProgramBlock};
use crate::plain_blocks::drop_plain_block;
use crate::ranges::{EventWait, SpanRanges, rounded_up};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

/// Smaller allocations have separate spans, so that they do not fragment those of large ones.
const LARGE: u64 = 1 << 20;
/// A new span has an eighth of the pool's present size, at most this, or the size of the request if that is larger.
const GROWTH_MAX: u64 = 32 << 20;
/// The default streams as every program may name them: the context's, and the thread's.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

/// Which stream a call means by zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultStream {
    /// The context's.
    Legacy,
    /// The thread's own.
    PerThread,
}

impl DefaultStream {
    /// The stream that a call names by `handle`, by the name that every program may use.
    pub fn explicit(self, handle: usize) -> usize {
        match (handle, self) {
            (0, DefaultStream::PerThread) => PER_THREAD,
            (0, DefaultStream::Legacy) => LEGACY,
            (other, _) => other,
        }
    }
}

/// `CU_MEMPOOL_ATTR_…`, as far as they change anything here.
const REUSE_INTERNAL: usize = 2;
const THRESHOLD: c_int = 4;

struct ShimPool {
    handle: usize,
    device: c_int,
    /// The program destroyed the pool; it goes with its last allocation.
    is_gone: bool,
    /// The largest size of the pool; zero: no limit.
    max_bytes: u64,
    /// Whether freed memory may be reused, for each of the three reuse attributes.
    reuse: [u32; 3],
    threshold: u64,
    used: u64,
    used_high: u64,
    reserved: u64,
    reserved_high: u64,
    /// What other GPUs may do with the pool's memory.
    access: Vec<LocationAccess>,
    small: SpanRanges,
    large: SpanRanges,
}

/// All pools of the process.
struct ShimPools {
    next: u64,
    has_defaults: bool,
    /// Numbers of pools by their handle: the driver may reuse a handle.
    known: BTreeMap<usize, u64>,
    pools: BTreeMap<u64, ShimPool>,
    /// Events that are not in use, by context.
    events: BTreeMap<usize, Vec<usize>>,
    /// Plain allocations that were freed in the order of a stream, and the event each waits for.
    freed_later: Vec<(u64, ProgramBlock, EventWait)>,
}

static POOLS: Mutex<ShimPools> = Mutex::new(ShimPools::new());
/// The number of each stream, by context, handle and thread.
static LANES: Mutex<BTreeMap<(usize, usize, u64), u64>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// A thread's own number, which no other thread ever has; zero: not assigned yet.
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

/// Runs `body` with the pools locked. Only driver calls that return at once are made meanwhile.
fn with_pools<T>(body: impl FnOnce(&mut ShimPools) -> T) -> T {
    body(&mut POOLS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A stream with its context and its lane number.
#[derive(Clone, Copy)]
pub struct PoolStream {
    handle: usize,
    context: usize,
    device: c_int,
    lane: u64,
}

impl PoolStream {
    /// The stream that a program named.
    pub fn named(handle: usize, default: DefaultStream) -> Result<PoolStream, u32> {
        let (context, device) = current_context()?;
        let handle = default.explicit(handle);
        let (context, device) =
            if handle > PER_THREAD { context_and_device(handle, (context, device))? } else { (context, device) };
        let thread = if handle == PER_THREAD { thread_number() } else { 0 };
        let mut lanes = LANES.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = *lanes.entry((context, handle, thread)).or_insert_with(|| NEXT.fetch_add(1, Relaxed));
        Ok(PoolStream { handle, context, device, lane })
    }

    /// Records an event: memory that is freed now can be used by other streams when it has completed.
    fn record(&self) -> Result<EventWait, u32> {
        let known = with_pools(|pools| pools.events.get_mut(&self.context).and_then(Vec::pop));
        let (mut event, is_new) = (known.unwrap_or(0), known.is_none());
        let recorded = self.with_own_context(|| {
            if is_new {
                as_result(driver::cuEventCreate(&mut event, driver::NO_TIMING))?;
            }
            as_result(driver::cuEventRecord(event, self.handle))
        });
        let wait = EventWait { lane: self.lane, context: self.context, event };
        match recorded {
            Ok(()) => Ok(wait),
            Err(error) => {
                if event != 0 {
                    with_pools(|pools| pools.recycle(vec![wait]));
                }
                Err(error)
            }
        }
    }

    fn with_own_context<T>(&self, body: impl FnOnce() -> Result<T, u32>) -> Result<T, u32> {
        match current_context() {
            Ok((context, _)) if context == self.context => body(),
            _ => with_context(self.context, body),
        }
    }
}

/// The context of a stream, and its GPU.
fn context_and_device(stream: usize, current: (usize, c_int)) -> Result<(usize, c_int), u32> {
    let mut context = 0;
    as_result(driver::cuStreamGetCtx(stream, &mut context))?;
    if context == current.0 {
        return Ok(current);
    }
    let mut device = 0;
    with_context(context, || as_result(driver::cuCtxGetDevice(&mut device)))?;
    Ok((context, device))
}

fn thread_number() -> u64 {
    THREAD.with(|own| {
        if own.get() == 0 {
            own.set(NEXT.fetch_add(1, Relaxed));
        }
        own.get()
    })
}

/// True if an event has completed; false if the driver cannot say.
fn is_passed(wait: &EventWait) -> bool {
    match driver::cuEventQuery(wait.event) {
        driver::SUCCESS => true,
        driver::NOT_READY => false,
        // Some drivers need a current context for the query.
        _ => with_context(wait.context, || as_result(driver::cuEventQuery(wait.event))).is_ok(),
    }
}

/// While this lives, the calls of this thread do not affect open captures.
struct RelaxedCapture(Option<c_int>);

impl RelaxedCapture {
    fn begin() -> RelaxedCapture {
        if !gate::is_capturing() {
            return RelaxedCapture(None);
        }
        let mut mode = 2;
        driver::cuThreadExchangeStreamCaptureMode(&mut mode);
        RelaxedCapture(Some(mode))
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        if let Some(mut mode) = self.0 {
            driver::cuThreadExchangeStreamCaptureMode(&mut mode);
        }
    }
}

impl ShimPool {
    fn new(handle: usize, device: c_int, max_bytes: u64) -> ShimPool {
        ShimPool {
            handle,
            device,
            is_gone: false,
            max_bytes,
            reuse: [1; 3],
            threshold: 0,
            used: 0,
            used_high: 0,
            reserved: 0,
            reserved_high: 0,
            access: Vec::new(),
            small: SpanRanges::default(),
            large: SpanRanges::default(),
        }
    }

    fn ranges(&mut self, bytes: u64) -> &mut SpanRanges {
        if bytes < LARGE { &mut self.small } else { &mut self.large }
    }

    fn both_ranges(&mut self) -> [&mut SpanRanges; 2] {
        [&mut self.small, &mut self.large]
    }

    fn note_used(&mut self, bytes: u64) {
        self.used += bytes;
        self.used_high = self.used_high.max(self.used);
    }

    /// Bytes in spans that could be given back.
    fn idle(&self) -> u64 {
        self.small.idle().into_iter().chain(self.large.idle()).map(|(_, bytes)| bytes).sum()
    }

    /// Reserved bytes, less the idle bytes beyond the threshold.
    fn reported_reserved(&self) -> u64 {
        let beyond = self.reserved.saturating_sub(self.bytes_to_keep());
        self.reserved - beyond.min(self.idle())
    }

    /// How many bytes the pool keeps while they are not needed.
    fn bytes_to_keep(&self) -> u64 {
        if self.is_gone { 0 } else { self.threshold }
    }

    fn is_waited_for(&self, wait: &EventWait) -> bool {
        self.small.is_waited_for(wait) || self.large.is_waited_for(wait)
    }
}

impl ShimPools {
    const fn new() -> ShimPools {
        ShimPools {
            next: 0,
            has_defaults: false,
            known: BTreeMap::new(),
            pools: BTreeMap::new(),
            events: BTreeMap::new(),
            freed_later: Vec::new(),
        }
    }

    fn add(&mut self, handle: usize, device: c_int, max_bytes: u64) {
        self.next += 1;
        self.known.insert(handle, self.next);
        self.pools.insert(self.next, ShimPool::new(handle, device, max_bytes));
    }

    /// Adds the default pool of every GPU, once.
    fn find_defaults(&mut self) {
        if std::mem::replace(&mut self.has_defaults, true) {
            return;
        }
        let mut count = 0;
        driver::cuDeviceGetCount(&mut count);
        for device in 0..count {
            let mut handle = 0;
            if driver::cuDeviceGetDefaultMemPool(&mut handle, device) == driver::SUCCESS {
                self.add(handle, device, 0);
            }
        }
    }

    fn number(&mut self, handle: usize) -> Option<u64> {
        self.find_defaults();
        self.known.get(&handle).copied()
    }

    /// Makes events that no range waits for available for recording again.
    fn recycle(&mut self, spent: Vec<EventWait>) {
        for wait in spent {
            let known = self.events.entry(wait.context).or_default();
            if !known.contains(&wait.event) {
                known.push(wait.event);
            }
        }
    }

    fn take_range(&mut self, number: u64, bytes: u64, lane: u64) -> Option<u64> {
        let pool = self.pools.get_mut(&number)?;
        let may_look = pool.reuse[1] != 0;
        let mut spent = Vec::new();
        let at = pool.ranges(bytes).take_for_lane(bytes, lane, |wait| may_look && is_passed(wait), &mut spent);
        spent.retain(|wait| !pool.is_waited_for(wait));
        if at.is_some() {
            pool.note_used(bytes);
        }
        self.recycle(spent);
        at
    }

    fn give_range(&mut self, number: u64, at: u64, bytes: u64, waits: Vec<EventWait>) {
        let pool = self.pools.get_mut(&number);
        debug_assert!(pool.is_some(), "a pool stays as long as it has allocations: {number}");
        let Some(pool) = pool else { return };
        debug_assert!(pool.used >= bytes, "{bytes} bytes are given back, and only {} are used", pool.used);
        pool.used = pool.used.saturating_sub(bytes);
        pool.ranges(bytes).give_back(at, bytes, waits);
    }

    /// Removes idle spans from the pools that `is_meant` selects, as long as a pool has more than `keep` bytes.
    fn idle_spans(&mut self, is_meant: impl Fn(&ShimPool) -> bool, keep: impl Fn(&ShimPool) -> u64) -> Vec<u64> {
        let (mut spent, mut spans) = (Vec::new(), Vec::new());
        for pool in self.pools.values_mut().filter(|pool| is_meant(pool)) {
            let keep = keep(pool);
            if pool.reserved <= keep {
                continue;
            }
            for ranges in pool.both_ranges() {
                ranges.tidy(is_passed, &mut spent);
            }
            let idle: Vec<(u64, u64)> = pool.large.idle().into_iter().chain(pool.small.idle()).collect();
            for (at, bytes) in idle {
                if pool.reserved <= keep {
                    break;
                }
                pool.both_ranges()
                    .into_iter()
                    .filter(|ranges| ranges.contains(at))
                    .for_each(|ranges| ranges.remove(at));
                pool.reserved -= bytes;
                spans.push(at);
            }
        }
        self.pools.retain(|_, pool| !pool.is_gone || pool.reserved > 0);
        self.recycle(spent);
        spans
    }
}

fn drop_spans(spans: Vec<u64>) -> bool {
    let is_some = !spans.is_empty();
    spans.into_iter().for_each(gpu_memory::drop_mapping);
    is_some
}

/// Gives back all idle spans of a GPU. Returns whether there were any.
pub fn release_idle_spans(device: c_int) -> bool {
    let _relaxed = RelaxedCapture::begin();
    free_completed();
    drop_spans(with_pools(|pools| pools.idle_spans(|pool| pool.device == device, |_| 0)))
}

/// True if pools keep memory that should be given back.
pub fn has_excess() -> bool {
    if !memory_table::lock().deferred.is_empty() {
        return true;
    }
    with_pools(|pools| {
        !pools.freed_later.is_empty() || pools.pools.values().any(|pool| pool.reserved > pool.bytes_to_keep())
    })
}

/// Gives back idle spans beyond the pools' thresholds. Called while the GPU is idle.
pub fn release_excess() {
    free_completed();
    drop_spans(with_pools(|pools| pools.idle_spans(|_| true, ShimPool::bytes_to_keep)));
}

/// Bytes of a GPU that are reported as free although they are not given back yet.
pub fn excess_bytes(device: c_int) -> u64 {
    let _relaxed = RelaxedCapture::begin();
    with_pools(|pools| {
        let mut spent = Vec::new();
        let own = pools.pools.values_mut().filter(|pool| pool.device == device);
        let sum = own.fold(0, |sum, pool| {
            pool.both_ranges().into_iter().for_each(|ranges| ranges.tidy(is_passed, &mut spent));
            sum + pool.reserved - pool.reported_reserved()
        });
        pools.recycle(spent);
        sum
    })
}

/// Allocates in the order of a stream, from the pool with a handle or from the GPU's current pool. Returns `None` if
/// the pool is the driver's own.
pub fn alloc(from: Option<usize>, bytes: u64, stream: &PoolStream) -> Result<Option<u64>, u32> {
    let _relaxed = RelaxedCapture::begin();
    let handle = match from {
        Some(handle) => handle,
        None => {
            let mut handle = 0;
            as_result(driver::cuDeviceGetMemPool(&mut handle, stream.device))?;
            handle
        }
    };
    let Some(number) = with_pools(|pools| pools.number(handle)) else { return Ok(None) };
    let whole = rounded_up(bytes).ok_or(driver::OUT_OF_MEMORY)?;
    let at = match with_pools(|pools| pools.take_range(number, whole, stream.lane)) {
        Some(at) => at,
        None => match grow(number, whole, stream) {
            Err(driver::OUT_OF_MEMORY) => allocate_under_pressure(number, whole, stream)?,
            other => other?,
        },
    };
    memory_table::lock()
        .add_block(at, ProgramBlock { bytes, context: stream.context, pool: number, ..ProgramBlock::default() });
    Ok(Some(at))
}

/// Allocates from a new span.
fn grow(number: u64, bytes: u64, stream: &PoolStream) -> Result<u64, u32> {
    let about = with_pools(|pools| {
        pools.pools.get(&number).map(|pool| (pool.device, pool.max_bytes, pool.reserved, pool.access.clone()))
    });
    let (device, max_bytes, reserved, access) = about.ok_or(driver::INVALID_VALUE)?;
    let room = if max_bytes == 0 { u64::MAX } else { max_bytes.saturating_sub(reserved) };
    let least = bytes.checked_next_multiple_of(GRANULE).filter(|least| *least <= room).ok_or(driver::OUT_OF_MEMORY)?;
    let wish = (reserved / 8).min(GROWTH_MAX).next_multiple_of(GRANULE).max(least).min(room / GRANULE * GRANULE);
    // A context of another GPU cannot reach the span.
    let context = if device == stream.device { stream.context } else { 0 };
    let once = |bytes| gpu_memory::allocate(bytes, context, device, MappingOwner::Pool, &access);
    let made = match once(wish) {
        Err(driver::OUT_OF_MEMORY) if wish > least => once(least).map(|at| (at, least)),
        other => other.map(|at| (at, wish)),
    };
    let (span, length) = made?;
    // Taken at once, or another thread could take it first.
    let taken = with_pools(|pools| {
        let pool = pools.pools.get_mut(&number)?;
        pool.reserved += length;
        pool.reserved_high = pool.reserved_high.max(pool.reserved);
        pool.ranges(bytes).add(span, length);
        pools.take_range(number, bytes, stream.lane)
    });
    if taken.is_none() {
        // The pool is gone: another thread destroyed it.
        gpu_memory::drop_mapping(span);
    }
    taken.ok_or(driver::INVALID_VALUE)
}

/// Called when memory is short: makes the stream wait for memory that another stream freed, or gives back idle memory
/// of other pools.
fn allocate_under_pressure(number: u64, bytes: u64, stream: &PoolStream) -> Result<u64, u32> {
    if let Some(at) = take_after_wait(number, bytes, stream)? {
        return Ok(at);
    }
    let device = with_pools(|pools| pools.pools.get(&number).map(|pool| pool.device)).ok_or(driver::INVALID_VALUE)?;
    if release_idle_spans(device)
        && let Ok(at) = grow(number, bytes, stream)
    {
        return Ok(at);
    }
    // Memory that is being freed may be enough.
    let waits = with_pools(|pools| {
        let own = pools.pools.values_mut().filter(|pool| pool.device == device);
        own.flat_map(|pool| [pool.small.waits(), pool.large.waits()].concat()).collect::<Vec<EventWait>>()
    });
    for wait in waits {
        as_result(driver::cuEventSynchronize(wait.event))?;
    }
    if let Some(at) = with_pools(|pools| pools.take_range(number, bytes, stream.lane)) {
        return Ok(at);
    }
    release_idle_spans(device);
    grow(number, bytes, stream)
}

/// Takes memory that another stream has freed, and makes this stream wait for it.
fn take_after_wait(number: u64, bytes: u64, stream: &PoolStream) -> Result<Option<u64>, u32> {
    let found = with_pools(|pools| {
        let pool = pools.pools.get_mut(&number).filter(|pool| pool.reuse[REUSE_INTERNAL] != 0)?;
        let found = pool.ranges(bytes).take_any(bytes)?;
        pool.note_used(bytes);
        Some(found)
    });
    let Some((at, waits)) = found else { return Ok(None) };
    let waited = waits.iter().try_for_each(|wait| {
        stream.with_own_context(|| as_result(driver::cuStreamWaitEvent(stream.handle, wait.event, 0)))
    });
    with_pools(|pools| {
        if waited.is_err() {
            pools.give_range(number, at, bytes, waits);
            return;
        }
        let pool = pools.pools.get(&number);
        let spent = waits.iter().filter(|wait| pool.is_none_or(|pool| !pool.is_waited_for(wait))).copied().collect();
        pools.recycle(spent);
    });
    waited.map(|()| Some(at))
}

/// Frees a pool allocation in the order of a stream. Returns `None` if the address is not from a pool of the shim.
pub fn free(at: u64, stream: impl FnOnce() -> Result<PoolStream, u32>) -> Option<Result<(), u32>> {
    let block = memory_table::lock().blocks.get(&at).copied().filter(|block| block.pool != 0)?;
    let _relaxed = RelaxedCapture::begin();
    // While the memory is away nothing runs, so there is nothing to wait for.
    let wait = if gate::is_away() {
        None
    } else {
        match stream().and_then(|stream| stream.record()) {
            Ok(wait) => Some(wait),
            Err(error) => return Some(Err(error)),
        }
    };
    // Another thread may have freed it meanwhile.
    let is_ours = memory_table::lock().blocks.remove(&at).is_some();
    let bytes = rounded_up(block.bytes).unwrap_or(block.bytes);
    with_pools(|pools| {
        if is_ours {
            pools.give_range(block.pool, at, bytes, wait.into_iter().collect());
        } else {
            pools.recycle(wait.into_iter().collect());
        }
    });
    Some(if is_ours { Ok(()) } else { Err(driver::INVALID_VALUE) })
}

/// Gives back a block that was taken out of the table and that no work uses: any stream may have it.
pub fn give_back(at: u64, block: &ProgramBlock) {
    with_pools(|pools| pools.give_range(block.pool, at, rounded_up(block.bytes).unwrap_or(block.bytes), Vec::new()));
}

/// Frees a plain allocation when a stream has reached this point. It was taken out of the table before.
pub fn free_later(at: u64, block: ProgramBlock, stream: &PoolStream) -> Result<(), u32> {
    let _relaxed = RelaxedCapture::begin();
    let wait = stream.record()?;
    with_pools(|pools| pools.freed_later.push((at, block, wait)));
    Ok(())
}

/// Frees the plain allocations of [`free_later`] that have been reached by their streams.
pub fn free_completed() {
    let gone = with_pools(|pools| {
        let (gone, freed_later) =
            std::mem::take(&mut pools.freed_later).into_iter().partition::<Vec<_>, _>(|(.., wait)| is_passed(wait));
        pools.freed_later = freed_later;
        pools.recycle(gone.iter().map(|(.., wait)| *wait).collect());
        gone
    });
    gone.into_iter().for_each(|(at, block, _)| drop_plain_block((at, block)));
}

/// Forgets a stream before it ends, because a new stream can get its handle.
pub fn forget_stream(stream: usize) {
    LANES.lock().unwrap_or_else(PoisonError::into_inner).retain(|(_, handle, _), _| *handle != stream);
}

/// Forgets a context that is gone: nothing of it runs, so nothing waits for its events any more.
pub fn forget_context(context: usize) {
    LANES.lock().unwrap_or_else(PoisonError::into_inner).retain(|(own, ..), _| *own != context);
    let freed_later = with_pools(|pools| {
        pools.events.remove(&context);
        let mut spent = Vec::new();
        for ranges in pools.pools.values_mut().flat_map(ShimPool::both_ranges) {
            ranges.tidy(|wait| wait.context == context, &mut spent);
        }
        let (gone, freed_later) = std::mem::take(&mut pools.freed_later)
            .into_iter()
            .partition::<Vec<_>, _>(|(_, _, wait): &(u64, ProgramBlock, EventWait)| wait.context == context);
        pools.freed_later = freed_later;
        gone
    });
    freed_later.into_iter().for_each(|(at, block, _)| drop_plain_block((at, block)));
}

/// Adds a pool that the program made on a GPU, with memory of the shim.
pub fn add_pool(handle: usize, device: c_int, max_bytes: u64) {
    with_pools(|pools| {
        pools.find_defaults();
        pools.add(handle, device, max_bytes);
    });
}

/// Forgets the handle of a pool before it is destroyed, because the driver may reuse it. Returns the pool's number.
pub fn forget_handle(handle: usize) -> Option<u64> {
    with_pools(|pools| pools.known.remove(&handle))
}

/// Completes [`forget_handle`]: the driver has destroyed the pool, or refused to.
pub fn finish_destroy(handle: usize, number: u64, destroyed: Result<(), u32>) {
    let spans = with_pools(|pools| {
        if destroyed.is_err() {
            pools.known.insert(handle, number);
            return Vec::new();
        }
        if let Some(pool) = pools.pools.get_mut(&number) {
            pool.is_gone = true;
        }
        pools.idle_spans(|pool| pool.is_gone, |_| 0)
    });
    drop_spans(spans);
}

/// Gives back idle spans of a pool, down to `keep` bytes.
pub fn trim(handle: usize, keep: u64) {
    let spans = with_pools(|pools| {
        let number = pools.number(handle);
        let own = number.and_then(|number| pools.pools.get(&number)).map(|pool| pool.handle);
        pools.idle_spans(|pool| Some(pool.handle) == own && !pool.is_gone, |_| keep)
    });
    drop_spans(spans);
}

/// The value of an attribute of one of the shim's pools; `None` if the pool or attribute is not the shim's.
pub fn attribute(handle: usize, attribute: c_int) -> Option<u64> {
    with_pools(|pools| {
        let number = pools.number(handle)?;
        let pool = pools.pools.get_mut(&number)?;
        let mut spent = Vec::new();
        if attribute == 5 {
            pool.both_ranges().into_iter().for_each(|ranges| ranges.tidy(is_passed, &mut spent));
        }
        let value = match attribute {
            1..=3 => pool.reuse[attribute as usize - 1].into(),
            THRESHOLD => pool.threshold,
            5 => pool.reported_reserved(),
            6 => pool.reserved_high,
            7 => pool.used,
            8 => pool.used_high,
            _ => return None,
        };
        pools.recycle(spent);
        Some(value)
    })
}

/// Changes an attribute, after the driver has accepted it.
pub fn set_attribute(handle: usize, attribute: c_int, value: u64) {
    with_pools(|pools| {
        let Some(number) = pools.number(handle) else { return };
        let Some(pool) = pools.pools.get_mut(&number) else { return };
        match attribute {
            1..=3 => pool.reuse[attribute as usize - 1] = u32::from(value != 0),
            THRESHOLD => pool.threshold = value,
            6 => pool.reserved_high = pool.reported_reserved(),
            8 => pool.used_high = pool.used,
            _ => {}
        }
    });
}

/// Sets what other GPUs may do with a pool's memory, after the driver has accepted it. Returns whether any other GPU
/// has access now.
pub fn set_access(handle: usize, given: &[LocationAccess]) -> Result<bool, u32> {
    let found = with_pools(|pools| {
        let number = pools.number(handle)?;
        let pool = pools.pools.get_mut(&number)?;
        let others: Vec<LocationAccess> = given
            .iter()
            .copied()
            .filter(|access| access.location.kind == ON_GPU && access.location.id != pool.device)
            .collect();
        for access in &others {
            pool.access.retain(|old| old.location != access.location);
            if access.flags == READ_WRITE {
                pool.access.push(*access);
            }
        }
        let spans: Vec<(u64, u64)> = pool.small.spans().chain(pool.large.spans()).collect();
        Some((others, spans, !pool.access.is_empty()))
    });
    let Some((others, spans, is_shared)) = found else { return Ok(false) };
    for (at, bytes) in spans {
        for access in &others {
            gpu_memory::give_access(at, bytes, *access)?;
        }
    }
    Ok(is_shared)
}

/// True if another GPU has access to memory of a pool.
pub fn is_reached() -> bool {
    with_pools(|pools| pools.pools.values().any(|pool| !pool.access.is_empty()))
}

/// The handle of the pool that an allocation is from.
pub fn handle_of(number: u64) -> u64 {
    with_pools(|pools| pools.pools.get(&number).map_or(0, |pool| pool.handle as u64))
}
