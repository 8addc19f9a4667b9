//! Watches the lease while a command runs on it.
//!
//! On its own thread it gives the command a cgroup, and binds the command to the lease, so that the command stays a
//! holder if the wrapper is killed. Then it polls for changes of the lease: its GPUs are needed (then a hook runs, on
//! another thread), it is parked or back (`parked.rs`), it uses more memory than it is for, it ends soon, it has ended.
//! If no daemon answers, it waits for one. Nothing here disturbs the command.

use super::events::RunEvent;
use super::hook::{self, Hook, HookMoment};
use super::parked::{ParkLines, ParkNotice};
use super::scope::Scope;
use crate::client::{Client, PollUntil, RESTART};
use crate::output::say;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use sublet_wire::{BindRequest, HookReport, HookResult, Lease, LeaseState, ParkMethod};

/// The length of one long poll.
const POLL: Duration = Duration::from_secs(30);
/// The pause between two tries while no daemon answers.
const SILENT_PAUSE: Duration = Duration::from_secs(1);

/// What the wrapper does when the GPUs are needed, and when they are available again.
#[derive(Clone, Debug)]
pub struct LeaseHooks {
    /// Gives the GPUs back.
    pub on_park: Hook,
    /// Takes the GPUs again; without it, the program does so itself.
    pub on_resume: Option<Hook>,
    /// The time limit of each hook.
    pub within: Duration,
}

/// The watch over one command.
#[derive(Debug)]
pub struct CommandWatch {
    enclosed: JoinHandle<Option<Scope>>,
    over: Arc<AtomicBool>,
}

/// What the watching threads share.
#[derive(Clone)]
struct WatchedLease {
    client: Client,
    id: String,
    fence: u64,
    mark: Option<String>,
    /// The command has ended.
    over: Arc<AtomicBool>,
}

impl CommandWatch {
    /// Starts to watch a lease that `pid` runs on.
    pub fn begin(
        client: &Client,
        lease: &Lease,
        pid: u32,
        hooks: Option<LeaseHooks>,
        sender: &Sender<RunEvent>,
    ) -> CommandWatch {
        let over = Arc::new(AtomicBool::new(false));
        let fence = lease.fence.unwrap_or(0);
        let (client, id, mark) = (client.clone(), lease.id.clone(), lease.proof.clone());
        let watched = WatchedLease { client, id, fence, mark, over: Arc::clone(&over) };
        let sender = sender.clone();
        let enclosed = thread::spawn(move || {
            // Before the bind, because the daemon checks then whether the command has its own cgroup.
            let scope = Scope::enclose(&watched.id, pid);
            thread::spawn(move || {
                // If this is refused, the command or the lease has just ended; the first poll reports the latter.
                let _ = watched.client.bind(&watched.id, &BindRequest { fence, pid: pid.into() }, RESTART);
                let moments = hooks.map(|hooks| watched.begin_hooks(hooks));
                watched.follow(moments.as_ref(), &sender);
            });
            scope
        });
        CommandWatch { enclosed, over }
    }

    /// The command has ended: no hook is started any more, and nothing is printed about a running one.
    pub fn stop_hooks(&self) {
        self.over.store(true, SeqCst);
        hook::stop_all();
    }

    /// Removes the command's cgroup. The polls end with the program.
    pub fn end(self) {
        self.stop_hooks();
        drop(self.enclosed.join());
    }
}

impl WatchedLease {
    fn follow(&self, moments: Option<&Sender<HookMoment>>, sender: &Sender<RunEvent>) {
        let (mut known, mut told, mut over, mut due) = (LeaseState::Active, false, false, None);
        let mut lines = ParkLines::default();
        while !self.over.load(SeqCst) {
            let begun = Instant::now();
            // The daemon counts whole seconds.
            let patience = lines.due(begun).map_or(POLL, |due| Duration::from_secs(due.as_secs() + 1));
            match self.client.poll(&self.id, patience, PollUntil::Changed { known, told, over }) {
                Ok(lease) if matches!(lease.state, LeaseState::Ending | LeaseState::Ended) => {
                    // The send fails if no receiver is left: the command is over too.
                    let _ = sender.send(RunEvent::Told(Box::new(lease)));
                    return;
                }
                Ok(lease) => {
                    let (soon, more, moment) = (lease.ends_soon.is_some(), lease.overuse.is_some(), due_hook(&lease));
                    let news = lease.state != known || soon != told || more != over;
                    let notice = (soon && !told) || (more && !over);
                    lines.see(&lease, Instant::now()).iter().for_each(ParkNotice::print);
                    if let (Some(moment), Some(moments), true) = (moment, moments, moment != due) {
                        // The receiver lives as long as this thread.
                        let _ = moments.send(moment);
                    }
                    if lease.state != known {
                        let _ = sender.send(RunEvent::Moved(lease.state));
                    }
                    (known, told, over, due) = (lease.state, soon, more, moment);
                    if notice {
                        let _ = sender.send(RunEvent::Told(Box::new(lease)));
                    }
                    // A daemon that is stopping answers early: pause, so that this loop does not spin.
                    if !news && begun.elapsed() < SILENT_PAUSE {
                        thread::sleep(SILENT_PAUSE);
                    }
                }
                Err(error) if error.may_pass() => thread::sleep(SILENT_PAUSE),
                Err(_) => return,
            }
        }
    }

    /// Starts the thread that runs the hooks one after the other. The lease is watched meanwhile.
    fn begin_hooks(&self, hooks: LeaseHooks) -> Sender<HookMoment> {
        let (sender, receiver) = channel();
        let watched = self.clone();
        thread::spawn(move || watched.run_hooks(&hooks, &receiver));
        sender
    }

    fn run_hooks(&self, hooks: &LeaseHooks, moments: &Receiver<HookMoment>) {
        for moment in moments {
            let (began, hook) = (Instant::now(), hooks.of(moment));
            let came = hook.map_or(Ok(()), |hook| hook.run(&self.variables(moment), hooks.within));
            if self.over.load(SeqCst) {
                return;
            }
            self.say(moment, &came, began.elapsed());
            let result = match (&came, moment) {
                (Err(_), _) => HookResult::Failed,
                (Ok(()), HookMoment::Park) => HookResult::Parked,
                (Ok(()), HookMoment::Resume) => HookResult::Resumed,
            };
            let report = HookReport { fence: self.fence, result, why: came.err().map(|why| bounded(&why)) };
            // The daemon refuses this if it has stopped waiting for the hook and continued without it.
            let _ = self.client.hooked(&self.id, &report, RESTART);
        }
    }

    fn variables(&self, moment: HookMoment) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            ("SUBLET_LEASE", self.id.clone()),
            ("SUBLET_FENCE", self.fence.to_string()),
            ("SUBLET_HOOK", moment.to_string()),
            self.client.variable(),
        ];
        variables.extend(self.mark.clone().map(|mark| ("SUBLET_PROOF", mark)));
        variables
    }

    fn say(&self, moment: HookMoment, came: &Result<(), String>, took: Duration) {
        let (id, took) = (&self.id, format!("{:.1} s", took.as_secs_f64()));
        match (came, moment) {
            (Ok(()), HookMoment::Park) => say!("{id} is parked by its hook, after {took}"),
            (Ok(()), HookMoment::Resume) => say!("{id} is resumed by its hook, after {took}"),
            (Err(why), _) => say!("the {moment} hook of {id} failed: {why}"),
        }
    }
}

impl LeaseHooks {
    fn of(&self, moment: HookMoment) -> Option<&Hook> {
        match moment {
            HookMoment::Park => Some(&self.on_park),
            HookMoment::Resume => self.on_resume.as_ref(),
        }
    }
}

/// The hook that the wrapper must run now, if any.
fn due_hook(lease: &Lease) -> Option<HookMoment> {
    match (lease.state, lease.method) {
        (LeaseState::Parking, Some(ParkMethod::Hook)) => Some(HookMoment::Park),
        (LeaseState::Resuming, Some(ParkMethod::Hook)) => Some(HookMoment::Resume),
        _ => None,
    }
}

/// The sentence, cut to the 256 characters that the API accepts.
fn bounded(why: &str) -> String {
    why.chars().take(256).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Globals;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use sublet_wire::{EndReason, EndsSoon, LeaseEnd};

    fn lease(state: LeaseState, rung: Option<ParkMethod>) -> Lease {
        let over = state == LeaseState::Ended;
        let ended = over.then(|| LeaseEnd { reason: EndReason::Preempted, sentence: "over".into(), at_unix_s: 0.0 });
        Lease { state, method: rung, ended, ..crate::sample::lease() }
    }

    /// A daemon that answers with one lease after the other, and ends after this number of hook reports. Returns the
    /// POSTs and the GETs that it received.
    fn daemon(leases: Vec<Lease>, hooked: usize, listener: UnixListener) -> JoinHandle<(Vec<String>, Vec<String>)> {
        thread::spawn(move || {
            let (mut posts, mut asked, mut leases) = (Vec::new(), Vec::new(), leases.into_iter().peekable());
            while leases.peek().is_some() || posts.len() < hooked {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = vec![0; 4096];
                let n = stream.read(&mut request).unwrap();
                let request = String::from_utf8_lossy(&request[..n]).into_owned();
                let (head, body) = request.split_once("\r\n\r\n").unwrap();
                let target = head.split(' ').nth(1).unwrap_or_default();
                let answer = match head.starts_with("POST ") {
                    true => {
                        posts.push(format!("{target} {body}"));
                        "{}".to_owned()
                    }
                    false => {
                        asked.push(target.to_owned());
                        serde_json::to_string(&leases.next()).unwrap()
                    }
                };
                let head = format!("HTTP/1.1 200 x\r\ncontent-length: {}\r\n\r\n", answer.len());
                stream.write_all(format!("{head}{answer}").as_bytes()).unwrap();
            }
            (posts, asked)
        })
    }

    /// Follows a lease through these states to its end. Returns what was posted, what was requested, and what was
    /// reported.
    fn follow(
        on_park: &str,
        on_resume: Option<&str>,
        hooked: usize,
        leases: Vec<Lease>,
    ) -> (Vec<String>, Vec<String>, Vec<Lease>) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let daemon = daemon(leases, hooked, UnixListener::bind(&socket).unwrap());
        let client = Client::open(&Globals::at(&socket)).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let watched = WatchedLease { client, id: "L7".into(), fence: 12, mark: None, over };
        let hooks = LeaseHooks {
            on_park: on_park.parse().unwrap(),
            on_resume: on_resume.map(|hook| hook.parse().unwrap()),
            within: Duration::from_secs(5),
        };
        let (sender, receiver) = channel();
        let moments = watched.begin_hooks(hooks);
        watched.follow(Some(&moments), &sender);
        drop((moments, sender));
        let (posts, asked) = daemon.join().unwrap();
        let told =
            receiver.iter().filter_map(|event| if let RunEvent::Told(lease) = event { Some(*lease) } else { None });
        (posts, asked, told.collect())
    }

    #[test]
    fn hooks_run_when_the_lease_says_so_and_what_came_of_them_is_said_once() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let line = format!("echo $SUBLET_LEASE $SUBLET_FENCE $SUBLET_HOOK >> {}", log.display());
        let by_hook = Some(ParkMethod::Hook);
        let (posts, asked, told) = follow(
            &line,
            Some(&line),
            2,
            vec![
                lease(LeaseState::Parking, by_hook),
                lease(LeaseState::Parking, by_hook),
                lease(LeaseState::Parked, by_hook),
                lease(LeaseState::Resuming, by_hook),
                lease(LeaseState::Active, None),
                lease(LeaseState::Ended, None),
            ],
        );
        assert_eq!(std::fs::read_to_string(log).unwrap(), "L7 12 park\nL7 12 resume\n");
        assert_eq!(
            posts,
            [
                r#"/v1/leases/L7/hook {"fence":12,"result":"parked"}"#,
                r#"/v1/leases/L7/hook {"fence":12,"result":"resumed"}"#
            ]
        );
        let known: Vec<&str> =
            asked.iter().filter_map(|path| path.split_once("&known=")).map(|(_, known)| known).collect();
        assert_eq!(
            known,
            ["active", "parking", "parking", "parked", "resuming", "active"]
                .map(|state| format!("{state}&known_ends_soon=false&known_overuse=false"))
        );
        assert_eq!(told.iter().map(|lease| lease.state).collect::<Vec<_>>(), [LeaseState::Ended]);
    }

    #[test]
    fn a_hook_that_fails_is_said_with_why_and_one_that_is_not_there_has_nothing_to_do() {
        let by_hook = Some(ParkMethod::Hook);
        let (posts, ..) = follow(
            "exit 7",
            None,
            2,
            vec![
                lease(LeaseState::Parking, by_hook),
                lease(LeaseState::Resuming, by_hook),
                lease(LeaseState::Ended, None),
            ],
        );
        assert_eq!(
            posts,
            [
                r#"/v1/leases/L7/hook {"fence":12,"result":"failed","why":"its exit code was 7"}"#,
                r#"/v1/leases/L7/hook {"fence":12,"result":"resumed"}"#
            ]
        );
    }

    #[test]
    fn other_rungs_are_none_of_the_wrappers_business_and_a_notice_is_told_once() {
        let warned = || Lease {
            ends_soon: Some(EndsSoon { reason: EndReason::Preempted, unix_s: 0.0, in_s: 60.0 }),
            ..lease(LeaseState::Active, None)
        };
        let states = [
            lease(LeaseState::Parking, Some(ParkMethod::Shim)),
            lease(LeaseState::Resuming, Some(ParkMethod::Driver)),
            warned(),
            warned(),
            lease(LeaseState::Ended, None),
        ];
        let (posts, asked, told) = follow("exit 7", None, 0, states.into());
        assert_eq!(posts, [""; 0]);
        assert!(
            asked.last().is_some_and(|path| path.ends_with("&known=active&known_ends_soon=true&known_overuse=false")),
            "{asked:?}"
        );
        assert_eq!(told.iter().map(|lease| lease.state).collect::<Vec<_>>(), [LeaseState::Active, LeaseState::Ended]);
    }
}
