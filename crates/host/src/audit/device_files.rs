//! Which GPU device files a process has open or mapped.
//!
//! The descriptor counts, whichever process opened it: an inherited one holds memory as well. A file that was mapped
//! and then closed is found among the mappings. Files are recognised by what they are (the driver's device numbers,
//! the soft GPUs' inode), so neither another name nor another mount hides one.
//!
//! Absent: which of them holds memory, and how much. Only the driver knows that.

use super::clean_text::{PATH_MAX, clean, clean_bytes};
use crate::timed_read;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, makedev, statx};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How the names of NVIDIA's device files begin.
const PREFIX: &str = "/dev/nvidia";
/// The major number of NVIDIA's first device files, fixed long ago; later ones are in `/proc/devices`.
const NVIDIA_MAJOR: u32 = 195;
/// Descriptors read of one process, which may have a million. A process with more gains no exemption: it is reported
/// as crowded.
const DESCRIPTORS_MAX: usize = 65_536;
/// Bytes of mappings read of one process: the kernel's limit is 65,530 mappings by default.
const MAPPINGS_BYTES_MAX: u64 = 32 << 20;
/// Stands for the path of a file where it is longer than the kernel reports.
const TOO_LONG_PATH: &str = "/… (its path is too long)";
/// Device files reported of one process: a host has a few for each GPU.
const DEVICES_MAX: usize = 64;

/// Which files count as a GPU's device file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuDeviceFiles {
    soft: Vec<PathBuf>,
}

/// The files that count, as they are at one moment.
struct KnownDevices<'a> {
    majors: Vec<u32>,
    soft: Vec<(&'a Path, u64, u64)>,
}

impl GpuDeviceFiles {
    /// NVIDIA's device files, and the files of soft GPUs.
    pub fn new(soft: impl IntoIterator<Item = PathBuf>) -> GpuDeviceFiles {
        GpuDeviceFiles { soft: soft.into_iter().collect() }
    }

    /// The files of soft GPUs.
    pub fn soft(&self) -> &[PathBuf] {
        &self.soft
    }

    fn known_devices(&self) -> KnownDevices<'_> {
        let listed = fs::read_to_string("/proc/devices").unwrap_or_default();
        let inode = |path: &'_ PathBuf| {
            let stat = rustix::fs::stat(path).ok()?;
            Some((stat.st_dev, stat.st_ino))
        };
        let soft = self.soft.iter().filter_map(|path| inode(path).map(|(dev, ino)| (path.as_path(), dev, ino)));
        KnownDevices { majors: majors(&listed), soft: soft.collect() }
    }

    /// True if a process has a GPU's device file open, as far as its descriptors are readable. Its mappings are not
    /// read: a process can make that read hang.
    pub(super) fn has_open(&self, folder: &str) -> bool {
        let mut found = Vec::new();
        find_open(folder, &self.known_devices(), &mut found).is_ok() && !found.is_empty()
    }

    /// The device files that a process has open or mapped, by its folder in `/proc`, and true if it has more than are
    /// read. What could not be read is added to `unread`.
    pub(super) fn of(&self, folder: &str, unread: &mut Vec<String>) -> (Vec<String>, bool) {
        let known = self.known_devices();
        let (mut found, mut crowded) = (Vec::new(), false);
        for (what, result) in
            [("open", find_open(folder, &known, &mut found)), ("mapped", find_mapped(folder, &known, &mut found))]
        {
            crowded |= result.as_ref().is_ok_and(|whole| !whole);
            match result {
                Ok(true) => {}
                Ok(false) => unread.push(format!("which files it has {what}: it has too many")),
                Err(error) => unread.push(format!("which files it has {what}: {}", reason_text(&error))),
            }
        }
        found.sort();
        found.dedup();
        if found.len() > DEVICES_MAX {
            unread.push(format!("{} more device files that it has open", found.len() - DEVICES_MAX));
            found.truncate(DEVICES_MAX);
        }
        (found, crowded)
    }
}

/// The kernel's error text, without the number that Rust adds.
pub(super) fn reason_text(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "not permitted".to_owned(),
        io::ErrorKind::NotFound => "it ended meanwhile".to_owned(),
        io::ErrorKind::InvalidFilename => "its path is too long".to_owned(),
        _ => error.to_string(),
    }
}

/// Returns whether all descriptors were read.
fn find_open(folder: &str, known: &KnownDevices<'_>, found: &mut Vec<String>) -> io::Result<bool> {
    for (number, entry) in fs::read_dir(format!("{folder}/fd"))?.enumerate() {
        if number >= DESCRIPTORS_MAX {
            return Ok(false);
        }
        let path = entry?.path();
        let link = match fs::read_link(&path) {
            Ok(link) => link,
            // Closed since it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            // It may be a GPU all the same, below a path that is too long to report.
            Err(error) if error.kind() == io::ErrorKind::InvalidFilename => PathBuf::from(TOO_LONG_PATH),
            Err(error) => return Err(error),
        };
        // Sockets, pipes and the like are not in a file system, and need no statx.
        let link = link.as_os_str().as_bytes();
        if link.starts_with(b"/")
            && let Some(name) = known.name_of_open(&path, link)
        {
            found.push(name);
        }
    }
    Ok(true)
}

/// `7f12…-7f13… rw-s 00001000 00:05 1049   /dev/nvidia0`
fn find_mapped(folder: &str, known: &KnownDevices<'_>, found: &mut Vec<String>) -> io::Result<bool> {
    let lines = timed_read::read(format!("{folder}/maps"), MAPPINGS_BYTES_MAX)?;
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        if let Some(name) = known.name_of_mapped(line)
            && !found.contains(&name)
        {
            found.push(name);
        }
    }
    Ok((lines.len() as u64) < MAPPINGS_BYTES_MAX)
}

impl KnownDevices<'_> {
    fn name_of_open(&self, descriptor: &Path, link: &[u8]) -> Option<String> {
        let shown = || Some(clean_bytes(link, PATH_MAX));
        // Does not query a server that may not answer: the kernel's cached data will do.
        let answer = statx(CWD, descriptor, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE | StatxFlags::INO);
        let Ok(stat) = answer else { return if link.starts_with(PREFIX.as_bytes()) { shown() } else { None } };
        let dev = makedev(stat.stx_dev_major, stat.stx_dev_minor);
        if let Some(name) = self.soft_name(dev, stat.stx_ino) {
            return Some(name);
        }
        let is_device = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::CharacterDevice;
        let ours = is_device && self.majors.contains(&stat.stx_rdev_major);
        if ours || link.starts_with(PREFIX.as_bytes()) { shown() } else { None }
    }

    fn name_of_mapped(&self, line: &[u8]) -> Option<String> {
        let mut fields = line.trim_ascii_end().splitn(6, |&byte| byte == b' ');
        let (dev, ino) = (fields.nth(3)?, fields.next()?);
        if ino == b"0" {
            return None; // memory that is no file's
        }
        let path = fields.next().unwrap_or_default().trim_ascii_start();
        if path.starts_with(PREFIX.as_bytes()) {
            let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
            return Some(clean_bytes(path, PATH_MAX));
        }
        let (major, minor) = str::from_utf8(dev).ok()?.split_once(':')?;
        let dev = makedev(u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
        let ino = str::from_utf8(ino).ok()?.parse().ok()?;
        // Some file systems report other device numbers here than `stat` does.
        let by_name = || self.soft.iter().find(|(soft, _, its)| *its == ino && soft.as_os_str().as_bytes() == path);
        self.soft_name(dev, ino).or_else(|| by_name().map(|(soft, ..)| clean(&soft.to_string_lossy(), PATH_MAX)))
    }

    fn soft_name(&self, dev: u64, ino: u64) -> Option<String> {
        let (path, ..) = self.soft.iter().find(|(_, its_dev, its_ino)| (*its_dev, *its_ino) == (dev, ino))?;
        Some(clean(&path.to_string_lossy(), PATH_MAX))
    }
}

/// The numbers of NVIDIA's character devices.
fn majors(listed: &str) -> Vec<u32> {
    let characters = listed.split("Block devices:").next().unwrap_or_default();
    let from_line = |line: &str| {
        let (number, name) = line.trim().split_once(' ')?;
        number.parse::<u32>().ok().filter(|_| name.starts_with("nvidia"))
    };
    let mut found = vec![NVIDIA_MAJOR];
    found.extend(characters.lines().filter_map(from_line));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n235 nvidia-caps\n511 nvidia-uvm\n\n\
                          Block devices:\n  8 sd\n259 nvidia-odd\n";

    #[test]
    fn device_numbers_of_the_driver_are_parsed() {
        assert_eq!(majors(LISTED), [195, 195, 195, 235, 511]);
        assert_eq!(majors(""), [195]);
    }

    #[test]
    fn a_mapping_is_known_by_its_name_or_its_inode() {
        let known = KnownDevices { majors: vec![], soft: vec![(Path::new("/run/s.soft"), makedev(0xfd, 1), 77)] };
        let shown = |line: &str| known.name_of_mapped(line.as_bytes());
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(
            shown("7f1-7f2 rw-s 00001000 00:05 1049                       /dev/nvidia0\n"),
            some("/dev/nvidia0")
        );
        assert_eq!(shown("7f1-7f2 rw-s 0 00:05 9       /dev/nvidia-uvm (deleted)\n"), some("/dev/nvidia-uvm"));
        assert_eq!(shown("7f1-7f2 rw-s 0 fd:01 77      /tmp/other name (deleted)\n"), some("/run/s.soft"));
        assert_eq!(shown("7f1-7f2 rw-s 0 00:2a 77      /run/s.soft\n"), some("/run/s.soft"));
        assert_eq!(shown("7f1-7f2 rw-s 0 fd:01 78      /run/s.soft\n"), None, "a file of that name is not that file");
        for other in ["7f1-7f2 rw-p 0 00:00 0\n", "7f1-7f2 r-xp 0 fd:01 5  /usr/lib/x.so\n", "", "a b", "a b c d e f\n"]
        {
            assert_eq!(shown(other), None, "{other}");
        }
    }
}
