//! What is on the GPU: chunks with a number of their own, as the program of that name holds them.

use crate::ServerFault;
use anyhow::{Context as _, Result, ensure};
use sublet_examples::cuda::memory::{Buffer, FillValue};
use sublet_examples::cuda::synchronise;

/// So much is taken at a time.
const CHUNK: u64 = 32 << 20;

/// Where a chunk is.
enum ModelChunk {
    OnGpu(Buffer),
    /// In host memory, to be copied back.
    InHostMemory(Vec<u8>),
    /// On the disk, as it were.
    Discarded(usize),
}

/// A model of so many bytes.
pub struct Model {
    chunks: Vec<ModelChunk>,
    bytes: u64,
}

fn fill_number(index: usize) -> u32 {
    (index as u32 + 1).wrapping_mul(0x9e37_79b9)
}

fn load_chunk(index: usize, bytes: usize) -> Result<Buffer> {
    let buffer = Buffer::alloc(bytes)?;
    buffer.all().part(0..bytes / 4 * 4).fill(FillValue::D32(fill_number(index)), None)?;
    Ok(buffer)
}

impl Model {
    /// Takes all of it.
    pub fn load(bytes: u64) -> Result<Model> {
        let mut chunks = Vec::new();
        let mut left = bytes;
        while left > 0 {
            chunks.push(ModelChunk::Discarded(usize::try_from(left.min(CHUNK))?));
            left -= left.min(CHUNK);
        }
        let mut model = Model { chunks, bytes };
        model.reload()?;
        Ok(model)
    }

    /// How much of it is on the GPU.
    pub fn bytes_on_gpu(&self) -> u64 {
        let of =
            |chunk: &ModelChunk| if let ModelChunk::OnGpu(buffer) = chunk { buffer.all().bytes() as u64 } else { 0 };
        self.chunks.iter().map(of).sum()
    }

    /// All of it is.
    pub fn is_loaded(&self) -> bool {
        self.bytes_on_gpu() == self.bytes
    }

    /// Gives the GPU's memory back, as far as the fault lets it; keeps the contents in host memory, or not.
    pub fn unload(&mut self, fault: Option<ServerFault>, keep: bool) -> Result<()> {
        let leaving = match fault {
            Some(ServerFault::Lies) => 0,
            Some(ServerFault::Half) => self.chunks.len() / 2,
            Some(ServerFault::Little) => self.chunks.len().saturating_sub(1),
            Some(ServerFault::Hangs | ServerFault::Stays) | None => self.chunks.len(),
        };
        for chunk in &mut self.chunks[..leaving] {
            if let ModelChunk::OnGpu(buffer) = chunk {
                let bytes = buffer.all().bytes();
                *chunk =
                    if keep { ModelChunk::InHostMemory(buffer.all().to_vec()?) } else { ModelChunk::Discarded(bytes) };
            }
        }
        synchronise()?;
        Ok(())
    }

    /// Takes it again.
    pub fn reload(&mut self) -> Result<()> {
        for (index, chunk) in self.chunks.iter_mut().enumerate() {
            match chunk {
                ModelChunk::OnGpu(_) => continue,
                ModelChunk::Discarded(bytes) => {
                    *chunk = ModelChunk::OnGpu(load_chunk(index, *bytes).context("the model does not fit")?)
                }
                ModelChunk::InHostMemory(bytes) => {
                    let buffer = Buffer::alloc(bytes.len()).context("the model does not fit")?;
                    buffer.all().write(bytes)?;
                    *chunk = ModelChunk::OnGpu(buffer);
                }
            }
        }
        synchronise()?;
        Ok(())
    }

    /// Reads what is on the GPU back.
    pub fn verify(&self) -> Result<()> {
        for (index, chunk) in self.chunks.iter().enumerate() {
            if let ModelChunk::OnGpu(buffer) = chunk {
                let (bytes, expected) = (buffer.all().to_vec()?, fill_number(index).to_le_bytes());
                // The first four are right, and all others the same as those four before them.
                let whole = bytes.len() / 4 * 4;
                let right = whole < 4 || (bytes[..4] == expected && bytes[4..whole] == bytes[..whole - 4]);
                ensure!(right, "chunk {index} is not as it was written");
            }
        }
        Ok(())
    }
}
