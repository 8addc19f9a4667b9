//! Pools: stream-ordered memory.

use crate::handles;
use crate::result::{CuResult, Outcome};
use crate::runtime::Runtime;
use crate::space::{Backing, MemoryBlock, MemoryKind};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A pool of one GPU.
pub struct GpuPool {
    /// Its handle.
    pub handle: usize,
    /// The GPU.
    pub gpu: usize,
    /// True if it is the GPU's default pool, which cannot be destroyed.
    pub is_default: bool,
    /// The largest size; zero: no limit.
    max_bytes: u64,
    /// Other GPUs with access to its memory: bits.
    reach: AtomicU64,
    content: Mutex<PoolContent>,
}

/// What a pool has.
#[derive(Default)]
struct PoolContent {
    /// The three reuse attributes; there is only one way of reuse here, so they are only stored.
    reuse: [u32; 3],
    /// How many freed bytes are kept.
    threshold: u64,
    used: u64,
    used_high: u64,
    reserved_high: u64,
    kept: Vec<(u64, MemoryBlock)>,
}

impl PoolContent {
    fn kept_bytes(&self) -> u64 {
        self.kept.iter().map(|(_, block)| block.backing.bytes()).sum()
    }

    fn note_high_water(&mut self) {
        self.used_high = self.used_high.max(self.used);
        self.reserved_high = self.reserved_high.max(self.used + self.kept_bytes());
    }
}

impl GpuPool {
    /// A new one.
    pub fn create(runtime: &Runtime, gpu: usize, max_bytes: u64, is_default: bool) -> Arc<GpuPool> {
        let content = Mutex::new(PoolContent { reuse: [1; 3], ..PoolContent::default() });
        let pool = Arc::new(GpuPool {
            handle: handles::fresh(),
            gpu,
            is_default,
            max_bytes,
            reach: AtomicU64::new(0),
            content,
        });
        runtime.pools.insert_as(pool.handle, Arc::clone(&pool));
        pool
    }

    /// True if another GPU has access to its memory.
    pub fn is_reached_by(&self, gpu: usize) -> bool {
        self.reach.load(SeqCst) >> gpu & 1 == 1
    }

    /// Gives another GPU access, or revokes it.
    pub fn set_reach(&self, gpu: usize, reaches: bool) {
        if reaches {
            self.reach.fetch_or(1 << gpu, SeqCst);
        } else {
            self.reach.fetch_and(!(1 << gpu), SeqCst);
        }
    }

    fn content(&self) -> MutexGuard<'_, PoolContent> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates memory: kept memory if it fits well, or new.
    pub fn alloc(&self, runtime: &Runtime, context: usize, bytes: u64) -> Outcome<u64> {
        let mut content = self.content();
        let fits =
            |(_, block): &&(u64, MemoryBlock)| (bytes..=bytes.saturating_mul(2)).contains(&block.backing.bytes());
        let best = content.kept.iter().filter(fits).min_by_key(|(_, block)| block.backing.bytes()).map(|(at, _)| *at);
        let found = best.and_then(|best| content.kept.iter().position(|(at, _)| *at == best));
        let at = if let Some(place) = found {
            let (at, block) = content.kept.swap_remove(place);
            runtime.space.insert(at, MemoryBlock { bytes, context, id: runtime.space.fresh_id(), ..block });
            at
        } else {
            if self.max_bytes > 0 && content.used.saturating_add(bytes) > self.max_bytes {
                return Err(CuResult::OUT_OF_MEMORY);
            }
            let kind = MemoryKind::Pool(self.handle);
            match runtime.space.alloc(runtime, kind, self.gpu, context, bytes) {
                // Kept memory is given up, because it is in the way now.
                Err(CuResult::OUT_OF_MEMORY) if !content.kept.is_empty() => {
                    content.kept.clear();
                    runtime.space.alloc(runtime, kind, self.gpu, context, bytes)?
                }
                other => other?,
            }
        };
        let size = runtime.space.snapshot().find(at).map_or(bytes, |(_, block)| block.backing.bytes());
        content.used += size;
        content.note_high_water();
        Ok(at)
    }

    /// Frees memory: keeps it, or gives it back.
    pub fn free(&self, runtime: &Runtime, at: u64) -> Outcome {
        let block = runtime.space.remove(at, |kind| kind == MemoryKind::Pool(self.handle))?;
        let mut content = self.content();
        let size = block.backing.bytes();
        content.used = content.used.saturating_sub(size);
        let is_kept = matches!(*block.backing, Backing::Own(_)) && content.kept_bytes() + size <= content.threshold;
        if is_kept {
            content.kept.push((at, block));
            return Ok(());
        }
        // The threshold may have been lowered.
        while content.kept_bytes() > content.threshold {
            content.kept.pop();
        }
        drop(content);
        runtime.space.release(block);
        Ok(())
    }

    /// Gives kept memory back, down to `keep` bytes.
    pub fn trim(&self, keep: u64) {
        let mut content = self.content();
        while content.kept_bytes() > keep {
            content.kept.pop();
        }
    }

    /// An attribute, by the driver API's number.
    pub fn get(&self, attribute: i32) -> Outcome<u64> {
        let content = self.content();
        Ok(match attribute {
            1..=3 => content.reuse[attribute as usize - 1].into(),
            4 => content.threshold,
            5 => content.used + content.kept_bytes(),
            6 => content.reserved_high,
            7 => content.used,
            8 => content.used_high,
            _ => return Err(CuResult::INVALID_VALUE),
        })
    }

    /// Sets an attribute; a high-water mark can only be reset to the present value.
    pub fn set(&self, attribute: i32, value: u64) -> Outcome {
        let mut content = self.content();
        match attribute {
            1..=3 => content.reuse[attribute as usize - 1] = u32::from(value != 0),
            4 => content.threshold = value,
            6 if value == 0 => content.reserved_high = content.used + content.kept_bytes(),
            8 if value == 0 => content.used_high = content.used,
            _ => return Err(CuResult::INVALID_VALUE),
        }
        Ok(())
    }
}
