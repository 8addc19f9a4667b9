//! README and the guides, typed by a person: every console block is run, and shows what is printed.
//!
//! - Each document has a daemon of its own with two soft GPUs of 24 GiB, as `cargo xtask up` has them without an NVIDIA
//!   device, or with those of a comment `<!-- gpus: soft:1x24GiB -->`. Its terminals last from its first block to its
//!   last one.
//! - `$ COMMAND` is typed in one terminal, `one$ COMMAND` in a terminal called `one`. `# COMMAND` is typed by the test's
//!   user too, which is the daemon's own and so an operator. `one$ …` goes on with what that terminal shows. What
//!   follows two spaces and `#` is a remark, as is what follows `…` at a prompt.
//! - A person types 10 characters a second, and types into a terminal when its last command is over. A command that the
//!   document goes on with later (`one$ …`) must still run when another one has been typed elsewhere. At its end
//!   each command is waited for, and must have succeeded unless the document shows `error:`.
//! - A command that only shows something is typed again, for 30 s, until it shows what the document shows.
//! - What is shown below a prompt is all that is printed, line by line. `…` is any text in a line, and any lines as a line
//!   of its own. Not compared: spans of time, numbers of three digits and more (processes), checksums, the width of
//!   columns. `ann` is the test's user. A number of a process that was shown can be typed later. A line that the
//!   program draws over, such as that of a waiter, may be shown or left out.
//! - A comment `<!-- not run: REASON -->` before a block leaves it out; the reasons are in [`NOT_RUN`]. Of these blocks
//!   every command line of `sublet` is still parsed, as of all documents (crates/cli/src/documents.rs).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use sublet_blackbox::binary::{root, sublet};
use sublet_blackbox::console::{Block, ConsoleStep, Printed, blocks, comment, find, ids, is_alike, printed};
use sublet_blackbox::service::bare_command;
use sublet_blackbox::{LONG, ProgramTerminal, ServiceSetup, TestGpu, TestService, until};

/// Why a block may be left out.
const NOT_RUN: [(&str, &str); 5] = [
    ("host", "it changes the host: packages, /etc, systemd"),
    ("cargo", "it builds the workspace"),
    ("machines", "it needs another machine"),
    ("users", "it needs another user"),
    ("programs", "it needs programs that are not here, such as PyTorch or Ollama"),
];
/// Documents with blocks that are run.
const TYPED: [&str; 5] = [
    "README.md",
    "docs/guide/administrators.md",
    "docs/guide/share-one-gpu.md",
    "docs/guide/training.md",
    "docs/guide/unleased-processes.md",
];
/// How fast a person types.
const CHARACTER: Duration = Duration::from_millis(100);
/// Commands that only show something. A person types one again if it does not show yet what the document shows.
const LOOKS: [&str; 4] = ["sublet enforce status", "sublet explain", "sublet ps", "sublet gpus"];
/// For so long.
const LOOKED_FOR: Duration = Duration::from_secs(30);
/// What a shell prints around the exit code of the last command.
const PROMPT: &str = "@@";

#[test]
fn documents_are_as_typed() {
    // They mostly wait, for a person and for programs: all at once takes as long as the longest.
    thread::scope(|scope| {
        let readers = TYPED.map(|name| (name, scope.spawn(|| type_all(name))));
        let failed = readers.map(|(name, reader)| reader.join().is_err().then_some(name));
        assert_eq!(failed, [None; TYPED.len()], "what is wrong is said above");
    });
}

#[test]
fn every_block_is_run_or_says_why_not() {
    let mut typed = BTreeSet::new();
    for name in documents() {
        for block in blocks(&read(&name)) {
            match &block.not_run {
                None => drop(typed.insert(name.clone())),
                Some(reason) => {
                    let why = NOT_RUN.iter().find(|(known, _)| known == reason);
                    let (_, why) =
                        why.unwrap_or_else(|| panic!("{name}:{}: there is no reason `{reason}`", block.line));
                    eprintln!("not run: {name}:{}: {why}", block.line);
                }
            }
        }
    }
    assert_eq!(typed, TYPED.map(str::to_owned).into(), "documents with blocks to run, and those that have a test");
}

#[test]
fn links_of_documents_lead_to_files() {
    let mut files = vec!["README.md".to_owned(), "ARCHITECTURE.md".to_owned(), "CHANGELOG.md".to_owned()];
    for folder in ["docs", "docs/guide", "docs/reference", "docs/recipes", "docs/decisions", "docs/measurements"] {
        files.extend(markdown(folder));
    }
    let mut wrong = Vec::new();
    for name in files {
        let text = read(&name);
        let folder = Path::new(&name).parent().expect("a file is in a folder");
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://") && !target.starts_with('#')) {
            let path = target.split('#').next().unwrap_or(target);
            if !root().join(folder).join(path).exists() {
                wrong.push(format!("{name}: {target}"));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn configurations_in_the_documents_are_accepted() {
    let service = TestService::start();
    let dir = service.dir().to_str().expect("test paths are plain");
    assert!(service.cli(&["tls", "make", "gpu1", "--dir", dir]).status.success());
    let mut count = 0;
    for name in documents().into_iter().chain(["docs/reference/configuration.md".to_owned()]) {
        let text = read(&name);
        for block in text.split("\n```toml\n").skip(1) {
            let block = block.split("\n```").next().unwrap_or(block);
            // Groups and certificates of other hosts.
            let here = block.replace("\"sublet\"", "\"root\"").replace("groups.lab", "groups.root");
            let file = service.dir().join("document.toml");
            fs::write(&file, here.replace("/etc/sublet", dir)).expect("a file can be written");
            let checked = service.cli(&["config", "check", file.to_str().expect("plain")]);
            assert!(checked.status.success(), "{name}: {}\n{block}", sublet_blackbox::programs::text(&checked));
            count += 1;
        }
    }
    assert!(count >= 3, "{count} blocks were found");
}

#[test]
fn reference_has_every_file_and_every_exit_code() {
    let service =
        TestService::start_with(ServiceSetup { gpu: TestGpu::Named("soft:1x8GiB"), ..ServiceSetup::default() });
    let files = read("docs/reference/files.md");
    let mut left_out = Vec::new();
    for (folder, socket) in [(service.state_dir(), false), (service.dir().to_path_buf(), true)] {
        for entry in fs::read_dir(folder).expect("a directory").flatten() {
            let name = entry.file_name().into_string().expect("a plain name");
            let name = match name.strip_prefix('s').filter(|_| socket) {
                Some(rest) if rest.is_empty() || rest.starts_with('.') => format!("sublet.sock{rest}"),
                _ => name,
            };
            if !files.contains(&format!("`{name}`")) && !["state", "log"].contains(&name.as_str()) {
                left_out.push(name);
            }
        }
    }
    assert_eq!(left_out, [""; 0], "docs/reference/files.md");
    use sublet_wire::exit;
    let codes = read("docs/reference/exit-codes.md");
    for code in [
        exit::FAILURE,
        exit::USAGE,
        exit::JOURNAL_MOVED,
        exit::NO_DAEMON,
        exit::LEASE_LOST,
        exit::DENIED,
        exit::CONFIG,
        exit::WAIT_OVER,
    ] {
        assert!(codes.contains(&format!("\n| {code} |")), "docs/reference/exit-codes.md has no {code}");
    }
}

#[test]
fn shown_lines_are_found_among_printed_ones() {
    let shown = |lines: &str| lines.lines().map(str::to_owned).collect::<Vec<_>>();
    let lines =
        printed("\r\x1b[KL2 waits, about 9 s\r\x1b[KL2 starts, after 2 h 3 min\r\n\x1b[1mstep\x1b[0m 1\r\ndone\r\n");
    let texts: Vec<(&str, bool)> = lines.iter().map(|line| (line.text.as_str(), line.is_redrawn)).collect();
    assert_eq!(
        texts,
        [("L2 waits, about 9 s", true), ("L2 starts, after 2 h 3 min", false), ("step 1", false), ("done", false)]
    );
    assert_eq!(find(&shown("L2 waits, about 1 min\nL2 starts, after 0 s"), &lines, false), Some(2));
    assert_eq!(find(&shown("L2 starts, after 0 s\n…\ndone"), &lines, false), Some(4), "a line that was redrawn");
    assert_eq!(find(&shown("L2 starts, after 0 s\ndone"), &lines, false), None, "a line is missing");
    assert_eq!(find(&shown("done"), &lines, true), Some(4));
    assert!(
        is_alike("peak … of 16 GiB", "peak 138 MiB of 16 GiB")
            && !is_alike("peak … of 16 GiB", "peak 138 MiB of 8 GiB")
    );
    assert!(is_alike("weights d91bb1165b4fa843 (pid 26208)", "weights 87c09e7fb8eb97cd (pid 4711)"));
    assert!(!is_alike("L2 starts", "L3 starts"));
    assert_eq!(ids("X1  26208  ann", "X1  4711  root")["26208"], "4711");
    let block =
        &blocks("<!-- not run: host -->\n```console\none$ a \\\n   b   # why\nc\n\n# d\none$ …   (later)\n```\n")[0];
    let steps: Vec<_> = block.steps.iter().map(|step| (step.terminal.as_str(), step.command.as_deref())).collect();
    assert_eq!(steps, [("one", Some("a b")), ("", Some("d")), ("one", None)]);
    assert_eq!((block.not_run.as_deref(), block.steps[0].shown.join("|")), (Some("host"), "c".to_owned()));
}

/// README and the guides.
fn documents() -> Vec<String> {
    [vec!["README.md".to_owned()], markdown("docs/guide")].concat()
}

fn markdown(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(folder)).expect("a folder of documents");
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut found: Vec<String> =
        names.filter(|name| name.ends_with(".md")).map(|name| format!("{folder}/{name}")).collect();
    found.sort();
    found
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Types all blocks of a document that can be run.
fn type_all(name: &str) {
    let text = read(name);
    let gpus = text.lines().find_map(|line| comment(line, "gpus")).unwrap_or("soft:2x24GiB").to_owned();
    let service = TestService::start_with(ServiceSetup { gpu: TestGpu::Named(gpus.leak()), ..ServiceSetup::default() });
    let blocks: Vec<Block> = blocks(&text).into_iter().filter(|block| block.not_run.is_none()).collect();
    let steps: Vec<&ConsoleStep> = blocks.iter().flat_map(|block| &block.steps).collect();
    let mut reader = Reader { name, service: &service, shells: BTreeMap::new(), numbers: BTreeMap::new() };
    for (at, step) in steps.iter().enumerate() {
        match &step.command {
            Some(command) => reader.types(step, command, &steps[at + 1..]),
            None => reader.looks(step),
        }
    }
    reader.waits_for_all();
}

/// A person with a document and some terminals.
struct Reader<'a> {
    name: &'a str,
    service: &'a TestService,
    shells: BTreeMap<String, Shell>,
    /// Numbers of processes in the document, and those that are meant.
    numbers: BTreeMap<String, String>,
}

/// A terminal with a shell.
struct Shell {
    terminal: ProgramTerminal,
    /// Where in all that it showed the output of its command begins.
    from: usize,
    /// So many lines of that were found in the document.
    seen: usize,
    /// The document left out what follows.
    is_open: bool,
    /// The document shows an error.
    may_fail: bool,
    /// What was typed.
    command: String,
}

impl Reader<'_> {
    fn types(&mut self, step: &ConsoleStep, command: &str, later: &[&ConsoleStep]) {
        let place = format!("{}:{}", self.name, step.line);
        let words = command.split(' ').map(|word| self.numbers.get(word).map_or(word, String::as_str));
        let command = words.collect::<Vec<_>>().join(" ");
        let service = self.service;
        let shell = self.shells.entry(step.terminal.clone()).or_insert_with(|| Shell::open(service));
        shell.ends(&place);
        sleep(CHARACTER * u32::try_from(command.chars().count()).expect("a line is short"));
        for (name, shell) in self.shells.iter().filter(|(name, _)| **name != step.terminal) {
            let next = later.iter().find(|later| later.terminal == *name);
            let goes_on = next.is_some_and(|next| next.command.is_none());
            let over = shell.output().1;
            assert!(
                !goes_on || over.is_none(),
                "{place}: the document goes on with `{}`, which was over before this was typed",
                shell.command
            );
        }
        self.shells.get_mut(&step.terminal).expect("it was opened").begin(&command);
        self.looks(step);
    }

    /// Waits until the terminal shows what the document shows.
    fn looks(&mut self, step: &ConsoleStep) {
        let place = format!("{}:{}", self.name, step.line);
        let shell = self.shells.get_mut(&step.terminal).unwrap_or_else(|| panic!("{place}: nothing runs there"));
        let user = user();
        let shown: Vec<String> = step.shown.iter().map(|line| with_user(line, &user)).collect();
        let skips = shell.is_open || step.command.is_none();
        let again = Instant::now() + LOOKED_FOR;
        let lines = until(&format!("{place}: {shown:#?} is printed"), LONG, || {
            let (lines, over) = shell.output();
            if let Some(end) = find(&shown, &lines[shell.seen..], skips) {
                shell.seen += end;
                return Ok(lines);
            }
            if over.is_some() {
                let may_look_again = LOOKS.iter().any(|look| shell.command.starts_with(look)) && Instant::now() < again;
                assert!(may_look_again, "{place}: shown is\n{}\nprinted was\n{}", shown.join("\n"), all(&lines));
                shell.begin(&shell.command.clone());
            }
            Err(all(&lines))
        });
        for line in &shown {
            let found = lines.iter().find(|printed| is_alike(line, &printed.text));
            self.numbers.extend(found.into_iter().flat_map(|printed| ids(line, &printed.text)));
        }
        shell.is_open = shown.last().is_some_and(|line| line.trim() == "…");
        shell.may_fail |= shown.iter().any(|line| line.starts_with("error:"));
    }

    fn waits_for_all(&mut self) {
        for (name, shell) in &self.shells {
            shell.ends(&format!("{}, terminal `{name}`", self.name));
        }
    }
}

impl Shell {
    fn open(service: &TestService) -> Shell {
        let folder = sublet().parent().expect("a file is in a folder");
        let mut command = bare_command(Path::new("/bin/sh"), service.dir());
        // Without the editor of lines, bash echoes nothing by itself.
        let shell = "stty -echo cols 300 rows 50 && exec bash --norc --noprofile --noediting -i";
        command.args(["-c", shell]).env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", folder.display()));
        command.env("SUBLET_SOCKET", service.dir().join("s")).env("TERM", "xterm").env("LANG", "C.UTF-8");
        command.env("PS1", format!("{PROMPT}$?{PROMPT}")).env("PS2", "").env("USER", user());
        let terminal = ProgramTerminal::open(command);
        let shell = Shell { terminal, from: 0, seen: 0, is_open: true, may_fail: false, command: String::new() };
        shell.ends("a shell starts");
        shell
    }

    fn begin(&mut self, command: &str) {
        self.from = self.terminal.screen_text().len();
        (self.seen, self.is_open, self.may_fail) = (0, false, false);
        self.command = command.to_owned();
        self.terminal.type_line(command);
    }

    /// What the command printed, and its exit code if it is over.
    fn output(&self) -> (Vec<Printed>, Option<String>) {
        let all = self.terminal.screen_text();
        let text = &all[self.from..];
        let mut parts = text.splitn(3, PROMPT);
        let (output, code, end) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
        (printed(output), end.and(code).map(str::to_owned))
    }

    /// Waits for the end of its command, of which everything must have been in the document.
    fn ends(&self, place: &str) {
        let (lines, code) = until(&format!("{place}: `{}` ends", self.command), LONG, || match self.output() {
            (lines, Some(code)) => Ok((lines, code)),
            (lines, None) => Err(all(&lines)),
        });
        eprintln!("{place}: `{}` printed\n{}", self.command, all(&lines));
        let more: Vec<Printed> = lines[self.seen..].iter().filter(|line| !line.is_redrawn).cloned().collect();
        assert!(self.is_open || more.is_empty(), "{place}: `{}` also printed\n{}", self.command, all(&more));
        assert!(code == "0" || self.may_fail, "{place}: `{}` exited with {code}:\n{}", self.command, all(&lines));
    }
}

fn all(lines: &[Printed]) -> String {
    lines.iter().map(|line| format!("  {}\n", line.text)).collect()
}

/// The name of the test's user.
fn user() -> String {
    let output = Command::new("id").arg("-un").output().expect("`id` is in coreutils");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A line with that name in place of `ann`.
fn with_user(line: &str, user: &str) -> String {
    let words = line.split_inclusive(|c: char| !c.is_alphanumeric());
    words
        .map(|word| {
            if word.trim_end_matches(|c: char| !c.is_alphanumeric()) == "ann" {
                word.replacen("ann", user, 1)
            } else {
                word.to_owned()
            }
        })
        .collect()
}
