//! Durable values over files, and over memory with writes that can be torn.

use super::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ModelState {
    step: u64,
    weights: Vec<f32>,
    names: BTreeMap<u32, String>,
}

fn state(step: u64) -> ModelState {
    let weights = (0..64).map(|index| (step * index) as f32).collect();
    ModelState { step, weights, names: BTreeMap::from([(1, "layer".to_owned())]) }
}

#[test]
fn a_value_is_restored_from_its_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("blocks");
    {
        let mut durable = Durable::new(state(0), FileBlocks::create(&path, 64 << 10).expect("blocks"));
        assert_eq!(durable.version(), Version(0));
        for step in 1..=5 {
            *durable = state(step);
            assert_eq!(durable.checkpoint().expect("a checkpoint"), Version(step));
        }
        durable.step = 99;
        let busy = FileBlocks::open(&path).expect_err("it is open");
        assert_eq!(busy.kind(), io::ErrorKind::WouldBlock);
    }
    let restored: Durable<ModelState> =
        Durable::restore(FileBlocks::open(&path).expect("blocks")).expect("a checkpoint");
    assert_eq!((&*restored, restored.version()), (&state(5), Version(5)));
    restored.checkpoint().expect("a checkpoint");
    assert_eq!(restored.version(), Version(6));
}

#[test]
fn numbers_that_are_not_finite_are_kept() {
    let memory = MemoryBlocks::new(64 << 10);
    let value = vec![f32::NAN, f32::INFINITY, -0.0, f32::MIN_POSITIVE];
    Durable::new(value.clone(), memory.clone()).checkpoint().expect("a checkpoint");
    let restored: Durable<Vec<f32>> = Durable::restore(memory).expect("a checkpoint");
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&restored), bits(&value));
}

#[test]
fn a_torn_write_at_every_byte_leaves_the_older_slot_whole() {
    let before = {
        let memory = MemoryBlocks::new(64 << 10);
        let mut durable = Durable::new(state(1), memory.clone());
        durable.checkpoint().expect("a checkpoint");
        *durable = state(2);
        durable.checkpoint().expect("a checkpoint");
        memory.image()
    };
    let writes = 2;
    for write in 0..writes {
        for written in (0..700).step_by(7) {
            let memory = MemoryBlocks::with_image(before.clone());
            let mut durable: Durable<ModelState> = Durable::restore(memory.clone()).expect("a checkpoint");
            memory.tear(write, written);
            *durable = state(3);
            assert_eq!(durable.checkpoint().expect_err("a torn write").code(), "blocks");
            assert_eq!(durable.checkpoint().expect_err("it must be restored").code(), "broken");
            memory.mend();
            let restored: Durable<ModelState> = Durable::restore(memory).expect("a checkpoint");
            // The header may be whole after all: then the content was complete before it.
            assert!([state(2), state(3)].contains(&restored), "write {write}, {written} bytes");
            assert!(*restored == state(2) || write == 1, "a torn content is not believed");
        }
    }
}

#[test]
fn a_header_on_the_disk_without_its_content_is_not_believed() {
    let memory = MemoryBlocks::new(64 << 10);
    let mut durable = Durable::new(state(1), memory.clone());
    durable.checkpoint().expect("a checkpoint");
    *durable = state(2);
    durable.checkpoint().expect("a checkpoint");
    let mut image = memory.image();
    image[(32 << 10) + 4096 + 9] ^= 1;
    let damaged = MemoryBlocks::with_image(image);
    let mut restored: Durable<ModelState> = Durable::restore(damaged.clone()).expect("a checkpoint");
    assert_eq!((&*restored, restored.version()), (&state(1), Version(1)));
    *restored = state(3);
    // Version 2 was used: its header is there.
    assert_eq!(restored.checkpoint().expect("a checkpoint"), Version(3));
    let restored: Durable<ModelState> = Durable::restore(damaged).expect("a checkpoint");
    assert_eq!(*restored, state(3));
}

#[test]
fn what_cannot_be_restored_says_why() {
    let code = |blocks: MemoryBlocks| Durable::<ModelState>::restore(blocks).map(|_| ()).expect_err("a refusal").code();
    assert_eq!(code(MemoryBlocks::new(64 << 10)), "empty");
    assert_eq!(code(MemoryBlocks::with_image(vec![7; 64 << 10])), "damaged");
    assert_eq!(code(MemoryBlocks::new(4096)), "too_large");
    let other = MemoryBlocks::new(64 << 10);
    Durable::new(5_u64, other.clone()).checkpoint().expect("a checkpoint");
    assert_eq!(code(other), "other_schema");
    let large = Durable::new(vec![1.5_f64; 10_000], MemoryBlocks::new(64 << 10));
    let error = large.checkpoint().expect_err("a refusal").to_string();
    assert_eq!(error, "the value has 30003 bytes, and the blocks hold at most 28672");
}

#[test]
fn a_program_that_was_overtaken_is_told() {
    let memory = MemoryBlocks::new(64 << 10);
    let one = Durable::new(state(1), memory.clone());
    let two = Durable::new(state(2), memory);
    one.checkpoint().expect("a checkpoint");
    two.checkpoint().expect("a checkpoint");
    assert_eq!(one.checkpoint().expect_err("a refusal").to_string(), "another program saved version 2 in the blocks");
}

/// Blocks in memory, of which one write can be torn.
#[derive(Clone)]
struct MemoryBlocks(Arc<Mutex<MemoryImage>>);

struct MemoryImage {
    bytes: Vec<u8>,
    writes: usize,
    /// The write that is torn, and the bytes that it gets down. All later calls fail.
    torn: Option<(usize, usize)>,
}

impl MemoryBlocks {
    fn new(bytes: usize) -> MemoryBlocks {
        MemoryBlocks::with_image(vec![0; bytes])
    }

    fn with_image(bytes: Vec<u8>) -> MemoryBlocks {
        MemoryBlocks(Arc::new(Mutex::new(MemoryImage { bytes, writes: 0, torn: None })))
    }

    fn image(&self) -> Vec<u8> {
        self.0.lock().expect("no panic").bytes.clone()
    }

    fn tear(&self, write: usize, bytes: usize) {
        let mut image = self.0.lock().expect("no panic");
        (image.writes, image.torn) = (0, Some((write, bytes)));
    }

    fn mend(&self) {
        self.0.lock().expect("no panic").torn = None;
    }
}

impl Blocks for MemoryBlocks {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.lock().expect("no panic").bytes.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let from = usize::try_from(offset).expect("it fits");
        let image = self.0.lock().expect("no panic");
        buffer.copy_from_slice(image.bytes.get(from..from + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let from = usize::try_from(offset).expect("it fits");
        let mut image = self.0.lock().expect("no panic");
        let (number, torn) = (image.writes, image.torn);
        image.writes += 1;
        let written = match torn {
            Some((at, written)) if at == number => written.min(bytes.len()),
            Some((at, _)) if at < number => 0,
            _ => bytes.len(),
        };
        image.bytes[from..from + written].copy_from_slice(&bytes[..written]);
        if torn.is_some_and(|(at, _)| at <= number) { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
