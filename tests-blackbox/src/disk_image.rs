//! A disk as a power cut leaves it.
//!
//! The model is that of a journaling file system: a sync of a file keeps its
//! bytes and the name it was made under; a sync of a directory keeps all names
//! in it; everything else may be there, be half there or be missing, of a write each
//! block for itself.

use crate::change_log::{ChangeKind, DiskChange};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What of the changes before the cut reached the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptChanges {
    /// All of them.
    All,
    /// All, but of the last write only its first half.
    TornLast,
    /// Only what was synced.
    Synced,
    /// What was synced, and of the rest some, as this number has it.
    Some(u64),
}

/// Files and directories by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Image {
    files: BTreeMap<String, Vec<u8>>,
    dirs: BTreeSet<String>,
}

#[derive(Default)]
struct File {
    now: Vec<u8>,
    synced: Vec<u8>,
    /// Changes since the last sync.
    unsynced: Vec<ChangeKind>,
}

#[derive(Default)]
struct RecordedDisk {
    files: Vec<File>,
    names: BTreeMap<String, usize>,
    synced_names: BTreeMap<String, usize>,
    dirs: BTreeSet<String>,
}

impl Image {
    /// The disk after these records, with what was kept of them.
    pub fn after(records: &[DiskChange], kept: KeptChanges) -> Image {
        let mut disk = RecordedDisk::default();
        let (last, before) = match records.split_last() {
            Some((last, before)) => (Some(last), before),
            None => (None, records),
        };
        before.iter().for_each(|record| disk.apply_record(record));
        match (last, kept) {
            (Some(DiskChange { path, op: ChangeKind::Write(offset, bytes), end }), KeptChanges::TornLast) => {
                let half = ChangeKind::Write(*offset, bytes[..bytes.len() / 2].to_vec());
                disk.apply_record(&DiskChange { path: path.clone(), op: half, end: *end });
            }
            (Some(record), _) => disk.apply_record(record),
            (None, _) => {}
        }
        disk.image(kept)
    }
    /// Equal images have equal fingerprints.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
    /// Its files.
    pub fn files(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.files
    }
    /// Writes it into an empty directory. Zeros are left out: a ballast file costs nothing.
    pub fn write_to(&self, dir: &Path) {
        for made in &self.dirs {
            fs::create_dir_all(dir.join(made)).expect("an image's directory can be made");
        }
        for (name, bytes) in &self.files {
            let file = fs::File::create(dir.join(name)).expect("an image's file can be made");
            file.set_len(bytes.len() as u64).expect("an image's file can be sized");
            for (number, block) in bytes.chunks(BLOCK).enumerate() {
                if block.iter().any(|byte| *byte != 0) {
                    file.write_all_at(block, (number * BLOCK) as u64).expect("an image's file can be written");
                }
            }
        }
    }
}

const BLOCK: usize = 1 << 16;

impl RecordedDisk {
    fn apply_record(&mut self, record: &DiskChange) {
        match &record.op {
            ChangeKind::Mkdir => {
                self.dirs.insert(record.path.clone());
            }
            ChangeKind::Unlink => {
                self.names.remove(&record.path);
            }
            ChangeKind::Rename(to) => {
                if let Some(file) = self.names.remove(&record.path) {
                    self.names.insert(to.clone(), file);
                }
            }
            ChangeKind::Sync => self.sync(&record.path),
            ChangeKind::Create => {
                self.file(&record.path);
            }
            change => {
                let file = self.file(&record.path);
                apply(&mut self.files[file].now, change);
                self.files[file].unsynced.extend(pieces(change));
            }
        }
    }
    fn sync(&mut self, path: &str) {
        if let Some(&file) = self.names.get(path) {
            let synced = &mut self.files[file];
            synced.synced.clone_from(&synced.now);
            synced.unsynced.clear();
            self.synced_names.insert(path.to_owned(), file);
        } else {
            self.synced_names.retain(|name, _| parent(name) != path);
            let inside = self.names.iter().filter(|(name, _)| parent(name) == path);
            self.synced_names.extend(inside.map(|(name, file)| (name.clone(), *file)));
        }
    }
    fn file(&mut self, path: &str) -> usize {
        *self.names.entry(path.to_owned()).or_insert_with(|| {
            self.files.push(File::default());
            self.files.len() - 1
        })
    }
    fn image(self, kept: KeptChanges) -> Image {
        let names = if kept == KeptChanges::Synced { &self.synced_names } else { &self.names };
        let mut coin = Coin(match kept {
            KeptChanges::Some(seed) => seed,
            _ => 0,
        });
        let mut bytes = |file: &File| match kept {
            KeptChanges::All | KeptChanges::TornLast => file.now.clone(),
            KeptChanges::Synced => file.synced.clone(),
            KeptChanges::Some(_) => {
                let mut bytes = file.synced.clone();
                file.unsynced.iter().filter(|_| coin.toss()).for_each(|op| apply(&mut bytes, op));
                bytes
            }
        };
        let files = names.iter().map(|(name, file)| (name.clone(), bytes(&self.files[*file]))).collect();
        Image { files, dirs: self.dirs }
    }
}

fn parent(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// What of a change reaches the disk as a whole, or not at all.
const PIECE: u64 = 4096;

/// A change in such pieces.
fn pieces(op: &ChangeKind) -> Vec<ChangeKind> {
    let ChangeKind::Write(offset, data) = op else { return vec![op.clone()] };
    let (mut pieces, mut at, mut rest) = (Vec::new(), *offset, &data[..]);
    while !rest.is_empty() {
        let here = usize::try_from(PIECE - at % PIECE).expect("it is small").min(rest.len());
        pieces.push(ChangeKind::Write(at, rest[..here].to_vec()));
        at += here as u64;
        rest = &rest[here..];
    }
    pieces
}

fn apply(bytes: &mut Vec<u8>, op: &ChangeKind) {
    match op {
        ChangeKind::Write(offset, data) => {
            let start = usize::try_from(*offset).expect("a test's file is small");
            let end = start + data.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[start..end].copy_from_slice(data);
        }
        ChangeKind::Truncate(length) => bytes.resize(usize::try_from(*length).expect("a test's file is small"), 0),
        _ => {}
    }
}

/// Chance from a number, the same every time (xorshift64*).
pub struct Coin(pub u64);

impl Coin {
    /// The next number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.max(1);
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }
    /// Heads.
    pub fn toss(&mut self) -> bool {
        self.below(2) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(ops: &[(&str, ChangeKind)]) -> Vec<DiskChange> {
        let record = |(end, (path, op)): (usize, &(&str, ChangeKind))| DiskChange {
            path: (*path).into(),
            op: op.clone(),
            end: end as u64 + 1,
        };
        ops.iter().enumerate().map(record).collect()
    }
    fn write(offset: u64, text: &str) -> ChangeKind {
        ChangeKind::Write(offset, text.into())
    }
    fn screen_text(image: &Image) -> Vec<(String, String)> {
        image.files.iter().map(|(name, bytes)| (name.clone(), String::from_utf8_lossy(bytes).into_owned())).collect()
    }
    fn check(records: &[DiskChange], kept: KeptChanges, files: &[(&str, &str)]) {
        let files: Vec<_> = files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        assert_eq!(screen_text(&Image::after(records, kept)), files, "{kept:?}");
    }

    #[test]
    fn a_cut_keeps_what_was_synced_and_maybe_more() {
        let records = records(&[
            ("a", ChangeKind::Create),
            ("a", write(0, "one")),
            ("a", ChangeKind::Sync),
            ("a", write(3, "two")),
            ("b", ChangeKind::Create),
            ("b", write(0, "four")),
        ]);
        check(&records, KeptChanges::All, &[("a", "onetwo"), ("b", "four")]);
        check(&records, KeptChanges::TornLast, &[("a", "onetwo"), ("b", "fo")]);
        check(&records, KeptChanges::Synced, &[("a", "one")]);
        let some: BTreeSet<_> =
            (1..50).map(|seed| screen_text(&Image::after(&records, KeptChanges::Some(seed)))).collect();
        assert_eq!(some.len(), 4, "each of the two loose writes is there or not");
    }

    #[test]
    fn of_a_long_write_each_block_is_there_or_not() {
        let records = records(&[
            ("a", ChangeKind::Create),
            ("a", ChangeKind::Write(4000, vec![1; 200])),
            ("a", ChangeKind::Write(0, vec![1])),
        ]);
        let ones = |image: Image| image.files["a"].iter().filter(|byte| **byte == 1).count();
        let some: BTreeSet<_> = (1..90).map(|seed| ones(Image::after(&records, KeptChanges::Some(seed)))).collect();
        assert_eq!(some, BTreeSet::from([0, 1, 96, 97, 104, 105, 200, 201]));
    }

    #[test]
    fn a_name_is_kept_by_a_sync_of_its_directory() {
        let mut ops = vec![("new", ChangeKind::Create), ("new", write(0, "x")), ("new", ChangeKind::Sync)];
        ops.push(("new", ChangeKind::Rename("old".into())));
        check(&records(&ops), KeptChanges::Synced, &[("new", "x")]);
        ops.push(("", ChangeKind::Sync));
        check(&records(&ops), KeptChanges::Synced, &[("old", "x")]);
        ops.push(("old", ChangeKind::Unlink));
        check(&records(&ops), KeptChanges::Synced, &[("old", "x")]);
        check(&records(&ops), KeptChanges::All, &[]);
        ops.push(("", ChangeKind::Sync));
        check(&records(&ops), KeptChanges::Synced, &[]);
    }
}
