//! When a program's own count of its bytes is believed.
//!
//! ```text
//! booked 4, counts 6   ─► outgrown: a new reading, a larger booking, and the next try
//! booked 4, counts 6   ─► refused: the reading led to no larger booking, so the next method's turn
//! booked 5, counts 6   ─► outgrown
//! parked               ─► what was believed is forgotten
//! ```

/// What was believed of the programs of a lease since its last park.
#[derive(Debug, Default)]
pub struct OutgrownBooking {
    /// The largest booking that was too small by a program's own count.
    booked: Option<u64>,
}

impl OutgrownBooking {
    /// True if the bytes that a program counts exceed this booking, and this is news: a program that claimed it at each
    /// try could refuse for ever.
    pub fn is_outgrown(&mut self, counted: u64, booked: u64) -> bool {
        let is_news = counted > booked && Some(booked) > self.booked;
        if is_news {
            self.booked = Some(booked);
        }
        is_news
    }

    /// Forgets it: the programs were parked.
    pub fn forget(&mut self) {
        self.booked = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_believed_once_for_each_larger_booking() {
        let mut outgrown = OutgrownBooking::default();
        assert!(!outgrown.is_outgrown(4, 4), "it is what was booked");
        assert!(outgrown.is_outgrown(6, 4));
        assert!(!outgrown.is_outgrown(6, 4) && !outgrown.is_outgrown(u64::MAX, 4), "the booking did not grow");
        assert!(outgrown.is_outgrown(6, 5));
        assert!(!outgrown.is_outgrown(6, 5));
    }

    #[test]
    fn a_smaller_booking_is_no_news_and_after_a_park_the_program_is_believed_again() {
        let mut outgrown = OutgrownBooking::default();
        assert!(outgrown.is_outgrown(6, 5));
        assert!(!outgrown.is_outgrown(6, 3));
        assert!(!outgrown.is_outgrown(6, 4), "5 was too small before");
        outgrown.forget();
        assert!(outgrown.is_outgrown(6, 3));
    }
}
