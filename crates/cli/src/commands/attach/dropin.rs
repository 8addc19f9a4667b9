//! The drop-in with which systemd starts a unit through `sublet run`: its text, and its file.
//!
//! Its first line has the hash of all others: so it is known whether a file is ours, and whether somebody
//! has changed it since. What is not exactly ours is neither replaced nor removed.

use super::unit::{FILE, Manager, Unit};
use crate::failure::Failure;
use crate::hold::ask::{TierArg, typed_size};
use crate::text;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use sublet_wire::exit;

/// How the first line begins; the hash follows.
const MARK: &str = "# sublet drop-in ";

/// What the unit shall ask for, and through what.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// This program.
    pub sublet: &'a Path,
    /// The daemon's socket, if one was named.
    pub socket: Option<&'a Path>,
    /// So much of a card.
    pub vram: u64,
    /// How urgent it is.
    pub tier: TierArg,
}

/// The drop-in's text.
pub fn text(unit: &Unit, wish: &Wish<'_>) -> Result<String, Failure> {
    let name = unit.name.strip_suffix(".service").unwrap_or(&unit.name);
    let (sublet, tier) = (program(wish.sublet)?, text::tier(wish.tier.into()));
    let mut words = vec![sublet, "run".to_owned()];
    if let Some(socket) = wish.socket {
        words.extend(["--socket".to_owned(), word(utf8(socket)?)]);
    }
    words.extend(["--vram".to_owned(), typed_size(wish.vram), "--tier".to_owned(), tier.to_owned()]);
    words.extend(["--name".to_owned(), word(name), "--".to_owned()]);
    let mut lines = vec![
        format!("# Written by `sublet attach`; `sublet detach unit:{}` removes it, unless it was changed.", unit.name),
        "# The unit asks for its lease before it starts, and waits for its turn.".to_owned(),
        "[Service]".to_owned(),
        "ExecStart=".to_owned(),
        format!("ExecStart={}{} {}", unit.prefix, words.join(" "), unit.command),
        "# By its exit code `sublet run` tells which signal ended it; these are no failure.".to_owned(),
        "SuccessExitStatus=129 130 141 143".to_owned(),
    ];
    if !unit.says_kill {
        lines.push("# `sublet run` passes signals on: nobody gets one twice.".to_owned());
        lines.push("KillMode=mixed".to_owned());
    }
    if unit.notifies {
        lines.push(
            "# It is not the first process any more that says when it is ready, and it may wait in the queue."
                .to_owned(),
        );
        lines.push("NotifyAccess=all".to_owned());
        lines.push("TimeoutStartSec=infinity".to_owned());
    }
    let rest = lines.join("\n") + "\n";
    Ok(format!("{MARK}{}\n{rest}", hash(&rest)))
}

fn hash(rest: &str) -> String {
    blake3::hash(rest.as_bytes()).to_hex().to_string()
}

fn utf8(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| Failure::usage(format!("{} is not written in UTF-8", path.display())))
}

/// The program to start: there variables are not looked for, and cannot be kept from being.
fn program(path: &Path) -> Result<String, Failure> {
    let text = utf8(path)?;
    if text.contains(['$', '\n']) {
        return Err(Failure::usage(format!("systemd cannot start {}", path.display())));
    }
    Ok(word(text))
}

/// A text that systemd reads as one word, and as it is.
fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '%' | '$' => quoted.extend([c, c]),
            '\n' => quoted.push_str("\\n"),
            _ => quoted.push(c),
        }
    }
    quoted + "\""
}

/// What is where the drop-in belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Ours,
    /// Ours, and changed since.
    Changed,
    Foreign,
}

/// A unit's drop-in of ours, whether it is there or not.
#[derive(Clone, Debug)]
pub struct DropIn {
    path: PathBuf,
}

impl DropIn {
    /// Where it belongs.
    pub fn at(manager: &Manager, unit: &str) -> DropIn {
        DropIn { path: manager.own(unit).join(FILE) }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a file is there, whoever wrote it.
    pub fn is_there(&self) -> bool {
        self.path.symlink_metadata().is_ok()
    }

    fn find(&self) -> Result<Found, Failure> {
        let read = match self.path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
            Err(error) => Err(error),
            // Nobody here makes links.
            Ok(found) if !found.is_file() => return Ok(Found::Foreign),
            Ok(_) => fs::read(&self.path),
        };
        let bytes = read.map_err(|error| self.failed("read", &error))?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(match text.split_once('\n').and_then(|(first, rest)| Some((first.strip_prefix(MARK)?, rest))) {
            None => Found::Foreign,
            Some((mark, rest)) if mark == hash(rest) => Found::Ours,
            Some(_) => Found::Changed,
        })
    }

    /// Fails if something is there that is not exactly what was written.
    pub fn must_be_ours(&self) -> Result<(), Failure> {
        let (what, hint) = match self.find()? {
            Found::Nothing | Found::Ours => return Ok(()),
            Found::Changed => ("was changed since sublet wrote it", "look what was changed, and remove it yourself"),
            Found::Foreign => ("was not written by sublet", "move it away yourself if you do not need it"),
        };
        Err(Failure::new(exit::FAILURE, format!("{} {what}: it stays", self.path.display())).hint(hint))
    }

    /// Writes it, in place of an older one of ours or where nothing is, at once or not at all.
    pub fn put(&self, text: &str) -> Result<(), Failure> {
        self.must_be_ours()?;
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(dir).map_err(|error| self.failed("written", &error))?;
        // systemd reads what ends with `.conf`, and nothing else.
        let new = dir.join(format!(".{FILE}.new-{}", std::process::id()));
        let put = write(&new, text).and_then(|()| fs::rename(&new, &self.path));
        put.map_err(|error| {
            // It may never have been there.
            let _ = fs::remove_file(&new);
            self.failed("written", &error)
        })
    }

    /// Removes it, and its directory if nothing else is in there.
    pub fn remove(&self) -> Result<(), Failure> {
        self.must_be_ours()?;
        fs::remove_file(&self.path).map_err(|error| self.failed("removed", &error))?;
        if let Some(dir) = self.path.parent() {
            // One that is not empty stays: the kernel refuses.
            let _ = fs::remove_dir(dir);
        }
        Ok(())
    }

    fn failed(&self, what: &str, error: &io::Error) -> Failure {
        let message = format!("{} cannot be {what}: {error}", self.path.display());
        match error.kind() {
            io::ErrorKind::PermissionDenied => Failure::new(exit::DENIED, message)
                .hint("the system's units are root's: use sudo, or `--user` for a unit of your own"),
            _ => Failure::new(exit::FAILURE, message),
        }
    }
}

fn write(file: &Path, text: &str) -> io::Result<()> {
    let mut open = File::options().write(true).create_new(true).mode(0o644).open(file)?;
    open.write_all(text.as_bytes())?;
    open.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn unit(notifies: bool) -> Unit {
        let command = "/usr/bin/ollama serve".to_owned();
        Unit { name: "ollama.service".into(), prefix: "-".into(), command, notifies, says_kill: notifies }
    }

    fn wish(sublet: &str) -> Wish<'_> {
        Wish { sublet: Path::new(sublet), socket: None, vram: 8 << 30, tier: TierArg::Interactive }
    }

    #[test]
    fn a_unit_is_started_through_sublet_run() {
        let said = text(&unit(false), &wish("/usr/local/bin/sublet")).unwrap();
        expect![[r#"
            # Written by `sublet attach`; `sublet detach unit:ollama.service` removes it, unless it was changed.
            # The unit asks for its lease before it starts, and waits for its turn.
            [Service]
            ExecStart=
            ExecStart=-/usr/local/bin/sublet run --vram 8G --tier interactive --name ollama -- /usr/bin/ollama serve
            # By its exit code `sublet run` tells which signal ended it; these are no failure.
            SuccessExitStatus=129 130 141 143
            # `sublet run` passes signals on: nobody gets one twice.
            KillMode=mixed
        "#]]
        .assert_eq(said.split_once('\n').unwrap().1);
        let wish = Wish { socket: Some(Path::new("/run/a b/s%.sock")), ..wish("/opt/my tools/sublet") };
        let said = text(&unit(true), &wish).unwrap();
        expect![[r#"
            ExecStart=
            ExecStart=-"/opt/my tools/sublet" run --socket "/run/a b/s%%.sock" --vram 8G --tier interactive --name ollama -- /usr/bin/ollama serve
            # By its exit code `sublet run` tells which signal ended it; these are no failure.
            SuccessExitStatus=129 130 141 143
            # It is not the first process any more that says when it is ready, and it may wait in the queue.
            NotifyAccess=all
            TimeoutStartSec=infinity
        "#]]
        .assert_eq(said.split_once("[Service]\n").unwrap().1);
    }

    #[test]
    fn words_are_written_so_that_systemd_reads_them_as_they_are() {
        assert_eq!(word("a/b.c"), "a/b.c");
        assert_eq!(word(r#"a "b" \x $c %d"#), r#""a \"b\" \\x $$c %%d""#);
        assert!(program(Path::new("/a$b/sublet")).is_err());
    }

    #[test]
    fn only_what_is_exactly_ours_is_replaced_or_removed() {
        let dir = tempfile::tempdir().unwrap();
        let file = DropIn { path: dir.path().join("a.service.d").join(FILE) };
        let said = text(&unit(false), &wish("/bin/sublet")).unwrap();
        assert_eq!(file.find().unwrap(), Found::Nothing);
        file.put(&said).unwrap();
        file.put(&said).unwrap();
        assert_eq!(file.find().unwrap(), Found::Ours);
        for (other, found) in [(said.replace("8G", "9G"), Found::Changed), ("[Service]\n".into(), Found::Foreign)] {
            fs::write(file.path(), &other).unwrap();
            assert_eq!(file.find().unwrap(), found);
            assert!(file.put(&said).is_err() && file.remove().is_err());
            assert_eq!(fs::read_to_string(file.path()).unwrap(), other, "it stays as it is");
        }
        fs::write(file.path(), &said).unwrap();
        file.remove().unwrap();
        assert!(!file.path().parent().unwrap().exists(), "nothing is left");
    }
}
