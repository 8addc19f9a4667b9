//! A register that breaks off at a chosen call.

use std::sync::atomic::{AtomicU64, Ordering};
use sublet_checkpoint::ChainName;
use sublet_checkpoint::register::{ChainRegister, Creation, MemoryRegister, NumberedEntry, RegisterError};

/// What a register does at one call of `create`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// It creates nothing, and does not answer.
    Before,
    /// It creates the entry, and its answer is lost.
    After,
}

/// A register that breaks off at one call of `create`, and at those that follow at once.
pub struct FailingRegister {
    inner: MemoryRegister,
    calls: AtomicU64,
    at: u64,
    lasts: u64,
    outage: Outage,
}

impl FailingRegister {
    /// A register that breaks off at this call, and at `lasts` calls in all.
    pub fn new(at: u64, lasts: u64, outage: Outage) -> FailingRegister {
        FailingRegister { inner: MemoryRegister::new(), calls: AtomicU64::new(0), at, lasts, outage }
    }
}

impl ChainRegister for FailingRegister {
    fn create(&self, chain: &ChainName, number: u64, entry: &[u8]) -> Result<Creation, RegisterError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if call < self.at || call >= self.at + self.lasts {
            return self.inner.create(chain, number, entry);
        }
        if self.outage == Outage::After {
            self.inner.create(chain, number, entry)?;
        }
        Err(RegisterError::Unavailable { reason: "the line is cut".to_owned() })
    }

    fn read(&self, chain: &ChainName, from: u64, limit: usize) -> Result<Vec<NumberedEntry>, RegisterError> {
        self.inner.read(chain, from, limit)
    }

    fn last(&self, chain: &ChainName) -> Result<u64, RegisterError> {
        self.inner.last(chain)
    }

    fn forget_before(&self, chain: &ChainName, number: u64) -> Result<(), RegisterError> {
        self.inner.forget_before(chain, number)
    }

    fn chains(&self) -> Result<Vec<ChainName>, RegisterError> {
        self.inner.chains()
    }
}
