//! A systemd unit as its files describe it: how it is started, and whether it can be started through `sublet run`.
//!
//! Only files are read, in the places and the order that systemd uses. Absent: any contact with systemd itself.

use crate::failure::Failure;
use crate::table::plain;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use sublet_wire::exit;

/// The folders of the system's units, in order of precedence.
const SYSTEM: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];
/// The folders of units that systemd made itself. Running units have their cgroups below `CGROUPS`.
const MADE: [&str; 4] =
    ["/run/systemd/transient", "/run/systemd/generator", "/run/systemd/generator.early", "/run/systemd/generator.late"];
const CGROUPS: &str = "/sys/fs/cgroup";
/// The most nested slices that are searched for a unit.
const CGROUP_DEPTH: usize = 6;
/// The folders of users' own service managers, after those in the home directory.
const USER: [&str; 4] =
    ["/etc/systemd/user", "/run/systemd/user", "/usr/local/lib/systemd/user", "/usr/lib/systemd/user"];
/// The name of Sublet's drop-in in the unit's directory.
pub const FILE: &str = "50-sublet.conf";
/// A longer file is not a hand-written unit.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The service manager: the system's, or the caller's own.
#[derive(Clone, Debug)]
pub struct Manager {
    places: Vec<PathBuf>,
}

impl Manager {
    /// The system's manager, or the caller's own, in the file system that begins at `root`.
    pub fn of(user: bool, root: Option<&Path>) -> Result<Manager, Failure> {
        let mut places = Vec::new();
        if user {
            let home = env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
            let xdg = |name: &str, or: &str| {
                let named = env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
                named.or_else(|| home.as_ref().map(|home| home.join(or)))
            };
            let own = xdg("XDG_CONFIG_HOME", ".config")
                .ok_or_else(|| Failure::usage("neither HOME nor XDG_CONFIG_HOME says where your units are"))?;
            places.push(own.join("systemd/user"));
            places.extend(xdg("XDG_DATA_HOME", ".local/share").map(|data| data.join("systemd/user")));
        }
        places.extend(if user { USER.as_slice() } else { &SYSTEM }.iter().map(PathBuf::from));
        let rooted = |path: PathBuf| match root {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(&path)),
            None => path,
        };
        Ok(Manager { places: places.into_iter().map(rooted).collect() })
    }

    /// The folder for hand-written drop-ins of a unit.
    pub fn own(&self, name: &str) -> PathBuf {
        self.places[0].join(format!("{name}.d"))
    }

    /// The unit's own file, and its drop-ins by name, without Sublet's own.
    fn files(&self, name: &str) -> Result<(PathBuf, BTreeMap<String, PathBuf>), Failure> {
        let names = names(name);
        let found = names.iter().flat_map(|name| self.places.iter().map(move |place| place.join(name)));
        let Some(own) = found.into_iter().find(|file| file.symlink_metadata().is_ok()) else {
            let places: Vec<String> = self.places.iter().map(|place| place.display().to_string()).collect();
            return Err(Failure::new(exit::NOT_FOUND, format!("there is no unit `{name}` in {}", places.join(", ")))
                .hint("`systemctl list-units --type=service` lists units; your own need `--user`"));
        };
        let dirs = names.iter().map(|name| format!("{name}.d")).chain(["service.d".to_owned()]);
        let mut drop_ins = BTreeMap::new();
        for dir in dirs.flat_map(|dir| self.places.iter().map(move |place| place.join(&dir))) {
            for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
                let file = entry.file_name().to_string_lossy().into_owned();
                // Of two drop-ins with the same name, the one closer to the unit counts.
                if file.ends_with(".conf") && file != FILE {
                    drop_ins.entry(file).or_insert(entry.path());
                }
            }
        }
        Ok((own, drop_ins))
    }

    /// Whether a socket unit of the same name starts the unit.
    fn has_socket(&self, name: &str) -> bool {
        let stem = name.strip_suffix(".service").unwrap_or(name);
        self.places.iter().any(|place| place.join(format!("{stem}.socket")).exists())
    }
}

/// Whether the system has a unit of this name: as a file, made by systemd, or running. A unit of a user's own manager
/// (`user@1000.service/…`) is taken to be there: its files may be in a home that cannot be read.
pub fn is_known(text: &str, root: Option<&Path>) -> Result<bool, Failure> {
    if text.contains('/') {
        return Ok(true);
    }
    let name = if text.contains('.') { text.to_owned() } else { format!("{text}.service") };
    let rooted = |path: &&str| match root {
        Some(root) => root.join(path.trim_start_matches('/')),
        None => PathBuf::from(path),
    };
    let places = Manager::of(false, root)?.places.into_iter().chain(MADE.iter().map(rooted));
    let files: Vec<PathBuf> = places.collect();
    let names = names(&name);
    let has_file = files.iter().any(|place| names.iter().any(|name| place.join(name).symlink_metadata().is_ok()));
    Ok(has_file || has_cgroup(&rooted(&CGROUPS), &name, CGROUP_DEPTH))
}

fn has_cgroup(dir: &Path, name: &str, depth: usize) -> bool {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path());
    dirs.into_iter().any(|dir| {
        let own = dir.file_name().and_then(|own| own.to_str()).unwrap_or_default();
        // Below a service are cgroups with names of its own choice.
        own == name || (depth > 0 && own.ends_with(".slice") && has_cgroup(&dir, name, depth - 1))
    })
}

/// The names of the files that describe a unit. An instance without its own file uses its template.
fn names(name: &str) -> Vec<String> {
    let template = name.split_once('@').map(|(stem, _)| format!("{stem}@.service"));
    [name.to_owned()].into_iter().chain(template.filter(|template| template != name)).collect()
}

/// The full name of a service.
pub fn name(text: &str) -> Result<String, Failure> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    let kinds = [".socket", ".scope", ".slice", ".mount", ".target", ".timer", ".path", ".device", ".swap"];
    let bad = |why: &str| Failure::usage(format!("`{}` {why}", plain(text))).hint("write unit:NAME.service");
    if text.contains('/') {
        return Err(bad("is a unit of a user's own manager; name it alone, with `--user`"));
    }
    if text.is_empty() || text.len() > 255 || text.starts_with('.') || !text.chars().all(is_plain) {
        return Err(bad("is not the name of a unit"));
    }
    if kinds.iter().any(|kind| text.ends_with(kind)) {
        return Err(bad("is not a service"));
    }
    Ok(if text.ends_with(".service") { text.to_owned() } else { format!("{text}.service") })
}

/// A unit that can be started through `sublet run`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The full name.
    pub name: String,
    /// The characters before the command that tell systemd how to start it.
    pub prefix: String,
    /// The command, as the unit writes it.
    pub command: String,
    /// The service reports when it is ready.
    pub notifies: bool,
    /// The unit itself sets which processes systemd stops: `KillMode` is not the default.
    pub says_kill: bool,
}

impl Unit {
    /// Reads the unit's files; an error if it cannot be started through `sublet run`.
    pub fn read(manager: &Manager, name: &str) -> Result<Unit, Failure> {
        let (own, drop_ins) = manager.files(name)?;
        let mut settings = UnitSettings::default();
        settings.add("", &text(&own)?);
        for (file, path) in &drop_ins {
            settings.add(file, &text(path)?);
        }
        let cannot = |why: String| {
            Failure::new(exit::FAILURE, format!("{name} cannot be started through `sublet run`: {why}"))
                .hint(format!("`sublet adopt unit:{name}` without `--drop-in` leaves it as it is"))
        };
        if manager.has_socket(name) {
            return Err(cannot(
                "it is socket-activated: systemd passes its sockets only to the process that it starts itself".into(),
            ));
        }
        settings.unit(name).map_err(cannot)
    }
}

fn text(path: &Path) -> Result<String, Failure> {
    let failed = |error: io::Error| {
        let exit = if error.kind() == io::ErrorKind::PermissionDenied { exit::DENIED } else { exit::FAILURE };
        Failure::new(exit, format!("{} cannot be read: {error}", path.display()))
    };
    let found = fs::metadata(path).map_err(failed)?;
    if !found.is_file() || found.len() > FILE_BYTES_MAX {
        // A masked unit is a link to /dev/null.
        return Err(Failure::new(exit::FAILURE, format!("{} is no unit that could be started", path.display())));
    }
    fs::read_to_string(path).map_err(failed)
}

/// The settings of a unit that count.
#[derive(Default)]
struct UnitSettings {
    commands: Vec<String>,
    /// The file that set the command last.
    said_by: String,
    values: BTreeMap<String, String>,
}

impl UnitSettings {
    fn add(&mut self, file: &str, text: &str) {
        let mut section = String::new();
        for line in lines(text) {
            let line = line.trim();
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                section = name.to_owned();
                continue;
            }
            let Some((key, value)) = line.split_once('=').filter(|_| section == "Service") else { continue };
            let (key, value) = (key.trim(), value.trim());
            if key != "ExecStart" {
                self.values.insert(key.to_owned(), value.to_owned());
                continue;
            }
            self.said_by = file.to_owned();
            match value {
                "" => self.commands.clear(),
                command => self.commands.push(command.to_owned()),
            }
        }
    }

    fn value(&self, key: &str) -> &str {
        self.values.get(key).map_or("", String::as_str)
    }

    fn unit(&self, name: &str) -> Result<Unit, String> {
        let [line] = self.commands.as_slice() else {
            return Err(match self.commands.len() {
                0 => "it starts nothing".to_owned(),
                n => format!("it starts {n} commands"),
            });
        };
        if self.said_by.as_str() > FILE {
            return Err(format!("{} is read after {FILE}, and says again what it starts", self.said_by));
        }
        let command = line.trim_start_matches(['-', ':', '+', '!', '@', '|']);
        let prefix = &line[..line.len() - command.len()];
        if let Some(odd) = prefix.chars().find(|c| matches!(c, '@' | '|')) {
            return Err(format!("its ExecStart begins with `{odd}`"));
        }
        let kind = self.value("Type");
        if kind == "forking" {
            return Err("its command leaves another process behind (Type=forking)".to_owned());
        }
        if !matches!(self.value("WatchdogSec"), "" | "0") {
            return Err(
                "it uses WatchdogSec, which expects keep-alives from the process that systemd started".to_owned()
            );
        }
        if !self.value("Sockets").is_empty() {
            return Err("it is socket-activated: systemd passes its sockets only to the process that it starts itself"
                .to_owned());
        }
        let words: Vec<&str> = command.split_whitespace().collect();
        let asks = |pair: &[&str]| pair[0].rsplit('/').next() == Some("sublet") && pair[1] == "run";
        if words.windows(2).take(1).any(asks) {
            return Err("its command is `sublet run` already".to_owned());
        }
        Ok(Unit {
            name: name.to_owned(),
            prefix: prefix.to_owned(),
            command: command.to_owned(),
            notifies: kind.starts_with("notify"),
            says_kill: !matches!(self.value("KillMode"), "" | "control-group"),
        })
    }
}

/// The lines of a unit file. A line that ends with a backslash continues, also after comment lines.
fn lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        if line.trim_start().starts_with(['#', ';']) {
            continue;
        }
        let (part, goes_on) = match line.strip_suffix('\\') {
            Some(part) => (part, true),
            None => (line, false),
        };
        let whole = match open.take() {
            Some(before) => format!("{before} {part}"),
            None => part.to_owned(),
        };
        if goes_on {
            open = Some(whole);
        } else {
            lines.push(whole);
        }
    }
    lines.extend(open);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(files: &[(&str, &str)], expected: &Expect) {
        let mut settings = UnitSettings::default();
        files.iter().for_each(|(file, text)| settings.add(file, text));
        expected.assert_eq(&match settings.unit("a.service") {
            Ok(unit) => format!("{}`{}` notifies={} kill={}", unit.prefix, unit.command, unit.notifies, unit.says_kill),
            Err(why) => why,
        });
    }

    #[test]
    fn the_last_word_on_what_a_unit_starts_counts() {
        let own =
            "[Unit]\nExecStart=no\n[Service]\nType=notify\nExecStart=-/usr/bin/a \\\n# not this\n  serve --x='b c'\n";
        check(&[("", own)], &expect!["-`/usr/bin/a    serve --x='b c'` notifies=true kill=false"]);
        let other = "[Service]\nExecStart=\nExecStart=/opt/a %i\nKillMode=process\nType=exec\n";
        check(&[("", own), ("10-a.conf", other)], &expect!["`/opt/a %i` notifies=false kill=true"]);
        check(
            &[("", own), ("90-a.conf", other)],
            &expect!["90-a.conf is read after 50-sublet.conf, and says again what it starts"],
        );
    }

    #[test]
    fn what_would_not_work_is_refused_with_why() {
        let with = |more: &str| format!("[Service]\nExecStart=/bin/a\n{more}\n");
        check(&[("", "[Service]\nType=simple\n")], &expect!["it starts nothing"]);
        check(&[("", &with("ExecStart=/bin/b"))], &expect!["it starts 2 commands"]);
        check(&[("", &with("Type=forking"))], &expect!["its command leaves another process behind (Type=forking)"]);
        check(
            &[("", &with("WatchdogSec=30"))],
            &expect!["it uses WatchdogSec, which expects keep-alives from the process that systemd started"],
        );
        check(
            &[("", &with("Sockets=x.socket"))],
            &expect!["it is socket-activated: systemd passes its sockets only to the process that it starts itself"],
        );
        check(&[("", "[Service]\nExecStart=@/bin/a b\n")], &expect!["its ExecStart begins with `@`"]);
        check(&[("", "[Service]\nExecStart=/x/sublet run -- a\n")], &expect!["its command is `sublet run` already"]);
    }

    #[test]
    fn a_unit_is_known_by_its_file_its_template_or_its_cgroup() {
        let root = tempfile::tempdir().unwrap();
        let known = |name: &str| is_known(name, Some(root.path())).unwrap();
        let put = |path: &str| fs::create_dir_all(root.path().join(path)).unwrap();
        assert!(!known("a.service"));
        put("etc/systemd/system/a.service");
        put("usr/lib/systemd/system/t@.service");
        put("run/systemd/transient/run-1.scope");
        put("sys/fs/cgroup/system.slice/system-x.slice/live.service/foreign.service");
        for name in ["a", "a.service", "t@7.service", "run-1.scope", "live.service", "user@1000.service/b.service"] {
            assert!(known(name), "{name}");
        }
        for name in ["b", "a.scope", "foreign.service"] {
            assert!(!known(name), "{name}");
        }
    }

    #[test]
    fn names_of_units_lead_nowhere_else() {
        assert_eq!(name("ollama").unwrap(), "ollama.service");
        assert_eq!(name("a@b.service").unwrap(), "a@b.service");
        assert_eq!(names("a@b.service"), ["a@b.service", "a@.service"]);
        for odd in ["", "../x", "user@1000.service/x.service", "a b", "x.socket", ".x", "a\nb"] {
            assert!(name(odd).is_err(), "{odd:?}");
        }
    }
}
