//! Three replicas, and what may happen to their disks while a training saves to them.
//!
//! ```text
//! changed  the bytes of a published version change                            is read, and must not be believed
//! full     a file system of its own: it is filled up, or mounted read-only    cannot be written, can be read
//! gone     its directory is not there, and comes back as it was               neither
//! ```
//! Replicas are read in this order. Two of three hold each committed version, and only `changed` loses a copy for good.
//! So what was committed can always be read in the end; in between, saves and loads may be refused.
//!
//! Absent on purpose: faults of the register's disk. Without it there is no training.

use crate::SeededNumbers;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The names of the replicas.
pub const REPLICAS: [&str; 3] = ["changed", "full", "gone"];
/// A writer has a file open for some milliseconds.
const UNUSED_WITHIN: Duration = Duration::from_secs(60);

/// What happens to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskFault {
    Full,
    ReadOnly,
    Gone,
    Changed,
}

/// The disks of a store, below one directory.
pub struct Disks {
    directory: PathBuf,
    /// False where no file system can be mounted; then `full` has no faults.
    is_mounted: bool,
    /// The faults that are there now.
    now: Vec<DiskFault>,
}

impl Disks {
    /// Makes the directories of the replicas, and the configuration file of the store.
    pub fn create(directory: &Path) -> Disks {
        for replica in REPLICAS {
            fs::create_dir(directory.join(replica)).expect("a directory");
        }
        let replicas: String = REPLICAS.iter().map(|name| format!("{name} = \"{name}\"\n")).collect();
        let text = format!("register = \"register.db\"\n[replicas]\n{replicas}");
        fs::write(directory.join("store.toml"), text).expect("a file");
        let size = Some(c"size=1m");
        let mounted = mount("tmpfs", directory.join("full"), "tmpfs", MountFlags::empty(), size);
        if let Err(error) = &mounted {
            println!("skipped: a full and a read-only disk, since no file system can be mounted here ({error})");
        }
        Disks { directory: directory.to_owned(), is_mounted: mounted.is_ok(), now: Vec::new() }
    }

    /// The configuration file of the store.
    pub fn store(&self) -> PathBuf {
        self.directory.join("store.toml")
    }

    /// Ends the fault of a disk, or makes one; `None` if nothing began.
    pub fn disturb(&mut self, numbers: &mut SeededNumbers) -> Option<DiskFault> {
        let wanted = match numbers.below(4) {
            0 => DiskFault::Full,
            1 => DiskFault::ReadOnly,
            2 => DiskFault::Gone,
            _ => DiskFault::Changed,
        };
        let of_same_disk = |fault: &DiskFault| (*fault == DiskFault::Gone) == (wanted == DiskFault::Gone);
        match self.now.iter().position(of_same_disk) {
            Some(at) if wanted != DiskFault::Changed => {
                let fault = self.now.remove(at);
                self.mend(fault);
                None
            }
            _ => self.begin(wanted).then_some(wanted),
        }
    }

    /// Ends all faults.
    pub fn mend_all(&mut self) {
        for fault in std::mem::take(&mut self.now) {
            self.mend(fault);
        }
    }

    fn begin(&mut self, fault: DiskFault) -> bool {
        match fault {
            DiskFault::Full | DiskFault::ReadOnly if !self.is_mounted => return false,
            DiskFault::Full => self.fill(),
            DiskFault::ReadOnly => self.remount(MountFlags::RDONLY),
            DiskFault::Gone => fs::rename(self.path("gone"), self.path("put-aside")).expect("a directory"),
            DiskFault::Changed => return self.change(),
        }
        self.now.push(fault);
        true
    }

    fn mend(&self, fault: DiskFault) {
        match fault {
            DiskFault::Full => fs::remove_file(self.path("full").join("filler")).expect("a file"),
            DiskFault::ReadOnly => self.remount(MountFlags::empty()),
            DiskFault::Gone => fs::rename(self.path("put-aside"), self.path("gone")).expect("a directory"),
            DiskFault::Changed => {}
        }
    }

    fn path(&self, replica: &str) -> PathBuf {
        self.directory.join(replica)
    }

    /// Writes until nothing more fits.
    fn fill(&self) {
        let mut filler = fs::File::create(self.path("full").join("filler")).expect("a file");
        while filler.write_all(&[0; 512]).is_ok() {}
    }

    /// Waits until no file is open for writing, which a mount that becomes read-only needs.
    fn remount(&self, flags: MountFlags) {
        let deadline = Instant::now() + UNUSED_WITHIN;
        while let Err(error) = mount_remount(self.path("full"), flags, c"") {
            assert!(error == Errno::BUSY && Instant::now() < deadline, "{error}");
            std::thread::yield_now();
        }
    }

    /// Changes a byte of the newest version; false if there is none.
    fn change(&self) -> bool {
        let home = self.path("changed").join("soak/job:cookbook:latest");
        let Ok(target) = fs::read_link(home.join("latest")) else { return false };
        let file = home.join(target).join("state");
        // It may be pruned meanwhile.
        let Ok(mut bytes) = fs::read(&file) else { return false };
        bytes[0] ^= 1;
        let changed = file.with_file_name("changing");
        fs::write(&changed, bytes).and_then(|()| fs::rename(&changed, &file)).is_ok()
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        if self.is_mounted {
            unmount(self.path("full"), UnmountFlags::DETACH).expect("an unmount");
        }
    }
}
