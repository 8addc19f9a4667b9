//! Pools: stream-ordered memory.

use crate::handles;
use crate::result::{CuResult, Outcome};
use crate::runtime::Runtime;
use crate::space::{Backing, Block, Kind};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A pool of one GPU.
pub struct Pool {
    /// Its handle.
    pub handle: usize,
    /// The GPU.
    pub card: usize,
    /// True if it is the GPU's default pool, which cannot be destroyed.
    pub is_default: bool,
    /// The largest size; zero: no limit.
    max_bytes: u64,
    /// Other GPUs with access to its memory: bits.
    reach: AtomicU64,
    inner: Mutex<Inner>,
}

/// What a pool has.
#[derive(Default)]
struct Inner {
    /// The three reuse attributes; there is only one way of reuse here, so they are only stored.
    reuse: [u32; 3],
    /// How many freed bytes are kept.
    threshold: u64,
    used: u64,
    used_high: u64,
    reserved_high: u64,
    kept: Vec<(u64, Block)>,
}

impl Inner {
    fn kept_bytes(&self) -> u64 {
        self.kept.iter().map(|(_, block)| block.backing.bytes()).sum()
    }

    fn note(&mut self) {
        self.used_high = self.used_high.max(self.used);
        self.reserved_high = self.reserved_high.max(self.used + self.kept_bytes());
    }
}

impl Pool {
    /// A new one.
    pub fn create(runtime: &Runtime, card: usize, max_bytes: u64, is_default: bool) -> Arc<Pool> {
        let inner = Mutex::new(Inner { reuse: [1; 3], ..Inner::default() });
        let pool =
            Arc::new(Pool { handle: handles::fresh(), card, is_default, max_bytes, reach: AtomicU64::new(0), inner });
        runtime.pools.put_as(pool.handle, Arc::clone(&pool));
        pool
    }

    /// True if another GPU has access to its memory.
    pub fn is_reached_by(&self, card: usize) -> bool {
        self.reach.load(SeqCst) >> card & 1 == 1
    }

    /// Gives another GPU access, or revokes it.
    pub fn set_reach(&self, card: usize, reaches: bool) {
        if reaches {
            self.reach.fetch_or(1 << card, SeqCst);
        } else {
            self.reach.fetch_and(!(1 << card), SeqCst);
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates memory: kept memory if it fits well, or new.
    pub fn alloc(&self, runtime: &Runtime, context: usize, bytes: u64) -> Outcome<u64> {
        let mut inner = self.inner();
        let fits = |(_, block): &&(u64, Block)| (bytes..=bytes.saturating_mul(2)).contains(&block.backing.bytes());
        let best = inner.kept.iter().filter(fits).min_by_key(|(_, block)| block.backing.bytes()).map(|(at, _)| *at);
        let found = best.and_then(|best| inner.kept.iter().position(|(at, _)| *at == best));
        let at = if let Some(place) = found {
            let (at, block) = inner.kept.swap_remove(place);
            runtime.space.put(at, Block { bytes, context, id: runtime.space.fresh_id(), ..block });
            at
        } else {
            if self.max_bytes > 0 && inner.used.saturating_add(bytes) > self.max_bytes {
                return Err(CuResult::OUT_OF_MEMORY);
            }
            let kind = Kind::Pool(self.handle);
            match runtime.space.alloc(runtime, kind, self.card, context, bytes) {
                // Kept memory is given up, because it is in the way now.
                Err(CuResult::OUT_OF_MEMORY) if !inner.kept.is_empty() => {
                    inner.kept.clear();
                    runtime.space.alloc(runtime, kind, self.card, context, bytes)?
                }
                other => other?,
            }
        };
        let size = runtime.space.hold().find(at).map_or(bytes, |(_, block)| block.backing.bytes());
        inner.used += size;
        inner.note();
        Ok(at)
    }

    /// Frees memory: keeps it, or gives it back.
    pub fn free(&self, runtime: &Runtime, at: u64) -> Outcome {
        let block = runtime.space.take(at, |kind| kind == Kind::Pool(self.handle))?;
        let mut inner = self.inner();
        let size = block.backing.bytes();
        inner.used = inner.used.saturating_sub(size);
        let is_kept = matches!(*block.backing, Backing::Own(_)) && inner.kept_bytes() + size <= inner.threshold;
        if is_kept {
            inner.kept.push((at, block));
            return Ok(());
        }
        // The threshold may have been lowered.
        while inner.kept_bytes() > inner.threshold {
            inner.kept.pop();
        }
        drop(inner);
        runtime.space.release(block);
        Ok(())
    }

    /// Gives kept memory back, down to `keep` bytes.
    pub fn trim(&self, keep: u64) {
        let mut inner = self.inner();
        while inner.kept_bytes() > keep {
            inner.kept.pop();
        }
    }

    /// An attribute, by the driver API's number.
    pub fn get(&self, attribute: i32) -> Outcome<u64> {
        let inner = self.inner();
        Ok(match attribute {
            1..=3 => inner.reuse[attribute as usize - 1].into(),
            4 => inner.threshold,
            5 => inner.used + inner.kept_bytes(),
            6 => inner.reserved_high,
            7 => inner.used,
            8 => inner.used_high,
            _ => return Err(CuResult::INVALID_VALUE),
        })
    }

    /// Sets an attribute; a high-water mark can only be reset to the present value.
    pub fn set(&self, attribute: i32, value: u64) -> Outcome {
        let mut inner = self.inner();
        match attribute {
            1..=3 => inner.reuse[attribute as usize - 1] = u32::from(value != 0),
            4 => inner.threshold = value,
            6 if value == 0 => inner.reserved_high = inner.used + inner.kept_bytes(),
            8 if value == 0 => inner.used_high = inner.used,
            _ => return Err(CuResult::INVALID_VALUE),
        }
        Ok(())
    }
}
