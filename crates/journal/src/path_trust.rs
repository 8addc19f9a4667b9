//! The directories above a file: a user that may change one of them can put another file in its place.
//!
//! ```text
//!   /data/lab/sublet/state      each of /, /data, /data/lab, /data/lab/sublet is looked at,
//!                               each symbolic link on the way, and the directories above its target
//! ```
//! Trusted owners are root, the user of this process, and the owner of `/`: in a user namespace, host root has no other
//! name. A directory that others may write is trusted if it is sticky, like `/tmp`: a user cannot rename or remove the
//! files of others there, and the next directory on the path must have a trusted owner too.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

const STICKY: u32 = 0o1000;
/// As many links as the kernel follows.
const LINKS_MAX: usize = 40;

/// A directory or link on the way to a file that another user may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// The directory or link.
    pub path: PathBuf,
    /// Why it is not trusted, as the rest of a sentence: `belongs to user 4711`.
    pub why: String,
}

/// The users and the group that may change directories above the daemon's files.
#[derive(Clone, Copy, Debug)]
struct Trusted {
    uid: u32,
    gid: u32,
    root_dir: u32,
}

impl Trusted {
    fn objection(&self, found: &Metadata) -> Option<String> {
        if ![0, self.uid, self.root_dir].contains(&found.uid()) {
            return Some(format!("belongs to user {}", found.uid()));
        }
        // A link has no mode of its own.
        if found.is_symlink() || found.mode() & STICKY != 0 {
            return None;
        }
        if found.mode() & 0o002 != 0 {
            return Some("can be changed by everybody".to_owned());
        }
        (found.mode() & 0o020 != 0 && ![0, self.gid].contains(&found.gid()))
            .then(|| format!("can be changed by the group {}", found.gid()))
    }
}

/// Returns the first directory or link above `path` that another user may change. It does not check directories that do
/// not exist yet, nor `path` itself.
pub fn exposed_above(path: &Path) -> io::Result<Option<Exposed>> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    exposed_to(path, Trusted { uid, gid, root_dir: fs::metadata("/")?.uid() })
}

fn exposed_to(path: &Path, trusted: Trusted) -> io::Result<Option<Exposed>> {
    let mut rest = path_names(&std::path::absolute(path)?);
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            at.pop();
            continue;
        }
        let found = fs::symlink_metadata(&at)?;
        if let Some(why) = trusted.objection(&found) {
            return Ok(Some(Exposed { path: at, why }));
        }
        let next = at.join(name);
        match fs::symlink_metadata(&next) {
            Ok(found) if found.is_symlink() => {
                if let Some(why) = trusted.objection(&found) {
                    return Ok(Some(Exposed { path: next, why }));
                }
                links += 1;
                if links > LINKS_MAX {
                    return Err(rustix::io::Errno::LOOP.into());
                }
                let target = fs::read_link(&next)?;
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                let mut through = path_names(&target);
                through.append(&mut rest);
                rest = through;
            }
            Ok(_) => at = next,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn path_names(path: &Path) -> VecDeque<OsString> {
    let name = |part: Component<'_>| match part {
        Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
        _ => None,
    };
    path.components().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, create_dir, set_permissions};
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    const FOREIGN: u32 = 4711;

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    fn above(path: &Path) -> Option<String> {
        exposed_above(path).unwrap().map(|exposed| exposed.why)
    }

    #[test]
    fn an_open_directory_far_above_is_found_unless_it_is_sticky() {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        let file = open.join("own/deep/file");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let with_mode = |mode| {
            set_permissions(&open, Permissions::from_mode(mode)).unwrap();
            exposed_above(&file).unwrap()
        };
        assert_eq!(with_mode(0o755), None);
        assert_eq!(with_mode(0o775), None, "the process's own group");
        assert_eq!(with_mode(0o1777), None);
        let why = "can be changed by everybody".to_owned();
        assert_eq!(with_mode(0o777), Some(Exposed { path: open.clone(), why: why.clone() }));
        let made_later = open.join("not/there/yet");
        assert_eq!(exposed_above(&made_later).unwrap(), Some(Exposed { path: open, why }));
    }

    #[test]
    fn a_directory_of_another_user_is_found_also_inside_a_sticky_one() {
        if !is_root() {
            return eprintln!("skipped: only root can give a directory away");
        }
        let dir = tempfile::tempdir().unwrap();
        set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
        let foreign = dir.path().join("foreign");
        fs::create_dir_all(foreign.join("own")).unwrap();
        let file = foreign.join("own/file");
        assert_eq!(above(&file), None);
        chown(&foreign, Some(FOREIGN), None).unwrap();
        assert_eq!(above(&file).as_deref(), Some("belongs to user 4711"));
        assert_eq!(above(&foreign), None, "what the path itself names is for the caller to look at");
        chown(&foreign, Some(0), Some(FOREIGN)).unwrap();
        set_permissions(&foreign, Permissions::from_mode(0o775)).unwrap();
        assert_eq!(above(&file).as_deref(), Some("can be changed by the group 4711"));
    }

    #[test]
    fn links_are_trusted_like_their_owners_and_the_directories_above_their_targets() {
        if !is_root() {
            return eprintln!("skipped: only root can give a link away");
        }
        let dir = tempfile::tempdir().unwrap();
        let (foreign, own) = (dir.path().join("foreign"), dir.path().join("own"));
        create_dir(&foreign).unwrap();
        create_dir(foreign.join("target")).unwrap();
        create_dir(&own).unwrap();
        symlink("../foreign/target", own.join("link")).unwrap();
        let file = own.join("link/file");
        assert_eq!(above(&file), None);
        chown(&foreign, Some(FOREIGN), None).unwrap();
        assert_eq!(exposed_above(&file).unwrap().unwrap().path, foreign);
        chown(&foreign, Some(0), None).unwrap();
        lchown(own.join("link"), Some(FOREIGN), None).unwrap();
        assert_eq!(exposed_above(&file).unwrap().unwrap().path, own.join("link"));
        symlink("loop", own.join("loop")).unwrap();
        exposed_above(&own.join("loop/file")).unwrap_err();
    }

    #[test]
    fn the_owner_of_the_root_directory_is_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let owner = fs::metadata(dir.path()).unwrap().uid();
        let stranger = Trusted { uid: FOREIGN, gid: FOREIGN, root_dir: owner };
        assert_eq!(exposed_to(&dir.path().join("file"), stranger).unwrap(), None);
    }
}
