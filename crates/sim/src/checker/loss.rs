//! Lines that are missing from the journal: nothing is granted until an operator accepts that.

use super::books::CheckerBooks;
use super::calls::EventCause;
use super::{Verdict, must};
use sublet_core::event::{Caller, EventAnswer, Refusal};
use sublet_core::loss::Loss;

impl CheckerBooks {
    /// Why nothing may be granted now; `None` if grants are allowed.
    pub fn stopped(&self) -> Option<Refusal> {
        if self.disk_full { Some(Refusal::DiskFull) } else { self.loss.map(Refusal::LossNotAccepted) }
    }

    /// True if nothing may be granted now.
    pub fn is_stopped(&self) -> bool {
        self.stopped().is_some()
    }

    /// What must be answered to a caller that accepts the loss.
    pub fn loss_accepted(&self, by: &Caller) -> EventAnswer {
        match self.loss {
            _ if !by.operator => EventAnswer::Refused(Refusal::NotOperator),
            None => EventAnswer::Refused(Refusal::NoLoss),
            Some(loss) => EventAnswer::LossAccepted(loss),
        }
    }

    /// Takes the record that the loss was accepted.
    pub fn accept_loss(&mut self, cause: &EventCause, loss: Loss) -> Verdict {
        let asked = matches!(cause, EventCause::LossAccepted(EventAnswer::LossAccepted(asked)) if *asked == loss);
        must(15, asked, || format!("{loss:?} is accepted after {cause:?}"))?;
        self.loss = None;
        Ok(())
    }
}
