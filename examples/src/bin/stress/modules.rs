//! Modules, libraries, launches in every way, and questions about all of it.

use crate::worker::{BASIC, StressWorker, buffer_with, expect_bytes, expect_equal, expect_numbers, write_and_wait};
use anyhow::{Result, ensure};
use sublet_examples::cuda::memory::DeviceSpan;
use sublet_examples::cuda::modules::{Arguments, CudaFunction, CudaLibrary, CudaModule, LaunchCall, LaunchShape};
use sublet_examples::cuda::streams::CudaStream;
use sublet_examples::cuda::{Device, driver_version, limit};

/// Modules and libraries come with their variables as they were written down, and go.
pub fn modules(worker: &mut StressWorker<'_>) -> Result<()> {
    let value = worker.random.number() as u32;
    if worker.random.one_in(2) {
        let module = CudaModule::load(BASIC)?;
        variable(module.variable("calls")?, module.function("count_calls")?, value)?;
        ensure!(module.function("no_such_kernel").is_err(), "a kernel was found that is not there");
    } else {
        let library = CudaLibrary::load(BASIC)?;
        let kernel = library.kernel("count_calls")?;
        variable(library.variable("calls")?, kernel.function()?, value)?;
        ensure!(library.kernel("no_such_kernel").is_err(), "a kernel was found that is not there");
    }
    Ok(())
}

/// A variable is 7 at first, and afterwards what it was set to.
fn variable(calls: DeviceSpan<'_>, count_calls: CudaFunction<'_>, value: u32) -> Result<()> {
    expect_bytes("a variable of a module", &calls.to_vec()?, &7_u32.to_le_bytes())?;
    write_and_wait(calls, &value.to_le_bytes())?;
    let out = buffer_with(&[0_u32])?;
    // SAFETY: the kernel takes a place for one number.
    unsafe { count_calls.launch(LaunchShape::line(1, 1), None, Arguments::new().span(out.all())) }?;
    expect_numbers("a variable as a kernel sees it", &out.numbers()?, &[value])
}

/// What `hash_u64` of basic.cu computes.
fn hash(place: u64, number: u64, rounds: u32) -> u64 {
    let mut hash = number ^ 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(place);
    for _ in 0..rounds {
        hash ^= hash >> 33;
        hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(17);
        hash = hash.wrapping_add(((u128::from(hash) * 0xc4ce_b9fe_1a85_ec53) >> 64) as u64);
    }
    hash
}

/// A kernel of the module or of the library, by any of its names.
fn kernel<'a>(worker: &'a StressWorker<'_>, name: &str, which: usize) -> Result<CudaFunction<'a>> {
    Ok(match which {
        0 => worker.basic_kernels.function(name)?,
        1 => worker.library.kernel(name)?.function()?,
        _ => worker.library.kernel(name)?.as_function(),
    })
}

/// A kernel is launched in one of the ways there are, and does what it says.
pub fn launches(worker: &mut StressWorker<'_>) -> Result<()> {
    let elements = worker.elements();
    let block = worker.random.one_of(&[1, 7, 32, 96, 128, 256, 1024]);
    let shape = LaunchShape::line(elements, block);
    let priority = CudaStream::priorities()?.1;
    let way = worker.random.one_of(&[
        LaunchCall::Plain,
        LaunchCall::Packed,
        LaunchCall::Ex,
        LaunchCall::ExWithPriority(priority),
    ]);
    let which = worker.random.within(0, 2);
    match worker.random.within(0, 3) {
        0 => {
            let a = worker.random.unit();
            let x: Vec<f32> = (0..elements).map(|_| worker.random.unit()).collect();
            let y: Vec<f32> = (0..elements).map(|_| worker.random.unit()).collect();
            let (gpu_x, gpu_y) = (buffer_with(&x)?, buffer_with(&y)?);
            let arguments = Arguments::new().u32(elements as u32).f32(a).span(gpu_x.all()).span(gpu_y.all());
            let stream = &worker.streams[0];
            // SAFETY: the kernel takes a count, a factor and two pieces of so many numbers.
            unsafe { kernel(worker, "saxpy", which)?.launch_with(way, shape, Some(stream), arguments) }?;
            stream.synchronise()?;
            let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| a.mul_add(*x, *y)).collect();
            expect_numbers("saxpy", &gpu_y.numbers::<f32>()?, &expected)
        }
        1 => {
            let numbers: Vec<u64> = (0..elements).map(|_| worker.random.number()).collect();
            let rounds = worker.random.within(0, 5) as u32;
            let (x, y) = (buffer_with(&numbers)?, buffer_with(&vec![0_u64; elements])?);
            let arguments = Arguments::new().u32(elements as u32).u32(rounds).span(x.all()).span(y.all());
            let stream = &worker.streams[1];
            // SAFETY: the kernel takes a count, a number of rounds and two pieces of so many numbers.
            unsafe { kernel(worker, "hash_u64", which)?.launch_with(way, shape, Some(stream), arguments) }?;
            stream.synchronise()?;
            let expected: Vec<u64> =
                numbers.iter().enumerate().map(|(place, number)| hash(place as u64, *number, rounds)).collect();
            expect_numbers("hashes", &y.numbers::<u64>()?, &expected)
        }
        2 => {
            // Fewer threads than elements: each has several; in the default stream.
            let numbers = worker.numbers(elements);
            let (x, z) = (buffer_with(&numbers)?, buffer_with(&vec![0_u32; elements])?);
            let few = LaunchShape { grid: [2, 1, 1], ..shape };
            let arguments = Arguments::new().u32(elements as u32).span(x.all()).span(x.all()).span(z.all());
            // SAFETY: the kernel takes a count and three pieces of so many numbers.
            unsafe { kernel(worker, "add_i32", which)?.launch_with(way, few, None, arguments) }?;
            let expected: Vec<u32> = numbers.iter().map(|number| number.wrapping_mul(2)).collect();
            expect_numbers("sums", &z.numbers::<u32>()?, &expected)
        }
        _ => {
            // Threads of a block add up what they have by barriers, and blocks by atomics.
            let numbers = worker.numbers(elements);
            let (x, sum) = (buffer_with(&numbers)?, buffer_with(&[5_u32])?);
            let blocks = worker.random.within(1, 5) as u32;
            let shape = LaunchShape { grid: [blocks, 1, 1], block: [256, 1, 1], shared: 0 };
            let arguments = Arguments::new().u32(elements as u32).span(x.all()).span(sum.all());
            let stream = &worker.streams[0];
            // SAFETY: the kernel takes a count, so many numbers and a place for one.
            unsafe { worker.shared_kernels.function("reduce_u32")?.launch_with(way, shape, Some(stream), arguments) }?;
            stream.synchronise()?;
            let expected = numbers.iter().fold(5_u32, |sum, number| sum.wrapping_add(*number));
            expect_numbers("a sum of all", &sum.numbers()?, &[expected])
        }
    }
}

/// Queries with known answers, or with answers that must be equal.
pub fn queries(worker: &mut StressWorker<'_>) -> Result<()> {
    let device = worker.device();
    ensure!(driver_version()? >= 12_000, "the driver is older than what it gave us");
    ensure!(Device::count()? > device.number() as u32, "there are fewer cards than there were");
    expect_equal("a card by its place on the bus", Device::by_bus_id(&device.bus_id()?)?, device)?;
    expect_equal("a card's UUID", device.uuid()?, device.uuid()?)?;
    // Threads of a warp, and of a block at most.
    expect_equal("the threads of a warp", device.attribute(10)?, 32)?;
    let threads_max = device.attribute(1)?;
    ensure!(threads_max >= 1024, "blocks have {threads_max} threads at most");
    // Stack of a thread.
    ensure!(limit(0)? > 0, "threads have no stack");
    let function = worker.basic_kernels.function("saxpy")?;
    expect_equal("a function's module", function.module()?, worker.basic_kernels.handle())?;
    ensure!((1..=threads_max).contains(&function.attribute(0)?), "a kernel has more threads than a block");
    let kernel = worker.library.kernel("transpose_f32")?;
    // 32 lines of 33 numbers, as it is declared.
    expect_equal("a kernel's shared bytes", kernel.attribute(1, device)?, 32 * 33 * 4)?;
    expect_equal("the same of the function", kernel.function()?.attribute(1)?, 32 * 33 * 4)?;
    let threads = worker.random.within(1, 8) as u32 * 32;
    let blocks = function.blocks_at_a_time(threads, 0)?;
    ensure!(blocks >= 1 && blocks * threads <= 2048, "{blocks} blocks of {threads} threads at a time");
    let crowded = function.blocks_at_a_time(threads, 32 << 10)?;
    ensure!(crowded <= blocks, "{crowded} blocks with more shared bytes, and {blocks} with fewer");
    let (blocks, threads) = function.best_shape()?;
    ensure!(
        blocks >= 1 && threads.is_multiple_of(32) && (32..=1024).contains(&threads),
        "{blocks} blocks of {threads} threads fill a card"
    );
    let bytes = worker.random.within(0, 32 << 10) as i32;
    function.set_attribute(8, bytes)?;
    expect_equal("the dynamic shared bytes that were allowed", function.attribute(8)?, bytes)
}
