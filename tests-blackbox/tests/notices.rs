//! Notices to the person concerned: lines on the terminals of real programs on soft GPUs, and what a command and a
//! webhook get.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use sublet_blackbox::binary::{example, sublet};
use sublet_blackbox::programs::{UnleasedProgram, WrappedProgram, await_bytes, await_state, successful_output};
use sublet_blackbox::screen::Screen;
use sublet_blackbox::service::bare_command;
use sublet_blackbox::unleased::{CONFIG, PARKS, await_found, await_unleased, mode, serve_with};
use sublet_blackbox::user::is_root;
use sublet_blackbox::{LONG, ServiceSetup, TestGpu, TestService, until};
use sublet_wire::{LeaseState, UnleasedStep};

/// Users that need not exist.
const ANN: u32 = 4_001;
const BOB: u32 = 4_002;

/// An unleased program on this terminal.
fn on_screen(service: &TestService, uid: Option<u32>, screen: &Screen) -> UnleasedProgram {
    let alone = UnleasedProgram::start_holding_with(service, uid, 256, |command| screen.control(command));
    await_found(service, &alone);
    alone
}

#[test]
fn an_unleased_process_gets_its_warning_and_its_end_as_notices_on_its_terminal() {
    let service = serve_with(CONFIG);
    let screen = Screen::open();
    let alone = on_screen(&service, None, &screen);
    let pid = alone.pid();
    mode(&service, "enforce");
    let warned = screen.await_line("without a lease");
    assert!(warned.starts_with(&format!("sublet: your sublet-example-hold (pid {pid}) uses ")), "{warned}");
    assert!(warned.contains(" of GPU 0 without a lease; it will be ended in 2 s;"), "{warned}");
    assert!(warned.ends_with(&format!("`sublet adopt {pid}` gives it a lease")), "{warned}");
    let ended = screen.await_line("was sent SIGTERM");
    assert!(ended.contains("it uses GPU 0 without a lease; SIGKILL follows in 2 s"), "{ended}");
    assert_eq!(alone.end_signal(), None, "it ends on SIGTERM");
    assert!(!screen.screen_text().contains('\x1b'), "{:?}", screen.screen_text());
}

#[test]
fn in_mode_warn_the_line_threatens_nothing() {
    let service = serve_with(CONFIG);
    let screen = Screen::open();
    let alone = on_screen(&service, None, &screen);
    mode(&service, "warn");
    let warned = screen.await_line("without a lease");
    assert!(warned.contains(" of GPU 0 without a lease; `sublet adopt ") && !warned.contains("will be"), "{warned}");
    drop(alone);
}

#[test]
fn an_unleased_process_gets_a_notice_when_it_is_parked_and_when_it_is_resumed() {
    let service = serve_with(PARKS);
    let client = service.client();
    let screen = Screen::open();
    let alone = on_screen(&service, None, &screen);
    let pid = alone.pid();
    mode(&service, "enforce");
    let warned = screen.await_line("without a lease");
    assert!(warned.contains("it will be parked, or ended if it cannot be, in 2 s"), "{warned}");
    let parked = screen.await_line("is parked");
    assert!(
        parked.contains(&format!(
            "(pid {pid}) is parked: it used GPU 0 without a lease; `sublet resume L1` brings it back with a lease, `kill -9 {pid}` ends it"
        )),
        "{parked}"
    );
    successful_output(&service, &["resume", "L1"]);
    let back = screen.await_line("is back on");
    assert!(back.contains("L1 (") && back.contains("is back on GPU 0 after "), "{back}");
    await_state(&client, "L1", LeaseState::Active);
    alone.signal(Signal::TERM);
    assert_eq!(alone.end_signal(), None);
}

/// Adopts a program as L1 and parks it by hand, once the driver can.
fn adopt_and_park(service: &TestService, alone: &UnleasedProgram) {
    successful_output(service, &["adopt", &alone.pid().to_string()]);
    await_bytes(&service.client(), "L1", 256);
    until("it can be parked", LONG, || {
        let output = service.cli(&["park", "L1"]);
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    });
}

/// It has no wrapper, so the daemon tells.
#[test]
fn an_adopted_program_gets_a_notice_on_its_terminal_when_it_is_parked_by_hand() {
    let service = serve_with(PARKS);
    let screen = Screen::open();
    let alone = on_screen(&service, None, &screen);
    adopt_and_park(&service, &alone);
    let parked = screen.await_line("is parked");
    let said =
        "is parked: `sublet park L1` was called; `sublet resume L1` asks for it back now, `sublet stop L1` ends it";
    assert!(parked.contains(said), "{parked}");
    successful_output(&service, &["resume", "L1"]);
    screen.await_line("is back on GPU 0 after ");
    assert_eq!(screen.screen_text().matches("sublet:").count(), 2, "{}", screen.screen_text());
}

#[test]
fn a_parked_program_gets_a_notice_when_its_lease_ends() {
    let service = serve_with(&format!("{PARKS}time_max = \"4s\"\n"));
    let screen = Screen::open();
    let alone = on_screen(&service, None, &screen);
    adopt_and_park(&service, &alone);
    screen.await_line("is parked");
    let ended = screen.await_line("lease L1 ended");
    assert!(
        ended.starts_with("sublet: lease L1 ended: it was parked for the longest time (`[parking] time_max`)"),
        "{ended}"
    );
}

/// Each is warned; the last one's line is written after all others were tried.
#[test]
fn a_terminal_of_another_user_or_with_mesg_n_gets_nothing() {
    if !is_root() {
        eprintln!("skipped: only root can have terminals of several users");
        return;
    }
    let service = serve_with(CONFIG);
    let others = Screen::open().belongs_to(Some(BOB), 0o620);
    let closed = Screen::open().belongs_to(Some(ANN), 0o600);
    let open = Screen::open().belongs_to(Some(ANN), 0o620);
    let screens = [&others, &closed, &open];
    let programs = screens.map(|screen| on_screen(&service, Some(ANN), screen));
    mode(&service, "warn");
    for program in &programs {
        await_unleased(&service, program.pid(), "it is warned", |stranger| stranger.step == UnleasedStep::Warned);
    }
    open.await_line("without a lease");
    assert_eq!((others.screen_text(), closed.screen_text()), (String::new(), String::new()));
}

#[test]
fn a_terminal_that_takes_nothing_delays_nothing() {
    let service = serve_with(CONFIG);
    let (full, reads) = (Screen::open(), Screen::open());
    let (first, second) = (on_screen(&service, None, &full), on_screen(&service, None, &reads));
    full.fill();
    mode(&service, "enforce");
    reads.await_line("without a lease");
    reads.await_line("was sent SIGTERM");
    assert_eq!((first.end_signal(), second.end_signal()), (None, None), "both end on SIGTERM");
    assert!(!full.screen_text().contains("lease"), "its lines are lost");
}

/// What a hook of the configuration got, one notice after the other.
fn read_notices(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn a_command_and_a_webhook_get_each_notice_as_json() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("notices");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("a port");
    let webhook = thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a call");
        let mut reader = BufReader::new(stream);
        let (mut head, mut length) = (Vec::new(), 0);
        for line in reader.by_ref().lines().map(|line| line.expect("a line")).take_while(|line| !line.is_empty()) {
            let lower = line.to_ascii_lowercase();
            length = lower.strip_prefix("content-length: ").map_or(length, |n| n.parse().expect("a number"));
            head.push(line);
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("a body");
        reader.get_mut().write_all(b"HTTP/1.1 204 No Content\r\n\r\n").expect("an answer");
        (head[0].clone(), serde_json::from_slice::<Value>(&body).expect("JSON"))
    });
    let script = format!("cat >> {0}; echo >> {0}", file.display());
    let config = format!(
        "{CONFIG}\n[notices]\ncommand = [\"/bin/sh\", \"-c\", {script:?}]\nwebhook = \"http://{address}/sublet?x=1\"\n"
    );
    let service = serve_with(&config);
    let alone = UnleasedProgram::start_holding(&service, 256);
    let pid = alone.pid();
    let stranger = await_found(&service, &alone);
    mode(&service, "enforce");
    let (request, sent) = webhook.join().expect("the webhook was called");
    assert_eq!(request, "POST /sublet?x=1 HTTP/1.1");
    assert_eq!(alone.end_signal(), None);
    let got = until("the command got both", LONG, || {
        let got = read_notices(&file);
        if got.len() >= 2 { Ok(got) } else { Err(got) }
    });
    assert_eq!(sent, got[0]);
    for (notice, event) in got.iter().zip(["warned", "signalled"]) {
        assert_eq!(notice["event"], event, "{notice}");
        assert_eq!((&notice["unleased"], &notice["pids"][0]), (&stranger.id.clone().into(), &pid.into()), "{notice}");
        assert_eq!((&notice["gpus"], &notice["uid"]), (&serde_json::json!([0]), &stranger.uid.into()), "{notice}");
        assert!(notice["text"].as_str().is_some_and(|text| text.contains("without a lease")), "{notice}");
    }
    assert!(got[0]["expected_s"].as_f64().is_some_and(|s| s > 0.0 && s <= 2.0), "{}", got[0]);
    assert_eq!(got[1]["signal"], "SIGTERM");
}

/// The wrapper tells on its own stderr; the terminal is not written to beside that.
#[test]
fn sublet_run_says_why_its_program_is_parked_and_that_it_is_back_and_nothing_twice() {
    let config = "ttl = \"5m\"\n[preemption]\ntime_slice = \"1s\"\nidle_after = \"2s\"\n[parking]\nram = \"4G\"\nkeep_free = \"256M\"\nready = \"off\"\n";
    let gpu = TestGpu::Named("soft:1x4GiB");
    let service =
        TestService::start_with(ServiceSetup { gpu, config: Some(config.to_owned()), ..ServiceSetup::default() });
    let screen = Screen::open();
    let train = example("mlp");
    let words = ["--vram", "3G", "--", &train, "--steps", "100000", "--pace", "10"];
    let job = WrappedProgram::start_with(&service, &words, |command| screen.control(command));
    await_bytes(&service.client(), "L1", 10);
    let guest = ["--vram", "3G", "--tier", "interactive", "--", &example("hold"), "64MiB", "--seconds", "8"];
    let guest = WrappedProgram::start(&service, &guest);
    job.await_output("L1 is parked: your L2 (interactive) needs GPU 0; ");
    assert_eq!(guest.end().0, Some(0));
    job.await_output("L1 is back on GPU 0 after ");
    let said = job.output_text();
    assert_eq!(said.matches("parked").count(), 1, "{said}");
    assert!(said.contains("hint: `sublet resume L1` asks for it back now, `sublet stop L1` ends it"), "{said}");
    assert_eq!(screen.screen_text(), "");
}

/// A wrapper that was killed tells nothing any more: then the daemon does.
#[test]
fn a_program_gets_a_notice_on_its_terminal_after_its_wrapper_was_killed() {
    let service = serve_with(PARKS);
    let client = service.client();
    let screen = Screen::open();
    let mut shell = bare_command(Path::new("/bin/sh"), service.dir());
    // The shell leads the session, and the terminal stays its own when the wrapper is gone.
    let line = "\"$0\" run --vram 1G -- \"$1\" 256MiB --idle >/dev/null & echo $!; wait; sleep 600";
    shell.args(["-c", line]).arg(sublet()).arg(example("hold"));
    shell.env("SUBLET_SOCKET", service.dir().join("s")).stdin(Stdio::null()).stdout(Stdio::piped());
    screen.control(&mut shell);
    let mut shell = TestProcess(shell.spawn().expect("a shell"));
    let mut wrapper = String::new();
    BufReader::new(shell.0.stdout.take().expect("a pipe")).read_line(&mut wrapper).expect("a pid");
    await_bytes(&client, "L1", 256);
    let wrapper = wrapper.trim().parse().ok().and_then(Pid::from_raw).expect("a pid");
    kill_process(wrapper, Signal::KILL).expect("a process of this user");
    client.await_lease("the wrapper is gone", "L1", |lease| lease.pids.len() == 1);
    successful_output(&service, &["park", "L1"]);
    screen.await_line("is parked: `sublet park L1` was called; it comes back when it uses the GPU again; ");
}

/// A session that is killed when this is dropped.
struct TestProcess(Child);

impl Drop for TestProcess {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        let _ = self.0.wait();
    }
}
