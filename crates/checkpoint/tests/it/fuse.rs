//! A register is refused on a FUSE mount, as sshfs and others make it.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use sublet_checkpoint::register::{FileSystem, SqliteRegister, file_system_of};

/// A FUSE mount without a server. The kernel says what it is without asking one, because the mount
/// belongs to another user.
struct FuseMount {
    directory: PathBuf,
    _device: std::fs::File,
}

impl FuseMount {
    fn make(directory: &Path) -> std::io::Result<FuseMount> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        let options = format!("fd={},rootmode=40000,user_id=65534,group_id=65534", device.as_raw_fd());
        let options = std::ffi::CString::new(options)?;
        rustix::mount::mount("test", directory, "fuse", rustix::mount::MountFlags::empty(), Some(options.as_c_str()))?;
        Ok(FuseMount { directory: directory.to_owned(), _device: device })
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.directory, rustix::mount::UnmountFlags::DETACH).expect("an unmount");
    }
}

#[test]
fn a_register_on_a_fuse_mount_is_refused_with_the_remedy() {
    let directory = tempfile::tempdir().expect("a directory");
    let mount = match FuseMount::make(directory.path()) {
        Ok(mount) => mount,
        Err(error) => {
            eprintln!("skipped: a FUSE mount cannot be made here ({error})");
            return;
        }
    };
    let found = file_system_of(directory.path()).expect("an answer");
    assert_eq!(found, FileSystem::Other("a FUSE file system (sshfs, s3fs and others)".to_owned()));
    let error = SqliteRegister::open(directory.path().join("register.db")).expect_err("a refusal");
    assert!(
        error.to_string().ends_with("is on a FUSE file system (sshfs, s3fs and others), where a register is not safe")
    );
    assert!(error.remedy().contains("`register = \"daemon\"`") && error.remedy().contains("may stay where they are"));
    drop(mount);
}
