//! A value that is saved in place, in one of two slots.
//!
//! ```text
//! blocks   ┌ slot 0 ────────────────┬ slot 1 ────────────────┐
//!          │ header │ content       │ header │ content       │
//!          └────────┴───────────────┴────────┴───────────────┘
//! checkpoint 1 → slot 0,  2 → slot 1,  3 → slot 0, …
//! ```
//!
//! A checkpoint is written over the older slot. The header has the hash of the content and of itself,
//! so a torn write is noticed, and the other slot is whole.
//!
//! The content is CBOR, so any type with `Serialize` and `Deserialize` works, numbers that are not
//! finite too, and a field with `#[serde(default)]` may be added later.
//!
//! Absent on purpose: replicas, fences and history. A training that moves between machines uses a
//! [`ReplicatedCheckpoint`](crate::ReplicatedCheckpoint).

mod blocks;
mod slots;

pub use blocks::{Blocks, FileBlocks};

use crate::names::{SchemaId, Version};
use serde::Serialize;
use serde::de::DeserializeOwned;
use slots::DurableSlots;
use std::any::type_name;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// A value with a saved copy. Changes are saved by [`checkpoint`](Durable::checkpoint) and by nothing else.
pub struct Durable<T> {
    value: T,
    schema: SchemaId,
    slots: Mutex<DurableSlots>,
}

/// A value could not be saved or restored. Progress must not be reported.
#[derive(Debug, thiserror::Error)]
pub enum DurableError {
    /// The blocks could not be read or written.
    #[error("the blocks of the checkpoint cannot be used")]
    Blocks(#[source] io::Error),
    /// An earlier write failed, so that it is not known what the blocks hold.
    #[error("an earlier checkpoint failed, and the value must be restored first")]
    Broken,
    /// The value does not fit.
    #[error("the value has {bytes} bytes, and the blocks hold at most {most}")]
    TooLarge {
        /// The size of the value.
        bytes: u64,
        /// The most that fits.
        most: u64,
    },
    /// The value cannot be turned into bytes, or the bytes into a value of this type.
    #[error("the value cannot be {direction}: {reason}")]
    Encoding {
        /// `saved` or `restored`.
        direction: &'static str,
        /// Why not.
        reason: String,
    },
    /// Nothing was saved in the blocks.
    #[error("the blocks hold no checkpoint")]
    Empty,
    /// No slot is whole.
    #[error("the blocks hold checkpoints, and none is whole")]
    Damaged,
    /// The saved value has another schema.
    #[error("the blocks hold a value of another schema than `{expected}`")]
    OtherSchema {
        /// The schema of the call.
        expected: SchemaId,
    },
    /// Another program wrote to the blocks.
    #[error("another program saved version {found} in the blocks")]
    Overtaken {
        /// The version that is there.
        found: Version,
    },
}

impl DurableError {
    /// A word for programs; it never changes.
    pub fn code(&self) -> &'static str {
        match self {
            DurableError::Blocks(_) => "blocks",
            DurableError::Broken => "broken",
            DurableError::TooLarge { .. } => "too_large",
            DurableError::Encoding { .. } => "encoding",
            DurableError::Empty => "empty",
            DurableError::Damaged => "damaged",
            DurableError::OtherSchema { .. } => "other_schema",
            DurableError::Overtaken { .. } => "overtaken",
        }
    }

    /// What to do next, as a sentence.
    pub fn remedy(&self) -> &'static str {
        match self {
            DurableError::Blocks(_) => "check that the blocks exist, are writable, and are open in no other program",
            DurableError::Broken | DurableError::Overtaken { .. } => "restore the value and go on from there",
            DurableError::TooLarge { .. } => "save into larger blocks; they hold two copies of the value",
            DurableError::Encoding { .. } => "save a type that serde can turn into CBOR and back",
            DurableError::Empty => "begin with `Durable::new`",
            DurableError::Damaged => "begin anew, or restore another copy",
            DurableError::OtherSchema { .. } => "run the program that saved it, or begin anew in other blocks",
        }
    }
}

impl<T: Serialize> Durable<T> {
    /// A value that is not saved yet. Its schema is the name of its type.
    pub fn new(value: T, blocks: impl Blocks + 'static) -> Durable<T> {
        Durable::with_schema(value, SchemaId::new(type_name::<T>()), blocks)
    }

    /// A value that is not saved yet, with a schema that does not change when its type is renamed.
    pub fn with_schema(value: T, schema: SchemaId, blocks: impl Blocks + 'static) -> Durable<T> {
        Durable { value, schema, slots: Mutex::new(DurableSlots::new(Box::new(blocks))) }
    }

    /// Saves the value. When it returns, the value survives a power cut; if it fails, the one before does.
    pub fn checkpoint(&self) -> Result<Version, DurableError> {
        let mut content = Vec::new();
        ciborium::into_writer(&self.value, &mut content)
            .map_err(|error| DurableError::Encoding { direction: "saved", reason: error.to_string() })?;
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).write(&self.schema, &content)
    }
}

impl<T: DeserializeOwned> Durable<T> {
    /// The newest value that was saved in these blocks, if its schema is the name of this type.
    pub fn restore(blocks: impl Blocks + 'static) -> Result<Durable<T>, DurableError> {
        Durable::restore_with_schema(SchemaId::new(type_name::<T>()), blocks)
    }

    /// The newest value that was saved in these blocks under this schema.
    pub fn restore_with_schema(schema: SchemaId, blocks: impl Blocks + 'static) -> Result<Durable<T>, DurableError> {
        let mut slots = DurableSlots::new(Box::new(blocks));
        let content = slots.read(&schema)?;
        let value = ciborium::from_reader(content.as_slice())
            .map_err(|error| DurableError::Encoding { direction: "restored", reason: error.to_string() })?;
        Ok(Durable { value, schema, slots: Mutex::new(slots) })
    }
}

impl<T> Durable<T> {
    /// The version that was saved or restored last; 0 before the first.
    pub fn version(&self) -> Version {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).version()
    }

    /// The value; the saved copy stays in the blocks.
    pub fn into_inner(self) -> T {
        self.value
    }
}

impl<T> Deref for Durable<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Durable<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(test)]
mod tests;
