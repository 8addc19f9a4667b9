//! Contexts, and memory of every kind: a GPU's, the host's, registered, of pools, mapped.

use crate::worker::{BASIC, BYTES_MAX, StressWorker, expect_bytes, expect_equal, expect_numbers, write_and_wait};
use anyhow::{Result, ensure};
use sublet_examples::cuda::memory::{
    Buffer, FillValue, HostBuffer, Registered, address_range, is_host_memory, numbers_of,
};
use sublet_examples::cuda::memory_pool::{CudaPool, PoolMemory};
use sublet_examples::cuda::modules::{Arguments, CudaModule, LaunchShape};
use sublet_examples::cuda::virtual_memory::{PhysicalMemory, ReservedAddresses, granularity};
use sublet_examples::cuda::{CudaContext, current_context, current_device, memory_info};

/// Contexts are pushed and popped, made and ended.
pub fn contexts(worker: &mut StressWorker<'_>) -> Result<()> {
    let shared = worker.shared;
    let own = shared.context.handle();
    expect_equal("the current context", current_context()?, own)?;
    {
        let _pushed = shared.context.push()?;
        expect_equal("the context that was pushed", current_context()?, own)?;
        let again = CudaContext::primary(shared.device)?;
        expect_equal("the primary context", again.handle(), own)?;
        ensure!(shared.device.has_primary()?, "the primary context is not there");
    }
    expect_equal("the context after a pop", current_context()?, own)?;
    expect_equal("the current card", current_device()?, shared.device)?;
    if worker.random.one_in(12)
        && let Ok(_turn) = shared.spare.try_lock()
    {
        let other = CudaContext::create(shared.device)?;
        expect_equal("the context that was made", current_context()?, other.handle())?;
        {
            let _back = shared.context.push()?;
            expect_equal("the context pushed over another", current_context()?, own)?;
            worker.tracked[0].verify("a buffer of the first context")?;
        }
        expect_equal("the context below", current_context()?, other.handle())?;
        let module = CudaModule::load(BASIC)?;
        let numbers = worker.numbers(100);
        let (x, z) = (Buffer::holding(&numbers)?, Buffer::holding(&numbers)?);
        let arguments = Arguments::new().u32(100).span(x.all()).span(z.all()).span(z.all());
        // SAFETY: the kernel takes a count and three pieces of so many numbers.
        unsafe { module.function("add_i32")?.launch(LaunchShape::line(100, 64), None, arguments) }?;
        let doubled: Vec<u32> = numbers.iter().map(|number| number.wrapping_mul(2)).collect();
        expect_numbers("a sum in another context", &z.numbers()?, &doubled)?;
        drop((x, z, module));
        drop(other);
        expect_equal("the context after another ended", current_context()?, own)?;
    }
    Ok(())
}

/// Memory is taken, asked about, used and given back.
pub fn memory(worker: &mut StressWorker<'_>) -> Result<()> {
    match worker.random.within(0, 3) {
        0 => allocate_plain(worker),
        1 => replace_buffer(worker),
        2 => use_host_memory(worker),
        _ => use_registered_memory(worker),
    }
}

fn allocate_plain(worker: &mut StressWorker<'_>) -> Result<()> {
    let bytes =
        if worker.random.one_in(8) { worker.random.within(1 << 20, 4 << 20) } else { worker.random.within(1, 9999) };
    let buffer = Buffer::alloc(bytes)?;
    let at = buffer.all().at();
    ensure!(at.is_multiple_of(256), "memory at {at:#x}, which is no multiple of 256");
    let within = at + worker.random.within(0, bytes - 1) as u64;
    expect_equal("the allocation of an address", address_range(within)?, (at, bytes))?;
    ensure!(!is_host_memory(within)?, "a card's memory is said to be the host's");
    let (free, total) = memory_info()?;
    ensure!(free < total && total <= worker.device().total_bytes()?, "{free} of {total} bytes are free");
    let first = worker.random.bytes(bytes.min(1000));
    buffer.all().write(&first)?;
    let mut back = vec![0; first.len()];
    buffer.all().read(&mut back)?;
    expect_bytes("fresh memory, written", &back, &first)?;
    Ok(buffer.free()?)
}

/// One of the buffers that stay goes, and another comes.
fn replace_buffer(worker: &mut StressWorker<'_>) -> Result<()> {
    let place = worker.random.within(0, worker.tracked.len() - 1);
    worker.tracked[place].verify("a buffer before it goes")?;
    let old = worker.tracked.remove(place);
    old.buffer.free()?;
    let bytes = worker.random.within(1, BYTES_MAX);
    let new = crate::worker::TrackedBuffer::new(bytes, &mut worker.random)?;
    new.verify("a buffer that is new")?;
    worker.tracked.push(new);
    Ok(())
}

fn use_host_memory(worker: &mut StressWorker<'_>) -> Result<()> {
    let (bytes, flags) = (worker.random.within(1, 50_000), worker.random.within(0, 7) as u32);
    let (mut from, mut to) = (HostBuffer::alloc(bytes, flags)?, HostBuffer::alloc(bytes, 0)?);
    // With one address space for all, it is always mapped; which other flags are told differs.
    ensure!(from.flags()? & 2 == 2, "host memory with the flags {flags} is not mapped");
    ensure!(is_host_memory(from.device_address()?)?, "host memory is said to be a card's");
    let data = worker.random.bytes(bytes);
    from.copy_from_slice(&data);
    let buffer = Buffer::alloc(bytes)?;
    let stream = &worker.streams[0];
    // SAFETY: neither is touched before the stream is done.
    unsafe {
        buffer.all().write_in(&from, stream)?;
        buffer.all().read_in(&mut to, stream)?;
    }
    stream.synchronise()?;
    expect_bytes("host memory, to the card and back", &to, &data)
}

/// A GPU adds in the program's own memory.
fn use_registered_memory(worker: &mut StressWorker<'_>) -> Result<()> {
    const PAGE: usize = 4096;
    let pages = worker.random.within(1, 4);
    let mut memory = vec![0_u8; (pages + 1) * PAGE];
    let begin = memory.as_ptr().align_offset(PAGE);
    let elements = pages * PAGE / 4;
    let numbers = worker.numbers(elements);
    let expected: Vec<u32> = numbers.iter().map(|number| number.wrapping_mul(2)).collect();
    let mut own = Registered::new(&mut memory[begin..begin + pages * PAGE])?;
    for (place, number) in own.chunks_exact_mut(4).zip(&numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    let at = own.device_address()?;
    let arguments = Arguments::new().u32(elements as u32).address(at).address(at).address(at);
    let function = worker.basic_kernels.function("add_i32")?;
    // SAFETY: the kernel takes a count and three pieces of that many numbers; nothing reads them before it is done.
    unsafe { function.launch(LaunchShape::line(elements, 128), Some(&worker.streams[1]), arguments) }?;
    worker.streams[1].synchronise()?;
    expect_numbers("registered memory, doubled by the card", &numbers_of::<u32>(&own), &expected)
}

/// Memory in the order of a stream, of the GPU's pool and of an own one.
pub fn pools(worker: &mut StressWorker<'_>) -> Result<()> {
    // The one it takes from if it names none, the same by name, or an own one.
    let (is_own, is_named) = worker.random.one_of(&[(false, false), (false, true), (true, true), (true, true)]);
    let pool = if is_own { CudaPool::create(worker.device()) } else { CudaPool::default_of(worker.device()) }?;
    if is_own && worker.random.one_in(2) {
        pool.set_release_threshold(4 << 20)?;
    }
    let stream = &worker.streams[0];
    for _ in 0..worker.random.within(1, 4) {
        let bytes = worker.random.within(1, 200_000);
        let taken = |bytes| if is_named { pool.alloc(bytes, stream) } else { PoolMemory::alloc(bytes, stream) };
        let (first, second) = (taken(bytes)?, taken(bytes)?);
        let value = worker.random.number() as u8;
        first.all().fill(FillValue::D8(value), Some(stream))?;
        second.all().copy_from_in(first.all(), stream)?;
        first.free()?;
        // It may get just the bytes that were freed, and must not disturb the copy.
        let third = taken(bytes)?;
        third.all().fill(FillValue::D8(!value), Some(stream))?;
        let mut got = vec![0; bytes];
        // SAFETY: the bytes are not touched before the stream is done.
        unsafe { second.all().read_in(&mut got, stream) }?;
        third.free()?;
        second.free()?;
        stream.synchronise()?;
        expect_bytes("memory of a pool", &got, &vec![value; bytes])?;
    }
    if is_own {
        expect_equal("what is used of a pool that has all back", pool.used_bytes()?, 0)?;
        pool.trim(0)?;
        expect_equal("what a pool keeps that was trimmed", pool.reserved_bytes()?, 0)?;
    }
    Ok(())
}

/// Addresses and memory apart: the bytes stay with the memory, wherever it is.
pub fn virtual_memory(worker: &mut StressWorker<'_>) -> Result<()> {
    let device = worker.device();
    let granule = granularity(device)?;
    let reserved = ReservedAddresses::new(granule * 4)?;
    let first = PhysicalMemory::create(device, granule)?;
    let second = PhysicalMemory::create(device, granule * worker.random.within(1, 2))?;
    let (low, high) = (reserved.map(0, &first)?, reserved.map(granule, &second)?);
    low.allow(device, true)?;
    high.allow(device, true)?;
    expect_equal("what a card may do with mapped memory", low.allowed(device)?, 3)?;
    // Over the border between the two: to a program it is one piece.
    let data = worker.random.bytes(8192);
    write_and_wait(low.all().part(granule - 4096..granule), &data[..4096])?;
    write_and_wait(high.all().part(0..4096), &data[4096..])?;
    let (a, b) = (low.all().part(granule - 4096..granule).to_vec()?, high.all().part(0..4096).to_vec()?);
    expect_bytes("mapped memory below the border", &a, &data[..4096])?;
    expect_bytes("mapped memory above it", &b, &data[4096..])?;
    // The same memory at a second address.
    let again = reserved.map(granule * 3, &first)?;
    again.allow(device, true)?;
    let place = again.all().part(granule - 4096..granule);
    expect_bytes("the same memory elsewhere", &place.to_vec()?, &data[..4096])?;
    let value = worker.random.number() as u32;
    place.fill(FillValue::D32(value), Some(&worker.streams[0]))?;
    worker.streams[0].synchronise()?;
    let filled = value.to_le_bytes().repeat(1024);
    expect_bytes("what was written elsewhere", &low.all().part(granule - 4096..granule).to_vec()?, &filled)?;
    let retained = PhysicalMemory::at(again.all())?;
    expect_equal("the size of memory found by address", retained.bytes(), granule)?;
    drop(first);
    again.unmap()?;
    low.unmap()?;
    // It has no address any more, and what keeps it is the handle that was found.
    let back = reserved.map(0, &retained)?;
    // Not every driver has memory that is only read.
    if back.allow(device, false).is_ok() {
        expect_equal("what a card may do with memory to be read", back.allowed(device)?, 1)?;
    } else {
        back.allow(device, true)?;
    }
    expect_bytes("memory that had no address", &back.all().part(granule - 4096..granule).to_vec()?, &filled)?;
    back.unmap()?;
    Ok(high.unmap()?)
}
