//! The proof of a lease, which only its programs can know.
//!
//! A lease's name and fence are no secrets. Where the user of a process proves nothing, as in a container, its
//! environment counts only with this proof in it.
//!
//! Absent on purpose: how it is made, and the key behind it.

use std::fmt;
use std::str::FromStr;
use sublet_core::ids::Fence;

/// The environment variable with the proof, set for every program started under a lease.
pub(crate) const PROOF_VARIABLE: &str = "SUBLET_PROOF";
/// Long enough that it cannot be guessed.
pub const BYTES: usize = 16;

/// What the programs of a granted lease carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The fence of the grant.
    pub epoch: Fence,
    /// The proof of the lease.
    pub proof: LeaseProof,
}

/// The proof that a process was started under a lease.
#[derive(Clone, Copy, Eq)]
pub struct LeaseProof(pub [u8; BYTES]);

impl PartialEq for LeaseProof {
    /// Compares in constant time, so that a guess cannot be improved by measuring.
    fn eq(&self, other: &LeaseProof) -> bool {
        let differing = self.0.iter().zip(&other.0).fold(0, |differing, (own, its)| differing | (own ^ its));
        std::hint::black_box(differing) == 0
    }
}

/// As it is in the environment. `Debug` hides it, for logs.
impl fmt::Display for LeaseProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 2 * BYTES];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for LeaseProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mark(…)")
    }
}

impl FromStr for LeaseProof {
    type Err = InvalidProof;

    fn from_str(text: &str) -> Result<LeaseProof, InvalidProof> {
        let is_hex = text.len() == 2 * BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = if is_hex { u128::from_str_radix(text, 16).ok() } else { None };
        number.map(|number| LeaseProof(number.to_be_bytes())).ok_or(InvalidProof)
    }
}

/// The text does not have the form of a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidProof;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_parsed_as_it_was_written_and_other_lengths_are_refused() {
        let proof = LeaseProof(*b"\x00\x01sixteen bytes!");
        let text = proof.to_string();
        assert_eq!(text.len(), 32);
        assert_eq!(text.parse(), Ok(proof));
        let wrong = [&text[1..], &format!("{text}0"), "", &format!("+{}", &text[1..]), &"é".repeat(16)];
        wrong.iter().for_each(|wrong| assert_eq!(wrong.parse::<LeaseProof>(), Err(InvalidProof), "{wrong}"));
    }

    #[test]
    fn proofs_that_differ_in_one_bit_are_different_and_debug_shows_none() {
        let proof = LeaseProof([0xa5; BYTES]);
        for bit in 0..8 * BYTES {
            let mut other = proof;
            other.0[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(proof, other, "bit {bit}");
        }
        assert!(!format!("{:?}", Grant { epoch: Fence(7), proof }).contains("a5"));
    }
}
