//! Floating-point arithmetic in the roundings that the host does not do.
//!
//! Numbers are taken apart into integers, combined exactly (or with a sticky bit that
//! says that something nonzero was cut off), and rounded once. Slow, and exact for both
//! formats; round-to-nearest goes through the host's own instructions instead.

use crate::lower::modifiers::Rounding;

/// An IEEE format.
pub(crate) trait FloatFormat: Copy {
    /// Bits of the significand, with the hidden one.
    const PRECISION: u32;
    /// The largest exponent; the smallest normal one is `1 - EMAX`.
    const EMAX: i32;
    fn bits(self) -> u64;
    fn from_bits(bits: u64) -> Self;
    fn is_finite(self) -> bool;
    fn native_fma(a: Self, b: Self, c: Self) -> Self;
    fn native_div(a: Self, b: Self) -> Self;
    fn native_sqrt(a: Self) -> Self;
}

macro_rules! formats {
    ($($ty:ty, $raw:ty, $precision:expr, $emax:expr;)*) => {$(
        impl FloatFormat for $ty {
            const PRECISION: u32 = $precision;
            const EMAX: i32 = $emax;
            fn bits(self) -> u64 {
                self.to_bits() as u64
            }
            fn from_bits(bits: u64) -> Self {
                <$ty>::from_bits(bits as $raw)
            }
            fn is_finite(self) -> bool {
                self.is_finite()
            }
            fn native_fma(a: Self, b: Self, c: Self) -> Self {
                a.mul_add(b, c)
            }
            fn native_div(a: Self, b: Self) -> Self {
                a / b
            }
            fn native_sqrt(a: Self) -> Self {
                a.sqrt()
            }
        }
    )*};
}
formats! { f32, u32, 24, 127; f64, u64, 53, 1023; }

/// `significand * 2^exponent`, and a little more if `sticky`.
#[derive(Debug, Clone, Copy)]
struct Exact {
    negative: bool,
    significand: u128,
    exponent: i32,
    sticky: bool,
}

fn total_bits<F: FloatFormat>() -> u32 {
    if F::PRECISION == 24 { 32 } else { 64 }
}

fn unpack<F: FloatFormat>(value: F) -> Exact {
    let fraction_bits = F::PRECISION - 1;
    let bits = value.bits();
    let fraction = bits & ((1 << fraction_bits) - 1);
    let biased = (bits >> fraction_bits) as i32 & (2 * F::EMAX + 1);
    let negative = bits >> (total_bits::<F>() - 1) & 1 != 0;
    let (significand, biased) = if biased == 0 { (fraction, 1) } else { (fraction | 1 << fraction_bits, biased) };
    let exponent = biased - F::EMAX - fraction_bits as i32;
    Exact { negative, significand: u128::from(significand), exponent, sticky: false }
}

fn pack<F: FloatFormat>(exact: Exact, round: Rounding) -> F {
    let Exact { negative, significand, exponent, mut sticky } = exact;
    let sign = u64::from(negative) << (total_bits::<F>() - 1);
    if significand == 0 {
        return F::from_bits(sign);
    }
    let fraction_bits = F::PRECISION as i32 - 1;
    let top = exponent + 127 - significand.leading_zeros() as i32;
    let mut unit = (top - fraction_bits).max(1 - F::EMAX - fraction_bits);
    let shift = unit - exponent;
    let (mut kept, mut half) = (0, false);
    if shift <= 0 {
        kept = (significand << -shift) as u64;
    } else {
        if shift < 128 {
            kept = (significand >> shift) as u64;
        }
        if shift <= 128 {
            half = significand >> (shift - 1) & 1 != 0;
            sticky |= significand & ((1_u128 << (shift - 1)) - 1) != 0;
        } else {
            sticky = true;
        }
    }
    let inexact = half || sticky;
    let up = match round {
        Rounding::Nearest => half && (sticky || kept & 1 != 0),
        Rounding::Zero => false,
        Rounding::Down => negative && inexact,
        Rounding::Up => !negative && inexact,
    };
    kept += u64::from(up);
    if kept >> F::PRECISION != 0 {
        kept >>= 1;
        unit += 1;
    }
    let hidden = 1 << fraction_bits;
    let infinity = ((2 * F::EMAX + 1) as u64) << fraction_bits;
    if kept >= hidden && unit + fraction_bits > F::EMAX {
        let to_infinity = match round {
            Rounding::Nearest => true,
            Rounding::Zero => false,
            Rounding::Down => negative,
            Rounding::Up => !negative,
        };
        return F::from_bits(sign | (infinity - u64::from(!to_infinity)));
    }
    if kept < hidden {
        return F::from_bits(sign | kept);
    }
    let biased = (unit + fraction_bits + F::EMAX) as u64;
    F::from_bits(sign | biased << fraction_bits | (kept - hidden))
}

/// Puts the top bit at bit 125, which leaves room for a carry.
fn raised(mut exact: Exact) -> Exact {
    if exact.significand != 0 {
        let shift = exact.significand.leading_zeros() as i32 - 2;
        exact.significand <<= shift;
        exact.exponent -= shift;
    }
    exact
}

/// Shifts down to `exponent`; sets `sticky` if a nonzero bit is cut off.
fn lowered(mut exact: Exact, exponent: i32) -> Exact {
    let shift = exponent - exact.exponent;
    if shift >= 128 {
        exact.sticky |= exact.significand != 0;
        exact.significand = 0;
    } else if shift > 0 {
        exact.sticky |= exact.significand & ((1 << shift) - 1) != 0;
        exact.significand >>= shift;
    }
    exact.exponent = exponent;
    exact
}

fn sum(one: Exact, other: Exact, round: Rounding) -> Exact {
    if one.significand == 0 || other.significand == 0 {
        let both = one.significand == 0 && other.significand == 0;
        if !both {
            return if one.significand == 0 { other } else { one };
        }
        let negative = if one.negative == other.negative { one.negative } else { round == Rounding::Down };
        return Exact { negative, ..one };
    }
    let (one, other) = (raised(one), raised(other));
    let (large, small) = if (one.exponent, one.significand) >= (other.exponent, other.significand) {
        (one, other)
    } else {
        (other, one)
    };
    let small = lowered(small, large.exponent);
    let mut result = Exact { sticky: small.sticky, ..large };
    if large.negative == small.negative {
        result.significand += small.significand;
    } else {
        // What was cut off is subtracted too: one unit less, and a bit more.
        result.significand -= small.significand + u128::from(small.sticky);
        if result.significand == 0 && !result.sticky {
            result.negative = round == Rounding::Down;
        }
    }
    result
}

fn product(a: Exact, b: Exact) -> Exact {
    Exact {
        negative: a.negative != b.negative,
        significand: a.significand * b.significand,
        exponent: a.exponent + b.exponent,
        sticky: false,
    }
}

/// `a * b + c`, rounded once.
pub(crate) fn fma<F: FloatFormat>(a: F, b: F, c: F, round: Rounding) -> F {
    if !(a.is_finite() && b.is_finite() && c.is_finite()) {
        return F::native_fma(a, b, c);
    }
    pack(sum(product(unpack(a), unpack(b)), unpack(c), round), round)
}

/// `a + b`.
pub(crate) fn add<F: FloatFormat>(a: F, b: F, round: Rounding) -> F {
    if !(a.is_finite() && b.is_finite()) {
        let one = F::from_bits((F::EMAX as u64) << (F::PRECISION - 1));
        return F::native_fma(a, one, b);
    }
    pack(sum(unpack(a), unpack(b), round), round)
}

/// `a * b`.
pub(crate) fn mul<F: FloatFormat>(a: F, b: F, round: Rounding) -> F {
    if !(a.is_finite() && b.is_finite()) {
        return F::native_fma(a, b, F::from_bits(0));
    }
    pack(product(unpack(a), unpack(b)), round)
}

/// `a / b`.
pub(crate) fn div<F: FloatFormat>(a: F, b: F, round: Rounding) -> F {
    let (exact_a, exact_b) = (unpack(a), unpack(b));
    if !(a.is_finite() && b.is_finite()) || exact_a.significand == 0 || exact_b.significand == 0 {
        return F::native_div(a, b);
    }
    let dividend = raised(exact_a);
    let quotient = dividend.significand / exact_b.significand;
    pack(
        Exact {
            negative: exact_a.negative != exact_b.negative,
            significand: quotient,
            exponent: dividend.exponent - exact_b.exponent,
            sticky: quotient * exact_b.significand != dividend.significand,
        },
        round,
    )
}

/// The square root.
pub(crate) fn sqrt<F: FloatFormat>(a: F, round: Rounding) -> F {
    let exact = unpack(a);
    if !a.is_finite() || exact.significand == 0 || exact.negative {
        return F::native_sqrt(a);
    }
    let mut square = raised(exact);
    if square.exponent % 2 != 0 {
        square.significand <<= 1;
        square.exponent -= 1;
    }
    let root = square.significand.isqrt();
    let sticky = root * root != square.significand;
    pack(Exact { negative: false, significand: root, exponent: square.exponent / 2, sticky }, round)
}

/// A double as a float.
pub(crate) fn narrow(a: f64, round: Rounding) -> f32 {
    if !a.is_finite() {
        return a as f32;
    }
    pack(unpack(a), round)
}

/// An integer as a floating-point number.
pub(crate) fn from_integer<F: FloatFormat>(value: i128, round: Rounding) -> F {
    let significand = value.unsigned_abs();
    pack(Exact { negative: value < 0, significand, exponent: 0, sticky: false }, round)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [Rounding; 4] = [Rounding::Nearest, Rounding::Zero, Rounding::Down, Rounding::Up];

    proptest! {
        #[test]
        fn nearest_is_what_the_host_does(a: f64, b: f64, c: f64, x: f32, y: f32, z: f32) {
            prop_assert_eq!(fma(a, b, c, Rounding::Nearest).to_bits(), a.mul_add(b, c).to_bits());
            prop_assert_eq!(add(a, b, Rounding::Nearest).to_bits(), (a + b).to_bits());
            prop_assert_eq!(mul(a, b, Rounding::Nearest).to_bits(), (a * b).to_bits());
            prop_assert_eq!(div(a, b, Rounding::Nearest).to_bits(), (a / b).to_bits());
            prop_assert_eq!(sqrt(a.abs(), Rounding::Nearest).to_bits(), a.abs().sqrt().to_bits());
            prop_assert_eq!(fma(x, y, z, Rounding::Nearest).to_bits(), x.mul_add(y, z).to_bits());
            prop_assert_eq!(add(x, y, Rounding::Nearest).to_bits(), (x + y).to_bits());
            prop_assert_eq!(div(x, y, Rounding::Nearest).to_bits(), (x / y).to_bits());
            prop_assert_eq!(sqrt(x.abs(), Rounding::Nearest).to_bits(), x.abs().sqrt().to_bits());
            prop_assert_eq!(narrow(a, Rounding::Nearest).to_bits(), (a as f32).to_bits());
        }

        #[test]
        fn close_numbers_cancel_exactly(mantissa in 0_u64..1 << 52, nudge in -3_i64..3, exponent in -300_i32..300) {
            let a = f64::from_bits(mantissa | 1023 << 52) * 2_f64.powi(exponent);
            let c = -f64::from_bits((a * a).to_bits().wrapping_add_signed(nudge));
            for round in ALL {
                let soft = fma(a, a, c, round);
                let host = a.mul_add(a, c);
                prop_assert!((soft.to_bits() as i64 - host.to_bits() as i64).abs() <= 1 || host == 0.0);
            }
            prop_assert_eq!(fma(a, a, c, Rounding::Nearest).to_bits(), a.mul_add(a, c).to_bits());
        }

        #[test]
        fn directions_bracket_the_nearest(a: f32, b: f32) {
            let nearest = add(a, b, Rounding::Nearest);
            prop_assume!(nearest.is_finite());
            prop_assert!(add(a, b, Rounding::Down) <= nearest && nearest <= add(a, b, Rounding::Up));
            let zero = add(a, b, Rounding::Zero);
            prop_assert!(zero.abs() <= nearest.abs());
        }
    }

    #[test]
    fn a_sum_that_overflows_stops_at_the_largest_number_when_rounding_to_zero() {
        assert_eq!(add(f32::MAX, f32::MAX, Rounding::Zero), f32::MAX);
        assert_eq!(add(f32::MAX, f32::MAX, Rounding::Up), f32::INFINITY);
        assert_eq!(add(-f32::MAX, -f32::MAX, Rounding::Up), -f32::MAX);
    }

    #[test]
    fn an_exact_zero_is_negative_only_when_rounding_down() {
        assert_eq!(add(1.0_f32, -1.0, Rounding::Down).to_bits(), (-0.0_f32).to_bits());
        assert_eq!(add(1.0_f32, -1.0, Rounding::Up).to_bits(), 0);
    }

    #[test]
    fn the_smallest_products_round_by_direction() {
        let tiny = f32::from_bits(1);
        assert_eq!(mul(tiny, tiny, Rounding::Up).to_bits(), 1);
        assert_eq!(mul(tiny, tiny, Rounding::Zero).to_bits(), 0);
        assert_eq!(mul(tiny, -tiny, Rounding::Down).to_bits(), 0x8000_0001);
    }
}
