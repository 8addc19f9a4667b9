//! What is on the card: chunks with a number of their own, as the program of that name holds them.

use crate::Fault;
use anyhow::{Context as _, Result, ensure};
use sublet_examples::cuda::memory::{Buffer, Fill};
use sublet_examples::cuda::synchronise;

/// So much is taken at a time.
const CHUNK: u64 = 32 << 20;

/// Where a chunk is.
enum Chunk {
    OnCard(Buffer),
    /// In host memory, to be copied back.
    Kept(Vec<u8>),
    /// On the disk, as it were.
    Gone(usize),
}

/// A model of so many bytes.
pub struct Model {
    chunks: Vec<Chunk>,
    bytes: u64,
}

fn number(place: usize) -> u32 {
    (place as u32 + 1).wrapping_mul(0x9e37_79b9)
}

fn loaded(place: usize, bytes: usize) -> Result<Buffer> {
    let buffer = Buffer::alloc(bytes)?;
    buffer.all().part(0..bytes / 4 * 4).fill(Fill::D32(number(place)), None)?;
    Ok(buffer)
}

impl Model {
    /// Takes all of it.
    pub fn load(bytes: u64) -> Result<Model> {
        let mut chunks = Vec::new();
        let mut left = bytes;
        while left > 0 {
            chunks.push(Chunk::Gone(usize::try_from(left.min(CHUNK))?));
            left -= left.min(CHUNK);
        }
        let mut model = Model { chunks, bytes };
        model.come_back()?;
        Ok(model)
    }

    /// How much of it is on the card.
    pub fn on_card(&self) -> u64 {
        let of = |chunk: &Chunk| if let Chunk::OnCard(buffer) = chunk { buffer.all().bytes() as u64 } else { 0 };
        self.chunks.iter().map(of).sum()
    }

    /// All of it is.
    pub fn is_here(&self) -> bool {
        self.on_card() == self.bytes
    }

    /// Gives the card's memory back, as far as the fault lets it; keeps the contents in host memory, or not.
    pub fn leave(&mut self, fault: Option<Fault>, keep: bool) -> Result<()> {
        let leaving = match fault {
            Some(Fault::Lies) => 0,
            Some(Fault::Half) => self.chunks.len() / 2,
            Some(Fault::Little) => self.chunks.len().saturating_sub(1),
            Some(Fault::Hangs | Fault::Stays) | None => self.chunks.len(),
        };
        for chunk in &mut self.chunks[..leaving] {
            if let Chunk::OnCard(buffer) = chunk {
                let bytes = buffer.all().bytes();
                *chunk = if keep { Chunk::Kept(buffer.all().to_vec()?) } else { Chunk::Gone(bytes) };
            }
        }
        synchronise()?;
        Ok(())
    }

    /// Takes it again.
    pub fn come_back(&mut self) -> Result<()> {
        for (place, chunk) in self.chunks.iter_mut().enumerate() {
            match chunk {
                Chunk::OnCard(_) => continue,
                Chunk::Gone(bytes) => *chunk = Chunk::OnCard(loaded(place, *bytes).context("the model does not fit")?),
                Chunk::Kept(bytes) => {
                    let buffer = Buffer::alloc(bytes.len()).context("the model does not fit")?;
                    buffer.all().write(bytes)?;
                    *chunk = Chunk::OnCard(buffer);
                }
            }
        }
        synchronise()?;
        Ok(())
    }

    /// Reads what is on the card back.
    pub fn verify(&self) -> Result<()> {
        for (place, chunk) in self.chunks.iter().enumerate() {
            if let Chunk::OnCard(buffer) = chunk {
                let (bytes, expected) = (buffer.all().to_vec()?, number(place).to_le_bytes());
                // The first four are right, and all others the same as those four before them.
                let whole = bytes.len() / 4 * 4;
                let right = whole < 4 || (bytes[..4] == expected && bytes[4..whole] == bytes[..whole - 4]);
                ensure!(right, "chunk {place} is not as it was written");
            }
        }
        Ok(())
    }
}
