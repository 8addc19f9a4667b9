//! What nvcc compiled, on inputs for which a real H200 gave the outputs.
//!
//! The kernels, inputs and outputs lie outside of this crate; `SUBLET_KERNELS` says
//! where. Without them the test says that it was skipped.

use crate::common::{LaunchOptions, TestMemory, launch};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use sublet_ptx::Module;

const EDGES32: [u32; 27] = [
    0x0000_0000,
    0x8000_0000,
    0x0000_0001,
    0x8000_0001,
    0x007F_FFFF,
    0x0080_0000,
    0x3F80_0000,
    0xBF80_0000,
    0x7F7F_FFFF,
    0xFF7F_FFFF,
    0x7F80_0000,
    0xFF80_0000,
    0x7FC0_0000,
    0xFFC1_2345,
    0x7F81_2345,
    0x4F00_0000,
    0xCF00_0000,
    0x4F80_0000,
    0x5F00_0000,
    0xDF00_0000,
    0x5F80_0000,
    0x3F00_0000,
    0x3FC0_0000,
    0xBF00_0000,
    0xC020_0000,
    0x4B00_0001,
    0x3380_0000,
];
const EDGES64: [u64; 22] = [
    0,
    1 << 63,
    1,
    0x000F_FFFF_FFFF_FFFF,
    0x0010_0000_0000_0000,
    0x3FF0_0000_0000_0000,
    0xBFF0_0000_0000_0000,
    0x7FEF_FFFF_FFFF_FFFF,
    0x7FF0_0000_0000_0000,
    0xFFF0_0000_0000_0000,
    0x7FF8_0000_0000_0000,
    0xFFF8_0000_0000_1234,
    0x41DF_FFFF_FFC0_0000,
    0xC1E0_0000_0000_0000,
    0x43E0_0000_0000_0000,
    0xC3E0_0000_0000_0000,
    0x43F0_0000_0000_0000,
    0x3FE0_0000_0000_0000,
    0x3FF8_0000_0000_0000,
    0xC004_0000_0000_0000,
    0x3E70_0000_0000_0000,
    0x36A0_0000_0000_0000,
];

/// What a buffer begins with; the same numbers as where the outputs were made.
fn fill(spec: &Value) -> Vec<u8> {
    let count = spec["count"].as_u64().unwrap();
    let wide = matches!(spec["type"].as_str().unwrap(), "u64" | "f64");
    let how = spec["fill"].as_str().unwrap();
    let mut state = spec["seed"].as_u64().unwrap();
    match how {
        "zero" => return vec![0; count as usize * if wide { 8 } else { 4 }],
        "atomics" => {
            let words = [u32::MAX, 0, u32::MAX, 0, 0, 0, 0, 0, 0];
            return words.iter().flat_map(|word| word.to_le_bytes()).collect();
        }
        _ => {}
    }
    let mut bytes = Vec::new();
    for index in 0..count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let raw32 = (state >> 32) as u32;
        let raw64 = state ^ state >> 29;
        let centred = (state >> 40) as f64 - f64::from(1 << 23);
        match how {
            "raw" if wide => bytes.extend(raw64.to_le_bytes()),
            "raw" => bytes.extend(raw32.to_le_bytes()),
            "unit" => bytes.extend(((centred / f64::from(1 << 23)) as f32).to_le_bytes()),
            "wide" => bytes.extend(((centred / f64::from(1 << 20)) as f32).to_le_bytes()),
            "classes" => bytes.extend((raw32 % 5).to_le_bytes()),
            "edges" if wide && index % 3 == 0 => bytes.extend(raw64.to_le_bytes()),
            "edges" if wide => bytes.extend(EDGES64[(state >> 33) as usize % 22].to_le_bytes()),
            "edges" if index % 3 == 0 => bytes.extend(raw32.to_le_bytes()),
            "edges" => bytes.extend(EDGES32[(state >> 33) as usize % 27].to_le_bytes()),
            _ => panic!("no such fill: {how}"),
        }
    }
    bytes
}

fn argument(argument: &Value, buffers: &BTreeMap<&str, u64>) -> (Vec<u8>, usize) {
    let number = |name: &str| argument.get(name);
    if let Some(value) = number("u32") {
        return ((value.as_u64().unwrap() as u32).to_le_bytes().to_vec(), 4);
    }
    if let Some(value) = number("f32") {
        return ((value.as_f64().unwrap() as f32).to_le_bytes().to_vec(), 4);
    }
    if let Some(value) = number("buffer") {
        return (buffers[value.as_str().unwrap()].to_le_bytes().to_vec(), 8);
    }
    let hex = argument["bytes"].as_str().unwrap();
    let bytes = (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect();
    (bytes, argument["align"].as_u64().unwrap_or(8) as usize)
}

/// Runs a case and reports how its outputs differ from those of the GPU.
fn run_case(folder: &Path, case: &Value, plain: bool, threads: usize) -> Vec<String> {
    let name = case["name"].as_str().unwrap();
    let text = fs::read_to_string(folder.join(format!("{}.ptx", case["module"].as_str().unwrap()))).unwrap();
    let parsed = if plain { Module::parse_plain(&text) } else { Module::parse(&text) };
    let module = match parsed {
        Ok(module) => module,
        Err(error) => return vec![format!("{name}: {error}")],
    };
    let mut device = TestMemory::default();
    let variables = device.load(&module);
    let mut buffers = BTreeMap::new();
    for (buffer, spec) in case["buffers"].as_object().unwrap() {
        buffers.insert(buffer.as_str(), device.allocate(&fill(spec)));
    }
    for wanted in case["launches"].as_array().unwrap() {
        let triple = |name: &str| [0, 1, 2].map(|axis| wanted[name][axis].as_u64().unwrap() as u32);
        let mut params = Vec::new();
        for value in wanted["args"].as_array().unwrap() {
            let (bytes, align) = argument(value, &buffers);
            params.resize(params.len().next_multiple_of(align), 0);
            params.extend(bytes);
        }
        let shared = wanted["shared"].as_u64().unwrap() as u32;
        let options = LaunchOptions {
            grid: triple("grid"),
            block: triple("block"),
            shared,
            params: &params,
            variables: &variables,
            threads,
            print: None,
        };
        if let Err(fault) = launch(&module, wanted["kernel"].as_str().unwrap(), &device, &options) {
            return vec![format!("{name}: {fault}")];
        }
    }
    let mut differences = Vec::new();
    for (buffer, how) in case["outputs"].as_object().unwrap() {
        let ours = device.read(buffers[buffer.as_str()]);
        let theirs = fs::read(folder.join(format!("h200/{name}.{buffer}.bin"))).unwrap();
        let kind = case["buffers"][buffer]["type"].as_str().unwrap();
        differences.extend(compare(name, buffer, kind, how, &ours, &theirs));
    }
    differences
}

fn compare(name: &str, buffer: &str, kind: &str, how: &Value, ours: &[u8], theirs: &[u8]) -> Option<String> {
    let size = if matches!(kind, "u64" | "f64") { 8 } else { 4 };
    let close = |ours: &[u8], theirs: &[u8]| {
        if ours == theirs {
            return true;
        }
        let (Some(relative), Some(absolute)) = (how["relative"].as_f64(), how["absolute"].as_f64()) else {
            return false;
        };
        let value = |bytes: &[u8]| f64::from(f32::from_le_bytes(bytes.try_into().unwrap()));
        let (ours, theirs) = (value(ours), value(theirs));
        (ours - theirs).abs() <= absolute + relative * theirs.abs() || (ours.is_nan() && theirs.is_nan())
    };
    let pairs = || ours.chunks(size).zip(theirs.chunks(size)).enumerate();
    let wrong: Vec<_> = pairs().filter(|(_, (ours, theirs))| !close(ours, theirs)).collect();
    let (at, (our, their)) = *wrong.first()?;
    let hex = |bytes: &[u8]| bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect::<String>();
    let count = wrong.len();
    Some(format!(
        "{name}.{buffer}: {count} of {} differ, first at {at}: {} instead of {}",
        ours.len() / size,
        hex(our),
        hex(their)
    ))
}

fn folder() -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let named = std::env::var_os("SUBLET_KERNELS").map(PathBuf::from);
    let usual = [own.join("../softgpu/kernels"), own.join("../../softgpu-kernels")];
    named.into_iter().chain(usual).find(|folder| folder.join("cases.json").exists())
}

fn check(plain: bool, threads: usize) {
    let Some(folder) = folder() else {
        eprintln!("skipped: no kernels at `../softgpu/kernels`, and SUBLET_KERNELS is not set");
        return;
    };
    let cases: Value = serde_json::from_str(&fs::read_to_string(folder.join("cases.json")).unwrap()).unwrap();
    let cases = cases["cases"].as_array().unwrap();
    let differences: Vec<String> = cases.iter().flat_map(|case| run_case(&folder, case, plain, threads)).collect();
    assert_eq!(differences, Vec::<String>::new());
}

#[test]
fn kernels_give_what_an_h200_gave() {
    check(false, 2);
}

#[test]
fn kernels_give_the_same_without_vector_instructions() {
    check(true, 1);
}
