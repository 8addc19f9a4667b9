//! What was read about a process on a GPU at one moment: what it is and where it came from.
//!
//! An audit is on the trail before anything is done to its process. It is compared with a second audit before a signal
//! is sent. Its JSON form stays on disk for ever: fields are added, none are removed.
//!
//! Absent: reading it (the host's), names of users (the daemon's), what the process holds on which GPU (a reading's),
//! and any decision about what may be done to it.

use crate::model::ids::ProcKey;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// The kernel keeps this many bytes of a process's name.
const NAME_KEPT: usize = 15;

/// Characters of a container's id that people are shown, as its own tools do.
const CONTAINER_SHOWN: usize = 12;

/// What was read of one process. All text is bounded and without control characters; what could not
/// be read is in `unread`, so that an empty list is really empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// The process and no other.
    pub process: ProcKey,
    /// Its real user id.
    pub uid: u32,
    /// What the kernel calls it: chosen by the process itself.
    pub name: String,
    /// The path of its executable, as its mount namespace names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exe: Option<String>,
    /// That file itself, whatever it is called: a program may rename its own as often as it likes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exe_file: Option<FileKey>,
    /// The executable was removed or replaced since it was started.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exe_deleted: bool,
    /// That path is another file here, or none: only inside its mount namespace is it this executable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exe_inside: bool,
    /// Its command line as the process shows it now, secrets taken out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The directory that it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Its cgroup: of several hierarchies, the first that tells more than `/`.
    pub cgroup: String,
    /// The systemd unit; one of a user's own manager comes after it: `user@1000.service/app.service`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// The id or name of its container; of containers in containers, the outermost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The seat with the active session that it belongs to: what draws there is a user's screen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seat: Option<String>,
    /// The leader of its session.
    pub session: u32,
    /// When it was started, seconds since 1970.
    pub started_s: u64,
    /// Its parents, nearest first, as far up as can be seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ancestry: Vec<Ancestor>,
    /// GPU device files that it has open or mapped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// It has more open or mapped than is read. That does not exempt it from anything: a GPU's file
    /// may be among the rest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub crowded: bool,
    /// It is on no GPU by its own name: it holds memory that another process left there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<Through>,
    /// What it has used of the host so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran: Option<Accounted>,
    /// What could not be read, each a short sentence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<String>,
}

/// Memory of a GPU that is held through a descriptor which another process opened before it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Through {
    /// The pid that the driver goes on naming.
    pub pid: u32,
    /// No other process that comes from that one has a GPU's file open.
    pub alone: bool,
}

/// A file and no other, for as long as a process runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileKey {
    /// The number of its file system.
    pub dev: u64,
    /// Its own there; zero where a user mounted the file system and could choose it.
    pub ino: u64,
}

/// One parent of a process, or a parent's parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ancestor {
    /// The process and no other.
    pub process: ProcKey,
    /// Its real user id, where it could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// What the kernel calls it.
    pub name: String,
    /// The path of its executable, where it could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exe: Option<String>,
    /// It started the process or an ancestor of it, and has ended; when it was started is not known then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
}

/// What the kernel accounts to a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accounted {
    /// Time on cores, of itself and of the children that it waited for.
    pub cpu_ms: u64,
    /// Bytes that it read and wrote, where it could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_bytes: Option<u64>,
    /// The most memory that it ever had in RAM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
}

impl Audit {
    /// The tenant that a lease of the process would have.
    pub fn tenant_name(&self) -> String {
        format!("uid:{}", self.uid)
    }

    /// Is what was audited later still what was audited here? Says what is not.
    ///
    /// Its name and its command line are not compared: a process may rewrite both as it likes, and
    /// would never get a signal. Nor is its user, of which it may have thousands in a namespace of its own: the sender of
    /// the signal checks whether a rule is about that one. Nor is the path of its executable where the file itself is
    /// known. An executable that could not be read may be any.
    pub fn is_same(&self, later: &Audit) -> Result<(), &'static str> {
        if self.process != later.process {
            return Err("it is another process by now");
        }
        let files = self.exe_file.zip(later.exe_file).map(|(before, now)| before == now);
        let paths = || self.exe.as_ref().zip(later.exe.as_ref()).map(|(before, now)| before == now);
        match files.or_else(paths) {
            Some(true) => {}
            Some(false) => return Err("it runs another executable by now"),
            None => return Err("its executable could not be read, so it may run another by now"),
        }
        if self.cgroup != later.cgroup {
            return Err("it is in another cgroup by now");
        }
        Ok(())
    }

    /// Whether it is known what it runs, though it may not be known what that is called.
    pub const fn is_of_known_program(&self) -> bool {
        self.exe.is_some() || self.exe_file.is_some()
    }

    /// Its name; where the kernel kept only the beginning of it, its executable's.
    pub fn program(&self) -> &str {
        let file = self.exe.as_deref().and_then(|exe| exe.rsplit('/').next());
        let is_cut = self.name.len() == NAME_KEPT;
        file.filter(|file| is_cut && file.starts_with(&self.name)).unwrap_or(&self.name)
    }

    /// The process in a few words: `python3 (pid 4312) of uid 1001, in ollama.service`.
    pub fn owner_words(&self) -> String {
        let mut words = format!("{} (pid {}) of uid {}", self.program(), self.process.pid, self.uid);
        // Writing to a String cannot fail.
        let _ = match (&self.container, &self.unit) {
            (Some(id), _) => write!(words, ", in container {}", shown(id)),
            (None, Some(unit)) => write!(words, ", in {unit}"),
            (None, None) => Ok(()),
        };
        if let Some(through) = self.through {
            let _ = write!(words, ", through a descriptor of process {}, which ended", through.pid);
        }
        words
    }
}

/// Long hexadecimal ids are cut; names are not.
fn shown(container: &str) -> &str {
    let is_id = container.len() == 64 && container.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_id { &container[..CONTAINER_SHOWN] } else { container }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::model::unleased::RuleSubject;

    pub(crate) fn audit() -> Audit {
        Audit {
            process: ProcKey { pid: 4312, start: 987_654 },
            uid: 1001,
            name: "python3".into(),
            exe: Some("/usr/bin/python3.12".into()),
            exe_file: None,
            exe_deleted: false,
            exe_inside: false,
            command: vec!["python3".into(), "train.py".into()],
            cwd: None,
            cgroup: "/system.slice/ollama.service".into(),
            unit: Some("ollama.service".into()),
            container: None,
            seat: None,
            session: 4300,
            started_s: 1_700_000_000,
            ancestry: vec![],
            devices: vec![],
            crowded: false,
            through: None,
            ran: None,
            unread: vec![],
        }
    }

    #[test]
    fn what_a_process_may_rewrite_does_not_make_it_another() {
        let now = Audit {
            name: "sshd".into(),
            command: vec![],
            cwd: Some("/tmp".into()),
            uid: 100_007,
            exe_deleted: true,
            started_s: 1_700_000_001,
            ..audit()
        };
        assert_eq!(audit().is_same(&now), Ok(()));
    }

    #[test]
    fn another_process_executable_or_cgroup_is_not_the_same() {
        let check = |change: fn(&mut Audit), said: &str| {
            let mut now = audit();
            change(&mut now);
            let told = audit().is_same(&now).unwrap_err();
            assert!(told.contains(said), "{told}");
        };
        check(|now| now.process.start += 1, "another process");
        check(|now| now.process.pid += 1, "another process");
        check(|now| now.exe = Some("/usr/bin/sleep".into()), "another executable");
        check(|now| now.exe = None, "could not be read");
        check(|now| now.cgroup.push_str("/inner"), "another cgroup");
    }

    #[test]
    fn a_file_is_the_same_under_another_name_or_none_and_another_file_is_not_under_the_same() {
        let file = |ino: u64| Some(FileKey { dev: 7, ino });
        let before = Audit { exe_file: file(1), ..audit() };
        let moved = Audit { exe: Some("/tmp/other".into()), exe_file: file(1), ..audit() };
        assert_eq!(before.is_same(&moved), Ok(()));
        let nameless = Audit { exe: None, exe_file: file(1), ..audit() };
        assert_eq!((before.is_same(&nameless), nameless.is_same(&before)), (Ok(()), Ok(())));
        let replaced = Audit { exe_file: file(2), ..audit() };
        assert_eq!(before.is_same(&replaced), Err("it runs another executable by now"));
        // What an earlier version wrote down has only the path.
        assert_eq!(audit().is_same(&before), Ok(()));
        assert!(audit().is_same(&moved).is_err() && audit().is_same(&nameless).is_err());
    }

    #[test]
    fn executables_that_were_never_read_are_not_the_same() {
        let unread = Audit { exe: None, ..audit() };
        assert!(unread.is_same(&unread).is_err());
    }

    #[test]
    fn a_rule_with_a_whole_path_is_about_this_hosts_file() {
        let (path, name) = (RuleSubject::Exe("/usr/bin/python3.12".into()), RuleSubject::Exe("python3.12".into()));
        let inside = Audit { exe_inside: true, ..audit() };
        assert!(path.matches(&audit()) && name.matches(&audit()));
        assert!(!path.matches(&inside) && name.matches(&inside));
    }

    #[test]
    fn it_is_told_in_a_few_words() {
        assert_eq!(audit().owner_words(), "python3 (pid 4312) of uid 1001, in ollama.service");
        let plain = Audit { unit: None, ..audit() };
        assert_eq!(plain.owner_words(), "python3 (pid 4312) of uid 1001");
        let cut = Audit { name: "sublet-example-".into(), exe: Some("/x/sublet-example-hold".into()), ..plain };
        assert_eq!(cut.owner_words(), "sublet-example-hold (pid 4312) of uid 1001");
        let docker = Audit { container: Some("3f4e".repeat(16)), ..audit() };
        assert_eq!(docker.owner_words(), "python3 (pid 4312) of uid 1001, in container 3f4e3f4e3f4e");
        let named = Audit { container: Some("a-box-with-a-long-name".into()), ..audit() };
        assert_eq!(named.owner_words(), "python3 (pid 4312) of uid 1001, in container a-box-with-a-long-name");
    }
}
