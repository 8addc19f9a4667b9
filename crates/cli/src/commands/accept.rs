//! `sublet accept`: accepts a smaller lease now instead of waiting for the full one, or a larger one for a program that
//! uses more memory than its lease is for.

use crate::args::{Globals, LeaseName};
use crate::client::Client;
use crate::completion;
use crate::failure::Failure;
use crate::hold::ask::{parse_gpus, parse_size};
use crate::output;
use crate::text;
use clap::Args;
use sublet_wire::{AcceptRequest, Lease, exit, size};

/// Take the smaller lease that is offered now, or the larger one
///
/// A waiter is offered a smaller lease that can start now; a running lease with more on its GPUs than it is for is
/// offered a larger one
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct AcceptArgs {
    /// Its id, such as L7, or its name
    #[arg(add = completion::any_lease())]
    lease: LeaseName,
    /// VRAM per GPU, such as 6G [default: the first offer]
    #[arg(value_name = "SIZE", value_parser = parse_size)]
    vram: Option<u64>,
    /// How many GPUs
    #[arg(long, value_name = "N", requires = "vram", value_parser = parse_gpus)]
    gpus: Option<u32>,
}

const AFTER_HELP: &str = "\
`sublet explain LEASE` lists what is offered. Nothing is kept for an offer: if
another request was quicker, the place in the queue stays. With a smaller lease
you give up the place in the queue.

If the programs of a lease have more on a GPU than the lease is for (`sublet ps`
says so), it is offered what they have, where quotas and the GPU allow it; from
then on it is charged for that.";

/// Accepts an offer.
pub fn run(globals: &Globals, args: &AcceptArgs) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let id = client.id_of(&args.lease)?;
    let taken = match args.vram {
        Some(vram_bytes) => {
            AcceptedSize { accept: AcceptRequest { vram_bytes, gpus: args.gpus }, larger: has_more(&client, &id) }
        }
        None => first_offer(&client, &id)?,
    };
    let lease = client.accept(&id, &taken.accept).map_err(|failure| failure.about(&id))?;
    if globals.json {
        output::json(&lease)?;
    } else {
        let vram = lease.vram_bytes.map_or_else(|| "-".to_owned(), size::show);
        let became = if taken.larger { "has" } else { "starts:" };
        output::print(&format!("{} {became} {vram} on {}\n", lease.id, text::gpus(&lease.gpu_indices)))?;
    }
    Ok(exit::OK)
}

/// What to accept.
struct AcceptedSize {
    accept: AcceptRequest,
    /// The lease grows, because its program uses more memory than it is for.
    larger: bool,
}

fn has_more(client: &Client, id: &str) -> bool {
    let lease: Result<Lease, Failure> = client.get(&format!("/v1/leases/{id}"));
    lease.is_ok_and(|lease| lease.overuse.is_some())
}

fn first_offer(client: &Client, id: &str) -> Result<AcceptedSize, Failure> {
    let lease: Lease = client.get(&format!("/v1/leases/{id}")).map_err(|failure: Failure| failure.about(id))?;
    if let Some(vram_bytes) = lease.overuse.as_ref().and_then(|over| over.offer_bytes) {
        return Ok(AcceptedSize { accept: AcceptRequest { vram_bytes, gpus: Some(lease.gpus) }, larger: true });
    }
    let offer = lease.waiting.as_ref().and_then(|waiting| waiting.offers.first());
    let Some(offer) = offer else {
        let (why, hint) = match (&lease.waiting, &lease.ended) {
            (Some(_), _) => ("nothing smaller can start now", format!("`sublet explain {id}` says why")),
            (None, None) if lease.overuse.is_some() => {
                ("no larger lease can be had now", "neither the GPU nor the quotas may be exceeded".to_owned())
            }
            (None, None) => ("it does not wait", "it is granted already: `sublet ps` shows it".to_owned()),
            (None, Some(_)) => ("it has ended", "ask for a new lease".to_owned()),
        };
        return Err(Failure::new(exit::LEASE_LOST, format!("{id}: {why}")).hint(hint));
    };
    Ok(AcceptedSize { accept: AcceptRequest { vram_bytes: offer.vram_bytes, gpus: Some(offer.gpus) }, larger: false })
}
