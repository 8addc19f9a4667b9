//! Attributes of addresses.

use super::{exports, read_list, write_out};
use crate::result::{CuResult, Outcome};
use crate::runtime::{Runtime, current};
use crate::space::{AllowedAccess, Backing, MemoryKind};
use std::ffi::{c_int, c_void};

/// `CU_MEMORYTYPE_HOST` and `…_DEVICE`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// Writes one attribute of an address. With `is_strict`, an unknown address is an error instead of an empty answer.
fn answer(runtime: &Runtime, place: *mut c_void, attribute: c_int, at: u64, is_strict: bool) -> Outcome {
    let held = runtime.space.snapshot();
    let Some((first, block)) = held.find(at) else {
        return match attribute {
            _ if is_strict => Err(CuResult::INVALID_VALUE),
            2 | 6 | 8 | 10 | 13 | 14 | 15 | 16 | 21 => write_out(place.cast(), 0_u32),
            9 => write_out(place.cast(), -2_i32),
            1 | 3 | 4 | 7 | 11 | 12 | 17..=20 => write_out(place.cast(), 0_u64),
            _ => Err(CuResult::INVALID_VALUE),
        };
    };
    let is_host = block.kind.is_host();
    let is_mapped = block.kind == MemoryKind::Mapped;
    match attribute {
        // Memory that a program mapped itself belongs to no context.
        1 => write_out(place.cast(), if is_mapped { 0 } else { block.context }),
        2 => write_out(place.cast(), if is_host { HOST } else { DEVICE }),
        3 => write_out(place.cast(), at),
        4 if is_host || block.kind == MemoryKind::Managed => write_out(place.cast(), at),
        4 => Err(CuResult::INVALID_VALUE),
        6 => write_out(place.cast(), 0_u32),
        7 | 20 => write_out(place.cast(), block.id),
        8 => write_out(place.cast(), u8::from(block.kind == MemoryKind::Managed)),
        9 => write_out(place.cast(), runtime.device(block.gpu)),
        10 => write_out(place.cast(), 0_u8),
        11 => write_out(place.cast(), first),
        12 => write_out(place.cast(), block.bytes),
        13 => write_out(place.cast(), 1_u8),
        14 => write_out(
            place.cast(),
            match &*block.backing {
                Backing::Physical(physical) => u64::from(physical.handle_types),
                _ => 0,
            },
        ),
        15 => write_out(
            place.cast(),
            match &*block.backing {
                _ if is_host => 0_u8,
                Backing::Physical(physical) => (physical.flags >> 8) as u8,
                _ => 1,
            },
        ),
        16 => write_out(
            place.cast(),
            match block.access {
                AllowedAccess::None => 0_u32,
                AllowedAccess::Read => 1,
                AllowedAccess::Write => 3,
            },
        ),
        17 => write_out(place.cast(), if let MemoryKind::Pool(pool) = block.kind { pool } else { 0 }),
        18 => write_out(place.cast(), block.bytes),
        19 => write_out(place.cast(), first),
        21 => write_out(place.cast(), 0_u8),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

exports! {
    "cuPointerGetAttribute" 4000 fn cuPointerGetAttribute(place: *mut c_void, attribute: c_int, at: u64) {
        answer(current()?.0, place, attribute, at, true)
    }
    "cuPointerGetAttributes" 7000 fn cuPointerGetAttributes(
        count: u32,
        attributes: *const c_int,
        places: *const *mut c_void,
        at: u64,
    ) {
        let (runtime, _) = current()?;
        let (attributes, places) = (read_list(attributes, count as usize)?, read_list(places, count as usize)?);
        for (attribute, place) in attributes.into_iter().zip(places) {
            // An attribute that an address does not have is written as zero.
            if answer(runtime, place, attribute, at, false).is_err() {
                write_out(place.cast(), 0_u64)?;
            }
        }
        Ok(())
    }
    "cuPointerSetAttribute" 6000 fn cuPointerSetAttribute(value: *const c_void, attribute: c_int, at: u64) {
        let (runtime, _) = current()?;
        // Only that copies are done when they return, which is always so.
        if value.is_null() || attribute != 6 || runtime.space.snapshot().find(at).is_none() {
            return Err(CuResult::INVALID_VALUE);
        }
        Ok(())
    }
}
