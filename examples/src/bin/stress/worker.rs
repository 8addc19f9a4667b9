//! What each thread has: its buffers, what must be in them, and ways to find out whether it is.

use anyhow::{Result, bail};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};
use sublet_examples::cuda::code::{Library, Module};
use sublet_examples::cuda::memory::{Buffer, Number, Span, bytes_of};
use sublet_examples::cuda::order::{Stream, synchronise_default};
use sublet_examples::cuda::{Context, Device};
use sublet_examples::random::Random;

/// Kernels over plain memory, compiled by nvcc from basic.cu beside it.
pub const BASIC: &str = include_str!("../../../../crates/softgpu/kernels/basic.ptx");
/// Kernels with threads that communicate, from shared.cu.
pub const SHARED: &str = include_str!("../../../../crates/softgpu/kernels/shared.ptx");
/// Buffers of a thread, and bytes of each at most.
const BUFFERS: usize = 6;
pub const BYTES_MAX: usize = 128 << 10;

/// What all threads have.
pub struct Shared<'a> {
    /// The card.
    pub device: Device,
    /// The context they work in.
    pub context: &'a Context,
    /// True once a thread found something wrong.
    pub is_over: AtomicBool,
    /// The thread that holds this may make one more context: contexts are large.
    pub spare: Mutex<()>,
}

/// A buffer, and what must be in it.
pub struct Tracked {
    /// The buffer.
    pub buffer: Buffer,
    /// What must be in it.
    pub expected: Vec<u8>,
}

impl Tracked {
    /// A buffer with random bytes.
    pub fn new(bytes: usize, random: &mut Random) -> Result<Tracked> {
        let (buffer, expected) = (Buffer::alloc(bytes)?, random.bytes(bytes));
        put(buffer.all(), &expected)?;
        Ok(Tracked { buffer, expected })
    }

    /// All of it.
    pub fn all(&self) -> Span<'_> {
        self.buffer.all()
    }

    /// Whether everything is as it must be.
    pub fn verify(&self, what: &str) -> Result<()> {
        same(what, &self.all().to_vec()?, &self.expected)
    }
}

/// A thread's own things.
pub struct Worker<'a> {
    /// What is done next.
    pub random: Random,
    /// What all threads share.
    pub shared: &'a Shared<'a>,
    /// Two non-blocking streams: they do not wait for the default stream.
    pub streams: [Stream; 2],
    /// Buffers that stay.
    pub tracked: Vec<Tracked>,
    /// Kernels.
    pub basic: Module,
    /// The same kernels, as a library.
    pub library: Library,
    /// Kernels with threads that communicate.
    pub talking: Module,
    /// What functions of the host count; it stays for ever, as they may come late.
    pub counter: &'static AtomicU64,
    /// How often each family had its turn.
    pub counts: Vec<u64>,
}

impl<'a> Worker<'a> {
    /// A thread's things, from a seed. The context is current.
    pub fn new(shared: &'a Shared<'a>, seed: u64, families: usize) -> Result<Worker<'a>> {
        let mut random = Random::new(seed);
        let mut tracked = Vec::new();
        for _ in 0..BUFFERS {
            let bytes = random.within(1, BYTES_MAX);
            tracked.push(Tracked::new(bytes, &mut random)?);
        }
        Ok(Worker {
            streams: [Stream::new()?, Stream::new()?],
            tracked,
            basic: Module::load(BASIC)?,
            library: Library::load(BASIC)?,
            talking: Module::load(SHARED)?,
            counter: Box::leak(Box::default()),
            counts: vec![0; families],
            random,
            shared,
        })
    }

    /// The card.
    pub fn device(&self) -> Device {
        self.shared.device
    }

    /// Whether all buffers that stay have what they must.
    pub fn verify_all(&self) -> Result<()> {
        self.settle()?;
        self.tracked.iter().try_for_each(|tracked| tracked.verify("a buffer that stays"))
    }

    /// Waits for everything that this thread gave its streams and the default one.
    pub fn settle(&self) -> Result<()> {
        synchronise_default()?;
        Ok(self.streams.iter().try_for_each(Stream::synchronise)?)
    }

    /// A number of elements, often an odd one.
    pub fn elements(&mut self) -> usize {
        if self.random.once_in(4) { self.random.within(1, 40) } else { self.random.within(1, 1500) }
    }

    /// Random numbers.
    pub fn numbers(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.random.number() as u32).collect()
    }
}

/// Writes bytes, and waits until they are there for every stream to see.
pub fn put(span: Span<'_>, bytes: &[u8]) -> Result<()> {
    span.write(bytes)?;
    Ok(synchronise_default()?)
}

/// A buffer with numbers, there for every stream to see.
pub fn holding<T: Number>(numbers: &[T]) -> Result<Buffer> {
    let buffer = Buffer::holding(numbers)?;
    synchronise_default()?;
    Ok(buffer)
}

/// Whether bytes are what they must be.
pub fn same(what: &str, got: &[u8], expected: &[u8]) -> Result<()> {
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
pub fn same_numbers<T: Number>(what: &str, got: &[T], expected: &[T]) -> Result<()> {
    same(what, &bytes_of(got), &bytes_of(expected))
}

/// Whether an answer is what it must be.
pub fn equal<T: PartialEq + std::fmt::Debug>(what: &str, got: T, expected: T) -> Result<()> {
    if got == expected { Ok(()) } else { bail!("{what} is {got:?} and must be {expected:?}") }
}
