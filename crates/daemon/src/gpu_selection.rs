//! Which GPUs are served: those that are named, or else the real ones, or soft ones where there is no real one.
//!
//! ```text
//!   named (`--gpu`, `gpu =`) ──► these
//!   an NVIDIA device is visible, or the journal ever saw a real GPU ──► real
//!   otherwise ──► soft
//! ```
//! So a machine with a failing driver never turns to soft GPUs silently: leases go on, nothing new is granted, and the
//! reason is told.

use sublet_host::gpu::{self, GpuKind, GpuSpec, NotAGpuSpec};
use sublet_journal::LoadedState;

/// The GPUs, and how they were chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuSelection {
    /// The GPUs.
    pub gpu: GpuSpec,
    /// True if no option named them.
    pub automatic: bool,
}

/// Chooses the GPUs; `asked` is the option.
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

/// The kind of GPUs in the journal, if it differs from this one.
pub fn other_kind(loaded: &LoadedState, kind: GpuKind) -> Option<GpuKind> {
    kinds(loaded).find(|known| *known != kind)
}

fn kinds(loaded: &LoadedState) -> impl Iterator<Item = GpuKind> {
    loaded.rows.gpus.iter().map(|gpu| GpuKind::of(&gpu.facts.uuid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_gpus_are_chosen_only_if_no_real_gpu_is_or_was_there() {
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
