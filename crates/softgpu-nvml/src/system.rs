//! Calls about the library and the machine: start and end, error texts, versions, process names.

use crate::abi::{CText, NvmlError, Out, export, write_text, write_text_cut};
use crate::library::{init, library, shutdown};
use std::ffi::{CStr, c_char, c_int, c_uint};

/// Plain numbers, for programs that compare versions; the GPUs' names say that they are soft.
const DRIVER: &str = "580.00.00";
/// NVML's own version: that of CUDA, then the driver's.
const NVML: &str = "13.580.00.00";
/// CUDA 13.0, as the soft `libcuda.so.1` says.
const CUDA: c_int = 13_000;

export! {
    fn nvmlInit | nvmlInit_v2() {
        init()
    }

    /// The flags allow a start without GPUs, or without attaching to them: a soft library does both anyway.
    fn nvmlInitWithFlags(_flags: c_uint) {
        init()
    }

    fn nvmlShutdown() {
        shutdown()
    }

    fn nvmlSystemGetDriverVersion(version: Out<c_char>, length: c_uint) {
        library()?;
        write_text(version, length, DRIVER)
    }

    fn nvmlSystemGetNVMLVersion(version: Out<c_char>, length: c_uint) {
        write_text(version, length, NVML)
    }

    fn nvmlSystemGetCudaDriverVersion | nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) {
        version.write(CUDA)
    }

    fn nvmlSystemGetProcessName(pid: c_uint, name: Out<c_char>, length: c_uint) {
        library()?;
        write_text_cut(name, length, &process_name(pid).ok_or(NvmlError::NotFound)?)
    }

    /// There are no S-class units.
    fn nvmlUnitGetCount(count: Out<c_uint>) {
        library()?;
        count.write(0)
    }

    fn nvmlGetExcludedDeviceCount(count: Out<c_uint>) {
        count.write(0)
    }
}

/// The text for an error number; this works before `nvmlInit`, too.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: c_uint) -> CText {
    CText::from(error_text(code))
}

fn error_text(code: c_uint) -> &'static CStr {
    match code {
        0 => c"success",
        1 => c"uninitialized: `nvmlInit` was not called",
        2 => c"invalid argument",
        3 => c"not supported",
        4 => c"insufficient permissions",
        5 => c"already initialized",
        6 => c"not found",
        7 => c"insufficient size",
        8 => c"insufficient external power",
        9 => c"driver not loaded",
        10 => c"timeout",
        11 => c"interrupt request issue",
        12 => c"library not found",
        13 => c"function not found",
        14 => c"corrupted infoROM",
        15 => c"the GPU is lost",
        16 => c"the GPU must be reset",
        17 => c"the operating system refused",
        18 => c"driver and library have different versions",
        19 => c"in use by another client",
        20 => c"insufficient memory",
        21 => c"no data",
        22 => c"the virtual GPU does not support ECC",
        23 => c"insufficient resources",
        24 => c"this frequency is not supported",
        25 => c"the argument has another version",
        26 => c"deprecated",
        27 => c"not ready",
        28 => c"GPU not found",
        29 => c"invalid state",
        30 => c"this reset is not supported",
        _ => c"unknown error",
    }
}

/// The program a process was started as, or its short name.
fn process_name(pid: u32) -> Option<String> {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let first = words.split(|byte| *byte == 0).next().filter(|word| !word.is_empty());
    let short = || std::fs::read(format!("/proc/{pid}/comm")).ok();
    let name = first.map(<[u8]>::to_vec).or_else(short)?;
    Some(String::from_utf8_lossy(&name).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_its_own_text() {
        let mut texts: Vec<_> = (0..=30).map(error_text).collect();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), 31);
        assert_eq!((error_text(31), error_text(999)), (c"unknown error", c"unknown error"));
        assert_eq!(nvmlErrorString(15).read().as_deref(), Ok("the GPU is lost"));
    }

    #[test]
    fn process_name_is_the_first_argument() {
        let name = process_name(std::process::id()).unwrap();
        assert_eq!(Some(name), std::env::args().next());
        assert_eq!(process_name(u32::MAX), None);
    }
}
