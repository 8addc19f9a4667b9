//! Seeded simulation with faults, and the checker of the rules.
