//! How GPUs are identified: handles, names, UUIDs, and addresses on a bus that does not exist.

use crate::abi::{Code, Out, Words, export, text};
use crate::library::{Card, Handle, card, card_numbered, library};
use crate::structs::{BUS_ID, BUS_ID_OLD, Pci1, Pci2, Pci3, Uuid, version};
use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::Ordering::SeqCst;

/// The bus number of GPU 0; the others follow. Few machines have a device there.
const BUS_FIRST: u32 = 0xA0;
/// NVML's number for Turing, the first with compute capability 7.5.
const TURING: c_uint = 6;
/// The compute capability.
const CAPABILITY: (c_int, c_int) = (7, 5);
/// NVML's number for an unknown brand.
const BRAND_UNKNOWN: c_uint = 0;
/// A link generation and width that any real GPU has had.
const LINK: (c_uint, c_uint) = (3, 16);
/// Cores of one multiprocessor of compute capability 7.5.
const CORES: c_uint = 64;
/// In bits.
const BUS_WIDTH: c_uint = 256;

export! {
    fn nvmlDeviceGetCount | nvmlDeviceGetCount_v2(count: Out<c_uint>) {
        count.put(library()?.cards_len() as c_uint)
    }

    fn nvmlDeviceGetHandleByIndex | nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<Handle>) {
        device.put(card_numbered(index)?.handle())
    }

    fn nvmlDeviceGetHandleByUUID(uuid: Words, device: Out<Handle>) {
        library()?;
        device.put(named(&uuid.read()?)?.handle())
    }

    /// By a UUID as text or as bytes.
    fn nvmlDeviceGetHandleByUUIDV(uuid: Out<Uuid>, device: Out<Handle>) {
        library()?;
        device.put(by_uuid(&uuid.get()?)?.handle())
    }

    fn nvmlDeviceGetHandleByPciBusId | nvmlDeviceGetHandleByPciBusId_v2(bus_id: Words, device: Out<Handle>) {
        library()?;
        let (domain, bus) = parse_bus_id(&bus_id.read()?).ok_or(Code::InvalidArgument)?;
        device.put(Card::find(|card| (domain, bus) == (0, bus_of(card)))?.answering()?.handle())
    }

    fn nvmlDeviceGetIndex(device: Handle, index: Out<c_uint>) {
        index.put(card(device)?.index as c_uint)
    }

    fn nvmlDeviceGetMinorNumber(device: Handle, number: Out<c_uint>) {
        number.put(card(device)?.index as c_uint)
    }

    fn nvmlDeviceGetName(device: Handle, name: Out<c_char>, length: c_uint) {
        text(name, length, &name_of(&card(device)?)?)
    }

    fn nvmlDeviceGetUUID(device: Handle, uuid: Out<c_char>, length: c_uint) {
        text(uuid, length, &card(device)?.row()?.uuid_text())
    }

    fn nvmlDeviceGetBrand(device: Handle, brand: Out<c_uint>) {
        card(device)?;
        brand.put(BRAND_UNKNOWN)
    }

    /// Every GPU is a board of its own.
    fn nvmlDeviceGetBoardId(device: Handle, board: Out<c_uint>) {
        board.put(bus_of(&card(device)?) << 8)
    }

    fn nvmlDeviceGetMultiGpuBoard(device: Handle, several: Out<c_uint>) {
        card(device)?;
        several.put(0)
    }

    fn nvmlDeviceOnSameBoard(one: Handle, other: Handle, same: Out<c_int>) {
        same.put(c_int::from(card(one)?.index == card(other)?.index))
    }

    fn nvmlDeviceGetVbiosVersion(device: Handle, version: Out<c_char>, length: c_uint) {
        card(device)?;
        text(version, length, "00.00.00.00.00")
    }

    fn nvmlDeviceGetArchitecture(device: Handle, architecture: Out<c_uint>) {
        card(device)?;
        architecture.put(TURING)
    }

    fn nvmlDeviceGetCudaComputeCapability(device: Handle, major: Out<c_int>, minor: Out<c_int>) {
        card(device)?;
        major.put(CAPABILITY.0)?;
        minor.put(CAPABILITY.1)
    }

    fn nvmlDeviceGetNumGpuCores(device: Handle, cores: Out<c_uint>) {
        card(device)?;
        cores.put(CORES)
    }

    fn nvmlDeviceGetMemoryBusWidth(device: Handle, bits: Out<c_uint>) {
        card(device)?;
        bits.put(BUS_WIDTH)
    }

    fn nvmlDeviceGetPciInfo(device: Handle, pci: Out<Pci1>) {
        pci.put(pci_of(&card(device)?).second.first)
    }

    fn nvmlDeviceGetPciInfo_v2(device: Handle, pci: Out<Pci2>) {
        pci.put(pci_of(&card(device)?).second)
    }

    fn nvmlDeviceGetPciInfo_v3(device: Handle, pci: Out<Pci3>) {
        pci.put(pci_of(&card(device)?))
    }

    fn nvmlDeviceGetMaxPcieLinkGeneration | nvmlDeviceGetCurrPcieLinkGeneration | nvmlDeviceGetGpuMaxPcieLinkGeneration(
        device: Handle,
        generation: Out<c_uint>,
    ) {
        card(device)?;
        generation.put(LINK.0)
    }

    fn nvmlDeviceGetMaxPcieLinkWidth | nvmlDeviceGetCurrPcieLinkWidth(device: Handle, lanes: Out<c_uint>) {
        card(device)?;
        lanes.put(LINK.1)
    }

    /// There is no traffic on the bus. There are two counters.
    fn nvmlDeviceGetPcieThroughput(device: Handle, counter: c_uint, kib_per_s: Out<c_uint>) {
        card(device)?;
        if counter > 1 {
            return Err(Code::InvalidArgument);
        }
        kib_per_s.put(0)
    }

    fn nvmlDeviceGetPcieReplayCounter(device: Handle, count: Out<c_uint>) {
        card(device)?;
        count.put(0)
    }

    /// Two GPUs have only the machine in common.
    fn nvmlDeviceGetTopologyCommonAncestor(one: Handle, other: Handle, level: Out<c_uint>) {
        const INTERNAL: c_uint = 0;
        const SYSTEM: c_uint = 50;
        level.put(if card(one)?.index == card(other)?.index { INTERNAL } else { SYSTEM })
    }

    /// Soft GPUs cannot read each other's memory.
    fn nvmlDeviceGetP2PStatus(one: Handle, other: Handle, _what: c_uint, status: Out<c_uint>) {
        const P2P_NOT_SUPPORTED: c_uint = 5;
        card(one)?;
        card(other)?;
        status.put(P2P_NOT_SUPPORTED)
    }
}

fn named(uuid: &str) -> Result<Card, Code> {
    let is = |card: &Card| card.row().is_ok_and(|row| row.uuid_text().eq_ignore_ascii_case(uuid));
    Card::find(is)?.answering()
}

fn by_uuid(uuid: &Uuid) -> Result<Card, Code> {
    if uuid.version != version::<Uuid>(1) {
        return Err(Code::VersionMismatch);
    }
    match uuid.kind {
        Uuid::TEXT => {
            let end = uuid.value.iter().position(|byte| *byte == 0).ok_or(Code::InvalidArgument)?;
            named(&String::from_utf8_lossy(&uuid.value[..end]))
        }
        Uuid::BYTES => Card::find(|card| uuid_of(card).is_ok_and(|bytes| bytes[..] == uuid.value[..16]))?.answering(),
        _ => Err(Code::InvalidArgument),
    }
}

fn name_of(card: &Card) -> Result<String, Code> {
    Ok(card.row()?.name_text())
}

fn uuid_of(card: &Card) -> Result<[u8; 16], Code> {
    let row = card.row()?;
    Ok(std::array::from_fn(|at| row.uuid[at].load(SeqCst)))
}

fn bus_of(card: &Card) -> u32 {
    BUS_FIRST + card.index as u32
}

fn pci_of(card: &Card) -> Pci3 {
    let bus = bus_of(card);
    // No device on any bus has the id 0, so it is not found in `/sys`.
    let first =
        Pci1 { bus_id_old: chars::<BUS_ID_OLD>(&format!("0000:{bus:02X}:00.0")), domain: 0, bus, device: 0, id: 0 };
    let second = Pci2 { first, subsystem_id: 0 };
    Pci3 { second, bus_id: chars::<BUS_ID>(&format!("00000000:{bus:02X}:00.0")) }
}

fn chars<const LENGTH: usize>(text: &str) -> [c_char; LENGTH] {
    let mut chars = [0; LENGTH];
    chars.iter_mut().zip(text.bytes()).for_each(|(place, byte)| *place = byte as c_char);
    chars
}

/// Domain and bus of `00000000:A0:00.0`, also with a shorter domain or none.
fn parse_bus_id(text: &str) -> Option<(u32, u32)> {
    let place =
        text.strip_suffix(":00.0").or_else(|| text.strip_suffix(":0.0")).or_else(|| text.strip_suffix(":00"))?;
    let (domain, bus) = place.rsplit_once(':').unwrap_or(("0", place));
    Some((u32::from_str_radix(domain, 16).ok()?, u32::from_str_radix(bus, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bus_id_is_read_with_any_domain() {
        for text in ["00000000:A0:00.0", "0000:a0:00.0", "A0:00.0", "0:A0:0.0", "0000:A0:00"] {
            assert_eq!(parse_bus_id(text), Some((0, 0xA0)), "{text}");
        }
        assert_eq!(parse_bus_id("0001:A1:00.0"), Some((1, 0xA1)));
        for text in ["", ":", "A0", "0000:A0:01.0", "x:A0:00.0", "0000::00.0"] {
            assert_eq!(parse_bus_id(text), None, "{text}");
        }
    }
}
