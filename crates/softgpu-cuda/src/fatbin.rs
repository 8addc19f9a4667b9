//! Finds plain PTX in a fat binary: what nvcc embeds in programs, and what `.fatbin` files contain.
//!
//! ```text
//!   wrapper   magic 466243B1, version, pointer ──► container
//!   container magic BA55ED50, version, header bytes, bytes of all entries
//!     entry   kind, version, header bytes, payload bytes, ..., arch, ..., flags, ...
//!     payload PTX (kind 1) or machine code (kind 2), then the next entry
//! ```
//!
//! Works on bytes that the caller has: the first sixteen ([`total_bytes`]) say how many there are behind a pointer.
//! Lengths that do not fit are errors, and nothing is read beyond them. Numbers are little-endian, as on every host of
//! CUDA.
//!
//! Absent on purpose: decompression. Compressed PTX is refused with a hint; machine code cannot run on a soft GPU and
//! is skipped.

use std::fmt;

/// The first bytes of the wrapper in a program's `.nvFatBinSegment`.
pub const WRAPPER_MAGIC: u32 = 0x4662_43B1;
/// The first bytes of the container.
pub const MAGIC: u32 = 0xBA55_ED50;
/// Bytes of a container's header that say how long it is.
pub const HEADER_BYTES: usize = 16;
/// Bytes of a wrapper: magic, version, a pointer to the container, a pointer to more.
pub const WRAPPER_BYTES: usize = 24;
/// No container is longer: the largest libraries have a few GiB in many of them.
const TOTAL_BYTES_MAX: u64 = 4 << 30;

/// What every entry's header has; newer ones have more.
const ENTRY_BYTES: usize = 64;
const KIND_PTX: u16 = 1;
/// Bits of an entry's flags.
const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
/// The first bytes of a payload that was compressed with Zstandard.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// Why a fat binary gives no PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FatbinError {
    /// The bytes do not begin as a fat binary does.
    NotAFatbin,
    /// A version that is not known here.
    Version(u16),
    /// A length that goes beyond the bytes that are there; says where it stands.
    Length {
        /// The offset of the header with that length.
        at: usize,
    },
    /// There is PTX, but it is compressed.
    Compressed(Compression),
    /// There is PTX, but it is not text.
    NotText,
    /// There is only machine code, which a soft GPU cannot run.
    NoPtx,
}

/// What a payload was compressed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// LZ4, as by nvcc before 12.4.
    Lz4,
    /// Zstandard, as by nvcc since.
    Zstd,
}

impl fmt::Display for FatbinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FatbinError::NotAFatbin => write!(f, "this is not a fat binary"),
            FatbinError::Version(version) => write!(f, "fat binaries of version {version} are not known"),
            FatbinError::Length { at } => {
                write!(f, "the fat binary is cut off or broken: a length at byte {at} goes beyond its end")
            }
            FatbinError::Compressed(by) => write!(
                f,
                "the PTX in this fat binary is compressed with {}, which soft GPUs do not read: build with \
                 `nvcc -no-compress`, or load the PTX itself",
                match by {
                    Compression::Lz4 => "LZ4",
                    Compression::Zstd => "Zstandard",
                }
            ),
            FatbinError::NotText => write!(f, "the PTX in this fat binary is not text"),
            FatbinError::NoPtx => write!(
                f,
                "this fat binary has machine code only, which soft GPUs do not run: build it with PTX \
                 (`nvcc -gencode arch=compute_90,code=compute_90`)"
            ),
        }
    }
}

impl std::error::Error for FatbinError {}

/// A PTX text of a fat binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ptx<'b> {
    /// The architecture it was written for: 90 for `sm_90`.
    pub arch: u32,
    /// The text, without padding.
    pub text: &'b str,
}

/// The address of the container that a wrapper points to.
pub fn container_address(wrapper: [u8; WRAPPER_BYTES]) -> Result<u64, FatbinError> {
    if u32_at(&wrapper, 0) != Some(WRAPPER_MAGIC) {
        return Err(FatbinError::NotAFatbin);
    }
    match (u32_at(&wrapper, 4), u64_at(&wrapper, 8)) {
        (Some(1 | 2), Some(address)) if address != 0 => Ok(address),
        (Some(1 | 2), _) => Err(FatbinError::NotAFatbin),
        (version, _) => Err(FatbinError::Version(version.and_then(|version| version.try_into().ok()).unwrap_or(0))),
    }
}

/// The length of a container, from its first bytes: this many may be read through a pointer to it.
pub fn total_bytes(first: [u8; HEADER_BYTES]) -> Result<usize, FatbinError> {
    if u32_at(&first, 0) != Some(MAGIC) {
        return Err(FatbinError::NotAFatbin);
    }
    let (version, header, entries) = (u16_at(&first, 4), u16_at(&first, 6), u64_at(&first, 8));
    let (Some(version), Some(header), Some(entries)) = (version, header, entries) else {
        return Err(FatbinError::NotAFatbin);
    };
    if version != 1 {
        return Err(FatbinError::Version(version));
    }
    let total = entries.checked_add(u64::from(header)).filter(|total| *total <= TOTAL_BYTES_MAX);
    match total.and_then(|total| usize::try_from(total).ok()) {
        Some(total) if usize::from(header) >= HEADER_BYTES => Ok(total),
        _ => Err(FatbinError::Length { at: 0 }),
    }
}

/// The PTX that suits a GPU of architecture `arch` (90 for `sm_90`) best: the newest that is not newer than it, or else
/// the oldest of all, which may still be readable.
pub fn find_ptx(bytes: &[u8], arch: u32) -> Result<Ptx<'_>, FatbinError> {
    let mut best: Option<Ptx<'_>> = None;
    let mut refused = None;
    for entry in entries(bytes)? {
        let entry = entry?;
        if entry.kind != KIND_PTX {
            continue;
        }
        match entry.ptx() {
            // Fitting ones come first, the newest of them; then the others, the oldest of them.
            Ok(found) => {
                let rank = |ptx: &Ptx<'_>| if ptx.arch <= arch { (0, arch - ptx.arch) } else { (1, ptx.arch) };
                if best.is_none_or(|best| rank(&found) < rank(&best)) {
                    best = Some(found);
                }
            }
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    best.ok_or(refused.unwrap_or(FatbinError::NoPtx))
}

/// One entry of a container.
struct FatbinEntry<'b> {
    kind: u16,
    arch: u32,
    flags: u64,
    /// The payload's own length, if it differs from the space reserved for it.
    used: usize,
    payload: &'b [u8],
}

impl<'b> FatbinEntry<'b> {
    fn ptx(&self) -> Result<Ptx<'b>, FatbinError> {
        if self.flags & FLAG_ZSTD != 0 || self.payload.starts_with(&ZSTD_MAGIC) {
            return Err(FatbinError::Compressed(Compression::Zstd));
        }
        if self.flags & FLAG_LZ4 != 0 {
            return Err(FatbinError::Compressed(Compression::Lz4));
        }
        let length = if self.used == 0 { self.payload.len() } else { self.used };
        let bytes = &self.payload[..length];
        // Texts are padded with zeros.
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(length);
        match std::str::from_utf8(&bytes[..end]) {
            Ok(text) => Ok(Ptx { arch: self.arch, text }),
            Err(_) => Err(FatbinError::NotText),
        }
    }
}

/// All entries of a container, or the first length that does not fit.
fn entries(bytes: &[u8]) -> Result<impl Iterator<Item = Result<FatbinEntry<'_>, FatbinError>>, FatbinError> {
    let first = bytes.first_chunk::<HEADER_BYTES>().ok_or(FatbinError::NotAFatbin)?;
    let total = total_bytes(*first)?;
    let bytes = bytes.get(..total).ok_or(FatbinError::Length { at: 0 })?;
    let mut at = usize::from(u16_at(bytes, 6).unwrap_or(0));
    let mut is_over = false;
    Ok(std::iter::from_fn(move || {
        // The rest may be padding.
        if is_over || bytes.len() - at < ENTRY_BYTES {
            return None;
        }
        match entry(bytes, at) {
            Some((entry, next)) => {
                at = next;
                Some(Ok(entry))
            }
            None => {
                is_over = true;
                Some(Err(FatbinError::Length { at }))
            }
        }
    }))
}

/// The entry at `at` and where the next one begins; `None` if a length does not fit.
fn entry(bytes: &[u8], at: usize) -> Option<(FatbinEntry<'_>, usize)> {
    let header = bytes.get(at..at.checked_add(ENTRY_BYTES)?)?;
    let header_bytes = usize::try_from(u32_at(header, 4)?).ok()?;
    if header_bytes < ENTRY_BYTES {
        return None;
    }
    let start = at.checked_add(header_bytes)?;
    let end = start.checked_add(usize::try_from(u64_at(header, 8)?).ok()?)?;
    let payload = bytes.get(start..end)?;
    let used = usize::try_from(u32_at(header, 16)?).ok()?;
    if used > payload.len() {
        return None;
    }
    let (kind, arch, flags) = (u16_at(header, 0)?, u32_at(header, 28)?, u64_at(header, 40)?);
    Some((FatbinEntry { kind, arch, flags, used, payload }, end))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|two| u16::from_le_bytes(*two))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|four| u32::from_le_bytes(*four))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|eight| u64::from_le_bytes(*eight))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry with its payload, padded to a multiple of eight.
    fn entry(kind: u16, arch: u32, flags: u64, payload: &[u8]) -> Vec<u8> {
        let padded = payload.len().next_multiple_of(8);
        let mut bytes = vec![0; ENTRY_BYTES];
        bytes[0..2].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&(ENTRY_BYTES as u32).to_le_bytes());
        bytes[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
        bytes[28..32].copy_from_slice(&arch.to_le_bytes());
        bytes[40..48].copy_from_slice(&flags.to_le_bytes());
        bytes.extend_from_slice(payload);
        bytes.resize(ENTRY_BYTES + padded, 0);
        bytes
    }

    fn container(entries: &[Vec<u8>]) -> Vec<u8> {
        let body = entries.concat();
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        bytes.extend([1, 0, 16, 0]);
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn find_ptx_returns_the_best_text_for_the_architecture() {
        let bytes = container(&[
            entry(2, 90, 0x11, b"\x7fELF machine code"),
            entry(1, 70, 0x11, b".version 6.0\n"),
            entry(1, 80, 0x11, b".version 7.0\n"),
            entry(1, 100, 0x11, b".version 8.6\n"),
        ]);
        let found = |arch| find_ptx(&bytes, arch).map(|ptx| (ptx.arch, ptx.text));
        assert_eq!(found(90), Ok((80, ".version 7.0\n")));
        assert_eq!(found(80), Ok((80, ".version 7.0\n")));
        assert_eq!(found(120), Ok((100, ".version 8.6\n")));
        assert_eq!(found(50), Ok((70, ".version 6.0\n")));
        assert_eq!(total_bytes(*bytes.first_chunk().unwrap()), Ok(bytes.len()));
    }

    #[test]
    fn a_header_written_by_nvidias_tools_is_parsed() {
        // An entry's header of 88 bytes with a name in it, by libnvfatbin 12; the text is ours.
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        bytes.extend([1, 0, 16, 0, 104, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([1, 0, 1, 1, 0x58, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([0, 0, 0, 0, 0x48, 0, 0, 0, 0, 0, 9, 0, 0x50, 0, 0, 0]);
        bytes.extend([0x40, 0, 0, 0, 2, 0, 0, 0, 0x11, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([0; 16]);
        bytes.extend(*b"id\0\0\0\0\0\0\x50\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        bytes.extend(*b".version 9.0\n\0\0\0");
        assert_eq!(find_ptx(&bytes, 90), Ok(Ptx { arch: 80, text: ".version 9.0\n" }));
    }

    #[test]
    fn bytes_after_a_container_are_not_read() {
        let mut bytes = container(&[entry(1, 90, 0, b"one")]);
        bytes.extend([0xFF; 100]);
        assert_eq!(find_ptx(&bytes, 90).map(|ptx| ptx.text), Ok("one"));
    }

    #[test]
    fn compressed_ptx_is_refused_with_a_hint() {
        for (flags, payload, by) in [
            (0x2011, b"\x85lz4".as_slice(), "LZ4"),
            (0x8011, b"zstd", "Zstandard"),
            (0x11, b"\x28\xb5\x2f\xfd zstd", "Zstandard"),
        ] {
            let bytes = container(&[entry(2, 90, 0, b"elf"), entry(1, 90, flags, payload)]);
            let told = find_ptx(&bytes, 90).unwrap_err().to_string();
            assert!(told.contains(by) && told.contains("nvcc -no-compress"), "{told}");
        }
        // A readable text beside it is used.
        let bytes = container(&[entry(1, 90, 0x2011, b"lz4"), entry(1, 80, 0, b"plain")]);
        assert_eq!(find_ptx(&bytes, 90).map(|ptx| ptx.text), Ok("plain"));
    }

    #[test]
    fn machine_code_without_ptx_and_other_bytes_are_refused() {
        assert_eq!(find_ptx(&container(&[entry(2, 90, 0, b"elf")]), 90), Err(FatbinError::NoPtx));
        assert_eq!(find_ptx(&container(&[]), 90), Err(FatbinError::NoPtx));
        assert_eq!(find_ptx(&container(&[entry(1, 90, 0, b"\xff\xfe")]), 90), Err(FatbinError::NotText));
        assert_eq!(find_ptx(b"", 90), Err(FatbinError::NotAFatbin));
        assert_eq!(find_ptx(b".version 8.0\n.target sm_90", 90), Err(FatbinError::NotAFatbin));
        let mut bytes = container(&[]);
        bytes[4] = 2;
        assert_eq!(find_ptx(&bytes, 90), Err(FatbinError::Version(2)));
    }

    #[test]
    fn lengths_that_do_not_fit_are_errors() {
        let bytes = container(&[entry(1, 90, 0, b".version 8.0\n")]);
        for length in 0..bytes.len() {
            assert!(find_ptx(&bytes[..length], 90).is_err(), "cut at {length}");
        }
        // Each of these lengths is one too long, or wraps around.
        for (at, values) in [
            (8, &[u64::MAX, u64::MAX - 15, 1 << 40][..]),
            (HEADER_BYTES + 8, &[17, u64::MAX, u64::MAX - 79]),
            (HEADER_BYTES + 16, &[17, u64::from(u32::MAX)]),
        ] {
            for value in values {
                let mut broken = bytes.clone();
                broken[at..at + 8].copy_from_slice(&value.to_le_bytes());
                assert!(matches!(find_ptx(&broken, 90), Err(FatbinError::Length { .. })), "{value} at {at}");
            }
        }
        for header in [0_u32, 63, 1000, u32::MAX] {
            let mut broken = bytes.clone();
            broken[HEADER_BYTES + 4..HEADER_BYTES + 8].copy_from_slice(&header.to_le_bytes());
            assert_eq!(find_ptx(&broken, 90), Err(FatbinError::Length { at: 16 }), "a header of {header}");
        }
        let mut broken = bytes.clone();
        broken[6] = 15;
        assert_eq!(find_ptx(&broken, 90), Err(FatbinError::Length { at: 0 }));
    }

    #[test]
    fn arbitrary_bytes_are_parsed_or_refused() {
        let whole = container(&[entry(1, 90, 0, b".version 8.0\n"), entry(2, 90, 0, b"elf")]);
        let mut state = 1_u64;
        for _ in 0..200_000 {
            let mut bytes = whole.clone();
            for _ in 0..3 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (state >> 33) as usize % bytes.len();
                bytes[at] = (state >> 25) as u8;
            }
            let _ = find_ptx(&bytes, 90);
        }
    }

    #[test]
    fn the_container_address_is_read_from_a_wrapper() {
        let mut wrapper = [0; WRAPPER_BYTES];
        wrapper[0..4].copy_from_slice(&WRAPPER_MAGIC.to_le_bytes());
        wrapper[4] = 1;
        assert_eq!(container_address(wrapper), Err(FatbinError::NotAFatbin), "a null pointer");
        wrapper[8..16].copy_from_slice(&0x5555_1000_u64.to_le_bytes());
        assert_eq!(container_address(wrapper), Ok(0x5555_1000));
        wrapper[4] = 9;
        assert_eq!(container_address(wrapper), Err(FatbinError::Version(9)));
        wrapper[0] = 0;
        assert_eq!(container_address(wrapper), Err(FatbinError::NotAFatbin));
    }
}
