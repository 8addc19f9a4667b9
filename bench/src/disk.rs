//! What a durable page costs on the file system that is measured.

use crate::samples::{Quantiles, Samples};
use anyhow::Result;
use rustix::fs::fdatasync;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Pages of a probe: tens of milliseconds, enough to see a disk that another program keeps busy.
const PROBE: usize = 100;
/// A page, as a database writes.
const PAGE: [u8; 4096] = [7; 4096];

/// A file to which page after page is written and synced.
pub struct Pages {
    file: File,
    at: u64,
}

impl Pages {
    /// The blocks exist and were written before: the cheapest sync an append-only log can have.
    pub fn written(path: &Path, count: usize) -> Result<Pages> {
        let pages = Pages::growing(path)?;
        (0..count as u64).try_for_each(|page| pages.file.write_all_at(&PAGE, page * PAGE.len() as u64))?;
        pages.file.sync_all()?;
        Ok(pages)
    }

    /// Every page makes the file longer, so a sync has to write its length too.
    pub fn growing(path: &Path) -> Result<Pages> {
        Ok(Pages { file: File::create(path)?, at: 0 })
    }

    /// Writes and syncs the next page; returns how long that took.
    pub fn append(&mut self) -> Result<Duration> {
        let start = Instant::now();
        self.file.write_all_at(&PAGE, self.at)?;
        fdatasync(&self.file)?;
        self.at += PAGE.len() as u64;
        Ok(start.elapsed())
    }
}

/// Syncs of a growing file in `folder`: kept with each round of a bench, to tell a slow service from a
/// slow disk.
pub fn probe(folder: &Path) -> Result<Quantiles> {
    let path = folder.join("bench-probe");
    let mut pages = Pages::growing(&path)?;
    let mut samples = Samples::with_capacity(PROBE);
    for _ in 0..PROBE {
        samples.push(pages.append()?);
    }
    std::fs::remove_file(path)?;
    Ok(samples.quantiles())
}
