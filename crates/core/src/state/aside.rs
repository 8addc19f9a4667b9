//! Which GPUs step aside now, and until when.

use crate::model::aside::Aside;
use crate::model::ids::GpuId;
use crate::model::units::Time;
use crate::model::unleased::Mode;
use crate::state::State;

impl State {
    /// True while a GPU steps aside: nothing is granted or resumed there.
    pub fn is_aside(&self, gpu: GpuId) -> bool {
        !self.rows().gpus[gpu].aside.now.is_empty()
    }

    /// The aside that keeps a GPU longest, and when it is over.
    pub fn longest_aside(&self, gpu: GpuId) -> Option<(&Aside, Time)> {
        let asides = self.rows().gpus[gpu].aside.now.iter();
        asides.map(|aside| (aside, self.aside_over(aside))).max_by_key(|(_, over)| *over)
    }

    /// When an aside is over: a daemon that was away could not hear a renewal.
    pub fn aside_over(&self, aside: &Aside) -> Time {
        self.rows().meta.due(aside.renewed, aside.until)
    }

    pub(crate) fn next_aside_over(&self) -> Option<Time> {
        let asides = self.rows().gpus.iter().flat_map(|gpu| &gpu.aside.now);
        asides.map(|aside| self.aside_over(aside)).min()
    }

    /// The mode of a GPU now: `observe` while it steps aside.
    pub fn mode(&self, gpu: GpuId) -> Mode {
        if self.is_aside(gpu) { Mode::Observe } else { self.rows().gpus[gpu].mode }
    }

    /// An aside is over: how long leases may be parked there counts from another time.
    pub(crate) fn look_at_parked_on(&mut self, gpu: GpuId) {
        let parked = self.room(gpu).leases().iter().filter(|(_, claim)| claim.is_parked).map(|(lease, _)| *lease);
        for lease in parked.collect::<Vec<_>>() {
            self.set_due(lease, self.lease(lease).and_then(|row| self.first_due(row)));
        }
    }

    /// From when on the time counts that a lease may be parked: while a GPU of it steps aside it cannot come back.
    pub fn parked_since(&self, gpus: &[GpuId], since: Time) -> Time {
        let last = |gpu: &GpuId| match self.longest_aside(*gpu) {
            Some((_, over)) => Some(over),
            None => self.rows().gpus[*gpu].aside.ended,
        };
        gpus.iter().filter_map(last).fold(since, Time::max)
    }
}
