//! Attributes of addresses.

use super::pointers::{CallerIn, CallerOut};
use super::{exports, write_out};
use crate::result::{CuResult, Outcome};
use crate::runtime::{Runtime, current};
use crate::space::{AllowedAccess, Backing, MemoryKind};
use std::ffi::{c_int, c_void};

/// `CU_MEMORYTYPE_HOST` and `…_DEVICE`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// The value of an attribute, in the size that the attribute has.
enum AttributeValue {
    Byte(u8),
    Word(u32),
    Long(u64),
}

/// What is answered about an address that is not known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UnknownAddress {
    /// An error.
    Refused,
    /// An empty value.
    Empty,
}

/// Writes the value of an attribute.
///
/// # Safety
/// The place is null, or has room for the value of this attribute.
unsafe fn write_attribute(place: CallerOut<c_void>, value: AttributeValue) -> Outcome {
    // SAFETY: the caller promises room for the value of this attribute.
    unsafe {
        match value {
            AttributeValue::Byte(value) => write_out(place.cast(), value),
            AttributeValue::Word(value) => write_out(place.cast(), value),
            AttributeValue::Long(value) => write_out(place.cast(), value),
        }
    }
}

/// One attribute of an address.
fn attribute_of(runtime: &Runtime, attribute: c_int, at: u64, unknown: UnknownAddress) -> Outcome<AttributeValue> {
    use AttributeValue::{Byte, Long, Word};
    let held = runtime.space.snapshot();
    let Some((first, block)) = held.find(at) else {
        return match attribute {
            _ if unknown == UnknownAddress::Refused => Err(CuResult::INVALID_VALUE),
            2 | 6 | 8 | 10 | 13 | 14 | 15 | 16 | 21 => Ok(Word(0)),
            9 => Ok(Word(-2_i32 as u32)),
            1 | 3 | 4 | 7 | 11 | 12 | 17..=20 => Ok(Long(0)),
            _ => Err(CuResult::INVALID_VALUE),
        };
    };
    let is_host = block.kind.is_host();
    let is_mapped = block.kind == MemoryKind::Mapped;
    Ok(match attribute {
        // Memory that a program mapped itself belongs to no context.
        1 => Long(if is_mapped { 0 } else { block.context as u64 }),
        2 => Word(if is_host { HOST } else { DEVICE }),
        3 => Long(at),
        4 if is_host || block.kind == MemoryKind::Managed => Long(at),
        6 => Word(0),
        7 | 20 => Long(block.id),
        8 => Byte(u8::from(block.kind == MemoryKind::Managed)),
        9 => Word(runtime.device(block.gpu) as u32),
        10 => Byte(0),
        11 => Long(first),
        12 => Long(block.bytes),
        13 => Byte(1),
        14 => Long(match &*block.backing {
            Backing::Physical(physical) => u64::from(physical.handle_types),
            _ => 0,
        }),
        15 => Byte(match &*block.backing {
            _ if is_host => 0,
            Backing::Physical(physical) => (physical.flags >> 8) as u8,
            _ => 1,
        }),
        16 => Word(match block.access {
            AllowedAccess::None => 0,
            AllowedAccess::Read => 1,
            AllowedAccess::Write => 3,
        }),
        17 => Long(if let MemoryKind::Pool(pool) = block.kind { pool as u64 } else { 0 }),
        18 => Long(block.bytes),
        19 => Long(first),
        21 => Byte(0),
        _ => return Err(CuResult::INVALID_VALUE),
    })
}

exports! {
    "cuPointerGetAttribute" 4000 fn cuPointerGetAttribute(place: CallerOut<c_void>, attribute: c_int, at: u64) {
        let value = attribute_of(current()?.0, attribute, at, UnknownAddress::Refused)?;
        // SAFETY: the caller of the C function promises room for this attribute.
        unsafe { write_attribute(place, value) }
    }
    "cuPointerGetAttributes" 7000 fn cuPointerGetAttributes(
        count: u32,
        attributes: CallerIn<c_int>,
        places: CallerIn<CallerOut<c_void>>,
        at: u64,
    ) {
        let (runtime, _) = current()?;
        // SAFETY: the caller of the C function promises two lists of that length.
        let (attributes, places) =
            unsafe { (attributes.read_list(count as usize)?, places.read_list(count as usize)?) };
        for (attribute, place) in attributes.into_iter().zip(places) {
            // An attribute that an address does not have is written as zero.
            let value = attribute_of(runtime, attribute, at, UnknownAddress::Empty).unwrap_or(AttributeValue::Long(0));
            // SAFETY: the caller of the C function promises room for each attribute.
            unsafe { write_attribute(place, value)? };
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
