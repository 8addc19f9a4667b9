//! The seat at which a process draws on the screen, as far as logind says.
//!
//! One session is in front at a seat. A process of that session's user, or in that session (a display server may run
//! as root), belongs to that user's desktop. logind writes this where every user may read it and only root may write
//! it; a process cannot claim it.
//!
//! Absent: asking over D-Bus, names of display servers, and users logged in remotely.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where logind keeps its seats.
const SEATS: &str = "/run/systemd/seats";

/// The session that is in front at a seat.
#[derive(Debug, PartialEq, Eq)]
struct ActiveSession {
    seat: String,
    uid: u32,
    session: String,
}

/// The seat at which a process of this user, in this cgroup, is in front; `None` if there is none.
pub(super) fn seat_of(uid: u32, cgroup: &str) -> Option<String> {
    let active_sessions = active_sessions(Path::new(SEATS));
    active_sessions
        .into_iter()
        .find(|active_session| active_session.includes(uid, cgroup))
        .map(|active_session| active_session.seat)
}

/// True if a user's session is in front at a seat of this host. Where logind keeps no seats, the owner of a text
/// console counts: login gives the console to the user that logs in.
pub fn is_at_seat(uid: u32) -> bool {
    let consoles: Vec<PathBuf> = (1..=12).map(|number| PathBuf::from(format!("/dev/tty{number}"))).collect();
    has_seat(uid, Path::new(SEATS), &[&consoles[..], &[PathBuf::from("/dev/console")]].concat())
}

fn has_seat(uid: u32, seats: &Path, consoles: &[PathBuf]) -> bool {
    if seats.is_dir() {
        return active_sessions(seats).iter().any(|active_session| active_session.uid == uid);
    }
    // A console without a login belongs to root.
    let owner = |console: &PathBuf| fs::metadata(console).ok().map(|found| found.uid());
    uid != 0 && consoles.iter().any(|console| owner(console) == Some(uid))
}

fn active_sessions(seats: &Path) -> Vec<ActiveSession> {
    // Without logind there are no seats, as on a server.
    let Ok(entries) = fs::read_dir(seats) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|seat| Some(active_session(&fs::read_to_string(seats.join(&seat)).ok()?, seat))?).collect()
}

fn active_session(text: &str, seat: String) -> Option<ActiveSession> {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    Some(ActiveSession { seat, uid: value("ACTIVE_UID")?.parse().ok()?, session: value("ACTIVE")?.to_owned() })
}

impl ActiveSession {
    /// Below its own manager a user may name a cgroup freely; the two components above it are root's.
    fn includes(&self, uid: u32, cgroup: &str) -> bool {
        let scope = format!("/user.slice/user-{}.slice/session-{}.scope", self.uid, self.session);
        let is_in = cgroup.strip_prefix(&scope).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        uid == self.uid || is_in
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEAT0: &str = "# This is private data. Do not parse.\nIS_SEAT0=1\nCAN_TTY=1\nACTIVE=2\nACTIVE_UID=1000\n\
                         SESSIONS=2 c1\nUIDS=1000 42\n";

    fn seats() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a directory");
        fs::write(folder.path().join("seat0"), SEAT0).expect("a file");
        fs::write(folder.path().join("seat-empty"), "IS_SEAT0=0\nCAN_TTY=0\n").expect("a file");
        folder
    }

    #[test]
    fn the_active_session_of_a_seat_includes_its_user_and_its_processes() {
        let folder = seats();
        let active_sessions = active_sessions(folder.path());
        assert_eq!(active_sessions, [ActiveSession { seat: "seat0".into(), uid: 1000, session: "2".into() }]);
        let check =
            |uid, cgroup: &str, is: bool| assert_eq!(active_sessions[0].includes(uid, cgroup), is, "{uid} {cgroup}");
        check(
            1000,
            "/user.slice/user-1000.slice/user@1000.service/session.slice/org.gnome.Shell@wayland.service",
            true,
        );
        check(0, "/user.slice/user-1000.slice/session-2.scope", true);
        check(0, "/user.slice/user-1000.slice/session-2.scope/x", true);
        check(0, "/user.slice/user-1000.slice/session-22.scope", false);
        check(42, "/user.slice/user-42.slice/session-c1.scope", false);
        check(1001, "/user.slice/user-1001.slice/user@1001.service/session-2.scope", false);
        check(0, "/system.slice/miner.service", false);
    }

    #[test]
    fn a_user_whose_session_is_active_is_at_the_seat_and_a_console_counts_without_logind() {
        let folder = seats();
        let console = folder.path().join("console");
        fs::write(&console, "").expect("a file");
        let owner = fs::metadata(&console).expect("a file").uid();
        assert!(has_seat(1000, folder.path(), &[]));
        assert!(!has_seat(42, folder.path(), &[]), "a session in the background is not in front");
        assert!(!has_seat(owner + 1, folder.path(), std::slice::from_ref(&console)), "logind is asked alone");
        let none = folder.path().join("none");
        assert_eq!(has_seat(owner, &none, std::slice::from_ref(&console)), owner != 0);
        assert!(!has_seat(owner + 1, &none, &[console]));
    }

    #[test]
    fn without_seats_no_session_is_active() {
        assert_eq!(active_sessions(Path::new("/no such directory")), []);
    }
}
