//! The two slots of a durable value, and what their headers say.

use super::{Blocks, DurableError};
use crate::names::{SchemaId, Version};
use std::io;

/// Marks a header.
const MAGIC: [u8; 8] = *b"SbDurbl1";

/// The room of a header: one page, so that a slot's content begins at a page of its own.
const HEADER_BYTES: u64 = 4096;

/// The bytes of a header that are used, without its own hash.
const FIELDS_BYTES: usize = 8 + 8 + 8 + 32 + 32;

/// What a header says of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlotHeader {
    version: Version,
    bytes: u64,
    schema: [u8; 32],
    content: [u8; 32],
}

impl SlotHeader {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIELDS_BYTES + 32);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&self.version.0.to_le_bytes());
        bytes.extend_from_slice(&self.bytes.to_le_bytes());
        bytes.extend_from_slice(&self.schema);
        bytes.extend_from_slice(&self.content);
        bytes.extend_from_slice(blake3::hash(&bytes).as_bytes());
        bytes
    }

    /// The header in these bytes; `None` if it is torn or was never written.
    fn decode(bytes: &[u8]) -> Option<SlotHeader> {
        let (fields, hash) = bytes.split_at_checked(FIELDS_BYTES)?;
        if blake3::hash(fields).as_bytes() != hash || !fields.starts_with(&MAGIC) {
            return None;
        }
        Some(SlotHeader {
            version: Version(u64::from_le_bytes(fields[8..16].try_into().ok()?)),
            bytes: u64::from_le_bytes(fields[16..24].try_into().ok()?),
            schema: fields[24..56].try_into().ok()?,
            content: fields[56..88].try_into().ok()?,
        })
    }
}

/// A slot that is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WholeSlot {
    index: u64,
    header: SlotHeader,
}

/// A whole slot and its content.
type SlotContent = (WholeSlot, Vec<u8>);

/// What is known of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotsState {
    /// They were not read yet.
    Unread,
    /// They were read or written.
    Known(KnownSlots),
    /// A write failed. The system may show bytes that are not on the disk.
    Broken,
}

/// What the slots hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct KnownSlots {
    /// The newest whole slot; none if nothing was saved.
    newest: Option<WholeSlot>,
    /// The highest version in a header. The content of that slot may be torn.
    highest: Version,
}

/// Two slots in blocks.
pub struct DurableSlots {
    blocks: Box<dyn Blocks>,
    state: SlotsState,
}

impl DurableSlots {
    /// Slots that were not read yet.
    pub fn new(blocks: Box<dyn Blocks>) -> DurableSlots {
        DurableSlots { blocks, state: SlotsState::Unread }
    }

    /// The newest version, as far as it was read or written.
    pub fn version(&self) -> Version {
        match self.state {
            SlotsState::Known(KnownSlots { newest: Some(slot), .. }) => slot.header.version,
            _ => Version(0),
        }
    }

    /// The content of the newest whole slot.
    pub fn read(&mut self, schema: &SchemaId) -> Result<Vec<u8>, DurableError> {
        let is_written = self.is_written()?;
        let (known, newest) = self.read_both()?;
        self.state = SlotsState::Known(known);
        match newest {
            None if is_written => Err(DurableError::Damaged),
            None => Err(DurableError::Empty),
            Some((slot, _)) if slot.header.schema != hash_of(schema) => {
                Err(DurableError::OtherSchema { expected: schema.clone() })
            }
            Some((_, content)) => Ok(content),
        }
    }

    /// Writes the content over the slot that is not the newest whole one, and syncs it.
    pub fn write(&mut self, schema: &SchemaId, content: &[u8]) -> Result<Version, DurableError> {
        let slot_bytes = self.slot_bytes()?;
        let (bytes, most) = (content.len() as u64, slot_bytes.saturating_sub(HEADER_BYTES));
        if bytes > most {
            return Err(DurableError::TooLarge { bytes, most });
        }
        let known = self.known()?;
        let index = known.newest.map_or(0, |slot| 1 - slot.index);
        let header = SlotHeader {
            version: known.highest.next(),
            bytes,
            schema: hash_of(schema),
            content: *blake3::hash(content).as_bytes(),
        };
        let offset = index * slot_bytes;
        self.state = SlotsState::Broken;
        self.blocks.write_at(content, offset + HEADER_BYTES).map_err(DurableError::Blocks)?;
        self.blocks.write_at(&header.encode(), offset).map_err(DurableError::Blocks)?;
        self.blocks.sync().map_err(DurableError::Blocks)?;
        let newest = Some(WholeSlot { index, header });
        self.state = SlotsState::Known(KnownSlots { newest, highest: header.version });
        Ok(header.version)
    }

    /// What the slots hold, after a check that no other program wrote to them.
    fn known(&mut self) -> Result<KnownSlots, DurableError> {
        match self.state {
            SlotsState::Broken => Err(DurableError::Broken),
            SlotsState::Known(known) => match self.highest_version()? {
                found if found > known.highest => Err(DurableError::Overtaken { found }),
                _ => Ok(known),
            },
            SlotsState::Unread => {
                let (known, _) = self.read_both()?;
                self.state = SlotsState::Known(known);
                Ok(known)
            }
        }
    }

    /// Both slots: what they hold, and the newest whole one with its content.
    fn read_both(&self) -> Result<(KnownSlots, Option<SlotContent>), DurableError> {
        let mut whole = Vec::new();
        for index in 0..2 {
            whole.extend(self.read_slot(index)?);
        }
        let newest = whole.into_iter().max_by_key(|(slot, _)| slot.header.version);
        let known = KnownSlots { newest: newest.as_ref().map(|(slot, _)| *slot), highest: self.highest_version()? };
        Ok((known, newest))
    }

    /// The highest version in a header; 0 if there is none.
    fn highest_version(&self) -> Result<Version, DurableError> {
        let (one, two) = (self.read_header(0)?, self.read_header(1)?);
        Ok([one, two].into_iter().flatten().map(|header| header.version).max().unwrap_or_default())
    }

    /// True if a slot does not begin with zeros.
    fn is_written(&self) -> Result<bool, DurableError> {
        for index in 0..2 {
            let mut start = [0; MAGIC.len()];
            self.blocks.read_at(&mut start, index * self.slot_bytes()?).map_err(DurableError::Blocks)?;
            if start != [0; MAGIC.len()] {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A slot with its content; `None` if it is not whole.
    fn read_slot(&self, index: u64) -> Result<Option<SlotContent>, DurableError> {
        let Some(header) = self.read_header(index)? else { return Ok(None) };
        let offset = index * self.slot_bytes()? + HEADER_BYTES;
        let length = usize::try_from(header.bytes).map_err(|error| DurableError::Blocks(io::Error::other(error)))?;
        let mut content = vec![0; length];
        self.blocks.read_at(&mut content, offset).map_err(DurableError::Blocks)?;
        let is_whole = *blake3::hash(&content).as_bytes() == header.content;
        Ok(is_whole.then_some((WholeSlot { index, header }, content)))
    }

    /// The header of a slot; `None` if it is torn, was never written, or names more bytes than the slot has.
    fn read_header(&self, index: u64) -> Result<Option<SlotHeader>, DurableError> {
        let slot_bytes = self.slot_bytes()?;
        let mut bytes = [0; FIELDS_BYTES + 32];
        self.blocks.read_at(&mut bytes, index * slot_bytes).map_err(DurableError::Blocks)?;
        Ok(SlotHeader::decode(&bytes).filter(|header| header.bytes <= slot_bytes - HEADER_BYTES))
    }

    /// The bytes of one slot: half of the blocks, in whole pages.
    fn slot_bytes(&self) -> Result<u64, DurableError> {
        let bytes = self.blocks.bytes().map_err(DurableError::Blocks)?;
        let slot_bytes = bytes / 2 / HEADER_BYTES * HEADER_BYTES;
        if slot_bytes <= HEADER_BYTES {
            return Err(DurableError::TooLarge { bytes: 1, most: 0 });
        }
        Ok(slot_bytes)
    }
}

fn hash_of(schema: &SchemaId) -> [u8; 32] {
    *blake3::hash(schema.as_str().as_bytes()).as_bytes()
}
