//! The loader's own functions, found in the tables of the libraries that are loaded.
//!
//! The shim has its own `dlsym` and `dlvsym`, so it cannot look the real ones up by name: it would find itself. It
//! reads the symbol tables of the C library instead, which every program has.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

/// The loader's own `dlsym`; zero until [`find_dlsym`] was called.
pub static REAL_DLSYM: AtomicUsize = AtomicUsize::new(0);
/// The loader's own `dlvsym`; zero until [`find_dlvsym`] was called.
pub static REAL_DLVSYM: AtomicUsize = AtomicUsize::new(0);

/// Where the loader's functions are: in glibc, in an old glibc, or in another C library. Programs of the latter have no
/// driver, but may have the shim preloaded.
const LOADER: [&str; 4] = ["libc.so.6", "libdl.so.2", "libc-", "ld-musl-"];

/// The address of the loader's own `dlsym`.
pub extern "C" fn find_dlsym() -> usize {
    find_loader_function(&REAL_DLSYM, c"dlsym")
}

/// The address of the loader's own `dlvsym`.
pub extern "C" fn find_dlvsym() -> usize {
    find_loader_function(&REAL_DLVSYM, c"dlvsym")
}

fn find_loader_function(place: &AtomicUsize, name: &CStr) -> usize {
    let known = place.load(Acquire);
    if known != 0 {
        return known;
    }
    let found = find(&LOADER, name).unwrap_or(missing_loader_function as extern "C" fn() -> usize as usize);
    place.store(found, Release);
    found
}

/// Stands for a loader function that was not found.
extern "C" fn missing_loader_function() -> usize {
    0
}

/// The loader's own `dlsym`.
///
/// # Safety
/// The handle is one that `dlsym` takes: of a library that is loaded, or one of the loader's constants.
pub unsafe fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the address is that of the loader's function of that name, which has this type.
    let real: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
        unsafe { std::mem::transmute(find_dlsym()) };
    // SAFETY: the name ends with a zero, and the caller promises the handle.
    unsafe { real(handle, name.as_ptr()) }
}

/// The loader's own `dlvsym`.
///
/// # Safety
/// As for [`real_dlsym`]; the version is a text that ends with a zero.
pub unsafe fn real_dlvsym(handle: *mut c_void, name: &CStr, version: *const c_char) -> *mut c_void {
    // SAFETY: the address is that of the loader's function of that name, which has this type.
    let real: unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void =
        unsafe { std::mem::transmute(find_dlvsym()) };
    // SAFETY: the name ends with a zero, and the caller promises the handle and the version.
    unsafe { real(handle, name.as_ptr(), version) }
}

/// The entries of a library's dynamic section that matter here.
#[derive(Default)]
struct Dynamic {
    symbols: usize,
    strings: usize,
    gnu_hash: usize,
    versions: usize,
}

struct SymbolSearch<'a> {
    name: &'a CStr,
    scope: SearchScope<'a>,
    found: usize,
}

/// Which libraries are searched.
enum SearchScope<'a> {
    /// Those with a name that begins with one of these.
    Named(&'a [&'a str]),
    /// Those after the one that has this address.
    After(usize),
    /// All that follow.
    Rest,
}

/// The address of a function of one of these libraries; `None` if it is not there.
pub fn find(library: &[&str], name: &CStr) -> Option<usize> {
    search(name, SearchScope::Named(library))
}

/// The address of a function in the first library after the one that contains `address`; `None` if none has it.
pub fn find_after(address: usize, name: &CStr) -> Option<usize> {
    search(name, SearchScope::After(address))
}

fn search(name: &CStr, scope: SearchScope<'_>) -> Option<usize> {
    let mut search = SymbolSearch { name, scope, found: 0 };
    // SAFETY: the callback gets the search back, which lives until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(visit_library), (&raw mut search).cast()) };
    (search.found != 0).then_some(search.found)
}

unsafe extern "C" fn visit_library(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader gives a description that is valid during the call, and the search is ours.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<SymbolSearch<'_>>()) };
    match search.scope {
        // SAFETY: the description is the loader's.
        SearchScope::Named(names) if !unsafe { is_named(info, names) } => return 0,
        SearchScope::After(address) => {
            // SAFETY: the description is the loader's.
            if unsafe { contains_address(info, address) } {
                search.scope = SearchScope::Rest;
            }
            return 0;
        }
        SearchScope::Named(_) | SearchScope::Rest => {}
    }
    // SAFETY: the description is the loader's.
    search.found = unsafe { symbol(info, search.name) }.unwrap_or(0);
    c_int::from(search.found != 0)
}

/// True if a library's file name begins with one of these.
///
/// # Safety
/// The description is the loader's, of a library that is loaded.
unsafe fn is_named(info: &libc::dl_phdr_info, names: &[&str]) -> bool {
    if info.dlpi_name.is_null() {
        return false;
    }
    // SAFETY: the loader's names end with a zero.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy();
    let file = path.rsplit('/').next().unwrap_or("");
    names.iter().any(|own| file.starts_with(own))
}

/// True if an address is in a library.
///
/// # Safety
/// The description is the loader's, of a library that is loaded.
unsafe fn contains_address(info: &libc::dl_phdr_info, address: usize) -> bool {
    // SAFETY: a loaded library has its headers in memory.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    headers.iter().filter(|header| header.p_type == libc::PT_LOAD).any(|header| {
        let begin = info.dlpi_addr as usize + header.p_vaddr as usize;
        (begin..begin + header.p_memsz as usize).contains(&address)
    })
}

/// The address of a library's function.
///
/// # Safety
/// The description is the loader's, of a library that is loaded.
unsafe fn symbol(info: &libc::dl_phdr_info, name: &CStr) -> Option<usize> {
    let base = info.dlpi_addr as usize;
    // SAFETY: a loaded library has its headers, its dynamic section and its tables in memory.
    unsafe {
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let tables = tables(base, base + dynamic.p_vaddr as usize);
        if tables.symbols == 0 || tables.strings == 0 || tables.gnu_hash == 0 {
            return None;
        }
        lookup(base, &tables, name)
    }
}

/// # Safety
/// `at` is the dynamic section of a library that is loaded at `base`.
unsafe fn tables(base: usize, at: usize) -> Dynamic {
    const STRINGS: u64 = 5;
    const SYMBOLS: u64 = 6;
    const GNU_HASH: u64 = 0x6fff_fef5;
    const VERSIONS: u64 = 0x6fff_fff0;
    let mut found = Dynamic::default();
    let mut entry = at as *const [u64; 2];
    loop {
        // SAFETY: the section ends with an entry with tag zero.
        let [tag, value] = unsafe { entry.read() };
        // Some loaders write addresses here, others leave offsets.
        let address = if (value as usize) < base { base + value as usize } else { value as usize };
        match tag {
            0 => return found,
            STRINGS => found.strings = address,
            SYMBOLS => found.symbols = address,
            GNU_HASH => found.gnu_hash = address,
            VERSIONS => found.versions = address,
            _ => {}
        }
        entry = entry.wrapping_add(1);
    }
}

/// # Safety
/// The tables are those of a library that is loaded at `base`.
unsafe fn lookup(base: usize, tables: &Dynamic, name: &CStr) -> Option<usize> {
    let hash = name.to_bytes().iter().fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
    // SAFETY: the table's first four numbers say how long its parts are, and chains end with an odd number.
    unsafe {
        let head = tables.gnu_hash as *const u32;
        let (buckets, first, bloom) = (head.read(), head.add(1).read(), head.add(2).read() as usize);
        let bucket_at = (tables.gnu_hash + 16 + bloom * 8) as *const u32;
        let chain_at = bucket_at.add(buckets as usize);
        let mut number = bucket_at.add((hash % buckets.max(1)) as usize).read();
        if number < first {
            return None;
        }
        loop {
            let link = chain_at.add((number - first) as usize).read();
            if link | 1 == hash | 1 {
                let symbol = &*(tables.symbols as *const libc::Elf64_Sym).add(number as usize);
                let own = CStr::from_ptr((tables.strings + symbol.st_name as usize) as *const c_char);
                let version =
                    if tables.versions == 0 { 0 } else { (tables.versions as *const u16).add(number as usize).read() };
                // Hidden versions are for old programs.
                if own == name && symbol.st_value != 0 && version & 0x8000 == 0 {
                    return Some(base + symbol.st_value as usize);
                }
            }
            if link & 1 == 1 {
                return None;
            }
            number += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{find, find_after};

    #[test]
    fn functions_of_the_c_library_are_found_and_unknown_ones_are_not() {
        let strlen = find(&["libc.so.6"], c"getpid").expect("every program has it");
        // SAFETY: the address is that of `getpid`, which has this type.
        let own = unsafe { std::mem::transmute::<usize, extern "C" fn() -> i32>(strlen)() };
        assert_eq!(own as u32, std::process::id());
        assert!(find(&["libc.so.6", "libdl.so.2"], c"dlsym").is_some());
        assert!(find(&["libc.so.6"], c"no_such_function").is_none());
        assert!(find(&["no-such-library"], c"getpid").is_none());
    }

    #[test]
    fn find_after_searches_only_later_libraries() {
        let library = find(&["libc.so.6"], c"getpid").expect("every program has it");
        let here = find_after_searches_only_later_libraries as fn() as usize;
        assert_eq!(find_after(here, c"getpid"), Some(library), "the program comes before the C library");
        assert_eq!(find_after(library, c"getpid"), None, "it does not find itself");
    }
}
