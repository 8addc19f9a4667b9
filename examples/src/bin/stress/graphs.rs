//! Graphs: captured from two streams, or put together by hand, and replayed.

use crate::worker::{StressWorker, buffer_with, expect_equal, expect_numbers};
use anyhow::{Result, ensure};
use std::sync::atomic::Ordering::SeqCst;
use sublet_examples::cuda::graph::CudaGraph;
use sublet_examples::cuda::memory::{Buffer, CopySide, FillValue, layer_copy};
use sublet_examples::cuda::modules::{Arguments, LaunchShape};
use sublet_examples::cuda::streams::CudaEvent;

/// Adds a piece of numbers to another.
fn addition_arguments(elements: usize, x: &Buffer, sum: &Buffer) -> Arguments {
    Arguments::new().u32(elements as u32).span(x.all()).span(sum.all()).span(sum.all())
}

/// Work of two streams goes into a graph, forks and joins, and is done as often as it is launched.
pub fn captured(worker: &mut StressWorker<'_>) -> Result<()> {
    let elements = worker.elements();
    let (start, value) = (worker.numbers(elements), worker.random.number() as u32);
    let sum = buffer_with(&start)?;
    let (first, second) = (Buffer::alloc(elements * 4)?, Buffer::alloc(elements * 4)?);
    let add = worker.basic_kernels.function("add_i32")?;
    let shape = LaunchShape::line(elements, 128);
    let [stream, other] = &worker.streams;
    let (fork, join) = (CudaEvent::timeless()?, CudaEvent::timeless()?);
    stream.begin_capture()?;
    // Nothing else of the driver's is called by this thread until the end of the capture.
    let graph = (|| {
        first.all().fill(FillValue::D32(value), Some(stream))?;
        fork.record(Some(stream))?;
        other.wait_for(&fork)?;
        second.all().copy_from_in(first.all(), other)?;
        let is_captured = stream.is_capturing()? && other.is_capturing()?;
        // SAFETY: the kernel takes a count and three pieces of so many numbers.
        unsafe { add.launch(shape, Some(stream), addition_arguments(elements, &first, &sum)) }?;
        join.record(Some(other))?;
        stream.wait_for(&join)?;
        // SAFETY: as above.
        unsafe { add.launch(shape, Some(stream), addition_arguments(elements, &second, &sum)) }?;
        stream.count(worker.counter)?;
        Ok::<bool, anyhow::Error>(is_captured)
    })();
    // It is ended whatever happened, so that the streams can be used again.
    let ended = CudaGraph::end_capture(stream);
    ensure!(graph?, "a stream that is captured does not say so");
    let graph = ended?;
    ensure!(!stream.is_capturing()? && !other.is_capturing()?, "a capture did not end");
    expect_equal("steps of a captured graph", graph.nodes_len()?, 5)?;
    expect_equal("edges of a captured graph", graph.edges_len()?, 5)?;
    expect_numbers("a sum that was captured only", &sum.numbers::<u32>()?, &start)?;
    let exec = graph.instantiate()?;
    drop(graph);
    let (times, before) = (worker.random.within(1, 6), worker.counter.load(SeqCst));
    for _ in 0..times {
        // SAFETY: all buffers are there until the streams are done.
        unsafe { exec.launch(if worker.random.one_in(2) { stream } else { other }) }?;
    }
    worker.wait_for_all()?;
    let expected: Vec<u32> =
        start.iter().map(|start| start.wrapping_add(value.wrapping_mul(2 * times as u32))).collect();
    expect_numbers("a sum of a captured graph", &sum.numbers::<u32>()?, &expected)?;
    expect_equal("what a captured function of the host counted", worker.counter.load(SeqCst) - before, times as u64)
}

/// A graph of all kinds of steps, with another in it; then changed, and changed back.
pub fn by_hand(worker: &mut StressWorker<'_>) -> Result<()> {
    let context = worker.shared.context;
    let elements = worker.elements();
    let (start, value) = (worker.numbers(elements), worker.random.number() as u32);
    let (sum, ones) = (buffer_with(&start)?, buffer_with(&vec![1_u32; elements])?);
    let (first, second) = (Buffer::alloc(elements * 4)?, Buffer::alloc(elements * 4)?);
    let add = worker.basic_kernels.function("add_i32")?;
    let shape = LaunchShape::line(elements, 128);
    let end = |buffer: &Buffer| {
        let pitch = buffer.all().bytes();
        CopySide { is_host: false, at: buffer.all().at(), pitch, height: 1, begin: [0; 3] }
    };
    let copy = layer_copy(end(&second), end(&first), [elements * 4, 1, 1]);

    let child = CudaGraph::new()?;
    child.add_count(&[], worker.counter)?;
    let graph = CudaGraph::new()?;
    let fill = graph.add_fill(&[], first.all(), FillValue::D32(value), context)?;
    // SAFETY: both buffers are there until the streams are done.
    let copied = unsafe { graph.add_copy(&[fill], &copy, context) }?;
    // SAFETY: the kernel takes a count and three pieces of so many numbers.
    let one = unsafe { graph.add_kernel(&[copied], add, shape, addition_arguments(elements, &second, &sum)) }?;
    let aside = graph.add_graph(&[fill], &child)?;
    let both = graph.add_empty(&[one, aside])?;
    // SAFETY: as above.
    let two = unsafe { graph.add_kernel(&[both], add, shape, addition_arguments(elements, &ones, &sum)) }?;
    expect_equal("steps of a graph", graph.nodes_len()?, 6)?;
    expect_equal("edges of a graph", graph.edges_len()?, 6)?;
    let copy_of_graph = graph.duplicate()?;
    expect_equal("steps of a copied graph", copy_of_graph.nodes_len()?, 6)?;

    let exec = graph.instantiate()?;
    let before = worker.counter.load(SeqCst);
    let mut expected = start;
    let (mut has_two, mut has_ones, mut launched) = (true, true, 0);
    for _ in 0..worker.random.within(1, 6) {
        match worker.random.within(0, 3) {
            0 => {
                has_two = !has_two;
                exec.enable(two, has_two)?;
            }
            1 => {
                has_ones = !has_ones;
                let x = if has_ones { &ones } else { &second };
                // SAFETY: as above.
                unsafe { exec.set_kernel(two, add, shape, addition_arguments(elements, x, &sum)) }?;
            }
            2 if has_two => {
                // Back to what it was.
                exec.update(&graph)?;
                has_ones = true;
            }
            _ => {}
        }
        // SAFETY: all buffers are there until the streams are done.
        unsafe { exec.launch(&worker.streams[0]) }?;
        launched += 1;
        let more = if has_two { if has_ones { 1 } else { value } } else { 0 };
        expected.iter_mut().for_each(|sum| *sum = sum.wrapping_add(value).wrapping_add(more));
    }
    worker.streams[0].synchronise()?;
    expect_numbers("a sum of a graph", &sum.numbers::<u32>()?, &expected)?;
    expect_equal("what a function of the host counted in a graph", worker.counter.load(SeqCst) - before, launched)
}
