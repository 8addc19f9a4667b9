//! Measurements, as ratios in one run.
