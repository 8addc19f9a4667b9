//! What a service must have for itself and other users cannot take from it: its GPUs and its socket.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use sublet_blackbox::binary::sublet;
use sublet_blackbox::service::bare_command;
use sublet_blackbox::user::{as_user, is_root};
use sublet_blackbox::{LONG, until};

/// Users that no host has.
const SQUATTER: u32 = 64_711;
const ANN: u32 = 64_712;

/// A `sublet serve` that is killed when this is dropped.
struct Serving {
    child: Child,
    log: PathBuf,
}

impl Serving {
    fn start(home: &Path, how: impl FnOnce(&mut Command)) -> Serving {
        let log = home.join(format!("log-{:?}", std::time::Instant::now()));
        let mut command = bare_command(sublet(), home);
        command.args(["serve", "--config", "/dev/null"]).stdin(Stdio::null());
        how(&mut command);
        let child = command.stderr(fs::File::create(&log).expect("a file")).spawn().expect("sublet");
        Serving { child, log }
    }

    fn output_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it serves, or gave up.
    fn serves(&mut self) -> bool {
        until("it serves, or gives up", LONG, || match self.child.try_wait().expect("an own child") {
            Some(_) => Ok(false),
            None if self.output_text().contains("ready on ") => Ok(true),
            None => Err(self.output_text()),
        })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Puts this thread, and what it starts, where no other service is: names and locks of this host are not there.
fn is_apart() -> bool {
    let path = |text: &'static std::ffi::CStr| text.as_ptr();
    // SAFETY: the strings are whole and live for ever; where no data or type is given, null is what the call takes.
    unsafe {
        libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) == 0
            && libc::mount(
                path(c"none"),
                path(c"/"),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            ) == 0
            && libc::mount(path(c"tmpfs"), path(c"/run"), path(c"tmpfs"), 0, std::ptr::null()) == 0
    }
}

#[test]
fn another_users_process_with_the_daemons_name_does_not_keep_root_from_its_gpus() {
    if !is_root() || !is_apart() {
        return eprintln!("skipped: only root can become another user, and leave the host's namespaces");
    }
    let name = SocketAddr::from_abstract_name("sublet/cards").expect("a name");
    let _squatter = as_user(SQUATTER, || UnixListener::bind_addr(&name).expect("any user can take a name"));
    let dir = tempfile::tempdir().expect("a directory can be made");
    let start = |name: &str, uid: Option<u32>| {
        let home = dir.path().join(name);
        fs::create_dir(&home).expect("a directory can be made");
        chown(&home, uid, None).expect("root can give files away");
        Serving::start(&home, |command| {
            command.args(["--gpu", "real", "--state-dir", "state", "--socket", "s"]);
            if let Some(uid) = uid {
                command.uid(uid).gid(uid);
            }
        })
    };
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("an own directory");
    let mut one = start("one", None);
    assert!(one.serves(), "{}", one.output_text());
    assert!(
        one.output_text().contains(&SQUATTER.to_string()),
        "it names the user that has its name: {}",
        one.output_text()
    );
    let mut two = start("two", None);
    assert!(!two.serves(), "{}", two.output_text());
    let named = format!("another daemon (process {} of user 0)", one.child.id());
    assert!(two.output_text().contains(&named), "{named}: {}", two.output_text());
    let mut three = start("three", Some(ANN));
    assert!(!three.serves(), "a user cannot tell a squatter from a service: {}", three.output_text());
    assert!(three.output_text().contains("hint:"), "{}", three.output_text());
}

#[test]
fn a_socket_is_made_only_where_no_other_user_could_put_another() {
    if !is_root() {
        return eprintln!("skipped: only root can become another user");
    }
    let home = tempfile::tempdir().expect("a directory can be made");
    chown(home.path(), Some(ANN), Some(ANN)).expect("root can give files away");
    let serve = |how: &dyn Fn(&mut Command)| {
        Serving::start(home.path(), |command| {
            command.args(["--gpu", "scripted:1x24GiB", "--state-dir", "state"]).uid(ANN).gid(ANN);
            how(command);
        })
    };
    // Without XDG_RUNTIME_DIR the path is predictable, and any user can create it first.
    let usual = PathBuf::from(format!("/tmp/sublet-{ANN}"));
    let _ = fs::remove_dir_all(&usual);
    fs::create_dir(&usual).expect("a directory can be made");
    fs::set_permissions(&usual, fs::Permissions::from_mode(0o777)).expect("an own directory");
    chown(&usual, Some(SQUATTER), Some(SQUATTER)).expect("root can give files away");
    let mut refused = serve(&|_| {});
    assert!(!refused.serves(), "{}", refused.output_text());
    let why = format!(
        "`{}` belongs to user {SQUATTER}: another user could answer there in this daemon's place",
        usual.display()
    );
    assert!(refused.output_text().contains(&why), "{why}: {}", refused.output_text());
    assert!(refused.output_text().contains("hint: choose a `--socket`"), "{}", refused.output_text());
    fs::remove_dir_all(&usual).expect("root can remove it");
    let mut taken = serve(&|_| {});
    assert!(taken.serves(), "it is made where no other user was first: {}", taken.output_text());
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&usual.join("sublet.sock")), mode(&usual) & 0o022), (0o666, 0));
    drop(taken);
    fs::remove_dir_all(&usual).expect("root can remove it");
}
