//! Copies and fills of all shapes, at once and in a stream's order.

use crate::worker::StressWorker;
use anyhow::Result;
use sublet_examples::cuda::memory::{Buffer, CopySide, FillValue, LineCopyMode, copy_layers, copy_lines, layer_copy};

/// A copy from one of the buffers that stay, or from the host, to another of them.
pub fn copies(worker: &mut StressWorker<'_>) -> Result<()> {
    match worker.random.within(0, 2) {
        0 => copy_plain(worker),
        1 => copy_random_lines(worker),
        _ => copy_random_layers(worker),
    }
}

/// Two different ones of the buffers that stay.
fn two_buffers(worker: &mut StressWorker<'_>) -> (usize, usize) {
    let from = worker.random.within(0, worker.tracked.len() - 1);
    let to = (from + worker.random.within(1, worker.tracked.len() - 1)) % worker.tracked.len();
    (from, to)
}

fn copy_plain(worker: &mut StressWorker<'_>) -> Result<()> {
    let (from, to) = two_buffers(worker);
    let room = worker.tracked[from].expected.len().min(worker.tracked[to].expected.len());
    let bytes = worker.random.within(1, room);
    let from_at = worker.random.within(0, worker.tracked[from].expected.len() - bytes);
    let to_at = worker.random.within(0, worker.tracked[to].expected.len() - bytes);
    let fresh = worker.random.bytes(bytes);
    let source = worker.tracked[from].all().part(from_at..from_at + bytes);
    let target = worker.tracked[to].all().part(to_at..to_at + bytes);
    let stream = &worker.streams[worker.random.within(0, 1)];
    let how = worker.random.within(0, 6);
    let name = match how {
        0 => target.write(&fresh).map(|()| "a copy from the host"),
        // SAFETY: the bytes stay until everything has settled, below.
        1 => unsafe { target.write_in(&fresh, stream) }.map(|()| "a copy from the host in a stream"),
        2 => target.copy_from(source).map(|()| "a copy within the card"),
        3 => target.copy_from_in(source, stream).map(|()| "a copy within the card in a stream"),
        4 => target.copy_unified_from(source, None).map(|()| "a copy of any kind"),
        5 => target.copy_unified_from(source, Some(stream)).map(|()| "a copy of any kind in a stream"),
        _ => {
            let mut got = vec![0; bytes];
            // SAFETY: the bytes are not touched before everything has settled.
            unsafe { source.read_in(&mut got, stream) }?;
            worker.wait_for_all()?;
            crate::worker::expect_bytes(
                "a copy to the host",
                &got,
                &worker.tracked[from].expected[from_at..from_at + bytes],
            )?;
            return Ok(());
        }
    }?;
    worker.wait_for_all()?;
    let copied = if how < 2 { fresh } else { worker.tracked[from].expected[from_at..from_at + bytes].to_vec() };
    worker.tracked[to].expected[to_at..to_at + bytes].copy_from_slice(&copied);
    worker.tracked[from].verify("the source of a copy")?;
    worker.tracked[to].verify(name)
}

/// How memory of so many bytes is cut into layers of lines.
#[derive(Clone, Copy)]
struct LayerLayout {
    pitch: usize,
    height: usize,
    begin: [usize; 3],
}

impl LayerLayout {
    /// A cut that has room for what is copied.
    fn new(worker: &mut StressWorker<'_>, size: [usize; 3]) -> LayerLayout {
        let begin = [worker.random.within(0, 9), worker.random.within(0, 3), worker.random.within(0, 2)];
        let pitch = size[0] + begin[0] + worker.random.within(0, 20);
        let height = size[1] + begin[1] + worker.random.within(0, 3);
        LayerLayout { pitch, height, begin: [begin[0], begin[1], if size[2] > 1 { begin[2] } else { 0 }] }
    }

    fn end(self, is_host: bool, at: u64) -> CopySide {
        CopySide { is_host, at, pitch: self.pitch, height: self.height, begin: self.begin }
    }

    /// Where a byte of a line of a layer is.
    fn place(self, y: usize, z: usize) -> usize {
        ((self.begin[2] + z) * self.height + self.begin[1] + y) * self.pitch + self.begin[0]
    }

    fn bytes(self, depth: usize) -> usize {
        (self.begin[2] + depth) * self.height * self.pitch
    }
}

/// What a copy of lines and layers must do.
fn copy_on_host(to: &mut [u8], to_layout: LayerLayout, from: &[u8], from_layout: LayerLayout, size: [usize; 3]) {
    for z in 0..size[2] {
        for y in 0..size[1] {
            let (to_at, from_at) = (to_layout.place(y, z), from_layout.place(y, z));
            to[to_at..to_at + size[0]].copy_from_slice(&from[from_at..from_at + size[0]]);
        }
    }
}

/// Two pieces of memory with random bytes, on the GPU or the host, cut in different ways.
struct CopyPair {
    layouts: [LayerLayout; 2],
    size: [usize; 3],
    bytes: [Vec<u8>; 2],
    buffers: [Buffer; 2],
    is_host: [bool; 2],
}

impl CopyPair {
    fn new(worker: &mut StressWorker<'_>, depth_max: usize) -> Result<CopyPair> {
        let most = if worker.random.one_in(3) { 400 } else { 60 };
        let size = [worker.random.within(1, most), worker.random.within(1, 12), worker.random.within(1, depth_max)];
        let layouts = [LayerLayout::new(worker, size), LayerLayout::new(worker, size)];
        let bytes = layouts.map(|layout| worker.random.bytes(layout.bytes(size[2])));
        let buffers = [Buffer::alloc(bytes[0].len())?, Buffer::alloc(bytes[1].len())?];
        for (buffer, bytes) in buffers.iter().zip(&bytes) {
            crate::worker::write_and_wait(buffer.all(), bytes)?;
        }
        let is_host = worker.random.one_of(&[[false, false], [true, false], [false, true]]);
        Ok(CopyPair { layouts, size, bytes, buffers, is_host })
    }

    /// The two ends: to, from.
    fn ends(&mut self) -> [CopySide; 2] {
        [0, 1].map(|side| {
            let on_host = self.bytes[side].as_mut_ptr() as u64;
            let at = if self.is_host[side] { on_host } else { self.buffers[side].all().at() };
            self.layouts[side].end(self.is_host[side], at)
        })
    }

    /// What must be at the target when a copy to it is done.
    fn expected(&self) -> Vec<u8> {
        let mut expected = self.bytes[0].clone();
        copy_on_host(&mut expected, self.layouts[0], &self.bytes[1], self.layouts[1], self.size);
        expected
    }

    fn verify(&self, what: &str, expected: &[u8]) -> Result<()> {
        let got = if self.is_host[0] { self.bytes[0].clone() } else { self.buffers[0].all().to_vec()? };
        crate::worker::expect_bytes(what, &got, expected)
    }
}

fn copy_random_lines(worker: &mut StressWorker<'_>) -> Result<()> {
    let mut pair = CopyPair::new(worker, 1)?;
    let expected = pair.expected();
    let [to, from] = pair.ends();
    let stream = &worker.streams[worker.random.within(0, 1)];
    let (how, what) = match worker.random.within(0, 2) {
        0 => (LineCopyMode::Now, "lines"),
        1 => (LineCopyMode::Unaligned, "lines from anywhere"),
        _ => (LineCopyMode::InStream(stream), "lines in a stream"),
    };
    // SAFETY: both ends are as large as their cuts, and are not touched before everything has settled.
    unsafe { copy_lines(to, from, [pair.size[0], pair.size[1]], how) }?;
    worker.wait_for_all()?;
    pair.verify(what, &expected)
}

fn copy_random_layers(worker: &mut StressWorker<'_>) -> Result<()> {
    let mut pair = CopyPair::new(worker, 5)?;
    let expected = pair.expected();
    let [to, from] = pair.ends();
    let stream = worker.random.one_in(2).then_some(&worker.streams[0]);
    // SAFETY: both ends are as large as their cuts, and are not touched before everything has settled.
    unsafe { copy_layers(&layer_copy(to, from, pair.size), stream) }?;
    worker.wait_for_all()?;
    pair.verify("layers", &expected)
}

/// A fill of one of the buffers that stay, as one piece or in lines.
pub fn fills(worker: &mut StressWorker<'_>) -> Result<()> {
    let place = worker.random.within(0, worker.tracked.len() - 1);
    let number = worker.random.number();
    let value = worker.random.one_of(&[
        FillValue::D8(number as u8),
        FillValue::D16(number as u16),
        FillValue::D32(number as u32),
    ]);
    let (width, bytes) = (value.width(), worker.tracked[place].expected.len());
    let stream = worker.random.one_in(2).then_some(&worker.streams[0]);
    let begin = worker.random.within(0, bytes - 1) / width * width;
    let room = (bytes - begin) / width;
    if room == 0 {
        return Ok(());
    }
    let target = worker.tracked[place].all().part(begin..bytes);
    // In lines, or as one line of all there is room for.
    let (pitch, count, height) = if worker.random.one_in(2) {
        let count = worker.random.within(1, room.min(300));
        let pitch = (count + worker.random.within(0, 9)) * width;
        let most = ((bytes - begin).saturating_sub(count * width) / pitch + 1).min(40);
        (pitch, count, worker.random.within(1, most))
    } else {
        (0, worker.random.within(1, room), 1)
    };
    if pitch == 0 {
        target.part(0..count * width).fill(value, stream)?;
    } else {
        target.fill_lines(value, pitch, (count, height), stream)?;
    }
    worker.wait_for_all()?;
    for line in 0..height {
        let at = begin + line * pitch;
        worker.tracked[place].expected[at..at + count * width].copy_from_slice(&value.bytes().repeat(count));
    }
    worker.tracked[place].verify(if pitch == 0 { "a fill" } else { "a fill of lines" })
}
