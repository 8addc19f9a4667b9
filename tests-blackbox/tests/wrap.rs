//! `sublet wrap`: real scripts on a real PATH, run by a shell against a service with a scripted GPU.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use sublet_blackbox::binary::sublet;
use sublet_blackbox::service::bare_command;
use sublet_blackbox::{GIB, TestService};

/// Says on which lease it is and what it was told, and has an exit code of its own.
const TOOL: &str = "#!/bin/sh\nprintf '%s\\n' \"${SUBLET_LEASE-none}\" \"$@\"\nexit 7\n";
/// Runs itself by name, once.
const NESTED: &str = "#!/bin/sh\nprintf '%s\\n' \"$SUBLET_LEASE\"\n[ \"$1\" = last ] || exec nested last\n";
const SYSTEM: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// A service, and a user's home beside it with a folder of tools on PATH.
struct Home {
    service: TestService,
    /// What PATH begins with.
    first: Vec<PathBuf>,
}

impl Home {
    fn new() -> Home {
        let service = TestService::start();
        let tools = service.dir().join("tools");
        fs::create_dir(&tools).expect("a folder can be made");
        let home = Home { service, first: vec![tools] };
        home.tool("tool", TOOL);
        home
    }

    fn tools(&self) -> PathBuf {
        self.service.dir().join("tools")
    }

    /// The default folder of the wrappers.
    fn wrappers(&self) -> PathBuf {
        self.service.dir().join(".local/share/sublet/wrap/bin")
    }

    fn tool(&self, name: &str, text: &str) {
        write(&self.tools().join(name), text);
    }

    /// From now on what the shell's startup file would do.
    fn put_on_path(&mut self) {
        self.first.insert(0, self.wrappers());
    }

    fn in_path(&self, mut command: Command) -> Output {
        let first: String = self.first.iter().map(|dir| format!("{}:", dir.display())).collect();
        command.env("PATH", format!("{first}{SYSTEM}")).output().expect("a command can be started")
    }

    fn sublet(&self, line: &str) -> Output {
        self.in_path(self.service.command(&line.split(' ').collect::<Vec<_>>()))
    }

    fn wrap(&self, line: &str) -> String {
        let output = self.sublet(&format!("wrap {line}"));
        assert!(output.status.success(), "wrap {line}: {output:?}");
        text(&output.stdout)
    }

    /// What a shell makes of a line.
    fn shell(&self, line: &str) -> Output {
        let mut shell = bare_command(Path::new("/bin/sh"), self.service.dir());
        shell.args(["-c", line]).env("SUBLET_SOCKET", self.service.dir().join("s")).stdin(Stdio::null());
        self.in_path(shell)
    }

    fn listed(&self, more: &str) -> Value {
        serde_json::from_str(&self.wrap(&format!("--list --json{more}"))).expect("JSON")
    }
}

fn write(file: &Path, text: &str) {
    fs::write(file, text).expect("a file can be written");
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).expect("an own file's mode can be set");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A refusal: its exit code, and what was said.
fn refused(output: &Output, code: i32, says: &[&str]) {
    let talk = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{talk}");
    for words in says {
        assert!(talk.contains(words), "`{words}` in: {talk}");
    }
    assert!(output.stdout.is_empty(), "stdout is for data: {}", text(&output.stdout));
}

#[test]
fn a_wrapped_tool_runs_on_a_lease_with_its_options_and_gets_its_arguments() {
    let mut home = Home::new();
    let said = home.wrap("tool --vram 2G --tier spot --name wrapped");
    let (file, tool) = (home.wrappers().join("tool"), home.tools().join("tool"));
    let runs = format!("`sublet run --vram 2G --name wrapped --tier spot -- {}`", tool.display());
    assert_eq!(said, format!("wrote {}: runs {runs}\n", file.display()));
    assert_eq!(text(&home.shell("tool").stdout), "none\n", "not on PATH yet");

    home.put_on_path();
    let output = home.shell("tool 'a  b' --json -- '$x' ''");
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(text(&output.stdout), "L1\na  b\n--json\n--\n$x\n\n");
    let lease = home.service.client().lease("L1");
    assert_eq!(lease.name.as_deref(), Some("wrapped"));
    assert_eq!(lease.vram_bytes, Some(2 * GIB));
    assert!(lease.ended.is_some(), "it ended with the tool");
    assert_eq!(text(&home.shell("tool").stdout), "L2\n", "each call takes its own");
}

#[test]
fn a_wrapped_tool_inside_a_lease_requests_no_second_lease() {
    let mut home = Home::new();
    home.tool("nested", NESTED);
    home.wrap("nested tool --vram 20G --no-wait");
    home.put_on_path();
    // The GPU has 24 GiB: a second lease of 20 would be refused.
    assert_eq!(text(&home.shell("nested").stdout), "L1\nL1\n");
    let line = format!("eval \"$({} lease --vram 20G)\" && echo \"$SUBLET_LEASE\" && tool", sublet().display());
    let said = text(&home.shell(&line).stdout);
    let leases: Vec<&str> = said.lines().collect();
    assert!(leases.len() == 2 && leases[0] == leases[1] && leases[0] != "L1", "a shell's own lease will do: {said}");
}

#[test]
fn without_a_daemon_the_tool_does_not_run() {
    let mut home = Home::new();
    home.wrap("tool --vram 2G");
    home.put_on_path();
    home.service.kill();
    refused(&home.shell("tool"), 69, &["no daemon answers at", "sublet serve"]);
}

#[test]
fn without_sublet_the_tool_does_not_run_and_the_wrapper_says_what_to_do() {
    let mut home = Home::new();
    let link = home.tools().join("sublet");
    symlink(sublet(), &link).expect("a link can be made");
    home.wrap("tool");
    home.put_on_path();
    assert_eq!(text(&home.shell("tool").stdout), "L1\n");
    // The link on PATH is what was written down, not the file behind it.
    fs::remove_file(&link).expect("an own link can be removed");
    let gone = format!("error: {} is not there any more", link.display());
    refused(&home.shell("tool"), 127, &[&gone, "hint: write this wrapper anew with `sublet wrap tool`"]);
}

#[test]
fn the_line_for_the_startup_file_is_shown_until_path_finds_the_wrapper() {
    let mut home = Home::new();
    let folder = home.wrappers();
    let line = format!("export PATH={}:\"$PATH\"", folder.display());
    let hint = |home: &Home| text(&home.sublet("wrap tool").stderr);
    assert!(hint(&home).contains("is not on your PATH; end ~/.profile with this line"), "{}", hint(&home));
    assert!(hint(&home).contains(&line), "{}", hint(&home));
    // Behind the tool it is of no use.
    home.first.push(folder.clone());
    let first = format!("PATH finds {} first; end ~/.profile", home.tools().join("tool").display());
    assert!(hint(&home).contains(&first), "{}", hint(&home));
    home.put_on_path();
    assert_eq!(hint(&home), "", "nothing is left to do");
    fs::remove_file(folder.join("tool")).expect("an own file can be removed");
    assert!(hint(&home).contains("`hash -r`"), "a shell may remember where the tool was");
    assert!(!home.service.dir().join(".profile").exists(), "startup files are the user's");
}

#[test]
fn the_tool_is_never_a_wrapper() {
    let mut home = Home::new();
    home.wrap("tool --vram 1G");
    home.put_on_path();
    home.wrap("tool --vram 2G");
    // Nor one in another folder, nor a link to one.
    let other = home.service.dir().join("other");
    fs::create_dir(&other).expect("a folder can be made");
    symlink(home.wrappers().join("tool"), other.join("tool")).expect("a link can be made");
    home.first.insert(0, other);
    let third = home.service.dir().join("third");
    home.wrap(&format!("tool --vram 3G --dir {}", third.display()));
    for folder in [home.wrappers(), third] {
        let listed = home.listed(&format!(" --dir {}", folder.display()));
        assert_eq!(listed["wrappers"][0]["tool"], home.tools().join("tool").to_str().expect("a plain path"));
    }
    let wrapper = home.wrappers().join("tool");
    refused(&home.sublet(&format!("wrap {}", wrapper.display())), 64, &["is a wrapper itself", "hint:"]);
    refused(&home.sublet(&format!("wrap {}", sublet().display())), 64, &["sublet itself needs no lease"]);
    refused(&home.sublet("wrap no-such-tool"), 127, &["there is no `no-such-tool` on PATH", "name the file itself"]);
    refused(&home.sublet("wrap ./no-such-tool"), 127, &["was not found"]);
    for name in ["/etc/", "a\nb", "..", ""] {
        refused(&home.in_path(home.service.command(&["wrap", name])), 64, &["names no tool"]);
    }
}

#[test]
fn a_tool_can_be_wrapped_by_its_file() {
    let mut home = Home::new();
    write(&home.service.dir().join("my tool"), TOOL);
    let output = home.in_path(home.service.command(&["wrap", "./my tool", "--socket", "s", "--name", "it's"]));
    assert!(output.status.success(), "{output:?}");
    home.put_on_path();
    let elsewhere = home.shell("cd / && unset SUBLET_SOCKET && 'my tool' x");
    assert_eq!(text(&elsewhere.stdout), "L1\nx\n", "{}", text(&elsewhere.stderr));
    assert_eq!(home.service.client().lease("L1").name.as_deref(), Some("it's"));
}

#[test]
fn an_own_wrapper_is_replaced_whole_and_other_peoples_files_stay() {
    let home = Home::new();
    home.wrap("tool --vram 1G");
    let file = home.wrappers().join("tool");
    let before = fs::metadata(&file).expect("it was written");
    assert_eq!(before.permissions().mode() & 0o111, 0o111);
    home.wrap("tool --vram 2G");
    let after = fs::metadata(&file).expect("it was written");
    assert_ne!(before.ino(), after.ino(), "a file that is being read is not written into");
    assert_eq!(home.listed("")["wrappers"][0]["options"], serde_json::json!(["--vram", "2G"]));
    let names: Vec<_> = fs::read_dir(home.wrappers()).expect("a folder").flatten().map(|e| e.file_name()).collect();
    assert_eq!(names, ["tool"], "nothing else is left there");

    let script = fs::read_to_string(&file).expect("it is text");
    for name in ["mine", "link"] {
        home.tool(name, TOOL);
    }
    fs::write(home.wrappers().join("mine"), "my own").expect("a file can be written");
    symlink(&file, home.wrappers().join("link")).expect("a link can be made");
    for line in ["wrap mine", "wrap mine --dry-run", "wrap --remove mine", "wrap link", "wrap --remove link"] {
        refused(&home.sublet(line), 1, &["was not written by sublet: it stays", "hint:"]);
    }
    assert_eq!(fs::read_to_string(home.wrappers().join("mine")).expect("it stays"), "my own");
    assert!(home.wrappers().join("link").is_symlink());
    assert_eq!(fs::read_to_string(&file).expect("it stays"), script);
    assert_eq!(home.listed("")["wrappers"].as_array().map(Vec::len), Some(1), "they are not listed either");
}

#[test]
fn a_dry_run_shows_the_script_and_writes_nothing() {
    let home = Home::new();
    let file = home.wrappers().join("tool");
    let output = home.sublet("wrap tool --vram 2G --dry-run");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stderr), format!("would write {}:\n", file.display()));
    assert!(!home.service.dir().join(".local").exists(), "not even a folder");
    home.wrap("tool --vram 2G");
    assert_eq!(fs::read(&file).expect("it was written"), output.stdout);
    let made: Value = serde_json::from_str(&home.wrap("tool --dry-run --json")).expect("JSON");
    assert_eq!((&made["written"], &made["name"]), (&Value::Bool(false), &Value::from("tool")));
    assert!(made["script"].as_str().is_some_and(|script| script.starts_with("#!/bin/sh\n")), "{made}");

    let output = home.sublet("wrap --remove tool --dry-run");
    assert_eq!(text(&output.stderr), format!("would remove {}\n", file.display()));
    assert!(file.exists());
    assert_eq!(home.wrap("--remove tool"), format!("removed {}\n", file.display()));
    assert!(!file.exists());
    refused(&home.sublet("wrap --remove tool"), 1, &["there is no wrapper", "`sublet wrap --list`"]);
}

#[test]
fn the_list_says_what_each_runs_and_whether_it_is_used() {
    let mut home = Home::new();
    let empty = home.sublet("wrap --list");
    assert!(empty.status.success() && text(&empty.stderr).starts_with("no wrappers in "), "{empty:?}");
    for name in ["gone", "late", "odd"] {
        home.tool(name, TOOL);
    }
    home.wrap("tool --vram 2G --name=my$job");
    home.wrap("gone late odd");
    home.put_on_path();
    fs::remove_file(home.tools().join("gone")).expect("an own file can be removed");
    let odd = home.wrappers().join("odd");
    fs::write(&odd, fs::read_to_string(&odd).expect("text").replace("wrap 1 ", "wrap 99 ")).expect("it is ours");
    let early = home.service.dir().join("early");
    fs::create_dir(&early).expect("a folder can be made");
    write(&early.join("late"), TOOL);
    home.first.insert(0, early.clone());

    let list = home.wrap("--list");
    let lines: Vec<Vec<&str>> =
        list.lines().map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()).collect();
    let [gone, late, tool] = ["gone", "late", "tool"].map(|name| home.tools().join(name).display().to_string());
    let hidden = format!("late is not used: PATH finds {} first", early.join("late").display());
    assert_eq!(
        lines,
        [
            &["TOOL", "RUNS", "OPTIONS", "STATE"][..],
            &["gone", &gone, "-", "broken"],
            &["late", &late, "-", "not used"],
            &["odd", "-", "-", "unknown"],
            &["tool", &tool, "--vram 2G --name 'my$job'", "in use"],
            &["gone is broken: its tool does not exist any more; wrap it anew, or remove it"],
            &[&hidden],
            &["odd is unknown: it was changed by hand, or is of another release; wrap it anew"],
        ]
    );
    let listed = home.listed("");
    assert_eq!(listed["on_path"], true);
    let field = |name: &str| -> Vec<Value> {
        listed["wrappers"].as_array().into_iter().flatten().map(|wrapper| wrapper[name].clone()).collect()
    };
    assert_eq!(field("tool_gone"), [true, false, false, false]);
    assert_eq!(field("first_on_path"), [true, false, true, true]);
    assert_eq!(field("tool")[2], Value::Null);
    // What is of another release can be removed, and made anew.
    home.wrap("--remove odd gone");
    assert_eq!(home.listed("")["wrappers"].as_array().map(Vec::len), Some(2));
}

#[test]
fn options_that_would_be_lost_are_refused() {
    let home = Home::new();
    for line in ["wrap --list --vram 1G", "wrap --remove tool --vram 1G"] {
        refused(&home.sublet(line), 64, &["`--vram 1G` would be lost", "hint:"]);
    }
    for line in ["wrap", "wrap --list tool", "wrap --list --remove", "wrap tool --vram 16", "wrap --list --dry-run"] {
        refused(&home.sublet(line), 64, &["error:"]);
    }
    let output = home.sublet("wrap tool --url https://gpu1:7474");
    refused(&output, 64, &["a tool runs where its GPU is"]);
    refused(&home.sublet("wrap tool --dir a:b"), 64, &["a folder on PATH cannot be called", "--dir"]);
    let mut homeless = home.service.command(&["wrap", "tool"]);
    homeless.env_remove("HOME");
    refused(&home.in_path(homeless), 64, &["neither HOME nor XDG_DATA_HOME", "`--dir`"]);
    let mut with_data = home.service.command(&["wrap", "tool"]);
    with_data.env("XDG_DATA_HOME", home.service.dir().join("data"));
    assert!(home.in_path(with_data).status.success());
    assert!(home.service.dir().join("data/sublet/wrap/bin/tool").exists());
    assert!(!home.wrappers().exists());
}
