//! The text of a seed.

use crate::random::SplitMix64;
use crate::{generate, mutate};
use std::fmt::Write as _;

/// The longest text: short texts find the same faults.
const BYTES_MAX: usize = 128 << 10;

const FILES: [&str; 5] = [
    include_str!("../../ptx/examples/speed.ptx"),
    include_str!("../../softgpu/kernels/basic.ptx"),
    include_str!("../../softgpu/kernels/mlp.ptx"),
    include_str!("../../softgpu/kernels/numbers.ptx"),
    include_str!("../../softgpu/kernels/shared.ptx"),
];
/// Every instruction of the conformance tests with the letters of its registers.
const INSTRUCTIONS: &str = include_str!("../../ptx/tests/h200.txt");

const HEAD: &str = ".version 8.3\n.target sm_90\n.address_size 64\n";

/// What is mangled: whole files, their functions one by one, and single instructions.
pub struct Corpus {
    files: Vec<String>,
    functions: Vec<String>,
    instructions: Vec<String>,
    /// Pieces that are spliced into other texts.
    pieces: Vec<String>,
}

impl Corpus {
    /// Everything that is checked in.
    pub fn new() -> Corpus {
        let files: Vec<String> = FILES.iter().map(|file| (*file).to_owned()).collect();
        let functions: Vec<String> = FILES.iter().flat_map(|file| functions(file)).collect();
        let instructions: Vec<String> = INSTRUCTIONS.lines().filter_map(instruction).collect();
        let pieces = functions.iter().chain(&instructions).cloned().collect();
        Corpus { files, functions, instructions, pieces }
    }
}

impl Default for Corpus {
    fn default() -> Corpus {
        Corpus::new()
    }
}

/// Each kernel of a file, with the text before the first one.
fn functions(file: &str) -> Vec<String> {
    let starts: Vec<usize> = file.match_indices("\n.visible .entry").map(|(at, _)| at + 1).collect();
    let Some(&first) = starts.first() else { return vec![file.to_owned()] };
    let ends = starts.iter().skip(1).copied().chain([file.len()]);
    starts.iter().zip(ends).map(|(&start, end)| file[..first].to_owned() + &file[start..end]).collect()
}

/// A kernel of one instruction.
fn instruction(line: &str) -> Option<String> {
    let mut words = line.split(' ');
    let (name, letters) = (words.next()?, words.next()?);
    let mut text = format!("{HEAD}.entry k(.param .u64 a, .param .u64 b)\n{{\n.reg .b64 %q<3>;\n.reg .b32 %t<2>;\n");
    let kind = |letter| match letter {
        'p' => "pred",
        'h' => "b16",
        'w' => "b32",
        'q' => "b64",
        'f' => "f32",
        _ => "f64",
    };
    for (at, letter) in letters.chars().enumerate() {
        let _ = writeln!(text, ".reg .{} %v{at};", kind(letter));
    }
    text += "ld.param.u64 %q0, [a];\nld.param.u64 %q1, [b];\nmov.u32 %t0, %tid.x;\nmad.wide.u32 %q0, %t0, 8, %q0;\n";
    for (at, letter) in letters.chars().enumerate().skip(1).filter(|(_, letter)| *letter != 'p') {
        let _ = writeln!(text, "ld.global.{} %v{at}, [%q0+{}];", kind(letter), at * 8);
    }
    let values: Vec<String> = (0..letters.len()).map(|at| format!("%v{at}")).collect();
    let _ = writeln!(text, "{name} {};", values.join(", "));
    if !letters.starts_with('p') {
        let _ = writeln!(text, "st.global.{} [%q1], %v0;", kind(letters.chars().next()?));
    }
    Some(text + "ret;\n}\n")
}

/// The text of a seed: the same on every machine.
pub fn of_seed(corpus: &Corpus, seed: u64) -> String {
    let mut random = SplitMix64::new(seed);
    let from = |list: &[String], random: &mut SplitMix64| list[random.below(list.len())].clone();
    let (text, is_mangled) = match random.below(20) {
        0..=5 => (generate::module(&mut random), false),
        6..=11 => (generate::module(&mut random), true),
        12..=15 => (from(&corpus.functions, &mut random), true),
        16..=18 => (from(&corpus.instructions, &mut random), true),
        _ => (from(&corpus.files, &mut random), true),
    };
    if !is_mangled {
        return text;
    }
    let mut bytes = text.into_bytes();
    mutate::mangle(&mut bytes, &corpus.pieces, &mut random);
    bytes.truncate(BYTES_MAX);
    String::from_utf8_lossy(&bytes).into_owned()
}
