//! `sublet renew`: extends a lease that no process is bound to.

use crate::args::{Globals, LeaseName};
use crate::client::{Client, RESTART};
use crate::completion;
use crate::failure::Failure;
use crate::output;
use clap::Args;
use sublet_wire::{Lease, RenewRequest, exit, span};

/// Go on with a lease that no process is bound to, for another term
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct RenewArgs {
    /// Its id, such as L7, or its name
    #[arg(add = completion::any_lease())]
    lease: LeaseName,
    /// The fence it was granted with, to be sure that it is still that grant [default: SUBLET_FENCE if it is
    /// SUBLET_LEASE, else the one it has now]
    #[arg(long, value_name = "N")]
    fence: Option<u64>,
}

const AFTER_HELP: &str = "\
A lease of `sublet lease --detach` ends some time after its last renewal if
another request waits. Where processes are bound to a lease, their use of the
GPU renews it, and this command does not.";

/// Renews a lease.
pub fn run(globals: &Globals, args: &RenewArgs) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let id = client.id_of(&args.lease)?;
    let fence = match args.fence.or_else(|| fence_here(&id)) {
        Some(fence) => fence,
        None => {
            let now = client.lease(&id, RESTART).map_err(|error| client.failure(error).about(&id))?;
            // A waiting lease has no fence yet; the daemon's refusal says so.
            now.fence.unwrap_or(0)
        }
    };
    let lease = client.renew(&id, &RenewRequest { fence }).map_err(|failure| failure.about(&id))?;
    if globals.json {
        output::json(&lease)?;
        return Ok(exit::OK);
    }
    if let Some(why) = unrenewed(&lease) {
        eprintln!("{id} was not renewed: {why}");
    }
    output::print(&match lease.remaining_s {
        Some(left) => format!("{id} has {} left\n", span::show(left)),
        None => format!("{id} has no end that is known now\n"),
    })?;
    Ok(exit::OK)
}

/// The fence of this shell's lease; `None` if the shell has another lease or none.
fn fence_here(id: &str) -> Option<u64> {
    let is_here = std::env::var("SUBLET_LEASE").is_ok_and(|lease| lease == id);
    std::env::var("SUBLET_FENCE").ok().filter(|_| is_here)?.parse().ok()
}

/// Why a renewal has no effect on a lease; `None` if it has one.
fn unrenewed(lease: &Lease) -> Option<&'static str> {
    match lease {
        lease if lease.fixed_term => Some("its term is fixed"),
        lease if !lease.pids.is_empty() => Some("what its processes do on the GPU renews it"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_renews_only_what_nothing_else_does() {
        let free = Lease { pids: vec![], fixed_term: false, ..crate::sample::lease() };
        assert_eq!(unrenewed(&free), None);
        assert!(unrenewed(&Lease { pids: vec![7], ..free.clone() }).is_some());
        assert!(unrenewed(&Lease { fixed_term: true, ..free }).is_some());
    }
}
