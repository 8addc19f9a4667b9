//! A register in memory, for tests and for programs that keep nothing.
//!
//! Absent on purpose: durability. Everything ends with the process.

use super::{ChainRegister, Creation, ENTRY_BYTES_MAX, NumberedEntry, RegisterError};
use crate::names::ChainName;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Chains in memory.
#[derive(Debug, Default)]
pub struct MemoryRegister {
    chains: Mutex<BTreeMap<ChainName, BTreeMap<u64, Vec<u8>>>>,
}

impl MemoryRegister {
    /// A register without chains.
    pub fn new() -> MemoryRegister {
        MemoryRegister::default()
    }

    fn chains(&self) -> MutexGuard<'_, BTreeMap<ChainName, BTreeMap<u64, Vec<u8>>>> {
        self.chains.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChainRegister for MemoryRegister {
    fn create(&self, chain: &ChainName, number: u64, entry: &[u8]) -> Result<Creation, RegisterError> {
        if entry.len() > ENTRY_BYTES_MAX {
            return Err(RegisterError::TooLarge { bytes: entry.len(), most: ENTRY_BYTES_MAX });
        }
        let mut chains = self.chains();
        let last = last_of(chains.get(chain));
        if number <= last {
            return Ok(Creation::Taken);
        }
        if number != last + 1 {
            return Err(RegisterError::OutOfOrder { chain: chain.clone(), number, last });
        }
        chains.entry(chain.clone()).or_default().insert(number, entry.to_vec());
        Ok(Creation::New)
    }

    fn read(&self, chain: &ChainName, from: u64, limit: usize) -> Result<Vec<NumberedEntry>, RegisterError> {
        let chains = self.chains();
        let entries = chains.get(chain).into_iter().flat_map(|entries| entries.range(from..));
        Ok(entries.take(limit).map(|(&number, bytes)| NumberedEntry { number, bytes: bytes.clone() }).collect())
    }

    fn last(&self, chain: &ChainName) -> Result<u64, RegisterError> {
        Ok(last_of(self.chains().get(chain)))
    }

    fn forget_before(&self, chain: &ChainName, number: u64) -> Result<(), RegisterError> {
        let mut chains = self.chains();
        let last = last_of(chains.get(chain));
        if let Some(entries) = chains.get_mut(chain) {
            entries.retain(|&kept, _| kept >= number.min(last));
        }
        Ok(())
    }

    fn chains(&self) -> Result<Vec<ChainName>, RegisterError> {
        Ok(self.chains().keys().cloned().collect())
    }
}

/// The number of the newest entry; 0 if there is none.
fn last_of(entries: Option<&BTreeMap<u64, Vec<u8>>>) -> u64 {
    entries.and_then(|entries| entries.last_key_value()).map_or(0, |(&number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_in_memory_keeps_the_contract() {
        super::super::contract::check(&|| MemoryRegister::new());
    }
}
