//! Holds memory of a GPU, and knows what must be in it.
//!
//! Every chunk is filled with a number of its own. Once a second some of it is read back, and at the
//! end all of it. Whatever is done to the process in between (it is stopped, taken off its GPU and
//! put back) must not be seen here: calls just take longer.

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};
use sublet_examples::cuda::memory::{Buffer, DeviceSpan, FillValue};
use sublet_examples::cuda::{CudaContext, Device, synchronise};
use sublet_examples::random::SeededRandom;
use sublet_examples::size::ByteSize;

/// Holds memory of a GPU, and says so if it does not stay as it was written.
#[derive(Parser)]
struct HoldOptions {
    /// How much, such as 8GiB.
    size: ByteSize,
    /// Ends after so many seconds; otherwise with Ctrl-C or SIGTERM.
    #[arg(long)]
    seconds: Option<f64>,
    /// Takes it in pieces of this size.
    #[arg(long, default_value = "512MiB")]
    chunk: ByteSize,
    /// Looks at none of it before the end.
    #[arg(long)]
    idle: bool,
    /// Looks at none of it at the end either.
    #[arg(long)]
    blind: bool,
    /// On this GPU.
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// A thread of this name is beside it, as programs have them that use other libraries.
    #[arg(long)]
    thread: Option<String>,
    /// Says how often it got SIGTERM, and goes on.
    #[arg(long)]
    deaf: bool,
    /// Ends once it has it, and leaves so many children that have its descriptors, as programs do that fork without
    /// care.
    #[arg(long, default_value_t = 0)]
    leave: u32,
}

/// Bytes that are read back at a time.
const PIECE_BYTES: usize = 16 << 20;
/// Bytes of each sample.
const SAMPLE_BYTES: usize = 64 << 10;
/// How often it is looked whether the end has come.
const POLL_PERIOD: Duration = Duration::from_millis(50);

/// Some of the memory.
struct HeldChunk {
    buffer: Buffer,
    value: u32,
}

impl HeldChunk {
    fn allocate(number: usize, bytes: u64) -> Result<HeldChunk> {
        let buffer = Buffer::alloc(usize::try_from(bytes)?)?;
        // No two chunks have the same.
        let value = (number as u32 + 1).wrapping_mul(0x9e37_79b9);
        buffer.all().fill(FillValue::D32(value), None)?;
        // What is left at the end has no room for a whole number.
        let (whole, all) = (buffer.all().bytes() / 4 * 4, buffer.all().bytes());
        if whole < all {
            buffer.all().part(whole..all).write(&value.to_le_bytes()[..all - whole])?;
        }
        Ok(HeldChunk { buffer, value })
    }

    /// Reads some of it back; `offset` is a multiple of four.
    fn verify(&self, number: usize, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let span: DeviceSpan<'_> = self.buffer.all();
        span.part(offset..offset + bytes.len()).read(bytes)?;
        let expected = self.value.to_le_bytes();
        let first = bytes.len().min(4);
        // The first four are right, and all others the same as those four before them.
        if bytes[..first] == expected[..first] && bytes[first..] == bytes[..bytes.len() - first] {
            return Ok(());
        }
        let wrong = bytes.iter().enumerate().find(|(place, byte)| **byte != expected[place % 4]);
        if let Some((place, byte)) = wrong {
            let should = expected[place % 4];
            bail!("byte {} of chunk {number} is {byte:#04x}, and {should:#04x} was written", offset + place);
        }
        Ok(())
    }

    fn verify_all(&self, number: usize, piece: &mut [u8]) -> Result<()> {
        let bytes = self.buffer.all().bytes();
        for offset in (0..bytes).step_by(PIECE_BYTES) {
            let length = PIECE_BYTES.min(bytes - offset);
            self.verify(number, offset, &mut piece[..length])?;
        }
        Ok(())
    }

    fn verify_some(&self, number: usize, random: &mut SeededRandom, piece: &mut [u8]) -> Result<()> {
        let bytes = self.buffer.all().bytes();
        let length = SAMPLE_BYTES.min(bytes);
        let offset = random.within(0, bytes - length) / 4 * 4;
        self.verify(number, offset, &mut piece[..length])
    }
}

fn run(options: &HoldOptions) -> Result<()> {
    let end = Arc::new(AtomicBool::new(false));
    const UNHEARD: &str = "signals cannot be listened for";
    signal_hook::flag::register(SIGINT, Arc::clone(&end)).context(UNHEARD)?;
    let asked = Arc::new(AtomicUsize::new(0));
    if options.deaf {
        let count = Arc::clone(&asked);
        let heard = move || {
            count.fetch_add(1, SeqCst);
        };
        // SAFETY: the handler adds to a number, and nothing else.
        unsafe { signal_hook::low_level::register(SIGTERM, heard) }.context(UNHEARD)?;
    } else {
        signal_hook::flag::register(SIGTERM, Arc::clone(&end)).context(UNHEARD)?;
    }
    if let Some(name) = &options.thread {
        let idle = || loop {
            std::thread::park();
        };
        std::thread::Builder::new().name(name.clone()).spawn(idle).context("a thread cannot be started")?;
    }
    let device = Device::get(options.device)?;
    let context = CudaContext::primary(device)?;
    context.make_current()?;
    let mut chunks = Vec::new();
    let mut left = options.size.0;
    while left > 0 && !end.load(SeqCst) {
        let bytes = left.min(options.chunk.0);
        let taken = HeldChunk::allocate(chunks.len(), bytes);
        chunks.push(
            taken.with_context(|| format!("{} of {} were taken", ByteSize(options.size.0 - left), options.size))?,
        );
        left -= bytes;
    }
    synchronise()?;
    println!("holds {} on {}", ByteSize(options.size.0 - left), device.name()?);
    std::io::stdout().flush()?;
    if options.leave > 0 {
        return leave_children(options.leave, &end);
    }

    let began = Instant::now();
    let is_over = || end.load(SeqCst) || options.seconds.is_some_and(|most| began.elapsed().as_secs_f64() >= most);
    let (mut random, mut piece, mut looked) = (SeededRandom::new(1), vec![0; PIECE_BYTES], Instant::now());
    let mut said = 0;
    while !is_over() {
        std::thread::sleep(POLL_PERIOD);
        let times = asked.load(SeqCst);
        if times > said {
            said = times;
            println!("got SIGTERM {times} times");
            std::io::stdout().flush()?;
        }
        if !options.idle && looked.elapsed() >= Duration::from_secs(1) {
            let number = random.within(0, chunks.len() - 1);
            chunks[number].verify_some(number, &mut random, &mut piece)?;
            looked = Instant::now();
        }
    }
    if options.blind {
        return Ok(());
    }
    for (number, chunk) in chunks.iter().enumerate() {
        chunk.verify_all(number, &mut piece)?;
    }
    println!("all {} bytes as written", options.size.0 - left);
    Ok(())
}

/// Makes `count` children that keep all descriptors, prints their pids, and exits without freeing its GPU memory.
fn leave_children(count: u32, end: &AtomicBool) -> Result<()> {
    let mut left = Vec::new();
    for _ in 0..count {
        // SAFETY: a plain fork, past what libraries do at one: the child has all descriptors. It only sleeps, until a
        // signal's handler sets a flag, and ends without any of what the libraries would do.
        match unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } {
            -1 => return Err(std::io::Error::last_os_error()).context("no child can be made"),
            0 => {
                while !end.load(SeqCst) {
                    std::thread::sleep(POLL_PERIOD);
                }
                // SAFETY: it ends the process.
                unsafe { libc::_exit(0) }
            }
            child => left.push(child.to_string()),
        }
    }
    println!("leaves it to {}", left.join(" "));
    std::io::stdout().flush()?;
    // SAFETY: it ends the process; what it has on the GPU is not given back.
    unsafe { libc::_exit(0) }
}

fn main() -> ExitCode {
    match run(&HoldOptions::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hold: {error:#}");
            ExitCode::FAILURE
        }
    }
}
