//! `sublet config check`: every error in a configuration file, each with its line and what to do.
//!
//! The file is settled as the daemon settles it. An error is reported, the lines of its key are blanked, and the rest
//! is settled again, until nothing is wrong: so each rule exists once, and one run still finds all errors. Blanked
//! lines stay in the text as empty lines, so later errors keep their line numbers.

use super::error::KeyPath;
use super::{Config, ConfigError, LoadedConfig, TcpConfig};
use crate::http::tls;
use crate::writer::chain;
use std::ops::Range;
use std::path::Path;
use sublet_wire::size;
use toml::de::{DeTable, DeValue};

/// More errors than this are not listed.
const FINDINGS_MAX: usize = 50;
/// Two words that are less alike than this are not a typing error.
const ALIKE: f64 = 0.75;

/// One error in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The line of the file, from 1; `None` for an error that no line has.
    pub line: Option<usize>,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Finding {
    /// The finding with the file and the line before it, as compilers write it.
    pub fn located(&self, file: Option<&Path>) -> String {
        let file = file.map_or_else(String::new, |file| file.display().to_string());
        match self.line {
            Some(line) => format!("{file}:{line}: {}", self.message),
            None if file.is_empty() => self.message.clone(),
            None => format!("{file}: {}", self.message),
        }
    }
}

/// The summary of a good configuration: topics, each with a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedConfig(pub Vec<(&'static str, String)>);

/// Reads a configuration as the daemon would with these flags; without a file, everything is at its default.
pub fn check(path: Option<&Path>, flags: &TcpConfig) -> Result<CheckedConfig, Vec<Finding>> {
    let Some(path) = path else {
        return read_and_settle(Config::default(), flags).map_err(|error| vec![without_line(&error)]);
    };
    let unreadable = |source| without_line(&Error::Config(ConfigError::Unreadable { path: path.to_owned(), source }));
    let mut text = std::fs::read_to_string(path).map_err(|source| vec![unreadable(source)])?;
    let mut findings = Vec::new();
    while findings.len() < FINDINGS_MAX {
        let error =
            match Config::parse(&text, path).map_err(Error::Config).and_then(|config| read_and_settle(config, flags)) {
                Ok(checked) if findings.is_empty() => return Ok(checked),
                Ok(_) => break,
                Err(error) => error,
            };
        let line = place(&text, &error).map(|place| line_of(&text, place.start));
        let finding = Finding { line, ..without_line(&error) };
        // Blanking did not help: the rest of the file cannot be judged.
        if findings.contains(&finding) {
            break;
        }
        findings.push(finding);
        match blanked(&text, &error).and_then(|place| without(&text, place)) {
            Some(rest) => text = rest,
            None => break,
        }
    }
    findings.sort_by_key(|finding| finding.line);
    Err(findings)
}

/// Why a configuration cannot be used.
enum Error {
    Config(ConfigError),
    /// The certificate or its key.
    Tls(tls::TlsError),
}

fn read_and_settle(config: Config, flags: &TcpConfig) -> Result<CheckedConfig, Error> {
    let settled = config.over(flags).settle().map_err(Error::Config)?;
    if let Some((cert, key)) = settled.tcp.as_ref().and_then(|tcp| tcp.tls.as_ref()) {
        tls::read(cert, key).map_err(Error::Tls)?;
    }
    Ok(summary(&settled))
}

fn summary(settled: &LoadedConfig) -> CheckedConfig {
    let gpus = settled
        .gpu
        .as_ref()
        .map_or_else(|| "real ones; soft ones where no NVIDIA device is visible".to_owned(), ToString::to_string);
    let group = |gid: u32| {
        uzers::get_group_by_gid(gid).map_or(gid.to_string(), |group| group.name().to_string_lossy().into_owned())
    };
    let operators = settled.operators_gid.map_or_else(
        || "root and the daemon's own user".to_owned(),
        |gid| format!("root, the daemon's own user, and members of the group {}", group(gid)),
    );
    let socket = settled
        .socket_gid
        .map_or_else(|| "every local user".to_owned(), |gid| format!("root and members of the group {}", group(gid)));
    let count = |n: usize, one: &str| if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") };
    let users = settled.policy.caps_of.len();
    let rules = [
        count(users, "user"),
        count(settled.groups.len(), "group"),
        format!("{} of the day", count(settled.hours.len(), "window")),
    ];
    let tcp = settled.tcp.as_ref().map_or_else(
        || "off".to_owned(),
        |tcp| match &tcp.tls {
            Some((cert, _)) => format!("{} with the certificate {}", tcp.listen, cert.display()),
            None => format!("{} without TLS", tcp.listen),
        },
    );
    let parking = match settled.policy.parking.space.0 {
        0 => "off".to_owned(),
        ram => format!("up to {} of host memory", size::show(ram)),
    };
    CheckedConfig(vec![
        ("GPUs", gpus),
        ("socket", socket),
        ("operators", operators),
        ("own rules", format!("for {}", rules.join(", "))),
        ("parking", parking),
        ("TCP", tcp),
    ])
}

/// An error without its line.
fn without_line(error: &Error) -> Finding {
    let (message, hint) = match error {
        Error::Config(ConfigError::Wrong { source, .. }) => unreadable(source.message()),
        Error::Config(error) => (chain(error), error.hint().map(str::to_owned)),
        Error::Tls(error) => {
            (chain(error), Some("both files are PEM, and the daemon's user must be able to read them".to_owned()))
        }
    };
    Finding { line: None, message, hint }
}

/// The TOML reader's error, with the key that may have been meant.
fn unreadable(message: &str) -> (String, Option<String>) {
    let message = message.trim().lines().collect::<Vec<_>>().join("; ");
    let mut words = message.split('`').skip(1).step_by(2);
    // The names of Rust's types are not those of TOML.
    let plain = |text: String, (rust, toml): (&str, &str)| {
        text.replace(&format!("expected {rust}"), &format!("expected {toml}"))
    };
    let numbers =
        [("usize", "a whole number"), ("u32", "a whole number"), ("u64", "a whole number"), ("f64", "a number")];
    let Some(odd) = words.next().filter(|_| message.starts_with("unknown field")) else {
        let message = numbers.into_iter().fold(message.clone(), plain);
        return (message, Some("docs/reference/configuration.md lists every key".to_owned()));
    };
    let alike = words.map(|known| (strsim::jaro_winkler(odd, known), known)).max_by(|a, b| a.0.total_cmp(&b.0));
    let hint = match alike.filter(|(alike, _)| *alike >= ALIKE) {
        Some((_, known)) => format!("is `{known}` meant? docs/reference/configuration.md lists every key"),
        None => "docs/reference/configuration.md lists every key".to_owned(),
    };
    (format!("there is no key `{odd}` here"), Some(hint))
}

/// Where in the text an error is: its key, and what it is set to.
fn place(text: &str, error: &Error) -> Option<Range<usize>> {
    let key = match error {
        Error::Config(ConfigError::Wrong { source, .. }) => return source.span(),
        Error::Config(error) => error.key()?,
        Error::Tls(_) => "tcp.tls_cert".into(),
    };
    find(text, &key)
}

/// What to blank so that the rest can be judged: the key, or all keys that make no sense without it.
fn blanked(text: &str, whole: &Error) -> Option<Range<usize>> {
    match whole {
        Error::Tls(_) | Error::Config(ConfigError::HalfTcp { .. } | ConfigError::PlainTcp { .. }) => {
            find(text, &"tcp".into())
        }
        Error::Config(error) => match error.key() {
            Some(key) if key.parts()[0] == "windows" => find(text, &key.outermost(2)),
            _ => place(text, whole),
        },
    }
}

fn find(text: &str, path: &KeyPath) -> Option<Range<usize>> {
    let table = DeTable::parse(text).ok()?;
    let mut place = table.span();
    let mut inside = DeValue::Table(table.into_inner());
    for name in path.parts() {
        let value = match inside {
            DeValue::Table(table) => {
                let (key, value) = table.into_iter().find(|(key, _)| key.get_ref() == name)?;
                place = key.span().start.min(value.span().start)..key.span().end.max(value.span().end);
                value
            }
            DeValue::Array(tables) => {
                let value = tables.into_iter().nth(name.parse().ok()?)?;
                place = value.span();
                value
            }
            _ => return None,
        };
        inside = value.into_inner();
    }
    Some(place)
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// The text with the lines of a place blanked, a whole table if it begins with one; `None` if it is no TOML then.
fn without(text: &str, place: Range<usize>) -> Option<String> {
    // What cannot be read at all cannot be mended by leaving a line out.
    DeTable::parse(text).ok()?;
    let (first, last) = (line_of(text, place.start), line_of(text, place.end.max(place.start + 1) - 1));
    let is_header = |line: &str| line.trim_start().starts_with('[');
    let mut in_table = false;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.split('\n')) {
        let is_meant = (first..=last).contains(&number);
        in_table = (in_table && !is_header(line)) || (is_meant && is_header(line));
        lines.push(if is_meant || in_table { "" } else { line });
    }
    let rest = lines.join("\n");
    (rest != text && DeTable::parse(&rest).is_ok()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check_text(text: &str, expected: &Expect) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sublet.toml");
        std::fs::write(&file, text).unwrap();
        let told = match check(Some(&file), &TcpConfig::default()) {
            Ok(CheckedConfig(found)) => found.into_iter().map(|(topic, text)| format!("{topic}: {text}\n")).collect(),
            Err(findings) => findings
                .into_iter()
                .map(|finding| {
                    let line = finding.line.map_or("-".to_owned(), |line| line.to_string());
                    let hint = finding.hint.map_or(String::new(), |hint| format!(" / {hint}"));
                    format!("{line}: {}{hint}\n", finding.message)
                })
                .collect::<String>(),
        };
        expected.assert_eq(&told);
    }

    #[test]
    fn a_good_file_is_summarized() {
        check_text(
            "operators = \"root\"\nsocket_group = \"root\"\n[parking]\nram = \"16G\"\n[users.0]\nleases = 2\n",
            &expect![[r#"
                GPUs: real ones; soft ones where no NVIDIA device is visible
                socket: root and members of the group root
                operators: root, the daemon's own user, and members of the group root
                own rules: for 1 user, 0 groups, 0 windows of the day
                parking: up to 16 GiB of host memory
                TCP: off
            "#]],
        );
    }

    #[test]
    fn every_error_is_found_with_its_line() {
        check_text(
            r#"# comment
ttl = "5"
renewal_cop = "1h"
queue_max = "many"

[users.no-such-user-here]
vram = "1G"

[users.0]
vram = "lots"
share = 0

[[windows]]
from = "09:00"
to = "18:00"
[[windows]]
from = "9"
to = "18:00"

[tcp]
listen = "0.0.0.0:7474"
"#,
            &expect![[r#"
                2: `ttl = "5"` makes no sense: write a whole number and s, m, h or d, such as 90s, 30m or 1h30m
                3: there is no key `renewal_cop` here / is `renewal_cap` meant? docs/reference/configuration.md lists every key
                4: invalid type: string "many", expected a whole number / docs/reference/configuration.md lists every key
                6: there is no user `no-such-user-here` on this host / `getent passwd` lists users; a uid is good too
                10: `users.0.vram = "lots"` makes no sense: write a number and K, M, G or T (powers of 1024), such as 16G or 1.5GiB
                11: `users.0.share = "0"` makes no sense: it must be at least 1; leave the key out for the default
                17: `windows.1.from = "9 to 18:00"` makes no sense: write times as "09:00"
                21: without a certificate the service listens on this host only, and 0.0.0.0:7474 is reached from others / give a certificate with `tls_cert` and `tls_key` (`--tls-cert`, `--tls-key`), or listen on 127.0.0.1
            "#]],
        );
    }

    #[test]
    fn a_file_without_toml_has_one_error() {
        check_text(
            "ttl = \"5m\"\nwait = 1d\ngrace = \n",
            &expect![[r#"
            2: string values must be quoted, expected literal string / docs/reference/configuration.md lists every key
        "#]],
        );
        check_text(
            "[tcp]\nlisten = \"127.0.0.1:1\"\ntls_cert = \"c\"\n",
            &expect![[r#"
            3: `tls_cert` is given, and `tls_key` is not / give both, and the address to listen on, or none of the three
        "#]],
        );
        check_text(
            "[tcp]\nlisten = \"127.0.0.1:1\"\ntls_cert = \"/no\"\ntls_key = \"/no\"\n",
            &expect![[r#"
                3: no certificate can be read from `/no`: I/O error: No such file or directory (os error 2) / both files are PEM, and the daemon's user must be able to read them
            "#]],
        );
    }
}
