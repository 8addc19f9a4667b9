//! Where the two libraries are, and how programs are made to find them.
//!
//! They are beside the binary, under the names that programs ask the linker for. Absent: the linker's own paths, where
//! NVIDIA's libraries may be.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Names the directory of the libraries, for unusual installations.
pub const LIBRARY_ENV: &str = "SUBLET_SOFT_LIB";
/// The driver API.
pub const CUDA: &str = "libcuda.so.1";
/// The management library.
pub const NVML: &str = "libnvidia-ml.so.1";
/// The path that the linker searches first.
pub const LINKER_ENV: &str = "LD_LIBRARY_PATH";

/// The libraries of the soft GPUs are missing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the soft GPUs' libraries ({CUDA}, {NVML}) were not found in {}", quoted_paths(searched))]
pub struct NoLibraries {
    searched: Vec<PathBuf>,
}

impl NoLibraries {
    /// What the user can do next.
    pub fn hint(&self) -> String {
        format!("`cargo xtask up` in a checkout builds them; {LIBRARY_ENV} can name the directory that has both")
    }
}

fn quoted_paths(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths.iter().map(|path| format!("`{}`", path.display())).collect();
    shown.join(" nor ")
}

/// The directory that has both libraries: the one that is named, or else beside this executable.
pub fn library_dir() -> Result<PathBuf, NoLibraries> {
    let given = std::env::var_os(LIBRARY_ENV).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    find_library_dir(given, std::env::current_exe().ok().as_deref())
}

fn find_library_dir(given: Option<PathBuf>, exe: Option<&Path>) -> Result<PathBuf, NoLibraries> {
    let bin = exe.and_then(Path::parent);
    // A named directory is the only one searched.
    let searched = match (given, bin) {
        (Some(dir), _) => vec![std::path::absolute(&dir).unwrap_or(dir)],
        (None, Some(bin)) => {
            let prefix = bin.parent().unwrap_or(bin);
            vec![bin.join("soft"), prefix.join("lib/sublet/soft")]
        }
        (None, None) => Vec::new(),
    };
    let has_both = |dir: &&PathBuf| [CUDA, NVML].iter().all(|name| dir.join(name).is_file());
    match searched.iter().find(has_both) {
        Some(dir) => Ok(dir.clone()),
        None => Err(NoLibraries { searched }),
    }
}

/// The linker's path with a directory in front of the present entries.
pub fn path_with_front(dir: &Path, before: Option<&OsStr>) -> OsString {
    let mut path = dir.as_os_str().to_owned();
    // An empty entry would mean the program's current directory.
    let rest =
        before.map(std::env::split_paths).into_iter().flatten().filter(|p| p != dir && !p.as_os_str().is_empty());
    for entry in rest {
        path.push(":");
        path.push(entry);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_beside_the_binary_or_in_the_named_directory() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let put = |dir: &str, names: &[&str]| {
            std::fs::create_dir_all(root.join(dir)).unwrap();
            names.iter().for_each(|name| std::fs::write(root.join(dir).join(name), "").unwrap());
        };
        let exe = root.join("bin/sublet");
        let missing = find_library_dir(None, Some(&exe)).unwrap_err().to_string();
        assert!(missing.contains("bin/soft` nor `") && missing.ends_with("/lib/sublet/soft`"), "{missing}");
        put("lib/sublet/soft", &[CUDA]);
        assert!(find_library_dir(None, Some(&exe)).is_err(), "one of them is not both");
        put("lib/sublet/soft", &[NVML]);
        assert_eq!(find_library_dir(None, Some(&exe)), Ok(root.join("lib/sublet/soft")));
        put("bin/soft", &[CUDA, NVML]);
        assert_eq!(find_library_dir(None, Some(&exe)), Ok(root.join("bin/soft")));
        put("else", &[CUDA, NVML]);
        assert_eq!(find_library_dir(Some(root.join("else")), Some(&exe)), Ok(root.join("else")));
        assert!(
            find_library_dir(Some(root.join("wrong")), Some(&exe)).is_err(),
            "a named directory is the only one searched"
        );
    }

    #[test]
    fn previous_entries_of_the_linkers_path_are_kept() {
        let front = |before: Option<&str>| path_with_front(Path::new("/s"), before.map(OsStr::new));
        assert_eq!(front(None), "/s");
        assert_eq!(front(Some("")), "/s");
        assert_eq!(front(Some("/a:/b")), "/s:/a:/b");
        assert_eq!(front(Some("/a:/s")), "/s:/a", "and is not there twice");
    }
}
