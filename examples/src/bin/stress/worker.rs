//! What each thread has: its buffers, what must be in them, and ways to find out whether it is.

use anyhow::{Result, bail};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};
use sublet_examples::cuda::memory::{Buffer, DeviceSpan, Number, bytes_of};
use sublet_examples::cuda::modules::{CudaLibrary, CudaModule};
use sublet_examples::cuda::streams::{CudaStream, synchronise_default};
use sublet_examples::cuda::{CudaContext, Device};
use sublet_examples::random::SeededRandom;

/// Kernels over plain memory, compiled by nvcc from basic.cu beside it.
pub const BASIC: &str = include_str!("../../../../crates/softgpu/kernels/basic.ptx");
/// Kernels with threads that communicate, from shared.cu.
pub const SHARED: &str = include_str!("../../../../crates/softgpu/kernels/shared.ptx");
/// Buffers of a thread, and bytes of each at most.
const BUFFERS: usize = 6;
pub const BYTES_MAX: usize = 128 << 10;

/// What all threads have.
pub struct StressShared<'a> {
    /// The GPU.
    pub device: Device,
    /// The context they work in.
    pub context: &'a CudaContext,
    /// True once a thread found something wrong.
    pub is_over: AtomicBool,
    /// The thread that holds this may make one more context: contexts are large.
    pub spare: Mutex<()>,
}

/// A buffer, and what must be in it.
pub struct TrackedBuffer {
    /// The buffer.
    pub buffer: Buffer,
    /// What must be in it.
    pub expected: Vec<u8>,
}

impl TrackedBuffer {
    /// A buffer with random bytes.
    pub fn new(bytes: usize, random: &mut SeededRandom) -> Result<TrackedBuffer> {
        let (buffer, expected) = (Buffer::alloc(bytes)?, random.bytes(bytes));
        write_and_wait(buffer.all(), &expected)?;
        Ok(TrackedBuffer { buffer, expected })
    }

    /// All of it.
    pub fn all(&self) -> DeviceSpan<'_> {
        self.buffer.all()
    }

    /// Whether everything is as it must be.
    pub fn verify(&self, what: &str) -> Result<()> {
        expect_bytes(what, &self.all().to_vec()?, &self.expected)
    }
}

/// What one thread of the stress program works with.
pub struct StressWorker<'a> {
    /// The choices of this thread.
    pub random: SeededRandom,
    /// What all threads share.
    pub shared: &'a StressShared<'a>,
    /// Two non-blocking streams: they do not wait for the default stream.
    pub streams: [CudaStream; 2],
    /// Buffers that stay.
    pub tracked: Vec<TrackedBuffer>,
    /// Kernels.
    pub basic_kernels: CudaModule,
    /// The same kernels, as a library.
    pub library: CudaLibrary,
    /// Kernels with threads that communicate.
    pub shared_kernels: CudaModule,
    /// What functions of the host count; it stays for ever, as they may come late.
    pub counter: &'static AtomicU64,
    /// How often each family of operations ran.
    pub counts: Vec<u64>,
}

impl<'a> StressWorker<'a> {
    /// A thread's things, from a seed. The context is current.
    pub fn new(shared: &'a StressShared<'a>, seed: u64, families: usize) -> Result<StressWorker<'a>> {
        let mut random = SeededRandom::new(seed);
        let mut tracked = Vec::new();
        for _ in 0..BUFFERS {
            let bytes = random.within(1, BYTES_MAX);
            tracked.push(TrackedBuffer::new(bytes, &mut random)?);
        }
        Ok(StressWorker {
            streams: [CudaStream::new()?, CudaStream::new()?],
            tracked,
            basic_kernels: CudaModule::load(BASIC)?,
            library: CudaLibrary::load(BASIC)?,
            shared_kernels: CudaModule::load(SHARED)?,
            counter: Box::leak(Box::default()),
            counts: vec![0; families],
            random,
            shared,
        })
    }

    /// The GPU.
    pub fn device(&self) -> Device {
        self.shared.device
    }

    /// Whether all buffers that stay have what they must.
    pub fn verify_all(&self) -> Result<()> {
        self.wait_for_all()?;
        self.tracked.iter().try_for_each(|tracked| tracked.verify("a buffer that stays"))
    }

    /// Waits for everything that this thread gave its streams and the default one.
    pub fn wait_for_all(&self) -> Result<()> {
        synchronise_default()?;
        Ok(self.streams.iter().try_for_each(CudaStream::synchronise)?)
    }

    /// A number of elements, often an odd one.
    pub fn elements(&mut self) -> usize {
        if self.random.one_in(4) { self.random.within(1, 40) } else { self.random.within(1, 1500) }
    }

    /// Random numbers.
    pub fn numbers(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.random.number() as u32).collect()
    }
}

/// Writes bytes, and waits until they are there for every stream to see.
pub fn write_and_wait(span: DeviceSpan<'_>, bytes: &[u8]) -> Result<()> {
    span.write(bytes)?;
    Ok(synchronise_default()?)
}

/// A buffer with numbers, there for every stream to see.
pub fn buffer_with<T: Number>(numbers: &[T]) -> Result<Buffer> {
    let buffer = Buffer::holding(numbers)?;
    synchronise_default()?;
    Ok(buffer)
}

/// Whether bytes are what they must be.
pub fn expect_bytes(what: &str, got: &[u8], expected: &[u8]) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    if got.len() != expected.len() {
        bail!("{what}: {} bytes, and {} must be there", got.len(), expected.len());
    }
    let wrong = got.iter().zip(expected).filter(|(got, expected)| got != expected).count();
    let first = got.iter().zip(expected).position(|(got, expected)| got != expected).unwrap_or(0);
    let (is, must) = (got[first], expected[first]);
    bail!("{what}: byte {first} of {} is {is:#04x} and must be {must:#04x}; {wrong} bytes are wrong", got.len());
}

/// Whether numbers are what they must be.
pub fn expect_numbers<T: Number>(what: &str, got: &[T], expected: &[T]) -> Result<()> {
    expect_bytes(what, &bytes_of(got), &bytes_of(expected))
}

/// Whether an answer is what it must be.
pub fn expect_equal<T: PartialEq + std::fmt::Debug>(what: &str, got: T, expected: T) -> Result<()> {
    if got == expected { Ok(()) } else { bail!("{what} is {got:?} and must be {expected:?}") }
}
