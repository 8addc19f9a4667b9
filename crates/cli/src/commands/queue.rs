//! `sublet queue`: the waiters in order of service, and why they wait.

use crate::args::Globals;
use crate::client::Client;
use crate::failure::Failure;
use crate::output;
use crate::table::Table;
use crate::text;
use sublet_wire::{Lease, Leases, exit};

/// Lists the waiters.
pub fn run(globals: &Globals) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let queue: Leases = client.get("/v1/queue")?;
    if globals.json {
        output::json(&queue)?;
    } else if queue.leases.is_empty() {
        eprintln!("no request waits");
    } else {
        output::print(&render(&queue, text::now_unix_s()))?;
    }
    if queue.more {
        eprintln!("these are the first {}: there are more than are listed here", queue.leases.len());
    }
    Ok(exit::OK)
}

fn render(queue: &Leases, now_unix_s: f64) -> String {
    let headers =
        [">PLACE", "LEASE", "USER", ">VRAM", ">GPUS", "TIER", ">WAITED", ">EXPECTED IN", ">WORST CASE", "WHY"];
    let mut table = Table::new(&headers);
    for (n, lease) in queue.leases.iter().enumerate() {
        table.row(cells(n, lease, now_unix_s));
    }
    table.show("")
}

fn cells(n: usize, lease: &Lease, now_unix_s: f64) -> [String; 10] {
    let waiting = lease.waiting.as_ref();
    [
        waiting.map_or(n as u64 + 1, |waiting| waiting.place).to_string(),
        lease.id.clone(),
        lease.user.clone(),
        text::vram(lease.requested_vram_bytes),
        lease.gpus.to_string(),
        text::tier(lease.tier).into(),
        text::since(Some(lease.requested_unix_s), now_unix_s),
        text::seconds(waiting.and_then(|waiting| waiting.expected_s)),
        text::seconds(waiting.and_then(text::worst_case_s)),
        text::or_none(waiting.map(|waiting| waiting.why.as_str())),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use expect_test::expect;

    #[test]
    fn the_queue_is_shown_in_order_of_service() {
        expect![[r#"
            PLACE  LEASE  USER    VRAM  GPUS  TIER         WAITED  EXPECTED IN  WORST CASE  WHY
                1  -      ana   16 GiB     2  batch         5 min            -           -  GPU 0 has 4 GiB of 16 GiB
                2  L8     ben    whole     1  interactive    30 s         40 s   2 h 0 min  GPU 0 is not empty
        "#]]
        .assert_eq(&render(&sample::queue(), sample::NOW));
    }
}
