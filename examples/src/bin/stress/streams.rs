//! Streams and events, and functions of the host among the work of a GPU.

use crate::worker::{StressWorker, buffer_with, expect_equal, expect_numbers};
use anyhow::{Result, ensure};
use std::sync::{Arc, Mutex, PoisonError};
use sublet_examples::cuda::memory::{Buffer, FillValue};
use sublet_examples::cuda::modules::{Arguments, LaunchShape};
use sublet_examples::cuda::streams::{CudaEvent, CudaStream};

/// Work that goes from stream to stream by events, and comes out in the right order.
pub fn streams(worker: &mut StressWorker<'_>) -> Result<()> {
    let (least, best) = CudaStream::priorities()?;
    ensure!(best <= least, "the best priority {best} is after the usual {least}");
    let priority = worker.random.within(0, (least - best) as usize) as i32 + best;
    let urgent = CudaStream::with_priority(true, priority)?;
    expect_equal("a stream's priority", urgent.priority()?, priority)?;
    ensure!(urgent.is_independent()?, "a stream forgot that it waits for nobody");
    expect_equal("a stream's context", urgent.context()?, worker.shared.context.handle())?;
    let blocking = if worker.random.one_in(3) { Some(CudaStream::blocking()?) } else { None };
    if let Some(blocking) = &blocking {
        ensure!(!blocking.is_independent()?, "a stream forgot that it takes turns with the default one");
    }

    // One number goes round: each stream adds what it has to what the one before it left.
    let elements = worker.elements();
    let start = worker.numbers(elements);
    let added = worker.numbers(elements);
    let (sum, x) = (buffer_with(&start)?, buffer_with(&added)?);
    let flag = buffer_with(&[0_u32])?;
    let add = worker.basic_kernels.function("add_i32")?;
    let mut streams = vec![&worker.streams[0], &worker.streams[1], &urgent];
    streams.extend(&blocking);
    let (began, ended) = (CudaEvent::new()?, CudaEvent::new()?);
    began.record(Some(streams[0]))?;
    let rounds = worker.random.within(1, 8);
    let mut before: Option<(CudaEvent, usize)> = None;
    for round in 0..rounds {
        let own = worker.random.within(0, streams.len() - 1);
        let stream = streams[own];
        match &before {
            // The order of a stream itself is enough; to wait once more does no harm.
            Some((_, last)) if *last == own && worker.random.one_in(2) => {}
            Some((event, _)) => stream.wait_for(event)?,
            None => stream.wait_for(&began)?,
        }
        if worker.random.one_in(4) {
            stream.write_value(flag.all().at(), round as u32 + 1)?;
            stream.wait_value(flag.all().at(), round as u32 + 1)?;
        }
        let arguments = Arguments::new().u32(elements as u32).span(x.all()).span(sum.all()).span(sum.all());
        // SAFETY: the kernel takes a count and three pieces of so many numbers.
        unsafe { add.launch(LaunchShape::line(elements, 64), Some(stream), arguments) }?;
        let event = CudaEvent::timeless()?;
        event.record(Some(stream))?;
        before = Some((event, own));
    }
    let Some((last, own)) = before else { return Ok(()) };
    ended.record(Some(streams[own]))?;
    if worker.random.one_in(2) {
        while !ended.is_done()? {
            std::thread::yield_now();
        }
        ensure!(last.is_done()?, "an event is not done, and a later one of its stream is");
    } else {
        last.synchronise()?;
        ended.synchronise()?;
    }
    let ms = ended.ms_since(&began)?;
    ensure!((0.0..600_000.0).contains(&ms), "{ms} ms from one event to a later one");
    let expected: Vec<u32> =
        start.iter().zip(&added).map(|(start, x)| start.wrapping_add(x.wrapping_mul(rounds as u32))).collect();
    expect_numbers("a sum that went round", &sum.numbers::<u32>()?, &expected)?;
    streams[own].synchronise()?;
    ensure!(streams[own].is_done()?, "a stream is not done that was waited for");
    Ok(())
}

/// Functions of the host run in their turn: after what came before, and before what comes after.
pub fn host_functions(worker: &mut StressWorker<'_>) -> Result<()> {
    let stream = &worker.streams[0];
    let (seen, count) = (Arc::new(Mutex::new(Vec::new())), worker.random.within(1, 12));
    let buffer = Buffer::alloc(64)?;
    let mut copies: Vec<Box<[u8; 64]>> = (0..count).map(|_| Box::new([0; 64])).collect();
    for (number, copy) in copies.iter_mut().enumerate() {
        buffer.all().fill(FillValue::D8(number as u8 + 1), Some(stream))?;
        // SAFETY: the bytes are not touched before the stream is done, and stay where they are.
        unsafe { buffer.all().read_in(&mut copy[..], stream) }?;
        let seen = Arc::clone(&seen);
        stream.call(move || seen.lock().unwrap_or_else(PoisonError::into_inner).push(number))?;
    }
    stream.synchronise()?;
    let seen = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    expect_equal("the order of functions of the host", seen, (0..count).collect())?;
    for (number, copy) in copies.iter().enumerate() {
        crate::worker::expect_bytes("a copy between functions of the host", &copy[..], &[number as u8 + 1; 64])?;
    }
    Ok(())
}
