//! Whether a library or program loads on every Linux since glibc 2.17: read off its dynamic symbols.
//!
//! A symbol's version is the release that brought it, so a library needs the newest
//! version that it names, and no other. A symbol without a version may not exist elsewhere.
//! Only a weak symbol may be missing, because code that uses one checks for it first.

use anyhow::{Context, Result};
use object::Endianness;
use object::elf::{FileHeader64, STB_WEAK};
use object::read::elf::{Dyn, FileHeader, SectionHeader, Sym};

/// The newest version that may be named: of 2012, as on CentOS 7.
const NEWEST: (u32, u32) = (2, 17);

/// Libraries of glibc 2.17 that may be needed; all of them are everywhere. Not the loader: it is there in every
/// program of glibc, and a program of musl that has a library preloaded would not start for want of it.
const MAY_NEED: [&str; 5] = ["libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"];
const LOADER: &str = "ld-linux-x86-64.so.2";

/// What a file is.
#[derive(Clone, Copy, Debug)]
pub enum ElfKind {
    /// A library with this name for the linker.
    Library(&'static str),
    /// A program, which has no such name and may name the loader.
    Program,
}

impl ElfKind {
    /// The file mode it is handed out with.
    pub fn mode(self) -> u32 {
        match self {
            ElfKind::Library(_) => 0o644,
            ElfKind::Program => 0o755,
        }
    }
}

/// Takes the loader out of what a library needs.
pub fn remove_loader(bytes: &mut Vec<u8>) -> Result<()> {
    let header = FileHeader64::<Endianness>::parse(&**bytes).context("this is not a 64-bit ELF file")?;
    let endian = header.endian()?;
    let sections = header.sections(endian, &**bytes)?;
    let mut found = None;
    for section in sections.iter() {
        let Some((entries, strings)) = section.dynamic(endian, &**bytes)? else { continue };
        let strings = sections.strings(endian, &**bytes, strings)?;
        let is_it = |entry: &&object::elf::Dyn64<Endianness>| {
            entry.tag(endian) == object::elf::DT_NEEDED
                && entry.string(endian, strings).is_ok_and(|name| name == LOADER.as_bytes())
        };
        let size = size_of::<object::elf::Dyn64<Endianness>>();
        if let Some(place) = entries.iter().position(|entry| is_it(&entry)) {
            let first = section.sh_offset(endian) as usize;
            found = Some((first + place * size, first + size_of_val(entries), size));
        }
    }
    // The entries after it move up, and the last one is no entry.
    if let Some((from, end, size)) = found {
        bytes.copy_within(from + size..end, from);
        bytes[end - size..end].fill(0);
    }
    Ok(())
}

/// One sentence for each reason that keeps a file from loading elsewhere.
pub fn violations(bytes: &[u8], kind: ElfKind) -> Result<Vec<String>> {
    let header = FileHeader64::<Endianness>::parse(bytes).context("this is not a 64-bit ELF file")?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let mut found = Vec::new();
    let (mut own_name, mut needed) = (None, Vec::new());
    for section in sections.iter() {
        let Some((entries, strings)) = section.dynamic(endian, bytes)? else { continue };
        let strings = sections.strings(endian, bytes, strings)?;
        for entry in entries {
            let text = || anyhow::Ok(String::from_utf8_lossy(entry.string(endian, strings)?).into_owned());
            match entry.tag(endian) {
                object::elf::DT_SONAME => own_name = Some(text()?),
                object::elf::DT_NEEDED => needed.push(text()?),
                _ => {}
            }
        }
    }
    if let ElfKind::Library(soname) = kind
        && own_name.as_deref() != Some(soname)
    {
        found.push(format!("its name is {own_name:?}, not `{soname}`"));
    }
    let may_need = |name: &str| MAY_NEED.contains(&name) || (matches!(kind, ElfKind::Program) && name == LOADER);
    let strange = needed.iter().filter(|name| !may_need(name));
    found.extend(strange.map(|name| format!("it needs `{name}`, which may not be there")));
    let symbols = sections.symbols(endian, bytes, object::elf::SHT_DYNSYM)?;
    let versions = sections.versions(endian, bytes)?.context("its symbols have no versions")?;
    for (index, symbol) in symbols.enumerate() {
        if index.0 == 0 || !symbol.is_undefined(endian) {
            continue;
        }
        let name = String::from_utf8_lossy(symbol.name(endian, symbols.strings())?).into_owned();
        let version = versions.version(versions.version_index(endian, index).index())?;
        let version = version.map(|version| String::from_utf8_lossy(version.name()).into_owned());
        found.extend(symbol_violation(&name, version.as_deref(), symbol.st_bind() == STB_WEAK));
    }
    Ok(found)
}

/// What is wrong with naming a symbol of that version.
fn symbol_violation(name: &str, version: Option<&str>, is_weak: bool) -> Option<String> {
    match version {
        None if is_weak => None,
        None => Some(format!("`{name}` has no version: no library of glibc 2.17 is known to have it")),
        Some(version) => match version.strip_prefix("GLIBC_").map(number) {
            Some(Some(number)) if number <= NEWEST => None,
            _ => Some(format!("`{name}` is of {version}, which glibc 2.17 does not have")),
        },
    }
}

/// `2.3.4` as 2, 3.
fn number(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    Some((parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_since_2_17_are_named() {
        for (version, weak, is_fine) in [
            (Some("GLIBC_2.2.5"), false, true),
            (Some("GLIBC_2.17"), false, true),
            (Some("GLIBC_2.18"), false, false),
            (Some("GLIBC_2.34"), true, false),
            (Some("GLIBC_3.0"), false, false),
            (Some("GLIBC_PRIVATE"), false, false),
            (Some("GCC_3.0"), false, false),
            (None, true, true),
            (None, false, false),
        ] {
            assert_eq!(symbol_violation("f", version, weak).is_none(), is_fine, "{version:?}");
        }
    }

    #[test]
    fn a_program_that_was_linked_here_would_not_pass() {
        // This very program: it has no library's name, and needs libgcc_s.
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let found = violations(&bytes, ElfKind::Library("libcuda.so.1")).unwrap();
        assert!(found.contains(&"its name is None, not `libcuda.so.1`".to_owned()), "{found:?}");
        assert!(found.contains(&"it needs `libgcc_s.so.1`, which may not be there".to_owned()), "{found:?}");
        assert!(violations(b"#!/bin/sh", ElfKind::Program).is_err());
    }
}
