//! `sublet queue`: the waiters in order of service, and why they wait.

use crate::args::Globals;
use crate::client::Client;
use crate::failure::Failure;
use crate::output;
use crate::table::{Table, TextFormat, Tone, once, plain, wrapped};
use crate::text;
use sublet_wire::{Lease, LeaseState, Leases, exit};

/// Lists the waiters.
pub fn run(globals: &Globals) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let queue: Leases = client.get("/v1/queue")?;
    if globals.json {
        output::json(&queue)?;
    } else if queue.leases.is_empty() {
        eprintln!("no request waits");
    } else {
        output::print(&render(&queue, text::now_unix_s(), TextFormat::of_stdout()))?;
    }
    if queue.more {
        eprintln!("these are the first {}: there are more than are listed here", queue.leases.len());
    }
    Ok(exit::OK)
}

/// The table, and below it why the requests wait, as far as the caller may know it.
fn render(queue: &Leases, now_unix_s: f64, format: TextFormat) -> String {
    let headers = [">PLACE", "LEASE", "~NAME", "~USER", "STATE", ">VRAM", ">GPUS", "TIER", ">WAITED", ">EXPECTED IN"];
    let mut table = Table::new(&headers).drops(&["STATE", "NAME", "GPUS", "TIER", "WAITED"]);
    for (n, lease) in queue.leases.iter().enumerate() {
        table.row(cells(n, lease, now_unix_s));
        if lease.state == LeaseState::Parked {
            table.set_tone("STATE", Tone::Notable);
        }
    }
    table.show("", format) + &reasons(queue, format)
}

fn cells(n: usize, lease: &Lease, now_unix_s: f64) -> [String; 10] {
    let waiting = lease.waiting.as_ref();
    [
        waiting.map_or(n as u64 + 1, |waiting| waiting.place).to_string(),
        lease.id.clone(),
        text::or_none(lease.name.as_deref()),
        lease.user.clone(),
        text::lease_state(lease.state).into(),
        text::vram(lease.requested_vram_bytes),
        lease.gpus.to_string(),
        text::tier(lease.tier).into(),
        text::since(Some(lease.requested_unix_s), now_unix_s),
        text::seconds(waiting.and_then(|waiting| waiting.expected_s)),
    ]
}

/// Each reason once; empty if the caller may know none.
fn reasons(queue: &Leases, format: TextFormat) -> String {
    let known = queue.leases.iter().filter_map(|lease| {
        let why = plain(text::obstacle(&lease.waiting.as_ref()?.why));
        (!why.is_empty()).then_some((lease.id.as_str(), why))
    });
    let reasons = once(known).into_iter().map(|(ids, why)| {
        let wait = if ids.len() == 1 { "waits" } else { "wait" };
        wrapped(&format!("{} {wait}: {why}", text::names(&ids)), 2, format) + "\n"
    });
    let reasons: String = reasons.collect();
    if reasons.is_empty() { reasons } else { format!("\n{reasons}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use expect_test::expect;

    #[test]
    fn the_queue_is_shown_in_order_of_service() {
        expect![[r#"
            PLACE  LEASE  NAME  USER  STATE      VRAM  GPUS  TIER         WAITED  EXPECTED IN
                1  -      -     ana   waiting  16 GiB     2  batch         5 min            -
                2  L8     -     ben   waiting   whole     1  interactive    30 s         40 s

            - waits: GPU 0 has 4 GiB of 16 GiB
            L8 waits: GPU 0 is not empty
        "#]]
        .assert_eq(&render(&sample::queue(), sample::NOW, TextFormat::default()));
    }
}
