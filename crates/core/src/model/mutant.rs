//! Bugs planted on purpose, so that the simulation's checker can prove that it
//! would notice. Without the feature `mutants` none of them is in the program.

/// A planted bug, named after what it does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutant {
    /// Rule 1: an unreadable card counts as empty.
    UnreadableIsEmpty,
    /// Rule 1: strangers' bytes are not counted.
    ForgetLoose,
    /// Rule 1: a promise counts only once it is used.
    ForgetReserved,
    /// Rule 1: a reading is good for ever.
    NeverStale,
    /// Rule 4: a release frees the card at once, on the holder's word.
    BelieveRelease,
    /// Rule 7: every grant gets the same epoch.
    ReuseEpoch,
    /// Rule 7: an old epoch is accepted.
    AcceptOldEpoch,
    /// Rule 8: leases expire at their renewal point.
    ExpireEarly,
    /// Rule 8: leases expire a minute late.
    ExpireLate,
    /// Rule 8: after a stall everything that came due is ended at once.
    NoGrace,
    /// Rule 14: the wait is charged too.
    ChargeWait,
    /// Rule 17: a restart ends every lease.
    RestartEnds,
    /// Rule 18: leases of others are answered.
    ShowOthers,
    /// Rule 19: the queue has no bound.
    EndlessQueue,
    /// Rule 19: a refused request is kept as an ended lease.
    KeepRefused,
    /// The queue serves whoever came last.
    ServeLast,
    /// Exclusivity is forgotten.
    ForgetExclusive,
    /// Rule 9: a debt counts without bound.
    NoClamp,
    /// Rule 9: what was let past a claim is renewed like anything else.
    RenewBackfill,
    /// A gang gets one card of those it asked for.
    PartialGang,
    /// Rule 9: who is ahead is left out of the bound.
    HastyBound,
    /// Rule 4: a holder is parked when its programs say so.
    BelieveParked,
    /// Rule 3: host memory is booked without end.
    ForgetLedger,
    /// Rule 2: a parked holder comes back whether there is room or not.
    ResumeBlind,
    /// Rule 4: one look is enough to take a holder for parked.
    OneLook,
    /// A holder is parked when one of its programs is.
    ParkHalf,
    /// Rule 1: what is leaving a card counts no more.
    LeavingIsGone,
    /// A holder that is leaving its cards is told to leave them.
    ParkTwice,
    /// Rule 8: a parked lease expires like any other.
    ExpireParked,
    /// Rule 14: the time in which it was parked is charged too.
    ChargeParked,
    /// Rule 17: a restart parks every holder.
    RestartParks,
    /// Rule 9: who finds no room when it comes back queues as if it had come then.
    LosePlace,
    /// Rule 9: a parked holder that submits work is not heard.
    ForgetWant,
    /// Rule 9: a passive lease comes back into room that waiters claim.
    PassiveFirst,
    /// Rule 9: hints count however often they were wrong.
    HintsForEver,
    /// Rule 9: an offer is made of what those ahead wait for.
    GreedyOffer,
    /// Rule 2: others are let onto a card to which the driver brings somebody back.
    GrantDuringRestore,
    /// Rule 2: the driver brings holders back whoever is on their cards.
    RestoreUnsure,
    /// Rule 2: whoever the driver brings back comes, though somebody is there by now who could take its room.
    NeverRetreat,
    /// Rule 20: equals that may be ended are ended for each other.
    EndEqual,
    /// Rule 20: who has the right to stay is made to leave.
    PreemptNever,
    /// Rule 9: minimum turns are ignored.
    NoTurn,
    /// Rule 20: holders are ended for others that did not choose it.
    EndUnchosen,
    /// Rule 16: SIGKILL comes first.
    KillAtOnce,
    /// Rule 16: the grace counts from the record, whenever the signal leaves.
    GraceFromRecord,
    /// Rule 20: who was told that it ends does, though nobody needs its cards any more.
    SpareNobody,
    /// Rule 4: a holder is parked when its hook says so.
    BelieveHook,
    /// Rule 4: holders leave a card at the same time that does not tell whose bytes are whose.
    MoveTogether,
    /// Rule 5: room is made again for who has it coming.
    TwiceForOne,
    /// Rule 20: strangers are ended where it was not tried whether they can be told apart.
    EnforceUntested,
    /// Rule 16: a stranger is signalled that was not audited again.
    StrikeUnaudited,
    /// Rule 20: SIGKILL comes first, to strangers.
    StrikeHard,
    /// Rule 20: a stranger is warned and ended though a rule allows it.
    StrikeAllowed,
    /// Rule 16: who descends from a stranger is signalled with it, whoever's it is.
    StrikeOthers,
    /// Rule 17: a signal that has gone out is sent again.
    StrikeTwice,
    /// Rule 20: a signal leaves though an operator has thought better of it.
    StrikeLate,
    /// A stranger on a card that cannot be read is taken for gone.
    ForgetUnseen,
    /// Rule 16: a card stays in service though somebody there survived SIGKILL.
    ServeSurvivor,
    /// Rule 1: an adopted process gets what it wants, whether there is room or not.
    AdoptBlind,
    /// Rule 20: a stranger is ended that could have been parked.
    StrikeMovable,
    /// Rule 16: a stranger is signalled while it is still a lease's.
    StrikeMoving,
    /// Rule 20: who leaves when it is warned and comes back has all its time again.
    WarnForEver,
    /// Rule 20: who becomes another program, or leaves its cards for a moment, is treated as if it came anew.
    HopAnew,
    /// Rule 20: who asked for a lease is no stranger, though it was granted none.
    WaitAsShield,
    /// Rule 20: a lease for one card shields its processes on every other.
    AtHomeAnywhere,
    /// Rule 4: a stranger's story is over when it begins to leave its cards.
    BelieveMoving,
    /// Who could not be taken off its cards is tried again, for ever.
    MoveForEver,
    /// Rule 14: who takes a larger lease is not charged for it.
    GrowFree,
    /// Rule 1: a larger lease is given whether there is room or not.
    GrowBlind,
    /// Rule 20: who has more than its lease is ended on cards where nothing is enforced.
    EndObserved,
    /// Rule 9: who has more than its lease is made to leave at once.
    OverAtOnce,
    /// One look is enough to say that a holder has more than its lease.
    OverOneLook,
    /// Rule 2: contexts leave as soon as somebody was parked.
    DeepAtOnce,
    /// Rule 9: contexts leave of who waits for its cards.
    DeepenWanted,
    /// Rule 5: the driver takes processes that may call it.
    TakeLoud,
    /// Rule 2: the library copies before the driver has brought contexts back.
    LibraryFirst,
    /// Rule 2: contexts that the driver may have are taken for being where they were.
    ShallowBlind,
    /// Rule 2: what the driver may take at any moment counts as being there.
    CountContexts,
    /// Rule 3: contexts leave for host memory that nobody booked.
    DeepUnbooked,
    /// Rule 2: a holder is back when the first of its processes says so, whatever the driver may have of the others.
    BelieveFirst,
    /// Rule 2: what the driver does not know counts as what it said before.
    DoubtNothing,
    /// Rule 2: who begins while the driver has its siblings goes to their cards.
    PassNewcomers,
    /// Rule 8: a holder that has left is told to stay, for what it said on its way back.
    StayGone,
    /// Rule 2: a process that was taken off its cards for one lease is bound to another, which would never bring it back.
    BindAway,
    /// Rule 2: the driver moves a process for a lease that has lost it to another.
    MoveOthers,
    /// Rule 2: what the driver has of a holder counts as ended once another lease has that process.
    OthersAreGone,
    /// Rule 9: a time slice is stretched for as long as a job is expected to take.
    StretchForEver,
    /// Rule 9: a job goes before its tenant's others every time that it had to leave.
    KeepPlace,
    /// Rule 21: waiters are granted GPUs that step aside.
    GrantAside,
    /// Rule 21: an aside goes on after its time.
    AsideForEver,
    /// Rule 11: leases are granted though lines of the journal are missing.
    GrantAfterLoss,
    /// The record does not say that a program died while it was being parked.
    ForgetDeath,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 92] = [
        Mutant::UnreadableIsEmpty,
        Mutant::ForgetLoose,
        Mutant::ForgetReserved,
        Mutant::NeverStale,
        Mutant::BelieveRelease,
        Mutant::ReuseEpoch,
        Mutant::AcceptOldEpoch,
        Mutant::ExpireEarly,
        Mutant::ExpireLate,
        Mutant::NoGrace,
        Mutant::ChargeWait,
        Mutant::RestartEnds,
        Mutant::ShowOthers,
        Mutant::EndlessQueue,
        Mutant::KeepRefused,
        Mutant::ServeLast,
        Mutant::ForgetExclusive,
        Mutant::NoClamp,
        Mutant::RenewBackfill,
        Mutant::PartialGang,
        Mutant::HastyBound,
        Mutant::BelieveParked,
        Mutant::ForgetLedger,
        Mutant::ResumeBlind,
        Mutant::OneLook,
        Mutant::ParkHalf,
        Mutant::LeavingIsGone,
        Mutant::ParkTwice,
        Mutant::ExpireParked,
        Mutant::ChargeParked,
        Mutant::RestartParks,
        Mutant::LosePlace,
        Mutant::ForgetWant,
        Mutant::PassiveFirst,
        Mutant::HintsForEver,
        Mutant::GreedyOffer,
        Mutant::GrantDuringRestore,
        Mutant::RestoreUnsure,
        Mutant::NeverRetreat,
        Mutant::EndEqual,
        Mutant::PreemptNever,
        Mutant::NoTurn,
        Mutant::EndUnchosen,
        Mutant::KillAtOnce,
        Mutant::GraceFromRecord,
        Mutant::SpareNobody,
        Mutant::BelieveHook,
        Mutant::MoveTogether,
        Mutant::TwiceForOne,
        Mutant::EnforceUntested,
        Mutant::StrikeUnaudited,
        Mutant::StrikeHard,
        Mutant::StrikeAllowed,
        Mutant::StrikeOthers,
        Mutant::StrikeTwice,
        Mutant::StrikeLate,
        Mutant::ForgetUnseen,
        Mutant::ServeSurvivor,
        Mutant::AdoptBlind,
        Mutant::StrikeMovable,
        Mutant::StrikeMoving,
        Mutant::WarnForEver,
        Mutant::HopAnew,
        Mutant::WaitAsShield,
        Mutant::AtHomeAnywhere,
        Mutant::BelieveMoving,
        Mutant::MoveForEver,
        Mutant::GrowFree,
        Mutant::GrowBlind,
        Mutant::EndObserved,
        Mutant::OverAtOnce,
        Mutant::OverOneLook,
        Mutant::DeepAtOnce,
        Mutant::DeepenWanted,
        Mutant::TakeLoud,
        Mutant::LibraryFirst,
        Mutant::ShallowBlind,
        Mutant::CountContexts,
        Mutant::DeepUnbooked,
        Mutant::BelieveFirst,
        Mutant::DoubtNothing,
        Mutant::PassNewcomers,
        Mutant::StayGone,
        Mutant::BindAway,
        Mutant::MoveOthers,
        Mutant::OthersAreGone,
        Mutant::StretchForEver,
        Mutant::KeepPlace,
        Mutant::GrantAside,
        Mutant::AsideForEver,
        Mutant::GrantAfterLoss,
        Mutant::ForgetDeath,
    ];
}
