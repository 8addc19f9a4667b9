//! `sublet lease`: gets a lease for this shell, and prints the shell code that sets its variables.

use super::run::by_signal;
use crate::args::Globals;
use crate::client::{Client, RESTART};
use crate::failure::{Failure, tell_hint};
use crate::hold::ask::AskArgs;
use crate::hold::environment::{self, Earlier, ShellArg};
use crate::hold::events;
use crate::hold::outer::{self, EnvLease, NewLease, Outer, Start};
use crate::hold::shell;
use crate::hold::visible::Visible;
use crate::hold::wait::{self, WaitOutcome};
use crate::hold::{shim, soft};
use crate::output::{self, say};
use crate::text;
use clap::Args;
use std::env;
use std::io::{self, IsTerminal};
use std::path::Path;
use sublet_wire::{BindRequest, Code, Lease, LeaseRequest, LeaseState, exit, span};

/// Take a lease for this shell and print its environment for `eval`
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct LeaseArgs {
    #[command(flatten)]
    ask: AskArgs,
    /// Bind it to no process; `sublet renew` keeps it, `sublet release` ends it
    #[arg(long)]
    detach: bool,
    /// Request nothing: the exit code says whether this shell has a lease (0) or not (75)
    #[arg(long)]
    check: bool,
    /// The shell that evaluates the lines
    #[arg(long, value_enum, value_name = "SHELL", default_value_t = ShellArg::Sh)]
    shell: ShellArg,
}

const AFTER_HELP: &str = "\
The lease ends with this shell (`exit`), or by `sublet release`. GPU work of
programs started from the shell renews it. The lines also define the shell
functions `sublet`, which runs sublet and clears the variables when the lease is
released, and `sublet_clear`, which clears them now.

Where this shell has a lease already, that one is used; `--new-lease` requests a
separate one.

Examples:
  eval \"$(sublet lease --vram 4G)\"                  sh, bash, zsh
  sublet lease --vram 4G --shell fish | source      fish";

/// Gets a lease and prints its variables for the shell.
pub fn run(globals: &Globals, args: &LeaseArgs) -> Result<u8, Failure> {
    if !args.detach {
        globals.must_be_local(
            "a shell holds a lease where its GPU is",
            "`--detach` requests one that is bound to no process",
        )?;
    }
    args.ask.check()?;
    if let Some(flag) = args.ask.needs_wrapper() {
        return Err(Failure::usage(format!("`{flag}` takes a program that stays, and `sublet lease` ends at once"))
            .hint(format!("`sublet run {flag} … -- COMMAND` stays as long as the command")));
    }
    let client = Client::open(globals)?;
    if args.check {
        return check(globals, &client);
    }
    let wanted = if args.detach { NewLease::Always } else { args.ask.wanted() };
    let is_here = client.socket().is_some();
    let start = if is_here { Start::find(&client, wanted) } else { Start::New { note: None, earlier: Earlier::None } };
    let (note, earlier) = match start {
        Start::New { note, earlier } => (note, earlier),
        Start::OnOuter(lease) if globals.json => return output::json(&lease).map(|()| exit::OK),
        Start::OnOuter(lease) => {
            outer::say_has(&lease, &args.ask.words());
            return Ok(exit::OK);
        }
        Start::Unchecked(_) => return Err(Failure::no_daemon(client.socket().unwrap_or(Path::new("")))),
    };
    // `CUDA_VISIBLE_DEVICES` of this host says nothing about the GPUs of another.
    let visible = if is_here { Visible::here()? } else { Visible::ALL };
    let on = visible.narrow(args.ask.on.clone(), || client.get("/v1/gpus"))?;
    let shell = (!args.detach).then(shell::pid);
    let ask = LeaseRequest { on, ..args.ask.ask(shell) };
    let lease =
        match obtain(globals, &client, ask, note.as_deref(), shell).map_err(|failure| visible.explain(failure))? {
            WaitOutcome::Granted(lease) => *lease,
            WaitOutcome::GivenUp(signal) => return Ok(by_signal(signal)),
        };
    if globals.json {
        output::json(&lease)?;
        return Ok(exit::OK);
    }
    match environment(&client, &lease, args, &visible) {
        Ok(variables) => {
            let before = environment::before(&variables, earlier);
            output::print(&environment::for_shell(args.shell, &variables, &before, &own_path()))?;
        }
        Err(failure) => {
            // The lease is of no use here. If the daemon does not answer, the lease ends unused.
            let _ = client.release(&lease.id, lease.fence, RESTART);
            return Err(failure);
        }
    }
    say(&lease, args.detach);
    Ok(exit::OK)
}

fn environment(
    client: &Client,
    lease: &Lease,
    args: &LeaseArgs,
    visible: &Visible,
) -> Result<environment::Variables, Failure> {
    let mut variables = environment::variables(lease, args.ask.visible, &client.variable(), visible)?;
    if let Some(soft) = soft::of_lease(client, lease)? {
        variables.extend(soft);
    }
    if !args.ask.no_shim {
        variables.extend(shim::variables(client));
    }
    Ok(variables)
}

/// Requests the lease without waiting first, and then queues. A request for a shell is bound to this process while it
/// waits, so that it leaves the queue if this process is killed; once granted, the lease is bound to the shell. A
/// detached request is bound to no process, and stays in the queue.
fn obtain(
    globals: &Globals,
    client: &Client,
    ask: LeaseRequest,
    note: Option<&str>,
    shell: Option<u32>,
) -> Result<WaitOutcome, Failure> {
    match client.ask(&LeaseRequest { wait_s: Some(0), ..ask.clone() }) {
        Ok(lease) if lease.state == LeaseState::Active => {
            if !globals.json {
                wait::say_granted_at_once(&lease);
            }
            return Ok(WaitOutcome::Granted(Box::new(lease)));
        }
        Err(failure) if failure.code() != Some(Code::NoRoom) || ask.wait_s == Some(0) => return Err(failure),
        Ok(_) | Err(_) => {}
    }
    let Some(shell) = shell else { return queue(client, &ask, note) };
    let outcome = queue(client, &LeaseRequest { pid: Some(std::process::id().into()), ..ask }, note)?;
    if let WaitOutcome::Granted(lease) = &outcome {
        let bind = BindRequest { fence: lease.fence.unwrap_or(0), pid: shell.into() };
        client.bind(&lease.id, &bind, RESTART).map_err(|error| client.failure(error))?;
    }
    Ok(outcome)
}

fn queue(client: &Client, ask: &LeaseRequest, note: Option<&str>) -> Result<WaitOutcome, Failure> {
    let (sender, receiver) = events::listen()?;
    wait::obtain(client, ask, note, &sender, &receiver)
}

/// Prints whether this shell has a lease.
fn check(globals: &Globals, client: &Client) -> Result<u8, Failure> {
    let Some(claim) = EnvLease::here() else {
        return Err(Failure::new(exit::LEASE_LOST, "this shell has no lease"));
    };
    match claim.look(client).map_err(|error| client.failure(error))? {
        Outer::Held(lease) if globals.json => output::json(&lease)?,
        Outer::Held(lease) => output::print(&format!("{}: {}\n", lease.id, text::granted(&lease)))?,
        Outer::Over(why) => {
            let what = format!("{}, which this shell had, is over: {why}", claim.id());
            return Err(Failure::new(exit::LEASE_LOST, what));
        }
    }
    Ok(exit::OK)
}

/// The path of this program, for the shell's function: PATH may change later.
fn own_path() -> String {
    env::current_exe().ok().and_then(|path| path.to_str().map(str::to_owned)).unwrap_or_else(|| "sublet".to_owned())
}

fn say(lease: &Lease, detach: bool) {
    if detach {
        let ttl = span::show(lease.ttl_s as f64);
        say!("{} is bound to no process: it ends {ttl} after its last renewal if another request waits", lease.id);
        tell_hint(&format!("renew it by `sublet renew {0}`, end it by `sublet release {0}`", lease.id));
    } else if io::stdout().is_terminal() {
        tell_hint("to use it in this shell: eval \"$(sublet lease …)\"");
    }
}
