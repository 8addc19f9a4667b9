//! Checks the built library: which symbols it needs, and which it exports to the programs it is loaded into.

use object::Endianness;
use object::elf::{FileHeader64, PF_W, PF_X, PT_LOAD, SHT_DYNSYM, Sym64};
use object::read::elf::{FileHeader, ProgramHeader, Sym};
use std::collections::BTreeSet;

fn library() -> Vec<u8> {
    let here = std::env::current_exe().expect("a test has a path");
    std::fs::read(here.with_file_name("libsublet_shim.so")).expect("the library is built with its tests")
}

/// Symbols with their versions: those it needs, and those it exports.
fn symbols(bytes: &[u8]) -> (Vec<(String, String)>, Vec<String>) {
    let header = FileHeader64::<Endianness>::parse(bytes).expect("a library");
    let endian = header.endian().expect("a library");
    let sections = header.sections(endian, bytes).expect("sections");
    let table = sections.symbols(endian, bytes, SHT_DYNSYM).expect("symbols");
    let versions = sections.versions(endian, bytes).expect("versions").expect("versions");
    let (mut needed, mut own) = (Vec::new(), Vec::new());
    for (index, symbol) in table.enumerate().filter(|(index, _)| index.0 > 0) {
        let name = String::from_utf8_lossy(symbol.name(endian, table.strings()).expect("a name")).into_owned();
        if symbol.is_undefined(endian) {
            let version = versions.version(versions.version_index(endian, index).index()).expect("a version");
            let version = version.map_or(String::new(), |own| String::from_utf8_lossy(own.name()).into_owned());
            needed.push((name, version));
        } else {
            own.push(name);
        }
    }
    (needed, own)
}

#[test]
fn the_library_needs_no_private_symbol_of_the_c_library() {
    let (needed, _) = symbols(&library());
    assert!(needed.iter().any(|(_, version)| version.starts_with("GLIBC_2.")), "versions are read: {needed:?}");
    let private: Vec<_> = needed.iter().filter(|(_, version)| version == "GLIBC_PRIVATE").collect();
    assert!(private.is_empty(), "{private:?}");
}

/// The functions that the C library of this host has, each with a version.
fn functions_of_the_c_library() -> BTreeSet<(String, String)> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let own = |name: &str| maps.lines().filter_map(|line| line.split_once('/')).find(|(_, path)| path.ends_with(name));
    let mut all = BTreeSet::new();
    for name in ["libc.so.6", "ld-linux-x86-64.so.2", "libm.so.6"] {
        let Some((_, path)) = own(name) else { continue };
        let bytes = std::fs::read(format!("/{path}")).expect("a library");
        let header = FileHeader64::<Endianness>::parse(&*bytes).expect("a library");
        let endian = header.endian().expect("a library");
        let sections = header.sections(endian, &*bytes).expect("sections");
        let table = sections.symbols(endian, &*bytes, SHT_DYNSYM).expect("symbols");
        let versions = sections.versions(endian, &*bytes).expect("versions").expect("versions");
        for (index, symbol) in table.enumerate().filter(|(index, _)| index.0 > 0) {
            let version = versions.version(versions.version_index(endian, index).index()).expect("a version");
            let Some(version) = version else { continue };
            let name = String::from_utf8_lossy(symbol.name(endian, table.strings()).expect("a name")).into_owned();
            all.insert((name, String::from_utf8_lossy(version.name()).into_owned()));
        }
    }
    all
}

/// Before glibc 2.33 these were linked into each caller.
const LINKED_IN: [&str; 8] = ["stat", "fstat", "lstat", "fstatat", "stat64", "fstat64", "lstat64", "fstatat64"];

/// True if glibc 2.17 has symbols of this version.
fn is_old(version: &str) -> bool {
    let number = version.strip_prefix("GLIBC_2.").and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    number.is_some_and(|minor| minor <= 17)
}

/// This test builds against the host's C library, which may have newer versions of functions. The released library
/// (`cargo xtask release-shim`) is linked with an old one and checked again. This test checks only that each function
/// existed in glibc 2.17 at all: the host's library still has it under the older version.
#[test]
fn the_library_needs_no_function_newer_than_glibc_2_17() {
    let bytes = library();
    let (has, (needed, _)) = (functions_of_the_c_library(), symbols(&bytes));
    assert!(has.contains(&("memcpy".to_owned(), "GLIBC_2.14".to_owned())), "the C library is read");
    let weak = weak(&bytes);
    let there =
        |name: &str| LINKED_IN.contains(&name) || has.iter().any(|(own, version)| own == name && is_old(version));
    let missing: Vec<_> = needed
        .iter()
        .filter(|(name, version)| version.starts_with("GLIBC_") && !weak.contains(name) && !there(name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Weak symbols: functions that the library can do without.
fn weak(bytes: &[u8]) -> BTreeSet<String> {
    let header = FileHeader64::<Endianness>::parse(bytes).expect("a library");
    let endian = header.endian().expect("a library");
    let sections = header.sections(endian, bytes).expect("sections");
    let table = sections.symbols(endian, bytes, SHT_DYNSYM).expect("symbols");
    let name = |symbol: &Sym64<Endianness>| symbol.name(endian, table.strings()).expect("a name").to_vec();
    let weak = table.iter().filter(|symbol| symbol.is_undefined(endian) && symbol.is_weak());
    weak.map(|symbol| String::from_utf8_lossy(&name(symbol)).into_owned()).collect()
}

#[test]
fn the_library_exports_only_functions_of_the_driver_and_the_loader_and_one_of_its_own() {
    // Any other exported symbol would take the place of the program's own.
    let (_, own) = symbols(&library());
    let is_meant = |name: &String| {
        matches!(name.as_str(), "dlsym" | "dlvsym")
            || name.starts_with("cu")
            || name.starts_with("nvmlDeviceGetMemoryInfo")
            || name == "sublet_shim_use_lease"
    };
    let strange: Vec<&String> = own.iter().filter(|name| !is_meant(name)).collect();
    assert!(strange.is_empty(), "{strange:?}");
    for name in ["dlsym", "dlvsym", "cuInit", "cuMemAlloc_v2", "cuGetProcAddress_v2", "sublet_shim_use_lease"] {
        assert!(own.iter().any(|own| own == name), "{name} is missing");
    }
}

#[test]
fn no_segment_is_both_writable_and_executable() {
    let bytes = library();
    let header = FileHeader64::<Endianness>::parse(&*bytes).expect("a library");
    let endian = header.endian().expect("a library");
    let parts = header.program_headers(endian, &*bytes).expect("headers");
    let loaded: Vec<u32> =
        parts.iter().filter(|part| part.p_type(endian) == PT_LOAD).map(|part| part.p_flags(endian).0).collect();
    assert!(loaded.iter().any(|flags| flags & PF_X.0 != 0), "its code is loaded");
    assert!(loaded.iter().all(|flags| flags & (PF_W.0 | PF_X.0) != PF_W.0 | PF_X.0), "{loaded:?}");
}
