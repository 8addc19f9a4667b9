//! One instruction at a time, on thousands of values, against what a real H200 gave.
//!
//! `h200.txt` has a line for each instruction: its registers, the result's first,
//! and a hash of its results on the GPU. With `SUBLET_PTX_CARD=file` the GPU's
//! results themselves are read, every difference is shown, and the hashes are
//! written again.

use crate::common::{LaunchOptions, TestMemory, launch, params};
use std::fmt::Write as _;
use std::fs;
use sublet_ptx::Module;

/// Threads, each with its own values.
const THREADS: usize = 4096;

/// Numbers that are the same everywhere.
struct SeededValues(u64);

impl SeededValues {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 ^ self.0 >> 29
    }

    /// A value of `bits` bits: mostly floating-point numbers near where something
    /// happens, also small and random integers.
    fn value(&mut self, bits: u32) -> u64 {
        let (p, q) = if bits < 40 { (23, 127) } else { (52, 1023_u64) };
        let r = self.next();
        let exponents = [
            0,
            1,
            q - 1,
            q,
            q + 1,
            q + p - 1,
            q + p,
            q + 31,
            q + 30,
            q + 32,
            q + 62,
            q + 63,
            q + 64,
            2 * q - 1,
            2 * q,
            2 * q + 1,
        ];
        let exponent = exponents[(r & 15) as usize];
        let all = (1 << p) - 1;
        let x = self.next();
        let some = x & all;
        let fraction = [0, 1, all, all / 2 + 1, some, some, some, 1 << (r % 29)][(r >> 4 & 7) as usize];
        let ones = u64::MAX >> (64 - bits);
        let special = exponent << p | fraction | (r >> 8 & 1) << (bits - 1);
        let near = (q + x % 9) << p | (x >> 9 & all);
        let small = r >> 9 & 255;
        [special, x & ones, r >> 9 & 63, small.wrapping_neg() & ones, near, special, special, x & ones]
            [(r >> 60 & 7) as usize]
    }
}

/// Six values for each thread: three for 32-bit registers, three for 64-bit ones.
fn inputs() -> Vec<u8> {
    let mut stream = SeededValues(7);
    let slots = (0..THREADS).flat_map(|_| [32, 32, 32, 64, 64, 64]);
    slots.flat_map(|bits| stream.value(bits).to_le_bytes()).collect()
}

/// An instruction and its registers, the result's first: p, h, w, q, f, d.
struct InstructionCase {
    name: String,
    registers: String,
    hash: String,
}

fn cases(text: &str) -> Vec<InstructionCase> {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let case = |line: &str| match words(line).as_slice() {
        [name, registers, hash] => {
            InstructionCase { name: name.clone(), registers: registers.clone(), hash: hash.clone() }
        }
        _ => panic!("not a case: {line}"),
    };
    text.lines().map(case).collect()
}

fn register(letter: char) -> &'static str {
    match letter {
        'p' => "pred",
        'h' => "b16",
        'w' => "b32",
        'q' => "b64",
        'f' => "f32",
        _ => "f64",
    }
}

/// A kernel that runs one instruction on the values of its thread.
fn kernel(index: usize, case: &InstructionCase) -> String {
    let mut text = format!(".entry k{index}(.param .u64 a, .param .u64 b)\n{{\n");
    text += "\t.reg .b32 %t<4>;\n\t.reg .b64 %q<4>;\n";
    for (at, letter) in case.registers.chars().enumerate() {
        writeln!(text, "\t.reg .{} %v{at};", register(letter)).unwrap();
    }
    text += "\tld.param.u64 %q1, [a];\n\tld.param.u64 %q2, [b];\n\tmov.u32 %t1, %ctaid.x;\n\tmov.u32 %t2, %tid.x;\n";
    text += "\tmad.lo.u32 %t1, %t1, 128, %t2;\n\tmad.wide.u32 %q1, %t1, 48, %q1;\n\tmad.wide.u32 %q2, %t1, 8, %q2;\n";
    for (at, letter) in case.registers.chars().enumerate().skip(1) {
        let slot = (at - 1) % 3 + if "qd".contains(letter) { 3 } else { 0 };
        writeln!(text, "\tld.global.{} %v{at}, [%q1+{}];", register(letter), slot * 8).unwrap();
    }
    let values: Vec<String> = (0..case.registers.len()).map(|at| format!("%v{at}")).collect();
    writeln!(text, "\t{} {};", case.name, values.join(", ")).unwrap();
    text += match case.registers.as_bytes()[0] {
        b'p' => "\tselp.b64 %q3, 1, 0, %v0;\n",
        b'h' => "\tcvt.u64.u16 %q3, %v0;\n",
        b'w' => "\tcvt.u64.u32 %q3, %v0;\n",
        b'f' => "\tmov.b32 %t3, %v0;\n\tcvt.u64.u32 %q3, %t3;\n",
        _ => "\tmov.b64 %q3, %v0;\n",
    };
    text += "\tst.global.u64 [%q2], %q3;\n\tret;\n}\n";
    text
}

fn module_text(cases: &[InstructionCase]) -> String {
    let mut text = String::from(".version 8.0\n.target sm_80\n.address_size 64\n");
    for (index, case) in cases.iter().enumerate() {
        text += &kernel(index, case);
    }
    text
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3))
}

/// The results of one instruction, 8 bytes for each thread.
fn results(module: &Module, index: usize, inputs: &[u8]) -> Vec<u8> {
    let mut device = TestMemory::default();
    let from = device.allocate(inputs);
    let to = device.allocate(&vec![0; THREADS * 8]);
    let bytes = params(&[&from.to_le_bytes(), &to.to_le_bytes()]);
    let options = LaunchOptions {
        grid: [THREADS as u32 / 128, 1, 1],
        block: [128, 1, 1],
        params: &bytes,
        ..LaunchOptions::default()
    };
    launch(module, &format!("k{index}"), &device, &options).unwrap();
    device.read(to)
}

#[test]
fn every_instruction_gives_what_an_h200_gave() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/h200.txt");
    let cases = cases(&fs::read_to_string(&path).unwrap());
    let inputs = inputs();
    let text = module_text(&cases);
    let gpu_results = std::env::var_os("SUBLET_PTX_CARD").map(|path| fs::read(path).unwrap());
    let mut wrong = Vec::new();
    let mut told = String::new();
    for module in [Module::parse(&text).unwrap(), Module::parse_plain(&text).unwrap()] {
        told.clear();
        for (index, case) in cases.iter().enumerate() {
            let ours = results(&module, index, &inputs);
            if let Some(gpu_results) = &gpu_results {
                let theirs = &gpu_results[index * THREADS * 8..][..THREADS * 8];
                writeln!(told, "{} {} {:016x}", case.name, case.registers, hash(theirs)).unwrap();
                wrong.extend(difference(case, &inputs, &ours, theirs));
            } else if case.hash != format!("{:016x}", hash(&ours)) {
                wrong.push(format!("{}: not what the card gave", case.name));
            }
        }
    }
    if gpu_results.is_some() {
        fs::write(path, told).unwrap();
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

fn difference(case: &InstructionCase, inputs: &[u8], ours: &[u8], theirs: &[u8]) -> Option<String> {
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at * 8..][..8].try_into().unwrap());
    let wrong: Vec<usize> = (0..THREADS).filter(|&at| word(ours, at) != word(theirs, at)).collect();
    let count = wrong.len();
    let mut text = format!("{}: {count} differ:", case.name);
    for &at in wrong.iter().take(4) {
        let values: Vec<String> = (0..6).map(|slot| format!("{:x}", word(inputs, at * 6 + slot))).collect();
        write!(text, " [{}] {:x} instead of {:x};", values.join(" "), word(ours, at), word(theirs, at)).unwrap();
    }
    (count != 0).then_some(text)
}
