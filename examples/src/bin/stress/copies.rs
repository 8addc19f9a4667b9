//! Copies and fills of all shapes, at once and in a stream's order.

use crate::worker::Worker;
use anyhow::Result;
use sublet_examples::cuda::memory::{Buffer, End, Fill, Lines, copy_layers, copy_lines, layers};

/// A copy from one of the buffers that stay, or from the host, to another of them.
pub fn copies(worker: &mut Worker<'_>) -> Result<()> {
    match worker.random.within(0, 2) {
        0 => plain(worker),
        1 => of_lines(worker),
        _ => of_layers(worker),
    }
}

/// Two different ones of the buffers that stay.
fn two(worker: &mut Worker<'_>) -> (usize, usize) {
    let from = worker.random.within(0, worker.tracked.len() - 1);
    let to = (from + worker.random.within(1, worker.tracked.len() - 1)) % worker.tracked.len();
    (from, to)
}

fn plain(worker: &mut Worker<'_>) -> Result<()> {
    let (from, to) = two(worker);
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
        4 => target.copy_any_from(source, None).map(|()| "a copy of any kind"),
        5 => target.copy_any_from(source, Some(stream)).map(|()| "a copy of any kind in a stream"),
        _ => {
            let mut got = vec![0; bytes];
            // SAFETY: the bytes are not touched before everything has settled.
            unsafe { source.read_in(&mut got, stream) }?;
            worker.settle()?;
            crate::worker::same("a copy to the host", &got, &worker.tracked[from].expected[from_at..from_at + bytes])?;
            return Ok(());
        }
    }?;
    worker.settle()?;
    let copied = if how < 2 { fresh } else { worker.tracked[from].expected[from_at..from_at + bytes].to_vec() };
    worker.tracked[to].expected[to_at..to_at + bytes].copy_from_slice(&copied);
    worker.tracked[from].verify("the source of a copy")?;
    worker.tracked[to].verify(name)
}

/// How memory of so many bytes is cut into layers of lines.
#[derive(Clone, Copy)]
struct Cut {
    pitch: usize,
    height: usize,
    begin: [usize; 3],
}

impl Cut {
    /// A cut that has room for what is copied.
    fn new(worker: &mut Worker<'_>, size: [usize; 3]) -> Cut {
        let begin = [worker.random.within(0, 9), worker.random.within(0, 3), worker.random.within(0, 2)];
        let pitch = size[0] + begin[0] + worker.random.within(0, 20);
        let height = size[1] + begin[1] + worker.random.within(0, 3);
        Cut { pitch, height, begin: [begin[0], begin[1], if size[2] > 1 { begin[2] } else { 0 }] }
    }

    fn end(self, is_host: bool, at: u64) -> End {
        End { is_host, at, pitch: self.pitch, height: self.height, begin: self.begin }
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
fn copy_on_host(to: &mut [u8], to_cut: Cut, from: &[u8], from_cut: Cut, size: [usize; 3]) {
    for z in 0..size[2] {
        for y in 0..size[1] {
            let (to_at, from_at) = (to_cut.place(y, z), from_cut.place(y, z));
            to[to_at..to_at + size[0]].copy_from_slice(&from[from_at..from_at + size[0]]);
        }
    }
}

/// Two pieces of memory with random bytes, on the card or the host, cut in different ways.
struct Pair {
    cuts: [Cut; 2],
    size: [usize; 3],
    bytes: [Vec<u8>; 2],
    buffers: [Buffer; 2],
    is_host: [bool; 2],
}

impl Pair {
    fn new(worker: &mut Worker<'_>, depth_max: usize) -> Result<Pair> {
        let most = if worker.random.once_in(3) { 400 } else { 60 };
        let size = [worker.random.within(1, most), worker.random.within(1, 12), worker.random.within(1, depth_max)];
        let cuts = [Cut::new(worker, size), Cut::new(worker, size)];
        let bytes = cuts.map(|cut| worker.random.bytes(cut.bytes(size[2])));
        let buffers = [Buffer::alloc(bytes[0].len())?, Buffer::alloc(bytes[1].len())?];
        for (buffer, bytes) in buffers.iter().zip(&bytes) {
            crate::worker::put(buffer.all(), bytes)?;
        }
        let is_host = worker.random.one_of(&[[false, false], [true, false], [false, true]]);
        Ok(Pair { cuts, size, bytes, buffers, is_host })
    }

    /// The two ends: to, from.
    fn ends(&mut self) -> [End; 2] {
        [0, 1].map(|side| {
            let on_host = self.bytes[side].as_mut_ptr() as u64;
            let at = if self.is_host[side] { on_host } else { self.buffers[side].all().at() };
            self.cuts[side].end(self.is_host[side], at)
        })
    }

    /// What must be at the target when a copy to it is done.
    fn expected(&self) -> Vec<u8> {
        let mut expected = self.bytes[0].clone();
        copy_on_host(&mut expected, self.cuts[0], &self.bytes[1], self.cuts[1], self.size);
        expected
    }

    fn verify(&self, what: &str, expected: &[u8]) -> Result<()> {
        let got = if self.is_host[0] { self.bytes[0].clone() } else { self.buffers[0].all().to_vec()? };
        crate::worker::same(what, &got, expected)
    }
}

fn of_lines(worker: &mut Worker<'_>) -> Result<()> {
    let mut pair = Pair::new(worker, 1)?;
    let expected = pair.expected();
    let [to, from] = pair.ends();
    let stream = &worker.streams[worker.random.within(0, 1)];
    let (how, what) = match worker.random.within(0, 2) {
        0 => (Lines::Now, "lines"),
        1 => (Lines::Unaligned, "lines from anywhere"),
        _ => (Lines::In(stream), "lines in a stream"),
    };
    // SAFETY: both ends are as large as their cuts, and are not touched before everything has settled.
    unsafe { copy_lines(to, from, [pair.size[0], pair.size[1]], how) }?;
    worker.settle()?;
    pair.verify(what, &expected)
}

fn of_layers(worker: &mut Worker<'_>) -> Result<()> {
    let mut pair = Pair::new(worker, 5)?;
    let expected = pair.expected();
    let [to, from] = pair.ends();
    let stream = worker.random.once_in(2).then_some(&worker.streams[0]);
    // SAFETY: both ends are as large as their cuts, and are not touched before everything has settled.
    unsafe { copy_layers(&layers(to, from, pair.size), stream) }?;
    worker.settle()?;
    pair.verify("layers", &expected)
}

/// A fill of one of the buffers that stay, as one piece or in lines.
pub fn fills(worker: &mut Worker<'_>) -> Result<()> {
    let place = worker.random.within(0, worker.tracked.len() - 1);
    let number = worker.random.number();
    let value = worker.random.one_of(&[Fill::D8(number as u8), Fill::D16(number as u16), Fill::D32(number as u32)]);
    let (width, bytes) = (value.width(), worker.tracked[place].expected.len());
    let stream = worker.random.once_in(2).then_some(&worker.streams[0]);
    let begin = worker.random.within(0, bytes - 1) / width * width;
    let room = (bytes - begin) / width;
    if room == 0 {
        return Ok(());
    }
    let target = worker.tracked[place].all().part(begin..bytes);
    // In lines, or as one line of all there is room for.
    let (pitch, count, height) = if worker.random.once_in(2) {
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
    worker.settle()?;
    for line in 0..height {
        let at = begin + line * pitch;
        worker.tracked[place].expected[at..at + count * width].copy_from_slice(&value.bytes().repeat(count));
    }
    worker.tracked[place].verify(if pitch == 0 { "a fill" } else { "a fill of lines" })
}
