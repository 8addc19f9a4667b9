//! `sublet cards`: the GPUs one by one, and taking them out of and into service.

use crate::args::Globals;
use crate::client::Client;
use crate::failure::Failure;
use crate::output;
use crate::table::Table;
use crate::text;
use clap::{Args, Subcommand};
use sublet_wire::{Card, CardState, Cards, exit, size};

/// Show the GPUs, let one run empty, or put it back into service
#[derive(Args, Clone, Debug)]
pub struct CardsArgs {
    #[command(subcommand)]
    verb: Option<Verb>,
}

/// What to do to a GPU.
#[derive(Subcommand, Clone, Debug)]
pub enum Verb {
    /// Grant nothing new on a GPU; what is on it goes on (operators only)
    Drain {
        /// Index or UUID
        card: String,
    },
    /// Put a GPU back into service (operators only)
    Clear {
        /// Index or UUID
        card: String,
    },
}

/// Lists or changes GPUs.
pub fn run(globals: &Globals, args: &CardsArgs) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let cards: Cards = client.get("/v1/cards")?;
    let (name, verb) = match &args.verb {
        None => return show(globals, &cards),
        Some(Verb::Drain { card }) => (card, "drain"),
        Some(Verb::Clear { card }) => (card, "clear"),
    };
    client.card(&find(&cards, name)?.uuid, verb)?;
    let cards: Cards = client.get("/v1/cards")?;
    let card = find(&cards, name)?;
    if globals.json {
        output::json(card)?;
    } else {
        output::print(&format!("GPU {} is {}\n", card.index, text::card_state(card.state)))?;
    }
    Ok(exit::OK)
}

fn show(globals: &Globals, cards: &Cards) -> Result<u8, Failure> {
    if globals.json {
        output::json(cards)?;
    } else {
        output::print(&render(cards, text::now_unix_s()))?;
    }
    Ok(exit::OK)
}

/// The GPU with this index or UUID.
pub fn find<'a>(cards: &'a Cards, name: &str) -> Result<&'a Card, Failure> {
    let is_meant = |card: &&Card| match name.parse::<u32>() {
        Ok(index) => card.index == index,
        Err(_) => card.uuid.eq_ignore_ascii_case(name),
    };
    let known: Vec<String> = cards.cards.iter().map(|card| card.index.to_string()).collect();
    cards.cards.iter().find(is_meant).ok_or_else(|| {
        let failure = Failure::usage(format!("there is no GPU `{name}`"));
        if known.is_empty() { failure } else { failure.hint(format!("the GPUs are {}", known.join(", "))) }
    })
}

/// One line for each GPU.
pub fn overview(cards: &Cards) -> String {
    let trouble = cards.trouble.as_ref().map(|trouble| format!("the driver does not list its GPUs: {trouble}\n"));
    if cards.cards.is_empty() {
        return trouble.unwrap_or_else(|| "no GPUs\n".into());
    }
    let mut table = Table::new(&["GPU", "MODEL", ">USED", ">TOTAL", ">FREE TO LEASE", "STATE"]);
    for card in &cards.cards {
        table.row([
            card.index.to_string(),
            card.name.clone(),
            text::bytes(card.used_bytes),
            size::show(card.total_bytes),
            size::show(card.promisable_bytes),
            state(card),
        ]);
    }
    table.show("") + &trouble.unwrap_or_default()
}

/// The state of a GPU: `in service` if it is also readable, and otherwise with the reason.
fn state(card: &Card) -> String {
    let state = text::card_state(card.state);
    match (&card.unreadable, &card.state_why) {
        (Some(unreadable), _) if card.state == CardState::InService => format!("unreadable: {}", unreadable.sentence),
        (_, Some(why)) => format!("{state}: {why}"),
        (_, None) => state.into(),
    }
}

/// The leases and processes on the GPUs; `None` if there are none.
pub fn occupants(cards: &Cards, now_unix_s: f64) -> Option<String> {
    let mut table = Table::new(&["GPU", "USER", "LEASE", "TIER", "STATE", ">LEASED", ">SEEN", ">FOR"]);
    for card in &cards.cards {
        for occupant in &card.occupants {
            let process = || occupant.pid.map_or_else(|| text::NONE.into(), |pid| format!("pid {pid}"));
            table.row([
                card.index.to_string(),
                text::or_none(occupant.user.as_deref()),
                occupant.lease.clone().unwrap_or_else(process),
                occupant.tier.map_or(text::NONE, text::tier).into(),
                if occupant.over { format!("{}, over", occupant.state) } else { occupant.state.clone() },
                text::bytes(occupant.reserved_bytes),
                text::bytes(occupant.seen_bytes),
                text::since(occupant.since_unix_s, now_unix_s),
            ]);
        }
    }
    (!table.is_empty()).then(|| table.show(""))
}

fn render(cards: &Cards, now_unix_s: f64) -> String {
    let mut sections = vec![overview(cards)];
    sections.extend(cards.cards.iter().map(details));
    sections.extend(occupants(cards, now_unix_s));
    sections.join("\n")
}

fn details(card: &Card) -> String {
    let taken = match (card.committed_bytes, card.loose_bytes) {
        (Some(taken), Some(loose)) => {
            format!("{} taken or promised, {} of it without a lease", size::show(taken), size::show(loose))
        }
        _ => "what is taken is unknown".into(),
    };
    let context = card.context_bytes.map_or_else(
        || "what a CUDA context takes was not measured".into(),
        |bytes| format!("a CUDA context takes {}", size::show(bytes)),
    );
    let seen = if card.coarse { "; bytes per process are not known (coarse)" } else { "" };
    format!("GPU {}: {}\n  {taken}\n  {context}{seen}\n", card.index, card.uuid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use expect_test::expect;

    #[test]
    fn each_card_is_shown_with_who_is_on_it() {
        expect![[r#"
            GPU  MODEL                    USED   TOTAL  FREE TO LEASE  STATE
            0    NVIDIA A100-SXM4-40GB  11 GiB  40 GiB         26 GiB  in service
            1    NVIDIA A100-SXM4-40GB     0 B  40 GiB            0 B  draining: an operator lets it run empty
            2    NVIDIA A100-SXM4-40GB       -  40 GiB            0 B  unreadable: the GPU did not answer; no new leases there until it does

            GPU 0: GPU-0a
              14 GiB taken or promised, 3 GiB of it without a lease
              a CUDA context takes 420 MiB

            GPU 1: GPU-1b
              256 MiB taken or promised, 0 B of it without a lease
              what a CUDA context takes was not measured; bytes per process are not known (coarse)

            GPU 2: GPU-2c
              what is taken is unknown
              what a CUDA context takes was not measured; bytes per process are not known (coarse)

            GPU  USER  LEASE    TIER   STATE     LEASED     SEEN   FOR
            0    ana   L7       batch  active    10 GiB  7.8 GiB  60 s
            0    -     pid 991  -      stranger       -    3 GiB     -
        "#]].assert_eq(&render(&sample::cards(), sample::NOW));
    }

    #[test]
    fn a_card_is_found_by_index_or_uuid() {
        let cards = sample::cards();
        assert_eq!(find(&cards, "1").unwrap().uuid, "GPU-1b");
        assert_eq!(find(&cards, "gpu-2C").unwrap().index, 2);
        expect![[r#"
            there is no GPU `9`
            hint: the GPUs are 0, 1, 2"#]]
        .assert_eq(&find(&cards, "9").unwrap_err().to_string());
    }
}
