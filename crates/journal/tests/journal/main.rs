//! The journal on real files: what goes in comes out, what breaks is named, nothing is lost.

mod bounds;
mod faults;
mod generate;
mod head;
mod landed;
mod log_cut;
mod round_trip;
mod state_dir;
mod tamper;
mod while_writing;

use std::path::{Path, PathBuf};
use sublet_journal::{Journal, LoadedState};

/// A state directory that goes away with the test.
struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Dir {
        Dir(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("state")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    fn open(&self) -> (Journal, LoadedState) {
        Journal::open(&self.path()).unwrap()
    }

    /// Makes the database one of the release before lines could be cut; the version is set by the caller.
    fn without_stubs(&self) {
        self.sql("DROP TABLE owners; DROP TABLE kept; DROP TABLE stubs; DROP TABLE past_floors");
        self.sql("ALTER TABLE meta DROP COLUMN log_seq; ALTER TABLE meta DROP COLUMN log_hash");
    }

    /// Changes the database behind the journal's back.
    fn sql(&self, sql: &str) {
        sql_at(&self.file("journal.db"), sql);
    }
}

fn sql_at(path: &Path, sql: &str) {
    rusqlite::Connection::open(path).unwrap().execute_batch(sql).unwrap();
}
