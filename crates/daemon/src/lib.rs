//! The loop that owns the state, and its HTTP face.
