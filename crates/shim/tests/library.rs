//! The library as it was built: what it needs of others, and what it shows to the programs it is in.

use object::Endianness;
use object::elf::{FileHeader64, PF_W, PF_X, PT_LOAD, SHT_DYNSYM};
use object::read::elf::{FileHeader, ProgramHeader, Sym};

fn library() -> Vec<u8> {
    let here = std::env::current_exe().expect("a test has a path");
    std::fs::read(here.with_file_name("libsublet_shim.so")).expect("the library is built with its tests")
}

/// Names of symbols with their versions: those it looks for, and those it has.
fn symbols(bytes: &[u8]) -> (Vec<(String, String)>, Vec<String>) {
    let header = FileHeader64::<Endianness>::parse(bytes).expect("a library");
    let endian = header.endian().expect("a library");
    let sections = header.sections(endian, bytes).expect("sections");
    let table = sections.symbols(endian, bytes, SHT_DYNSYM).expect("symbols");
    let versions = sections.versions(endian, bytes).expect("versions").expect("versions");
    let (mut wanted, mut own) = (Vec::new(), Vec::new());
    for (index, symbol) in table.enumerate().filter(|(index, _)| index.0 > 0) {
        let name = String::from_utf8_lossy(symbol.name(endian, table.strings()).expect("a name")).into_owned();
        if symbol.is_undefined(endian) {
            let version = versions.version(versions.version_index(endian, index).index()).expect("a version");
            let version = version.map_or(String::new(), |own| String::from_utf8_lossy(own.name()).into_owned());
            wanted.push((name, version));
        } else {
            own.push(name);
        }
    }
    (wanted, own)
}

#[test]
fn it_needs_nothing_that_is_private_to_the_c_library() {
    let (wanted, _) = symbols(&library());
    assert!(wanted.iter().any(|(_, version)| version.starts_with("GLIBC_2.")), "versions are read: {wanted:?}");
    let private: Vec<_> = wanted.iter().filter(|(_, version)| version == "GLIBC_PRIVATE").collect();
    assert!(private.is_empty(), "{private:?}");
}

#[test]
fn it_shows_the_functions_of_the_driver_and_of_the_loader_and_nothing_else() {
    // Whatever else it showed would stand before the program's own.
    let (_, own) = symbols(&library());
    let is_meant = |name: &String| {
        matches!(name.as_str(), "dlsym" | "dlvsym")
            || name.starts_with("cu")
            || name.starts_with("nvmlDeviceGetMemoryInfo")
    };
    let strange: Vec<&String> = own.iter().filter(|name| !is_meant(name)).collect();
    assert!(strange.is_empty(), "{strange:?}");
    for name in ["dlsym", "dlvsym", "cuInit", "cuMemAlloc_v2", "cuGetProcAddress_v2"] {
        assert!(own.iter().any(|own| own == name), "{name} is missing");
    }
}

#[test]
fn nothing_of_it_is_both_written_and_run() {
    let bytes = library();
    let header = FileHeader64::<Endianness>::parse(&*bytes).expect("a library");
    let endian = header.endian().expect("a library");
    let parts = header.program_headers(endian, &*bytes).expect("headers");
    let loaded: Vec<u32> =
        parts.iter().filter(|part| part.p_type(endian) == PT_LOAD).map(|part| part.p_flags(endian).0).collect();
    assert!(loaded.iter().any(|flags| flags & PF_X.0 != 0), "its code is loaded");
    assert!(loaded.iter().all(|flags| flags & (PF_W.0 | PF_X.0) != PF_W.0 | PF_X.0), "{loaded:?}");
}
