//! Takes and frees memory in the order of streams from many threads, and knows what must be in it.
//!
//! Every piece is filled with a number of its own, copied from stream to stream by events, and freed in one
//! stream or another while the GPU still works on it: the next user of that memory must not disturb the last one.
//! What is read back makes one checksum, which depends on the seed alone.

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Parser;
use std::process::ExitCode;
use sublet_examples::cuda::memory::{FillValue, HostBuffer};
use sublet_examples::cuda::memory_pool::{CudaPool, PoolMemory};
use sublet_examples::cuda::streams::{CudaEvent, CudaStream};
use sublet_examples::cuda::{CudaContext, Device};
use sublet_examples::random::SeededRandom;

/// Takes and frees memory in the order of streams, and checks every byte.
#[derive(Parser)]
struct ChurnOptions {
    /// How many turns each thread has.
    #[arg(long, default_value_t = 2000)]
    turns: u32,
    /// How many threads; each has about 32 MiB of the GPU at most.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// What is done is made from this.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// On this GPU.
    #[arg(long, default_value_t = 0)]
    device: u32,
}

/// Streams of a thread.
const STREAMS: usize = 3;
/// Pieces that a thread has at a time, at most.
const PIECES_MAX: usize = 12;
/// Bytes that are read back at a time, at most.
const READ_MAX: usize = 64 << 10;

/// A piece of memory, the stream that used it last, and the number that fills it.
struct StreamPiece<'a> {
    memory: PoolMemory<'a>,
    stream: usize,
    value: u32,
}

/// A read that is under way: what came, and what must come.
struct PendingRead {
    bytes: usize,
    host: HostBuffer,
    value: u32,
}

struct ChurnWorker<'a> {
    random: SeededRandom,
    streams: &'a [CudaStream],
    pool: &'a CudaPool,
    pieces: Vec<StreamPiece<'a>>,
    pending_reads: Vec<PendingRead>,
    sum: u64,
}

impl<'a> ChurnWorker<'a> {
    /// Small ones, and such as have pages of their own.
    fn bytes(&mut self) -> usize {
        let most = self.random.one_of(&[16, 1000, 100_000, 700_000, 3 << 20]);
        self.random.within(1, most / 4) * 4
    }

    fn alloc(&mut self, bytes: usize, stream: usize) -> Result<PoolMemory<'a>> {
        let stream = &self.streams[stream];
        Ok(if self.random.one_in(2) { PoolMemory::alloc(bytes, stream) } else { self.pool.alloc(bytes, stream) }?)
    }

    fn add_piece(&mut self) -> Result<()> {
        let (bytes, stream, value) = (self.bytes(), self.random.within(0, STREAMS - 1), self.random.number() as u32);
        let memory = self.alloc(bytes, stream)?;
        memory.all().fill(FillValue::D32(value), Some(&self.streams[stream]))?;
        self.pieces.push(StreamPiece { memory, stream, value });
        Ok(())
    }

    /// Makes a stream come after another.
    fn order_after(&self, after: usize, before: usize) -> Result<()> {
        if after != before {
            let event = CudaEvent::timeless()?;
            event.record(Some(&self.streams[before]))?;
            self.streams[after].wait_for(&event)?;
        }
        Ok(())
    }

    /// Copies a piece to a new one in any stream; the old one goes on in its own.
    fn copy(&mut self, index: usize) -> Result<()> {
        let stream = self.random.within(0, STREAMS - 1);
        let (from, value, bytes) = {
            let piece = &self.pieces[index];
            (piece.stream, piece.value, piece.memory.all().bytes())
        };
        let memory = self.alloc(bytes, stream)?;
        self.order_after(stream, from)?;
        memory.all().copy_from_in(self.pieces[index].memory.all(), &self.streams[stream])?;
        self.order_after(from, stream)?;
        self.pieces.push(StreamPiece { memory, stream, value });
        Ok(())
    }

    /// Frees a piece in its own stream or another, while it may still be worked on.
    fn free(&mut self, index: usize) -> Result<()> {
        let piece = self.pieces.swap_remove(index);
        let stream = self.random.within(0, STREAMS - 1);
        self.order_after(stream, piece.stream)?;
        Ok(piece.memory.free_in(&self.streams[stream])?)
    }

    /// Reads some of a piece back, and looks at it later.
    fn read(&mut self, index: usize) -> Result<()> {
        let piece = &self.pieces[index];
        let all = piece.memory.all().bytes();
        let bytes = all.min(READ_MAX);
        let begin = self.random.within(0, (all - bytes) / 4) * 4;
        let mut host = HostBuffer::alloc(bytes, 0)?;
        let part = piece.memory.all().part(begin..begin + bytes);
        // SAFETY: the bytes stay where they are until the stream was waited for.
        unsafe { part.read_in(&mut host, &self.streams[piece.stream]) }?;
        self.pending_reads.push(PendingRead { bytes, host, value: piece.value });
        Ok(())
    }

    /// Waits for everything, and looks at what was read.
    fn verify_reads(&mut self) -> Result<()> {
        self.streams.iter().try_for_each(CudaStream::synchronise)?;
        for reading in std::mem::take(&mut self.pending_reads) {
            let found = reading.host[..reading.bytes].chunks(4).position(|four| four != reading.value.to_le_bytes());
            ensure!(
                found.is_none(),
                "number {} of {} is not {:#x}: somebody else wrote there",
                found.unwrap_or(0),
                reading.bytes / 4,
                reading.value
            );
            let own = u64::from(reading.value) ^ (reading.bytes as u64) << 32;
            self.sum = self.sum.rotate_left(5).wrapping_add(own).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        Ok(())
    }

    fn run_random_step(&mut self) -> Result<()> {
        let count = self.pieces.len();
        if count == 0 {
            return self.add_piece();
        }
        let index = self.random.within(0, count - 1);
        match self.random.within(0, 9) {
            0..=3 if count < PIECES_MAX => self.add_piece(),
            4 | 5 if count < PIECES_MAX => self.copy(index),
            6 | 7 => self.read(index),
            8 if self.random.one_in(4) => self.verify_reads(),
            _ => self.free(index),
        }
    }
}

fn run(options: &ChurnOptions) -> Result<()> {
    let device = Device::get(options.device)?;
    let context = CudaContext::primary(device)?;
    let one = |number: u32| -> Result<u64> {
        context.make_current()?;
        let streams: Vec<CudaStream> = (0..STREAMS).map(|_| CudaStream::new()).collect::<Result<_, _>>()?;
        let pool = CudaPool::create(device)?;
        let random = SeededRandom::new(options.seed.wrapping_mul(0x1_0000_0001).wrapping_add(number.into()));
        let (pieces, pending_reads) = (Vec::new(), Vec::new());
        let mut worker = ChurnWorker { random, streams: &streams, pool: &pool, pieces, pending_reads, sum: 0 };
        for turn in 0..options.turns {
            worker.run_random_step().with_context(|| format!("turn {turn}"))?;
        }
        worker.verify_reads().context("at the end")?;
        while !worker.pieces.is_empty() {
            worker.free(0)?;
        }
        worker.verify_reads()?;
        let sum = worker.sum;
        drop(worker);
        ensure!(pool.used_bytes()? == 0, "a pool that has all back has {} bytes in use", pool.used_bytes()?);
        Ok(sum)
    };
    let sums: Vec<Result<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.threads).map(|number| scope.spawn(move || one(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")))).collect()
    });
    let mut all = 0_u64;
    for (number, sum) in sums.into_iter().enumerate() {
        all = all.rotate_left(9) ^ sum.with_context(|| format!("seed {}, thread {number}", options.seed))?;
    }
    println!("{} threads, {} turns, checksum {all:016x}", options.threads, options.turns);
    Ok(())
}

fn main() -> ExitCode {
    match run(&ChurnOptions::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("churn: {error:#}");
            ExitCode::FAILURE
        }
    }
}
