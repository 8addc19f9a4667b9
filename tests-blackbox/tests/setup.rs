//! `sublet setup` in a file system of its own: what it makes, that a second run changes nothing, and what it removes.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use sublet_blackbox::binary::sublet;
use sublet_blackbox::programs::text;
use sublet_blackbox::service::bare_command;
use sublet_blackbox::user::is_root;
use sublet_wire::exit;

const CONFIG: &str = "etc/sublet/sublet.toml";
const STATE: &str = "var/lib/sublet";
const UNIT: &str = "etc/systemd/system/sublet.service";

/// A file system in which the group is there already: making groups takes root.
fn system() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a directory");
    fs::create_dir(root.path().join("etc")).expect("a directory");
    fs::write(root.path().join("etc/group"), "root:x:0:\nsublet:x:990:ann\n").expect("a file");
    root
}

fn setup(root: &Path, flags: &[&str]) -> Output {
    let mut command = bare_command(sublet(), root);
    command.args(["setup", "--root"]).arg(root).args(flags).output().expect("the command line starts")
}

/// What every line says was done, with the path in the file system.
fn lines(root: &Path, flags: &[&str]) -> Vec<String> {
    let output = setup(root, flags);
    assert!(output.status.success(), "{output:?}");
    let stdout = String::from_utf8(output.stdout).expect("a text");
    let prefix = format!("{}/", root.display());
    stdout.lines().map(|line| line.replace(&prefix, "").split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Every path below, with its mode and size.
fn tree(root: &Path) -> Vec<(PathBuf, u32, u64)> {
    let mut found = Vec::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("a directory").flatten() {
            let metadata = entry.metadata().expect("it is there");
            if metadata.is_dir() {
                dirs.push(entry.path());
            }
            let size = if metadata.is_file() { metadata.size() } else { 0 };
            found.push((entry.path(), metadata.mode(), size));
        }
    }
    found.sort();
    found
}

#[test]
fn setup_makes_what_is_missing_and_a_second_run_changes_nothing() {
    let root = system();
    let at = |path: &str| root.path().join(path);
    let before = tree(root.path());
    let planned = lines(root.path(), &["--dry-run"]);
    assert_eq!(tree(root.path()), before, "a dry run changes nothing");
    let done = lines(root.path(), &[]);
    let starts = format!("wrote {UNIT} (starts {})", sublet().display());
    assert_eq!(
        done,
        [
            "there group sublet",
            "made etc/sublet",
            &format!("made {STATE}"),
            &format!("wrote {CONFIG} (every key at its default)"),
            &starts,
        ]
    );
    let undone: Vec<String> =
        planned.iter().map(|line| line.replace("would make", "made").replace("would write", "wrote")).collect();
    assert_eq!(undone, done, "a dry run says what is then done");
    assert_eq!(fs::metadata(at(STATE)).expect("it is there").mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(at(CONFIG)).expect("it is there").mode() & 0o777, 0o644);
    let checked = bare_command(sublet(), root.path()).args(["config", "check"]).arg(at(CONFIG)).output();
    let checked = checked.expect("the command line starts");
    assert!(checked.status.success() && text(&checked).contains(": ok"), "{checked:?}");
    verify(&at(UNIT));

    let after = tree(root.path());
    let again = lines(root.path(), &[]);
    assert!(again.iter().all(|line| line.starts_with("there ")), "{again:?}");
    assert_eq!((tree(root.path()), again.len()), (after, done.len()));
    // What is missing is made again, and an edited configuration stays.
    fs::remove_file(at(UNIT)).expect("it was there");
    fs::write(at(CONFIG), "ttl = \"2m\"\n").expect("a file");
    assert_eq!(lines(root.path(), &[]).last(), Some(&starts));
    assert_eq!(fs::read_to_string(at(CONFIG)).expect("it is there"), "ttl = \"2m\"\n");
}

/// systemd's own checker, where it is there.
fn verify(unit: &Path) {
    let output = Command::new("systemd-analyze").arg("verify").arg(unit).env("SYSTEMD_LOG_LEVEL", "warning").output();
    let Ok(output) = output else { return eprintln!("skipped: systemd-analyze is not here") };
    let said = text(&output);
    // The manual page of a program that is not installed is none of the unit's faults.
    let faults: Vec<&str> =
        said.lines().filter(|line| line.contains("sublet.service") && !line.contains("man ")).collect();
    assert!(faults.is_empty(), "{said}");
}

#[test]
fn remove_keeps_configuration_and_journal_and_purge_does_not() {
    let root = system();
    let at = |path: &str| root.path().join(path);
    assert_eq!(lines(root.path(), &["--remove"]), ["kept group sublet: ann are in it"]);
    lines(root.path(), &[]);
    fs::write(at(STATE).join("journal.db"), "lines").expect("a file");
    let planned = lines(root.path(), &["--remove", "--dry-run"]);
    assert_eq!(planned[0], format!("would remove {UNIT}"));
    assert!(at(UNIT).exists());
    let kept = [
        "kept etc/sublet (the configuration; `--purge` removes it)".to_owned(),
        format!("kept {STATE} (the journal; `--purge` removes it)"),
        "kept group sublet: ann are in it".to_owned(),
    ];
    let done = lines(root.path(), &["--remove"]);
    assert_eq!(done[0], format!("removed {UNIT}"));
    assert_eq!(done[1..], kept);
    assert!(!at(UNIT).exists() && at(CONFIG).exists() && at(STATE).join("journal.db").exists());
    assert_eq!(lines(root.path(), &["--remove"]), kept, "a second time there is nothing left to remove");
    let purged = lines(root.path(), &["--remove", "--purge"]);
    assert_eq!(purged[..2], ["removed etc/sublet".to_owned(), format!("removed {STATE}")]);
    assert!(!at("etc/sublet").exists() && !at(STATE).exists());
    assert!(!setup(root.path(), &["--purge"]).status.success(), "only what is removed is purged");
}

#[test]
fn units_of_others_stay_and_a_packages_unit_does() {
    let root = system();
    let unit = root.path().join(UNIT);
    fs::create_dir_all(unit.parent().expect("a directory")).expect("a directory");
    fs::write(&unit, "[Service]\nExecStart=/bin/true\n").expect("a file");
    for flags in [&[][..], &["--remove"]] {
        let said = lines(root.path(), flags).join("\n");
        assert!(said.contains("kept ") && said.contains("was not written by sublet: it stays"), "{said}");
        assert_eq!(fs::read_to_string(&unit).expect("it is there"), "[Service]\nExecStart=/bin/true\n");
    }
    fs::remove_file(&unit).expect("it was there");
    let packaged = root.path().join("usr/lib/systemd/system/sublet.service");
    fs::create_dir_all(packaged.parent().expect("a directory")).expect("a directory");
    fs::write(&packaged, format!("[Service]\nExecStart={} serve\n", sublet().display())).expect("a file");
    assert_eq!(lines(root.path(), &[]).last().map(String::as_str), Some("there usr/lib/systemd/system/sublet.service"));
    assert!(!unit.exists());
    lines(root.path(), &["--remove", "--purge"]);
    assert!(packaged.exists(), "the package removes it");
}

#[test]
fn the_group_is_made_and_removed_unless_the_configuration_names_it() {
    if !is_root() {
        return eprintln!("skipped: making a group takes root");
    }
    let root = system();
    let group = root.path().join("etc/group");
    fs::write(&group, "root:x:0:\n").expect("a file");
    let has_group = || fs::read_to_string(&group).expect("it is there").contains("\nsublet:");
    let made = lines(root.path(), &[]);
    assert!(made[0].starts_with("made group sublet (no rights until"), "{made:?}");
    assert!(has_group());
    fs::write(root.path().join(CONFIG), "operators = \"sublet\"\n").expect("a file");
    let kept = lines(root.path(), &["--remove"]);
    assert!(kept.last().is_some_and(|line| line.starts_with("kept group sublet: ")) && has_group(), "{kept:?}");
    let gone = lines(root.path(), &["--remove", "--purge"]);
    assert!(gone.contains(&"removed group sublet".to_owned()) && !has_group(), "{gone:?}");
}

#[test]
fn without_root_setup_only_says_what_it_would_do() {
    if !is_root() {
        return eprintln!("skipped: only root can be another user");
    }
    // A copy that the other user can reach.
    let dir = tempfile::tempdir().expect("a directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("an own directory");
    let copy = dir.path().join("sublet");
    fs::copy(sublet(), &copy).expect("a copy");
    let run =
        |flags: &[&str]| bare_command(&copy, Path::new("/")).arg("setup").args(flags).uid(12347).gid(12347).output();
    let refused = run(&[]).expect("the command line starts");
    assert_eq!(refused.status.code(), Some(exit::DENIED.into()), "{refused:?}");
    assert!(text(&refused).contains("sudo sublet setup"), "{refused:?}");
    let planned = run(&["--dry-run"]).expect("the command line starts");
    assert!(planned.status.success() && text(&planned).contains("would write"), "{planned:?}");
}
