//! `sublet ps`: leases that have not ended.

use crate::args::Globals;
use crate::client::Client;
use crate::failure::Failure;
use crate::hold::wait;
use crate::output;
use crate::table::{Table, TextFormat, once, plain, wrapped};
use crate::text;
use clap::Args;
use sublet_wire::{Lease, LeaseState, Leases, exit};

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
        output::print(&render(&leases, args.all, TextFormat::of_stdout()))?;
    }
    if !globals.json {
        leases.leases.iter().for_each(wait::say_over);
        say(&notes(&leases.leases, TextFormat::of_stderr()));
    }
    if leases.more {
        eprintln!("these are the first {}: there are more than are listed here", leases.leases.len());
    }
    Ok(exit::OK)
}

/// What the table has no room for, each sentence once.
fn notes(leases: &[Lease], format: TextFormat) -> Vec<String> {
    let about = |sentence: fn(&Lease) -> Option<String>| {
        let found = leases.iter().filter_map(|lease| Some((lease.id.as_str(), plain(&sentence(lease)?))));
        once(found).into_iter().map(|(ids, why)| (text::names(&ids), why))
    };
    let stays = about(|lease| lease.not_parkable.clone());
    let others = about(|lease| lease.foreign_processes.clone());
    let held_back = about(|lease| lease.resume_blocked.clone());
    let waits = once(leases.iter().filter_map(|lease| {
        let why = plain(text::obstacle(&lease.waiting.as_ref()?.why));
        (!why.is_empty()).then_some((lease.id.as_str(), why))
    }));
    let more = waits.len().saturating_sub(WAITS_MAX);
    let waits = waits.into_iter().take(WAITS_MAX).map(|(ids, why)| {
        let wait = if ids.len() == 1 { "waits" } else { "wait" };
        format!("{} {wait}: {why}", text::names(&ids))
    });
    stays
        .map(|(ids, why)| format!("{ids} cannot be parked now: {why}"))
        .chain(others.map(|(ids, others)| format!("{ids}: {others}")))
        .chain(held_back.map(|(ids, why)| format!("{ids} cannot be resumed yet: {why}")))
        .chain(waits)
        .chain((more > 0).then(|| "`sublet queue` shows why the others wait".to_owned()))
        .map(|note| wrapped(&note, 2, format))
        .collect()
}

fn say(notes: &[String]) {
    notes.iter().for_each(|note| eprintln!("{note}"));
}

/// The most reasons of waits that `ps` prints.
const WAITS_MAX: usize = 3;

fn render(leases: &Leases, with_user: bool, format: TextFormat) -> String {
    let user: &[&'static str] = if with_user { &["~USER"] } else { &[] };
    let rest = ["~NAME", "STATE", "GPUS", ">VRAM", ">USED", "TIER", ">LEFT", ">EXPECTED IN", "PIDS"];
    let headers: Vec<&'static str> = ["LEASE"].iter().chain(user).chain(&rest).copied().collect();
    let mut table = Table::new(&headers).drops(&["PIDS", "TIER", "LEFT", "USED", "EXPECTED IN"]);
    for lease in &leases.leases {
        let mut row = vec![lease.id.clone()];
        if with_user {
            row.push(lease.user.clone());
        }
        row.extend(cells(lease));
        table.row(row);
        table.set_tone("STATE", text::lease_tone(lease));
    }
    table.show("", format)
}

fn cells(lease: &Lease) -> [String; 9] {
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
        text::seconds(lease.waiting.as_ref().and_then(|waiting| waiting.expected_s)),
        pids(&lease.pids),
    ]
}

fn state(lease: &Lease) -> String {
    let state = text::lease_state(lease.state);
    match (&lease.waiting, lease.state) {
        (Some(waiting), _) => format!("{state}, place {}", waiting.place),
        (None, LeaseState::Active) if lease.overuse.is_some() => format!("{state}, exceeds lease"),
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
            LEASE  NAME   STATE             GPUS    VRAM     USED  TIER          LEFT  EXPECTED IN  PIDS
            L7     train  active            0     10 GiB  7.8 GiB  batch        4 min            -  4312,4313
            L5     -      active, idle      0     10 GiB  7.8 GiB  batch        4 min            -  1,2,3 +5
            L8     -      waiting, place 2  -      whole        -  interactive      -         40 s  -
            L6     train  parked            0     10 GiB  7.8 GiB  batch            -            -  4312,4313
            L9     train  parked, place 2   0     10 GiB  7.8 GiB  batch            -         40 s  4312,4313
        "#]]
        .assert_eq(&render(&leases, false, TextFormat::default()));
    }

    #[test]
    fn an_operator_sees_whose_they_are() {
        let gang = Lease { gpus: 2, ..sample::waiting() };
        let leases = Leases { leases: vec![sample::two_gpu_lease(), gang], more: false };
        expect![[r#"
            LEASE  USER  NAME   STATE             GPUS     VRAM     USED  TIER          LEFT  EXPECTED IN  PIDS
            L7     ana   train  active            2,3    10 GiB  7.8 GiB  batch        4 min            -  4312,4313
            L8     ben   -      waiting, place 2  any 2   whole        -  interactive      -         40 s  -
        "#]]
        .assert_eq(&render(&leases, true, TextFormat::default()));
    }
}
