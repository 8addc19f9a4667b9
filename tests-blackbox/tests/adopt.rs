//! The drop-in with which a systemd unit asks before it starts: real files, and what they start is started.
//!
//! systemd itself is not asked; where its own checker is there, it reads what was written.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use sublet_blackbox::binary::example;
use sublet_blackbox::programs::{successful_output, text};
use sublet_blackbox::user::is_root;
use sublet_blackbox::{MIB, ServiceSetup, TestGpu, TestService};
use sublet_wire::exit;

fn serve() -> TestService {
    TestService::start_with(ServiceSetup { gpu: TestGpu::Named("soft:1x4GiB"), ..ServiceSetup::default() })
}

/// A file system with a unit in it.
struct Units(PathBuf);

impl Units {
    fn with(service: &TestService, text: &str) -> Units {
        let root = service.dir().join("root");
        let dir = root.join("usr/lib/systemd/system");
        fs::create_dir_all(&dir).expect("a directory");
        fs::write(dir.join("llm.service"), text).expect("a file");
        Units(root)
    }
    fn file(&self) -> PathBuf {
        self.0.join("etc/systemd/system/llm.service.d/50-sublet.conf")
    }
    fn root(&self) -> &str {
        self.0.to_str().expect("test paths are plain")
    }
}

/// What the last line of a drop-in that starts something starts.
fn starts(drop_in: &str) -> &str {
    drop_in.lines().filter_map(|line| line.strip_prefix("ExecStart=")).next_back().expect("a command")
}

#[test]
fn a_units_drop_in_is_shown_first_written_on_demand_and_removed_as_it_was_written() {
    let service = serve();
    let hold = example("hold");
    let unit = format!("[Unit]\nDescription=x\n[Service]\nExecStart={hold} 256MiB \\\n  --seconds 1\n");
    let units = Units::with(&service, &unit);
    let attach = ["adopt", "unit:llm", "--vram", "1G", "--tier", "interactive", "--drop-in", "--root", units.root()];
    let shown = service.cli(&attach);
    let (file, shown) = (units.file(), String::from_utf8(shown.stdout).expect("a text"));
    assert!(!file.exists(), "it was only shown");
    let said = successful_output(&service, &[&attach[..], &["--write"]].concat());
    assert!(said.contains(&format!("wrote {}", file.display())) && said.contains("systemctl daemon-reload"), "{said}");
    assert_eq!(fs::read_to_string(&file).expect("it is there"), shown, "what was shown is what was written");
    assert_eq!(fs::read_dir(file.parent().expect("a directory")).expect("it").count(), 1, "and nothing else");
    check(&units);
    // What systemd would start asks for a lease first, and runs on it.
    let ran = Command::new("sh").args(["-c", starts(&shown)]).env("SUBLET_SOCKET", service.dir().join("s")).output();
    let ran = ran.expect("a program");
    assert!(ran.status.success() && text(&ran).contains("holds "), "{ran:?}");
    let lease = service.client().lease("L1");
    assert_eq!((lease.name.as_deref(), lease.vram_bytes), (Some("llm"), Some(1024 * MIB)));
    // Writing it again does no harm: it is not wrapped twice.
    successful_output(&service, &[&attach[..], &["--write"]].concat());
    assert_eq!(fs::read_to_string(&file).expect("it is there"), shown);
    let detach = ["unadopt", "unit:llm.service", "--root", units.root()];
    let said = successful_output(&service, &[&detach[..], &["--dry-run"]].concat());
    assert!(said.contains("would remove") && file.exists(), "{said}");
    // A file that was changed by hand is left alone.
    fs::write(&file, shown.replace("--vram 1G", "--vram 2G")).expect("a file");
    for words in [&[&attach[..], &["--write"]].concat()[..], &detach] {
        let output = service.cli(words);
        assert_eq!(output.status.code(), Some(exit::FAILURE.into()), "{output:?}");
        assert!(text(&output).contains("was changed since sublet wrote it: it stays"), "{output:?}");
    }
    assert!(fs::read_to_string(&file).expect("it is there").contains("--vram 2G"));
    fs::write(&file, &shown).expect("a file");
    // The rule about the same unit goes with it.
    successful_output(&service, &["adopt", "unit:llm.service", "--vram", "1G"]);
    let said = successful_output(&service, &detach);
    assert!(said.contains("R1 is removed") && said.contains("removed "), "{said}");
    assert!(!file.parent().expect("a directory").exists(), "nothing is left");
    let again = service.cli(&detach);
    assert!(!again.status.success() && text(&again).contains("no rule and no drop-in is about"), "{again:?}");
}

#[test]
fn a_drop_in_that_would_not_work_or_is_not_permitted_is_refused_and_own_units_need_no_root() {
    let service = serve();
    let units = Units::with(&service, "[Service]\nType=forking\nExecStart=/bin/true\n");
    let attach = |who: &str, more: &[&str]| {
        let words = ["adopt", who, "--vram", "1G", "--drop-in", "--write", "--root", units.root()];
        service.cli(&[&words[..], more].concat())
    };
    let output = attach("unit:llm", &[]);
    assert!(!output.status.success() && text(&output).contains("Type=forking"), "{output:?}");
    let output = attach("unit:other", &[]);
    assert!(!output.status.success() && text(&output).contains("there is no unit `other.service`"), "{output:?}");
    assert!(text(&attach("exe:x", &[])).contains("only units have drop-ins"));
    assert!(text(&attach("unit:../../x", &[])).contains("--user"));
    fs::create_dir_all(units.file().parent().expect("a directory")).expect("a directory");
    fs::write(units.file(), "[Service]\n").expect("a file");
    fs::write(units.0.join("usr/lib/systemd/system/llm.service"), "[Service]\nExecStart=/bin/true\n").expect("a file");
    let output = attach("unit:llm", &[]);
    assert!(text(&output).contains("was not written by sublet: it stays"), "{output:?}");
    assert_eq!(fs::read_to_string(units.file()).expect("it is there"), "[Service]\n");
    // A unit of one's own, without a daemon and without any privilege.
    let home = service.dir().join("home");
    let own = home.join("units/systemd/user");
    fs::create_dir_all(&own).expect("a directory");
    fs::write(own.join("mine.service"), "[Service]\nType=notify\nExecStart=/bin/true a\n").expect("a file");
    open_to_all(&home);
    let user = |words: &[&str]| {
        let mut command = service.command(words);
        command.env("SUBLET_SOCKET", "/nowhere").env("HOME", &home).env("XDG_CONFIG_HOME", home.join("units"));
        if is_root() {
            command.uid(4711).gid(4711);
        }
        command.output().expect("a program")
    };
    let words = ["adopt", "unit:mine", "--vram", "1G", "--drop-in", "--user", "--write"];
    let output = user(&words);
    assert!(output.status.success() && text(&output).contains("systemctl --user daemon-reload"), "{output:?}");
    let file = own.join("mine.service.d/50-sublet.conf");
    let written = fs::read_to_string(&file).expect("it is there");
    assert!(starts(&written).ends_with("-- /bin/true a") && written.contains("NotifyAccess=all"), "{written}");
    let output = user(&["unadopt", "unit:mine", "--user"]);
    assert!(output.status.success() && !file.exists(), "{output:?}");
    if is_root() {
        let output = user(&["adopt", "unit:mine", "--vram", "1G", "--drop-in", "--write", "--root", units.root()]);
        assert!(!output.status.success(), "{output:?}");
        fs::remove_file(units.file()).expect("an own file");
        let output = user(&["adopt", "unit:llm", "--vram", "1G", "--drop-in", "--write", "--root", units.root()]);
        assert_eq!(output.status.code(), Some(exit::DENIED.into()), "{output:?}");
        assert!(text(&output).contains("use sudo, or `--user`"), "{output:?}");
    }
}

/// systemd's own checker, where it is there, finds nothing wrong with the drop-in. It names the files that it
/// complains of; what else is missing in such a small file system is none of ours.
fn check(units: &Units) {
    let places = format!("{0}/etc/systemd/system:{0}/usr/lib/systemd/system:", units.root());
    let verify =
        Command::new("systemd-analyze").args(["verify", "llm.service"]).env("SYSTEMD_UNIT_PATH", places).output();
    match verify {
        Ok(output) => assert!(!text(&output).contains("50-sublet.conf"), "{output:?}"),
        Err(error) => eprintln!("skipped: systemd-analyze does not run here ({error})"),
    }
}

fn open_to_all(path: &Path) {
    let status = Command::new("chmod").args(["-R", "a+rwX"]).arg(path).status().expect("a program");
    assert!(status.success());
}

#[test]
fn attaching_a_unit_that_does_not_exist_says_so_and_keeps_the_rule() {
    let service = serve();
    let units = Units::with(&service, "[Service]\nExecStart=/bin/true\n");
    let attach = |who: &str| successful_output(&service, &["adopt", who, "--root", units.root()]);
    let said = attach("unit:nosuch.service");
    assert!(said.contains("there is no unit `nosuch.service` on this host") && said.contains("systemctl"), "{said}");
    assert!(said.contains("R1"), "{said}");
    let said = attach("unit:llm.service");
    assert!(!said.contains("there is no unit"), "{said}");
}
