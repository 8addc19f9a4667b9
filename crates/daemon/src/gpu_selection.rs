//! Which cards are served: those that are asked for, or else the real ones, or soft ones where there
//! is nothing real.
//!
//! ```text
//!   asked for (`--gpu`, `gpu =`) ──► these
//!   an NVIDIA device is visible, or the journal ever saw a real card ──► real
//!   otherwise ──► soft
//! ```
//! So a machine whose driver fails never turns to soft cards behind anybody's back: leases go on,
//! nothing new is granted, and the reason is told.

use sublet_host::gpu::{self, GpuKind, GpuSpec, NotAGpuSpec};
use sublet_journal::LoadedState;

/// The cards, and how they came to be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuSelection {
    /// Which.
    pub gpu: GpuSpec,
    /// Nobody asked for just these.
    pub automatic: bool,
}

/// Chooses; `asked` is what a person said.
pub fn choose(asked: Option<GpuSpec>, loaded: &LoadedState) -> Result<GpuSelection, NotAGpuSpec> {
    let saw_real = kinds(loaded).any(|kind| kind == GpuKind::Real);
    choose_where(asked, gpu::nvidia_visible(), saw_real)
}

fn choose_where(asked: Option<GpuSpec>, is_visible: bool, saw_real: bool) -> Result<GpuSelection, NotAGpuSpec> {
    let automatic = asked.is_none();
    let gpu = match asked {
        Some(gpu) => gpu,
        None if is_visible || saw_real => GpuSpec::Real,
        None => "soft".parse()?,
    };
    Ok(GpuSelection { gpu, automatic })
}

/// The kind of cards in the journal, if it is another than this one.
pub fn other_kind(loaded: &LoadedState, kind: GpuKind) -> Option<GpuKind> {
    kinds(loaded).find(|known| *known != kind)
}

fn kinds(loaded: &LoadedState) -> impl Iterator<Item = GpuKind> {
    loaded.rows.gpus.iter().map(|card| GpuKind::of(&card.facts.uuid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_cards_stand_in_only_where_nothing_real_is_or_was() {
        let chosen = |asked: Option<&str>, is_visible, saw_real| {
            let asked = asked.map(|text| text.parse().unwrap());
            let choice = choose_where(asked, is_visible, saw_real).unwrap();
            (choice.gpu.kind(), choice.automatic)
        };
        assert_eq!(chosen(None, false, false), (GpuKind::Soft, true));
        assert_eq!(chosen(None, true, false), (GpuKind::Real, true));
        assert_eq!(chosen(None, false, true), (GpuKind::Real, true), "a driver that fails is no reason");
        assert_eq!(chosen(Some("real"), false, false), (GpuKind::Real, false));
        assert_eq!(chosen(Some("soft:1x80GiB"), true, true), (GpuKind::Soft, false));
    }
}
