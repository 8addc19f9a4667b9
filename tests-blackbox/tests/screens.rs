//! What a person sees: screens of a real service, at 80×24 and at 120×40, as checked-in files.
//!
//! The files hold screens as they were seen. Two screens are equal if they have the same words; lengths of time, GiB
//! hours, process ids, UUIDs of GPUs and the folder of the test may differ, and with them the place where a sentence is
//! wrapped.
//! `UPDATE_EXPECT=1` writes the files anew: look at them before you commit them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use sublet_blackbox::binary::{example, root, sublet};
use sublet_blackbox::programs::{UnleasedProgram, WrappedProgram, await_bytes, await_state, successful_output};
use sublet_blackbox::service::bare_command;
use sublet_blackbox::unleased::await_found;
use sublet_blackbox::{ProgramTerminal, ServiceSetup, TestGpu, TestService};
use sublet_wire::LeaseState;

/// No time slice ends during the test, and no lease is preempted by itself.
const CONFIG: &str = "ttl = \"5m\"\n[preemption]\nenabled = false\n[parking]\nram = \"8G\"\nready = \"off\"\n";
/// What ends a screen.
const END: &str = "(end of the screen)";

/// The commands whose screens are kept.
const COMMANDS: [&[&str]; 18] = [
    &[],
    &["ps"],
    &["ps", "--all"],
    &["queue"],
    &["explain", "L1"],
    &["explain", "L2"],
    &["explain", "sweep"],
    &["gpus"],
    &["usage"],
    &["usage", "--by", "lease"],
    &["enforce", "status"],
    &["stop", "L99"],
    &["stop", "nothing"],
    &["run", "--vram", "100G", "--", "true"],
    &["run", "--vram", "7G", "--on", "0", "--no-wait", "--", "true"],
    &["run", "--mem", "7G", "--", "true"],
    &["-h"],
    &["run", "-h"],
];

/// Two soft GPUs with a busy lease, a parked one, an unleased process, and two requests that wait.
struct Host {
    service: TestService,
    user: String,
    _programs: [WrappedProgram; 3],
    _alone: UnleasedProgram,
}

impl Host {
    fn start() -> Host {
        let gpu = TestGpu::Named("soft:2x8GiB");
        let service =
            TestService::start_with(ServiceSetup { gpu, config: Some(CONFIG.to_owned()), ..ServiceSetup::default() });
        let client = service.client();
        let hold = example("hold");
        let train = WrappedProgram::start(
            &service,
            &["--vram", "6G", "--on", "0", "--name", "train", "--", &hold, "2GiB", "--idle"],
        );
        await_bytes(&client, "L1", 2048);
        // Longer than the column at 80; at 120 the line has room for it, however long process ids are.
        let notebook = ["--vram", "4G", "--on", "1", "--tier", "interactive", "--name", "notebook-of-lucia"];
        let notebook = WrappedProgram::start(&service, &[&notebook[..], &["--", &hold, "1GiB", "--idle"]].concat());
        await_bytes(&client, "L2", 1024);
        let alone = UnleasedProgram::start_holding(&service, 512);
        await_found(&service, &alone);
        successful_output(&service, &["park", "L2"]);
        await_state(&client, "L2", LeaseState::Parked);
        let sweep = WrappedProgram::start(&service, &["--vram", "6G", "--on", "0", "--name", "sweep", "--", "true"]);
        await_state(&client, "L3", LeaseState::Waiting);
        let user = client.lease("L1").user;
        Host { service, user, _programs: [train, notebook, sweep], _alone: alone }
    }

    /// The command on a terminal of this size, which shows colours.
    fn terminal(&self, words: &[&str], (columns, rows): (u16, u16), environment: &[(&str, &str)]) -> ProgramTerminal {
        let mut command = bare_command(Path::new("/bin/sh"), self.service.dir());
        command
            .env("SUBLET_SOCKET", self.service.dir().join("s"))
            .env("TERM", "xterm")
            .envs(environment.iter().copied());
        command.args(["-c", &format!("trap : INT; \"$@\"; echo '{END}'"), "sh"]).arg(sublet()).args(words);
        ProgramTerminal::open_sized(command, columns, rows)
    }

    /// What the terminal shows once the command has ended.
    fn shown(&self, words: &[&str], size: (u16, u16)) -> String {
        let terminal = self.terminal(words, size, &[]);
        terminal.await_screen_text(END);
        terminal.text().split(END).next().unwrap_or_default().to_owned()
    }

    /// What `sublet run` shows while it waits.
    fn waiting(&self, size: (u16, u16)) -> String {
        let words = ["run", "--vram", "6G", "--on", "0", "--name", "eval", "--", "true"];
        let terminal = self.terminal(&words, size, &[]);
        terminal.await_screen_text(" waits, place 2");
        terminal.type_line("\x03");
        terminal.await_screen_text(END);
        let text = terminal.text();
        text.split(END).next().unwrap_or_default().replace("^C", "")
    }

    /// The words of a screen that are the same in every run of the test.
    fn words(&self, text: &str) -> Vec<String> {
        let folder = self.service.dir().to_string_lossy().into_owned();
        let all: Vec<String> = text.replace(&folder, "/tmp/sublet").split_whitespace().map(str::to_owned).collect();
        let mut words: Vec<String> = Vec::new();
        let mut rest = &all[..];
        while let Some((word, after)) = rest.split_first() {
            rest = after;
            let unit = after.first().map(|unit| unit.trim_end_matches([',', ';', ':', '.', ')']));
            let is_time =
                word.trim_start_matches('(').parse::<f64>().is_ok() && unit.is_some_and(|unit| UNITS.contains(&unit));
            let mut numbers = word.trim_matches(['(', ')', ',', ':']).split(',').map(str::parse::<u32>);
            let is_pid = numbers.all(|number| number.is_ok_and(|number| number > 30));
            if is_time {
                rest = &after[1..];
                words.extend((words.last().is_none_or(|last| last != "TIME")).then(|| "TIME".to_owned()));
            } else if is_pid {
                words.push("PID".to_owned());
            } else if word.split_once('.').is_some_and(|(_, cents)| cents.len() == 2 && word.parse::<f64>().is_ok()) {
                words.push("GIB-HOURS".to_owned());
            } else if word.starts_with("GPU-") {
                words.push("UUID".to_owned());
            } else if *word == self.user {
                words.push("ann".to_owned());
            } else {
                words.push(word.clone());
            }
        }
        words
    }

    fn compare(&self, size: (u16, u16), screens: &str) {
        let path = root().join(format!("tests-blackbox/screens/{}x{}.txt", size.0, size.1));
        let kept = fs::read_to_string(&path).unwrap_or_default();
        let differs = self.words(&kept) != self.words(screens);
        if differs && std::env::var_os("UPDATE_EXPECT").is_some() {
            let folder = self.service.dir().to_string_lossy().into_owned();
            let shown = screens.replace(&folder, "/tmp/sublet");
            return fs::write(&path, shown).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
        for (kept, screen) in kept.split("\n$ ").zip(screens.split("\n$ ")) {
            let same = self.words(kept) == self.words(screen);
            assert!(
                same,
                "{} is\n{kept}\nand the screen now is\n{screen}\n(UPDATE_EXPECT=1 writes it)",
                path.display()
            );
        }
        assert!(!differs, "{} has other screens: UPDATE_EXPECT=1 writes it", path.display());
    }
}

const UNITS: [&str; 4] = ["s", "min", "h", "d"];

#[test]
fn screens_are_as_they_were_looked_at() {
    let host = Host::start();
    for size in [(80, 24), (120, 40)] {
        let mut screens = String::new();
        for words in COMMANDS {
            let shown = host.shown(words, size);
            for line in shown.lines() {
                assert!(line.chars().count() <= usize::from(size.0), "{words:?} is wider than {}: {line}", size.0);
            }
            let line = ["sublet"].iter().chain(words).copied().collect::<Vec<_>>().join(" ");
            // Writing to a string cannot fail.
            let _ = writeln!(screens, "$ {line}\n{}\n", shown.trim_end());
        }
        let _ =
            writeln!(screens, "$ sublet run --vram 6G --on 0 --name eval -- true\n{}", host.waiting(size).trim_end());
        host.compare(size, &screens);
    }
}

#[test]
fn colour_is_for_terminals_only_and_not_with_no_color() {
    let host = Host::start();
    let shown = |environment: &[(&str, &str)]| {
        let terminal = host.terminal(&["ps"], (80, 24), environment);
        terminal.await_screen_text(END);
        terminal.screen_text()
    };
    let coloured = shown(&[]);
    assert!(
        coloured.contains("\x1b[33mparked\x1b[0m") && coloured.contains("\x1b[33mwaiting, place 1\x1b[0m"),
        "{coloured:?}"
    );
    assert!(!shown(&[("NO_COLOR", "1")]).contains('\x1b'));
    let piped = successful_output(&host.service, &["ps"]);
    assert!(!piped.contains('\x1b') && piped.contains("notebook-of-lucia"), "{piped}");
}

#[test]
fn no_screen_is_wider_than_a_narrow_terminal() {
    let host = Host::start();
    let doctor: &[&str] = &["doctor"];
    let audit: &[&str] = &["audit"];
    for words in COMMANDS[..12].iter().copied().chain([doctor, audit]) {
        let shown = host.shown(words, (80, 24));
        let wide = shown.lines().find(|line| line.chars().count() > 80 && line.contains(' '));
        assert!(wide.is_none(), "{words:?}: {wide:?}");
    }
}
