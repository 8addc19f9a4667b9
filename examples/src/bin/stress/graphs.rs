//! Graphs: captured from two streams, or put together by hand, and replayed.

use crate::worker::{Worker, equal, holding, same_numbers};
use anyhow::{Result, ensure};
use std::sync::atomic::Ordering::SeqCst;
use sublet_examples::cuda::code::{Arguments, Shape};
use sublet_examples::cuda::graph::Graph;
use sublet_examples::cuda::memory::{Buffer, End, Fill, layers};
use sublet_examples::cuda::order::Event;

/// Adds a piece of numbers to another.
fn added(elements: usize, x: &Buffer, sum: &Buffer) -> Arguments {
    Arguments::new().u32(elements as u32).span(x.all()).span(sum.all()).span(sum.all())
}

/// Work of two streams goes into a graph, forks and joins, and is done as often as it is launched.
pub fn captured(worker: &mut Worker<'_>) -> Result<()> {
    let elements = worker.elements();
    let (start, value) = (worker.numbers(elements), worker.random.number() as u32);
    let sum = holding(&start)?;
    let (first, second) = (Buffer::alloc(elements * 4)?, Buffer::alloc(elements * 4)?);
    let add = worker.basic.function("add_i32")?;
    let shape = Shape::line(elements, 128);
    let [stream, other] = &worker.streams;
    let (fork, join) = (Event::timeless()?, Event::timeless()?);
    stream.begin_capture()?;
    // Nothing else of the driver's is called by this thread until the end of the capture.
    let graph = (|| {
        first.all().fill(Fill::D32(value), Some(stream))?;
        fork.record(Some(stream))?;
        other.wait_for(&fork)?;
        second.all().copy_from_in(first.all(), other)?;
        let is_captured = stream.is_capturing()? && other.is_capturing()?;
        // SAFETY: the kernel takes a count and three pieces of so many numbers.
        unsafe { add.launch(shape, Some(stream), added(elements, &first, &sum)) }?;
        join.record(Some(other))?;
        stream.wait_for(&join)?;
        // SAFETY: as above.
        unsafe { add.launch(shape, Some(stream), added(elements, &second, &sum)) }?;
        stream.count(worker.counter)?;
        Ok::<bool, anyhow::Error>(is_captured)
    })();
    // It is ended whatever happened, so that the streams can be used again.
    let ended = Graph::end_capture(stream);
    ensure!(graph?, "a stream that is captured does not say so");
    let graph = ended?;
    ensure!(!stream.is_capturing()? && !other.is_capturing()?, "a capture did not end");
    equal("steps of a captured graph", graph.nodes_len()?, 5)?;
    equal("edges of a captured graph", graph.edges_len()?, 5)?;
    same_numbers("a sum that was captured only", &sum.numbers::<u32>()?, &start)?;
    let exec = graph.instantiate()?;
    drop(graph);
    let (times, before) = (worker.random.within(1, 6), worker.counter.load(SeqCst));
    for _ in 0..times {
        // SAFETY: all buffers are there until the streams are done.
        unsafe { exec.launch(if worker.random.once_in(2) { stream } else { other }) }?;
    }
    worker.settle()?;
    let expected: Vec<u32> =
        start.iter().map(|start| start.wrapping_add(value.wrapping_mul(2 * times as u32))).collect();
    same_numbers("a sum of a captured graph", &sum.numbers::<u32>()?, &expected)?;
    equal("what a captured function of the host counted", worker.counter.load(SeqCst) - before, times as u64)
}

/// A graph of all kinds of steps, with another in it; then changed, and changed back.
pub fn by_hand(worker: &mut Worker<'_>) -> Result<()> {
    let context = worker.shared.context;
    let elements = worker.elements();
    let (start, value) = (worker.numbers(elements), worker.random.number() as u32);
    let (sum, ones) = (holding(&start)?, holding(&vec![1_u32; elements])?);
    let (first, second) = (Buffer::alloc(elements * 4)?, Buffer::alloc(elements * 4)?);
    let add = worker.basic.function("add_i32")?;
    let shape = Shape::line(elements, 128);
    let end = |buffer: &Buffer| {
        let pitch = buffer.all().bytes();
        End { is_host: false, at: buffer.all().at(), pitch, height: 1, begin: [0; 3] }
    };
    let copy = layers(end(&second), end(&first), [elements * 4, 1, 1]);

    let child = Graph::new()?;
    child.add_count(&[], worker.counter)?;
    let graph = Graph::new()?;
    let fill = graph.add_fill(&[], first.all(), Fill::D32(value), context)?;
    // SAFETY: both buffers are there until the streams are done.
    let copied = unsafe { graph.add_copy(&[fill], &copy, context) }?;
    // SAFETY: the kernel takes a count and three pieces of so many numbers.
    let one = unsafe { graph.add_kernel(&[copied], add, shape, added(elements, &second, &sum)) }?;
    let aside = graph.add_graph(&[fill], &child)?;
    let both = graph.add_empty(&[one, aside])?;
    // SAFETY: as above.
    let two = unsafe { graph.add_kernel(&[both], add, shape, added(elements, &ones, &sum)) }?;
    equal("steps of a graph", graph.nodes_len()?, 6)?;
    equal("edges of a graph", graph.edges_len()?, 6)?;
    let copy_of_graph = graph.duplicate()?;
    equal("steps of a copied graph", copy_of_graph.nodes_len()?, 6)?;

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
                unsafe { exec.set_kernel(two, add, shape, added(elements, x, &sum)) }?;
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
    same_numbers("a sum of a graph", &sum.numbers::<u32>()?, &expected)?;
    equal("what a function of the host counted in a graph", worker.counter.load(SeqCst) - before, launched)
}
