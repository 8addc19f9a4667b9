//! How GPUs are identified: handles, names, UUIDs, and addresses on a bus that does not exist.

use crate::abi::{CText, NvmlError, Out, export, write_text};
use crate::library::{DeviceHandle, NvmlGpu, gpu, gpu_by_index, library};
use crate::structs::{BUS_ID, BUS_ID_OLD, PciV1, PciV2, PciV3, Uuid, version};
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
        count.write(library()?.gpus_len() as c_uint)
    }

    fn nvmlDeviceGetHandleByIndex | nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<DeviceHandle>) {
        device.write(gpu_by_index(index)?.handle())
    }

    fn nvmlDeviceGetHandleByUUID(uuid: CText, device: Out<DeviceHandle>) {
        library()?;
        device.write(gpu_by_uuid_text(&uuid.read()?)?.handle())
    }

    /// By a UUID as text or as bytes.
    fn nvmlDeviceGetHandleByUUIDV(uuid: Out<Uuid>, device: Out<DeviceHandle>) {
        library()?;
        device.write(gpu_by_uuid(&uuid.read()?)?.handle())
    }

    fn nvmlDeviceGetHandleByPciBusId | nvmlDeviceGetHandleByPciBusId_v2(bus_id: CText, device: Out<DeviceHandle>) {
        library()?;
        let (domain, bus) = parse_bus_id(&bus_id.read()?).ok_or(NvmlError::InvalidArgument)?;
        device.write(NvmlGpu::find(|gpu| (domain, bus) == (0, bus_of(gpu)))?.after_fault()?.handle())
    }

    fn nvmlDeviceGetIndex(device: DeviceHandle, index: Out<c_uint>) {
        index.write(gpu(device)?.index as c_uint)
    }

    fn nvmlDeviceGetMinorNumber(device: DeviceHandle, number: Out<c_uint>) {
        number.write(gpu(device)?.index as c_uint)
    }

    fn nvmlDeviceGetName(device: DeviceHandle, name: Out<c_char>, length: c_uint) {
        write_text(name, length, &name_of(&gpu(device)?)?)
    }

    fn nvmlDeviceGetUUID(device: DeviceHandle, uuid: Out<c_char>, length: c_uint) {
        write_text(uuid, length, &gpu(device)?.row()?.uuid_text())
    }

    fn nvmlDeviceGetBrand(device: DeviceHandle, brand: Out<c_uint>) {
        gpu(device)?;
        brand.write(BRAND_UNKNOWN)
    }

    /// Every GPU is a board of its own.
    fn nvmlDeviceGetBoardId(device: DeviceHandle, board: Out<c_uint>) {
        board.write(bus_of(&gpu(device)?) << 8)
    }

    fn nvmlDeviceGetMultiGpuBoard(device: DeviceHandle, several: Out<c_uint>) {
        gpu(device)?;
        several.write(0)
    }

    fn nvmlDeviceOnSameBoard(one: DeviceHandle, other: DeviceHandle, same: Out<c_int>) {
        same.write(c_int::from(gpu(one)?.index == gpu(other)?.index))
    }

    fn nvmlDeviceGetVbiosVersion(device: DeviceHandle, version: Out<c_char>, length: c_uint) {
        gpu(device)?;
        write_text(version, length, "00.00.00.00.00")
    }

    fn nvmlDeviceGetArchitecture(device: DeviceHandle, architecture: Out<c_uint>) {
        gpu(device)?;
        architecture.write(TURING)
    }

    fn nvmlDeviceGetCudaComputeCapability(device: DeviceHandle, major: Out<c_int>, minor: Out<c_int>) {
        gpu(device)?;
        major.write(CAPABILITY.0)?;
        minor.write(CAPABILITY.1)
    }

    fn nvmlDeviceGetNumGpuCores(device: DeviceHandle, cores: Out<c_uint>) {
        gpu(device)?;
        cores.write(CORES)
    }

    fn nvmlDeviceGetMemoryBusWidth(device: DeviceHandle, bits: Out<c_uint>) {
        gpu(device)?;
        bits.write(BUS_WIDTH)
    }

    fn nvmlDeviceGetPciInfo(device: DeviceHandle, pci: Out<PciV1>) {
        pci.write(pci_of(&gpu(device)?).second.first)
    }

    fn nvmlDeviceGetPciInfo_v2(device: DeviceHandle, pci: Out<PciV2>) {
        pci.write(pci_of(&gpu(device)?).second)
    }

    fn nvmlDeviceGetPciInfo_v3(device: DeviceHandle, pci: Out<PciV3>) {
        pci.write(pci_of(&gpu(device)?))
    }

    fn nvmlDeviceGetMaxPcieLinkGeneration | nvmlDeviceGetCurrPcieLinkGeneration | nvmlDeviceGetGpuMaxPcieLinkGeneration(
        device: DeviceHandle,
        generation: Out<c_uint>,
    ) {
        gpu(device)?;
        generation.write(LINK.0)
    }

    fn nvmlDeviceGetMaxPcieLinkWidth | nvmlDeviceGetCurrPcieLinkWidth(device: DeviceHandle, lanes: Out<c_uint>) {
        gpu(device)?;
        lanes.write(LINK.1)
    }

    /// There is no traffic on the bus. There are two counters.
    fn nvmlDeviceGetPcieThroughput(device: DeviceHandle, counter: c_uint, kib_per_s: Out<c_uint>) {
        gpu(device)?;
        if counter > 1 {
            return Err(NvmlError::InvalidArgument);
        }
        kib_per_s.write(0)
    }

    fn nvmlDeviceGetPcieReplayCounter(device: DeviceHandle, count: Out<c_uint>) {
        gpu(device)?;
        count.write(0)
    }

    /// Two GPUs have only the machine in common.
    fn nvmlDeviceGetTopologyCommonAncestor(one: DeviceHandle, other: DeviceHandle, level: Out<c_uint>) {
        const INTERNAL: c_uint = 0;
        const SYSTEM: c_uint = 50;
        level.write(if gpu(one)?.index == gpu(other)?.index { INTERNAL } else { SYSTEM })
    }

    /// Soft GPUs cannot read each other's memory.
    fn nvmlDeviceGetP2PStatus(one: DeviceHandle, other: DeviceHandle, _what: c_uint, status: Out<c_uint>) {
        const P2P_NOT_SUPPORTED: c_uint = 5;
        gpu(one)?;
        gpu(other)?;
        status.write(P2P_NOT_SUPPORTED)
    }
}

fn gpu_by_uuid_text(uuid: &str) -> Result<NvmlGpu, NvmlError> {
    let is = |gpu: &NvmlGpu| gpu.row().is_ok_and(|row| row.uuid_text().eq_ignore_ascii_case(uuid));
    NvmlGpu::find(is)?.after_fault()
}

fn gpu_by_uuid(uuid: &Uuid) -> Result<NvmlGpu, NvmlError> {
    if uuid.version != version::<Uuid>(1) {
        return Err(NvmlError::VersionMismatch);
    }
    match uuid.kind {
        Uuid::TEXT => {
            let end = uuid.value.iter().position(|byte| *byte == 0).ok_or(NvmlError::InvalidArgument)?;
            gpu_by_uuid_text(&String::from_utf8_lossy(&uuid.value[..end]))
        }
        Uuid::BYTES => {
            NvmlGpu::find(|gpu| uuid_of(gpu).is_ok_and(|bytes| bytes[..] == uuid.value[..16]))?.after_fault()
        }
        _ => Err(NvmlError::InvalidArgument),
    }
}

fn name_of(gpu: &NvmlGpu) -> Result<String, NvmlError> {
    Ok(gpu.row()?.name_text())
}

fn uuid_of(gpu: &NvmlGpu) -> Result<[u8; 16], NvmlError> {
    let row = gpu.row()?;
    Ok(std::array::from_fn(|at| row.uuid[at].load(SeqCst)))
}

fn bus_of(gpu: &NvmlGpu) -> u32 {
    BUS_FIRST + gpu.index as u32
}

fn pci_of(gpu: &NvmlGpu) -> PciV3 {
    let bus = bus_of(gpu);
    // No device on any bus has the id 0, so it is not found in `/sys`.
    let first =
        PciV1 { bus_id_old: chars::<BUS_ID_OLD>(&format!("0000:{bus:02X}:00.0")), domain: 0, bus, device: 0, id: 0 };
    let second = PciV2 { first, subsystem_id: 0 };
    PciV3 { second, bus_id: chars::<BUS_ID>(&format!("00000000:{bus:02X}:00.0")) }
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
