//! How many bytes a copy moves, by its name and its arguments.

use std::collections::BTreeSet;
use std::sync::OnceLock;

/// Where a copy function's arguments say how many bytes it copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopySize {
    /// Nowhere: it copies nothing, or says how much in a form that is not known here.
    Nothing,
    /// In this argument, counted from 0.
    Argument(u8),
    /// In a 2D copy descriptor, which is the first argument.
    Rows,
    /// In a 3D copy descriptor, which is the first argument.
    Layers,
    /// In a list of sizes, the third argument; the fourth is its length.
    List,
}

/// Words of a 2D descriptor before its width and height; then, of a 3D descriptor before its width, height and depth.
const ROWS_AT: usize = 14;
const LAYERS_AT: usize = 22;
/// A list that claims to be longer than this is not taken for a list.
const LIST_MAX: usize = 1 << 20;

impl CopySize {
    /// For a function name without version suffix and form.
    pub fn of(base: &str) -> CopySize {
        match base.strip_prefix("cuMemcpy").unwrap_or("none") {
            "" | "Async" | "HtoD" | "HtoDAsync" | "DtoH" | "DtoHAsync" | "DtoD" | "DtoDAsync" => CopySize::Argument(2),
            "HtoA" | "HtoAAsync" | "AtoH" | "AtoHAsync" | "DtoA" | "AtoD" => CopySize::Argument(3),
            "AtoA" | "Peer" | "PeerAsync" => CopySize::Argument(4),
            "2D" | "2DAsync" | "2DUnaligned" => CopySize::Rows,
            "3D" | "3DAsync" | "3DPeer" | "3DPeerAsync" => CopySize::Layers,
            "BatchAsync" => CopySize::List,
            _ => CopySize::Nothing,
        }
    }

    /// How many bytes a call copies that has its arguments in the words below `frame`.
    ///
    /// # Safety
    /// They are the arguments of a function with this [`CopySize`].
    pub unsafe fn bytes(self, frame: *const usize) -> u64 {
        // SAFETY: each of the first six is there, in the order in which they were given.
        let argument = |number: usize| unsafe { frame.sub(number + 1).read() };
        // SAFETY: the memory is as long as the function reads, because the driver has to read it, too.
        let word = |at: *const usize, number: usize| unsafe { at.add(number).read() } as u64;
        let product = |from: usize, length: usize| match argument(0) as *const usize {
            at if at.is_null() => 0,
            at => (from..from + length).fold(1_u64, |all, number| all.saturating_mul(word(at, number))),
        };
        match self {
            CopySize::Nothing => 0,
            CopySize::Argument(number) => argument(number.into()) as u64,
            CopySize::Rows => product(ROWS_AT, 2),
            CopySize::Layers => product(LAYERS_AT, 3),
            CopySize::List => match (argument(2) as *const usize, argument(3)) {
                (at, length) if at.is_null() || length > LIST_MAX => 0,
                (at, length) => (0..length).fold(0, |sum, number| sum.saturating_add(word(at, number))),
            },
        }
    }
}

/// True if a symbol is the first form of a function that has a later one: its numbers have 32 bits, and the rest of a
/// register is undefined.
pub fn is_first_form(symbol: &str) -> bool {
    static LATER: OnceLock<BTreeSet<&str>> = OnceLock::new();
    let later = LATER.get_or_init(|| {
        let names = include_str!("driver_names.txt").lines();
        names.filter_map(|name| name.split_once("_v2")).map(|(base, _)| base).collect()
    });
    later.contains(symbol)
}

#[cfg(test)]
mod tests {
    use super::{CopySize, is_first_form};

    /// How many bytes a function copies that is given these arguments.
    fn bytes(name: &str, arguments: [usize; 6]) -> u64 {
        let mut words = arguments;
        words.reverse();
        // SAFETY: the words are the arguments, the first of them last, and the frame is behind it.
        unsafe { CopySize::of(name).bytes(words.as_ptr().add(6)) }
    }

    #[test]
    fn every_copy_function_reports_its_bytes() {
        assert_eq!(bytes("cuMemcpyDtoHAsync", [1, 2, 4096, 0, 0, 0]), 4096);
        assert_eq!(bytes("cuMemcpyAtoH", [1, 2, 3, 512, 0, 0]), 512);
        assert_eq!(bytes("cuMemcpyPeerAsync", [1, 2, 3, 4, 1 << 40, 0]), 1 << 40);
        let mut rows = [0_usize; 16];
        (rows[14], rows[15]) = (640, 480);
        assert_eq!(bytes("cuMemcpy2D", [rows.as_ptr() as usize, 0, 0, 0, 0, 0]), 640 * 480);
        let mut layers = [0_usize; 25];
        (layers[22], layers[23], layers[24]) = (64, 32, 16);
        assert_eq!(bytes("cuMemcpy3DAsync", [layers.as_ptr() as usize, 0, 0, 0, 0, 0]), 64 * 32 * 16);
        let list = [10_usize, 20, 30];
        assert_eq!(bytes("cuMemcpyBatchAsync", [0, 0, list.as_ptr() as usize, 3, 0, 0]), 60);
        assert_eq!(bytes("cuMemsetD8Async", [1, 2, 4096, 0, 0, 0]), 0, "a fill moves nothing");
        assert_eq!(bytes("cuMemcpy2D", [0; 6]), 0, "what the driver will refuse is not read");
    }

    #[test]
    fn first_forms_of_functions_are_recognised() {
        assert!(is_first_form("cuMemcpyHtoD") && !is_first_form("cuMemcpyHtoD_v2") && !is_first_form("cuMemcpyAsync"));
    }
}
