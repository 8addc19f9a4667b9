//! The drop-in with which systemd starts a unit through `sublet run`: its text, and its file.

use super::unit::{FILE, Manager, Unit};
use crate::failure::Failure;
use crate::hold::ask::{TierArg, typed_size};
use crate::own_file::{self, OwnFile};
use crate::text;
use std::path::Path;

/// The beginning of the first line; the hash follows.
const MARK: &str = "# sublet drop-in ";

/// The request that the unit makes, and how to make it.
#[derive(Clone, Copy, Debug)]
pub struct UnitRequest<'a> {
    /// The path of this program.
    pub sublet: &'a Path,
    /// The daemon's socket, if one was given.
    pub socket: Option<&'a Path>,
    /// The requested bytes of a GPU.
    pub vram: u64,
    /// The tier of the request.
    pub tier: TierArg,
}

/// The drop-in's text.
pub fn text(unit: &Unit, wish: &UnitRequest<'_>) -> Result<String, Failure> {
    let name = unit.name.strip_suffix(".service").unwrap_or(&unit.name);
    let (sublet, tier) = (program(wish.sublet)?, text::tier(wish.tier.into()));
    let mut words = vec![sublet, "run".to_owned()];
    if let Some(socket) = wish.socket {
        words.extend(["--socket".to_owned(), word(utf8(socket)?)]);
    }
    words.extend(["--vram".to_owned(), typed_size(wish.vram), "--tier".to_owned(), tier.to_owned()]);
    words.extend(["--name".to_owned(), word(name), "--".to_owned()]);
    let mut lines = vec![
        format!("# Written by `sublet adopt`; `sublet unadopt unit:{}` removes it, unless it was changed.", unit.name),
        "# The unit requests its lease before its program starts, and waits in the queue.".to_owned(),
        "[Service]".to_owned(),
        "ExecStart=".to_owned(),
        format!("ExecStart={}{} {}", unit.prefix, words.join(" "), unit.command),
        "# `sublet run` exits with 128 + the signal that ended the program; these four are no failures.".to_owned(),
        "SuccessExitStatus=129 130 141 143".to_owned(),
    ];
    if !unit.says_kill {
        lines.push("# `sublet run` passes signals on, so that each process gets a signal once.".to_owned());
        lines.push("KillMode=mixed".to_owned());
    }
    if unit.notifies {
        lines.push("# The program, not `sublet run`, sends READY=1, and it may wait in the queue before.".to_owned());
        lines.push("NotifyAccess=all".to_owned());
        lines.push("TimeoutStartSec=infinity".to_owned());
    }
    let rest = lines.join("\n") + "\n";
    Ok(own_file::marked(MARK, &rest))
}

fn utf8(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| Failure::usage(format!("{} is not written in UTF-8", path.display())))
}

/// The program of an `ExecStart` line. systemd expands no variables there, and has no escape for `$`, so such a path is
/// refused.
pub fn program(path: &Path) -> Result<String, Failure> {
    let text = utf8(path)?;
    if text.contains(['$', '\n']) {
        return Err(Failure::usage(format!("systemd cannot start {}", path.display())));
    }
    Ok(word(text))
}

/// The text quoted so that systemd reads it as one word, without expansion.
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

/// The drop-in of Sublet's for a unit; it may not exist.
pub fn at(manager: &Manager, unit: &str) -> OwnFile {
    OwnFile::new(manager.own(unit).join(FILE), MARK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn unit(notifies: bool) -> Unit {
        let command = "/usr/bin/ollama serve".to_owned();
        Unit { name: "ollama.service".into(), prefix: "-".into(), command, notifies, says_kill: notifies }
    }

    fn wish(sublet: &str) -> UnitRequest<'_> {
        UnitRequest { sublet: Path::new(sublet), socket: None, vram: 8 << 30, tier: TierArg::Interactive }
    }

    #[test]
    fn a_unit_is_started_through_sublet_run() {
        let said = text(&unit(false), &wish("/usr/local/bin/sublet")).unwrap();
        expect![[r#"
            # Written by `sublet adopt`; `sublet unadopt unit:ollama.service` removes it, unless it was changed.
            # The unit requests its lease before its program starts, and waits in the queue.
            [Service]
            ExecStart=
            ExecStart=-/usr/local/bin/sublet run --vram 8G --tier interactive --name ollama -- /usr/bin/ollama serve
            # `sublet run` exits with 128 + the signal that ended the program; these four are no failures.
            SuccessExitStatus=129 130 141 143
            # `sublet run` passes signals on, so that each process gets a signal once.
            KillMode=mixed
        "#]]
        .assert_eq(said.split_once('\n').unwrap().1);
        let wish = UnitRequest { socket: Some(Path::new("/run/a b/s%.sock")), ..wish("/opt/my tools/sublet") };
        let said = text(&unit(true), &wish).unwrap();
        expect![[r#"
            ExecStart=
            ExecStart=-"/opt/my tools/sublet" run --socket "/run/a b/s%%.sock" --vram 8G --tier interactive --name ollama -- /usr/bin/ollama serve
            # `sublet run` exits with 128 + the signal that ended the program; these four are no failures.
            SuccessExitStatus=129 130 141 143
            # The program, not `sublet run`, sends READY=1, and it may wait in the queue before.
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
}
