//! `sublet ps`: leases that have not ended.

use crate::args::Globals;
use crate::client::Client;
use crate::failure::Failure;
use crate::hold::wait;
use crate::output;
use crate::table::Table;
use crate::text;
use clap::Args;
use sublet_wire::{Lease, LeaseState, Leases, Waiting, exit, span};

/// List your leases
#[derive(Args, Clone, Debug)]
pub struct PsArgs {
    /// Everybody's (operators only)
    #[arg(short, long)]
    all: bool,
}

/// Lists leases.
pub fn run(globals: &Globals, args: &PsArgs) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let leases = client.leases(args.all)?;
    if globals.json {
        output::json(&leases)?;
    } else if leases.leases.is_empty() {
        eprintln!("no leases");
    } else {
        output::print(&render(&leases, args.all))?;
    }
    if !globals.json {
        leases.leases.iter().for_each(wait::say_over);
        for (lease, why) in leases.leases.iter().filter_map(|lease| Some((lease, lease.not_parkable.as_ref()?))) {
            eprintln!("{} cannot be parked now: {why}", lease.id);
        }
        for (lease, others) in leases.leases.iter().filter_map(|lease| Some((lease, lease.foreign_processes.as_ref()?)))
        {
            eprintln!("{}: {others}", lease.id);
        }
        for (lease, why) in leases.leases.iter().filter_map(|lease| Some((lease, lease.resume_blocked.as_ref()?))) {
            eprintln!("{} is not brought back yet: {why}", lease.id);
        }
        tell_waits(&leases.leases);
    }
    if leases.more {
        eprintln!("these are the first {}: there are more than are listed here", leases.leases.len());
    }
    Ok(exit::OK)
}

/// Prints why the first few of these wait.
fn tell_waits(leases: &[Lease]) {
    let waiting = || leases.iter().filter_map(|lease| Some((lease, lease.waiting.as_ref()?)));
    for (lease, waiting) in waiting().take(WAITS_MAX) {
        eprintln!("{} waits: {}", lease.id, waiting.why);
    }
    let more = waiting().count().saturating_sub(WAITS_MAX);
    if more > 0 {
        eprintln!("{more} more wait: `sublet queue`");
    }
}

/// The most waiting leases for which `ps` prints the reason.
const WAITS_MAX: usize = 3;

fn render(leases: &Leases, with_user: bool) -> String {
    let user: &[&'static str] = if with_user { &["USER"] } else { &[] };
    let rest = ["NAME", "STATE", "GPUS", ">VRAM", ">SEEN", "TIER", ">LEFT", "PIDS"];
    let headers: Vec<&'static str> = ["LEASE"].iter().chain(user).chain(&rest).copied().collect();
    let mut table = Table::new(&headers);
    for lease in &leases.leases {
        let mut row = vec![lease.id.clone()];
        if with_user {
            row.push(lease.user.clone());
        }
        row.extend(cells(lease));
        table.row(row);
    }
    table.show("")
}

fn cells(lease: &Lease) -> [String; 8] {
    let vram =
        lease.vram_bytes.map_or_else(|| text::vram(lease.requested_vram_bytes), |bytes| text::bytes(Some(bytes)));
    [
        text::or_none(lease.name.as_deref()),
        state(lease),
        gpus(lease),
        vram,
        text::bytes(lease.seen_bytes),
        text::tier(lease.tier).into(),
        text::seconds(lease.remaining_s),
        pids(&lease.pids),
    ]
}

fn state(lease: &Lease) -> String {
    let state = text::lease_state(lease.state);
    let soon = |waiting: &Waiting| {
        waiting.expected_s.map_or_else(String::new, |s| format!(", expected in about {}", span::show(s)))
    };
    match (&lease.waiting, lease.state) {
        (Some(waiting), LeaseState::Parked) => format!("{state}, wants back, place {}{}", waiting.place, soon(waiting)),
        (Some(waiting), _) => format!("{state}, place {}{}", waiting.place, soon(waiting)),
        (None, LeaseState::Active) if lease.overuse.is_some() => format!("{state}, over"),
        (None, LeaseState::Active) if lease.idle => format!("{state}, idle"),
        _ => state.into(),
    }
}

fn gpus(lease: &Lease) -> String {
    if lease.gpu_indices.is_empty() {
        return if lease.gpus == 1 { text::NONE.into() } else { format!("any {}", lease.gpus) };
    }
    let list: Vec<String> = lease.gpu_indices.iter().map(u32::to_string).collect();
    list.join(",")
}

/// The first few pids. A holder can have thousands of processes, and a few are enough to recognise it.
fn pids(pids: &[u32]) -> String {
    let shown: Vec<String> = pids.iter().take(3).map(u32::to_string).collect();
    match (shown.is_empty(), pids.len() - shown.len()) {
        (true, _) => text::NONE.into(),
        (false, 0) => shown.join(","),
        (false, more) => format!("{} +{more}", shown.join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use expect_test::expect;

    #[test]
    fn leases_are_listed_with_state_and_room() {
        let idle = Lease { idle: true, id: "L5".into(), name: None, pids: (1..9).collect(), ..sample::lease() };
        let parked = Lease { state: LeaseState::Parked, remaining_s: None, id: "L6".into(), ..sample::lease() };
        let back = Lease { id: "L9".into(), waiting: sample::waiting().waiting, ..parked.clone() };
        let leases = Leases { leases: vec![sample::lease(), idle, sample::waiting(), parked, back], more: false };
        expect![[r#"
            LEASE  NAME   STATE                                                GPUS    VRAM     SEEN  TIER          LEFT  PIDS
            L7     train  active                                               0     10 GiB  7.8 GiB  batch        4 min  4312,4313
            L5     -      active, idle                                         0     10 GiB  7.8 GiB  batch        4 min  1,2,3 +5
            L8     -      waiting, place 2, expected in about 40 s             -      whole        -  interactive      -  -
            L6     train  parked                                               0     10 GiB  7.8 GiB  batch            -  4312,4313
            L9     train  parked, wants back, place 2, expected in about 40 s  0     10 GiB  7.8 GiB  batch            -  4312,4313
        "#]]
        .assert_eq(&render(&leases, false));
    }

    #[test]
    fn an_operator_sees_whose_they_are() {
        let gang = Lease { gpus: 2, ..sample::waiting() };
        let leases = Leases { leases: vec![sample::two_gpu_lease(), gang], more: false };
        expect![[r#"
            LEASE  USER  NAME   STATE                                     GPUS     VRAM     SEEN  TIER          LEFT  PIDS
            L7     ana   train  active                                    2,3    10 GiB  7.8 GiB  batch        4 min  4312,4313
            L8     ben   -      waiting, place 2, expected in about 40 s  any 2   whole        -  interactive      -  -
        "#]]
        .assert_eq(&render(&leases, true));
    }
}
