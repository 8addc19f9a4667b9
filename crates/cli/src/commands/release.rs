//! `sublet release`: gives leases back, or leaves the queue. Their programs continue.

use crate::args::{Globals, LeaseName};
use crate::client::{CallError, Client, RESTART};
use crate::completion;
use crate::failure::Failure;
use crate::hold::environment::{self, ShellArg};
use crate::hold::outer::{self, EnvLease};
use crate::output::{self, say};
use crate::processes;
use crate::table::plain;
use crate::text;
use clap::Args;
use std::io::{self, IsTerminal};
use sublet_wire::{Code, Lease, exit};

/// Give leases back, or leave the queue; programs go on without
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct ReleaseArgs {
    /// Their ids, such as L7, or their names [default: the lease that this shell has]
    #[arg(value_name = "LEASE", add = completion::any_lease())]
    leases: Vec<LeaseName>,
    /// For which shell the lines are that clear the variables of the lease
    #[arg(long, value_enum, value_name = "SHELL", default_value_t = ShellArg::Sh)]
    shell: ShellArg,
}

const AFTER_HELP: &str = "\
No program is ended: `sublet stop` does that. A lease that is over already is no
error.

In a shell with a lease of its own (`eval \"$(sublet lease)\"`) `sublet release`
also clears the variables of the lease. Elsewhere, such as in `sublet run bash`:
eval \"$(sublet release)\"";

/// Gives each lease back; the first failure decides the exit code.
pub fn run(globals: &Globals, args: &ReleaseArgs) -> Result<u8, Failure> {
    let own = EnvLease::here().map(|claim| claim.id().to_owned());
    let is_own = args.leases.is_empty();
    let typed = match (is_own, &own) {
        (false, _) => args.leases.clone(),
        (true, Some(id)) => vec![id.parse().map_err(Failure::usage)?],
        (true, None) => {
            return Err(
                Failure::usage("this shell has no lease: say which one, such as L7").hint("`sublet ps` lists yours")
            );
        }
    };
    let client = Client::open(globals)?;
    let clears = is_own && !globals.json && !io::stdout().is_terminal();
    let (mut code, mut released) = (exit::OK, Vec::new());
    for lease in &typed {
        match release(&client, lease) {
            Ok(done) => {
                done.tell(globals, clears)?;
                released.push(done.id);
            }
            Err(failure) => {
                failure.tell(globals.json);
                code = if code == exit::OK { failure.exit() } else { code };
            }
        }
    }
    if clears && own.is_some_and(|own| released.contains(&own)) {
        output::print(&environment::lines(args.shell, &environment::cleared()))?;
    } else if !globals.json {
        outer::hint_at_variables(&released);
    }
    Ok(code)
}

/// A lease that was given back.
struct Released {
    id: String,
    /// The ended lease, if the daemon reports it.
    lease: Option<Lease>,
    /// Why it was over already, if it was.
    before: Option<String>,
}

fn release(client: &Client, typed: &LeaseName) -> Result<Released, Failure> {
    let id = client.id_of(typed)?;
    match client.release(&id, None, RESTART) {
        Ok(lease) => Ok(Released { id, lease, before: None }),
        // The lease is over already, because its owner released it or its time ended. That is no failure.
        Err(CallError::Refused(problem)) if problem.code == Code::LeaseEnded => {
            let lease = client.lease(&id, RESTART).ok();
            Ok(Released { id, lease, before: Some(plain(&problem.detail)) })
        }
        Err(error) => Err(client.failure(error).about(&id)),
    }
}

impl Released {
    fn tell(&self, globals: &Globals, clears: bool) -> Result<(), Failure> {
        if let Some(why) = &self.before {
            say!("{} was over already: {why}", self.id);
        }
        match &self.lease {
            Some(lease) if globals.json => output::json_line(lease)?,
            _ if self.before.is_some() => {}
            // With variables to clear, stdout is for lines that the shell evaluates.
            _ if clears => say!("{} released", self.id),
            _ => output::print(&format!("{} released\n", self.id))?,
        }
        let own = processes::own_line();
        let others = self.lease.iter().flat_map(|lease| &lease.pids).filter(|pid| !own.contains(pid)).count() as u64;
        if others > 0 && self.before.is_none() && !globals.json {
            let go_on = if others == 1 { "goes" } else { "go" };
            say!("{} of it {go_on} on without a lease", text::count_of(others, "process", "processes"));
        }
        Ok(())
    }
}
