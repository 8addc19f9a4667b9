//! `cuGetProcAddress`: functions by name and version.

use super::pointers::{CallerOut, CallerText};
use super::{
    ApiFunction, checkpoint, context, copy, device, event, exports, function, graph, library, memory, module, node,
    pointer, pool, stream, text, unsupported, vmm, write_out, write_out_if_wanted,
};
use crate::result::{CuResult, Outcome};
use std::ffi::{c_int, c_void};

static TABLES: &[&[ApiFunction]] = &[
    PLAIN,
    checkpoint::PLAIN,
    context::PLAIN,
    copy::STREAMED,
    device::PLAIN,
    event::PLAIN,
    event::STREAMED,
    function::PLAIN,
    function::STREAMED,
    graph::PLAIN,
    graph::STREAMED,
    library::PLAIN,
    memory::PLAIN,
    module::PLAIN,
    node::PLAIN,
    pointer::PLAIN,
    pool::PLAIN,
    pool::STREAMED,
    stream::PLAIN,
    stream::STREAMED,
    vmm::PLAIN,
];

/// `CU_GET_PROC_ADDRESS_…`: found; no such name; not in that version.
const FOUND: c_int = 0;
const NO_SUCH: c_int = 1;
const TOO_NEW: c_int = 2;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

/// The newest function of a name that a version has.
fn find(name: &str, version: c_int, flags: u64) -> Result<*const c_void, c_int> {
    let named = || TABLES.iter().flat_map(|table| table.iter()).filter(|entry| entry.name == name);
    let found = named().filter(|entry| entry.since <= version).max_by_key(|entry| entry.since);
    match found {
        Some(entry) if flags & PER_THREAD != 0 => Ok(entry.own),
        Some(entry) => Ok(entry.plain),
        None if named().next().is_some() => Err(TOO_NEW),
        None => unsupported::find(name).ok_or(NO_SUCH),
    }
}

fn answer(symbol: CallerText, place: CallerOut<*const c_void>, version: c_int, flags: u64) -> Outcome<c_int> {
    if flags > PER_THREAD {
        return Err(CuResult::INVALID_VALUE);
    }
    let found = find(text(&symbol)?, version, flags);
    write_out(place, found.unwrap_or(std::ptr::null()))?;
    Ok(found.err().unwrap_or(FOUND))
}

exports! {
    "cuGetProcAddress" 11030 fn cuGetProcAddress(
        symbol: CallerText,
        place: CallerOut<*const c_void>,
        version: c_int,
        flags: u64,
    ) {
        // The older form reports this by its result.
        if answer(symbol, place, version, flags)? == FOUND { Ok(()) } else { Err(CuResult::NOT_FOUND) }
    }
    "cuGetProcAddress" 12000 fn cuGetProcAddress_v2(
        symbol: CallerText,
        place: CallerOut<*const c_void>,
        version: c_int,
        flags: u64,
        status: CallerOut<c_int>,
    ) {
        write_out_if_wanted(status, answer(symbol, place, version, flags)?)
    }
}
