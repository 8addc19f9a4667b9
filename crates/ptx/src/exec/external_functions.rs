//! Functions that the module only declares and the host provides: `vprintf` and
//! `__assertfail`.
//!
//! Their arguments lie where any callee's would: right behind the caller's local
//! frame, results first.

use super::load_store::{Element, FLAT, LOCAL};
use super::machine::Machine;
use crate::fault::FaultKind;
use crate::op::{Op, OpOutcome};

/// The longest text that is read from a kernel, so that a missing end does not
/// print all of memory.
const TEXT_BYTES_MAX: u64 = 64 << 10;

/// The longest text that one thread prints at once: a format may name many texts.
const PRINT_BYTES_MAX: usize = 1 << 20;

impl Machine<'_> {
    /// Reads an integer of `bytes` bytes.
    fn read_integer(&mut self, space: u8, lane: u32, address: u64, bytes: u32) -> Result<u64, FaultKind> {
        let host = self.host_pointer(space, lane, address, bytes, false)?;
        // SAFETY: the range was just checked.
        Ok(unsafe {
            match bytes {
                1 => u64::from(<u8 as Element>::load(host)),
                4 => u64::from(<u32 as Element>::load(host)),
                _ => <u64 as Element>::load(host),
            }
        })
    }

    /// A text up to its zero byte.
    fn read_text(&mut self, lane: u32, address: u64) -> Result<String, FaultKind> {
        let mut bytes = Vec::new();
        for offset in 0..TEXT_BYTES_MAX {
            match self.read_integer(FLAT, lane, address.wrapping_add(offset), 1)? as u8 {
                0 => break,
                byte => bytes.push(byte),
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Where the arguments of an external call begin.
    fn arguments_offset(&self) -> u64 {
        let frame = &self.env.program.functions[self.warp.function as usize];
        u64::from(self.warp.local) + u64::from(frame.local_bytes)
    }

    fn assertion_fault(&mut self, lane: u32) -> Result<FaultKind, FaultKind> {
        let at = self.arguments_offset();
        let message = self.read_integer(LOCAL, lane, at, 8)?;
        let file = self.read_integer(LOCAL, lane, at + 8, 8)?;
        let line = self.read_integer(LOCAL, lane, at + 16, 4)? as u32;
        let function = self.read_integer(LOCAL, lane, at + 24, 8)?;
        Ok(FaultKind::Assert {
            message: self.read_text(lane, message)?,
            file: self.read_text(lane, file)?,
            line,
            function: self.read_text(lane, function)?,
        })
    }

    fn printf_text(&mut self, lane: u32) -> Result<String, FaultKind> {
        // The result takes the first 4 bytes; the two pointers follow, aligned.
        let at = self.arguments_offset() + 8;
        let format = self.read_integer(LOCAL, lane, at, 8)?;
        let mut next = self.read_integer(LOCAL, lane, at + 8, 8)?;
        let format = self.read_text(lane, format)?;
        let mut out = String::new();
        let mut rest = format.as_str();
        while let Some(percent) = rest.find('%').filter(|_| out.len() < PRINT_BYTES_MAX) {
            out.push_str(&rest[..percent]);
            rest = &rest[percent + 1..];
            let end = rest.find(|c: char| c.is_ascii_alphabetic() && !"hlLzjt".contains(c) || c == '%');
            let Some(end) = end else { break };
            let kind = rest.as_bytes()[end];
            let flags = &rest[..end];
            rest = &rest[end + 1..];
            if kind == b'%' {
                out.push('%');
                continue;
            }
            let wide = matches!(kind, b's' | b'p' | b'f' | b'e' | b'g' | b'F' | b'E' | b'G' | b'a' | b'A')
                || flags.contains(['l', 'j', 'z', 't']);
            let bytes = if wide { 8 } else { 4 };
            next = next.checked_next_multiple_of(u64::from(bytes)).unwrap_or(0);
            let value = self.read_integer(FLAT, lane, next, bytes)?;
            next = next.wrapping_add(u64::from(bytes));
            out.push_str(&match kind {
                b's' => self.read_text(lane, value)?,
                _ => formatted(kind, flags, value, wide),
            });
        }
        out.push_str(rest);
        Ok(out)
    }
}

/// One value in the manner of C.
fn formatted(kind: u8, flags: &str, value: u64, wide: bool) -> String {
    let numbers = flags.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (width, precision) = numbers.split_once('.').unwrap_or((numbers, ""));
    let precision = precision.parse::<usize>().ok().map(|precision| precision.min(512));
    let signed = if wide { value as i64 } else { i64::from(value as i32) };
    let float = f64::from_bits(value);
    let text = match kind {
        b'd' | b'i' => signed.to_string(),
        b'u' => value.to_string(),
        b'x' => format!("{value:x}"),
        b'X' => format!("{value:X}"),
        b'o' => format!("{value:o}"),
        b'p' => format!("0x{value:x}"),
        b'c' => char::from(value as u8).to_string(),
        b'e' | b'E' => exponential(float, precision.unwrap_or(6)),
        b'g' | b'G' => float.to_string(),
        _ => format!("{float:.*}", precision.unwrap_or(6)),
    };
    let fill = if width.starts_with('0') && !width.starts_with("0-") { '0' } else { ' ' };
    let left = width.contains('-');
    let count = width.trim_start_matches(['-', '+', ' ', '#', '0']).parse::<usize>().unwrap_or(0).min(512);
    let missing = count.saturating_sub(text.len());
    let blank: String = std::iter::repeat_n(if left { ' ' } else { fill }, missing).collect();
    match (left, fill, text.strip_prefix('-')) {
        (true, ..) => text + &blank,
        (false, '0', Some(digits)) => format!("-{blank}{digits}"),
        _ => blank + &text,
    }
}

/// C writes at least two digits and a sign for the exponent.
fn exponential(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
            format!("{digits}e{sign}{exponent:0>2}")
        }
        None => text,
    }
}

/// `__assertfail(message, file, line, function, size)`.
pub(crate) unsafe fn assert_fail(m: &mut Machine<'_>, _op: &Op, mask: u32) -> OpOutcome {
    let lane = mask.trailing_zeros() & 31;
    let (Ok(kind) | Err(kind)) = m.assertion_fault(lane);
    m.fail(kind, mask)
}

/// `vprintf(format, arguments)`, a lane at a time.
pub(crate) unsafe fn print(m: &mut Machine<'_>, _op: &Op, mask: u32) -> OpOutcome {
    for lane in (0..32_u32).filter(|lane| mask >> lane & 1 != 0) {
        // A long text takes longer than all other instructions of a time slice.
        if m.env.is_over() {
            return OpOutcome::EndOfSlice;
        }
        match m.printf_text(lane) {
            Ok(text) => {
                if let Some(print) = m.env.print {
                    print(&text);
                }
            }
            Err(kind) => return m.fail(kind, 1 << lane),
        }
    }
    OpOutcome::Continue
}
