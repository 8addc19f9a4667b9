//! Users put GPUs aside, and end that.

use crate::checker::Violation;
use crate::daemon::SimCall;
use crate::shape::S;
use crate::sim::Sim;
use crate::timers::Timer;
use sublet_core::event::{AsideRequest, Event};
use sublet_core::facts::GpuEvent;
use sublet_core::units::Span;

impl Sim<'_> {
    /// Sets the time of the next request about asides, in worlds that have some.
    pub(crate) fn schedule_aside(&mut self) {
        let every_s = self.rng_aside.1;
        if every_s > 0 && !self.calm {
            let delay = self.rng_aside.0.within(S / 2, every_s * S);
            self.timers.set(self.t + delay, Timer::Aside);
        }
    }

    /// A user puts a GPU aside, renews that, or ends it, with or without the right to.
    pub(crate) fn request_aside(&mut self) -> Result<(), Violation> {
        self.schedule_aside();
        if self.calm {
            return Ok(());
        }
        let rng = &mut self.rng_aside.0;
        let number = rng.below(self.callers.len() as u64) as usize;
        let by = self.callers[number].clone();
        let card = format!("GPU-{}", rng.below(self.world.gpus.len() as u64 + 1).min(self.world.gpus.len() as u64));
        let key = rng.pick(&["", "", "game"]);
        let event = if rng.chance(250) {
            let key = rng.chance(400).then(|| key.to_owned());
            Event::Gpu(GpuEvent::AsideEndRequested { by, gpu: card, key })
        } else {
            let span = rng.pick(&[1, 5, 20, 60, 300]);
            let span = if rng.chance(30) { None } else { Some(Span::secs(span)) };
            let (renews, at_seat) = (rng.chance(250), rng.chance(800));
            Event::Gpu(GpuEvent::AsideRequested {
                by,
                gpu: card,
                request: AsideRequest { span, key: key.to_owned(), renews, at_seat },
            })
        };
        self.call(SimCall { by: number, event, job: None })
    }

    /// An operator ends all asides.
    pub(crate) fn end_asides(&mut self) -> Result<(), Violation> {
        let number = self.callers.len() - 1;
        for card in 0..self.world.gpus.len() {
            let (by, card) = (self.callers[number].clone(), self.world.gpus[card].facts.uuid.clone());
            self.call(SimCall {
                by: number,
                event: Event::Gpu(GpuEvent::AsideEndRequested { by, gpu: card, key: None }),
                job: None,
            })?;
        }
        Ok(())
    }
}
