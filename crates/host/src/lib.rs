//! Eyes and hands: cards, processes, the clock.
