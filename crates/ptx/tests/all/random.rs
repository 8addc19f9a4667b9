//! Random programs and mangled texts: no crash, no hang, and the same results however
//! the threads are grouped.

use crate::common::{LaunchOptions, TestMemory, launch_for, params};
use proptest::prelude::*;
use std::fmt::Write as _;
use std::time::{Duration, Instant};
use sublet_ptx::Module;

const HEAD: &str = ".version 8.0\n.target sm_90\n.address_size 64\n";

/// How many threads a random program runs in.
const THREADS: u32 = 64;

/// One step of a random program over eight registers.
#[derive(Debug, Clone)]
enum RandomStep {
    Compute {
        name: &'static str,
        d: u8,
        a: u8,
        b: u8,
    },
    /// The steps run in the lanes where a register is below another.
    Branch {
        a: u8,
        b: u8,
        then: Vec<RandomStep>,
        otherwise: Vec<RandomStep>,
    },
    /// The steps run as often as the low bits of a register say.
    Loop {
        count: u8,
        steps: Vec<RandomStep>,
    },
}

fn step() -> impl Strategy<Value = RandomStep> {
    const NAMES: [&str; 14] = [
        "add.u32",
        "sub.s32",
        "mul.lo.u32",
        "mul.hi.s32",
        "min.s32",
        "max.u32",
        "and.b32",
        "xor.b32",
        "shl.b32",
        "shr.s32",
        "add.f32",
        "mul.rz.f32",
        "div.u32",
        "rem.s32",
    ];
    let compute = (prop::sample::select(&NAMES), 0..8_u8, 0..8_u8, 0..8_u8)
        .prop_map(|(name, d, a, b)| RandomStep::Compute { name, d, a, b });
    compute.prop_recursive(4, 40, 6, |inner| {
        let steps = || prop::collection::vec(inner.clone(), 0..5);
        prop_oneof![
            (0..8_u8, 0..8_u8, steps(), steps()).prop_map(|(a, b, then, otherwise)| RandomStep::Branch {
                a,
                b,
                then,
                otherwise
            }),
            (0..8_u8, steps()).prop_map(|(count, steps)| RandomStep::Loop { count, steps }),
        ]
    })
}

/// Writes the steps as PTX; labels and loop counters are numbered.
fn write(steps: &[RandomStep], text: &mut String, next: &mut u32) {
    for step in steps {
        match step {
            RandomStep::Compute { name, d, a, b } => writeln!(text, "{name} %r{d}, %r{a}, %r{b};").unwrap(),
            RandomStep::Branch { a, b, then, otherwise } => {
                let label = *next;
                *next += 1;
                writeln!(text, "setp.lt.s32 %p{label}, %r{a}, %r{b};\n@%p{label} bra T{label};").unwrap();
                write(otherwise, text, next);
                writeln!(text, "bra E{label};\nT{label}:").unwrap();
                write(then, text, next);
                writeln!(text, "E{label}:").unwrap();
            }
            RandomStep::Loop { count, steps } => {
                let label = *next;
                *next += 1;
                writeln!(text, "and.b32 %c{label}, %r{count}, 3;\nL{label}: setp.eq.u32 %p{label}, %c{label}, 0;")
                    .unwrap();
                writeln!(text, "@%p{label} bra E{label};\nsub.u32 %c{label}, %c{label}, 1;").unwrap();
                write(steps, text, next);
                writeln!(text, "bra L{label};\nE{label}:").unwrap();
            }
        }
    }
}

fn program(steps: &[RandomStep]) -> String {
    let mut body = String::new();
    let mut labels = 0;
    write(steps, &mut body, &mut labels);
    let mut text = format!(
        "{HEAD}.entry k(.param .u64 out) {{\n.reg .b32 %r<8>, %c<{n}>, %i, %j, %k;\n.reg .pred %p<{n}>, %x;\n.reg .b64 %q, %at;\n",
        n = labels + 1
    );
    text += "ld.param.u64 %q, [out];\nmov.u32 %i, %ctaid.x;\nmov.u32 %j, %ntid.x;\nmov.u32 %k, %tid.x;\n\
             mad.lo.u32 %i, %i, %j, %k;\nmad.wide.u32 %at, %i, 4, %q;\n";
    for register in 0..8 {
        writeln!(
            text,
            "mad.lo.u32 %r{register}, %i, {}, {};",
            0x9E37_79B1_u32.rotate_left(register * 5),
            register * 77
        )
        .unwrap();
    }
    text += &body;
    for register in 1..8 {
        writeln!(text, "mad.lo.u32 %r0, %r0, 31, %r{register};").unwrap();
    }
    // After everything, all lanes must be together again.
    text += "activemask.b32 %c0;\npopc.b32 %c0, %c0;\nmin.u32 %j, %j, 32;\nsetp.ne.u32 %x, %c0, %j;\n@%x trap;\n";
    text + "st.global.u32 [%at], %r0;\nret;\n}\n"
}

fn results(module: &Module, block: u32) -> Vec<u32> {
    let mut device = TestMemory::default();
    let out = device.allocate(&[0; THREADS as usize * 4]);
    let bytes = params(&[&out.to_le_bytes()]);
    let options = LaunchOptions {
        grid: [THREADS / block, 1, 1],
        block: [block, 1, 1],
        params: &bytes,
        ..LaunchOptions::default()
    };
    launch_for(module, "k", &device, &options, Duration::from_secs(20)).unwrap();
    device.read_u32(out)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_warp_computes_what_its_lanes_compute_alone(steps in prop::collection::vec(step(), 1..12)) {
        let text = program(&steps);
        let module = Module::parse(&text).unwrap();
        let alone = results(&module, 1);
        prop_assert_eq!(&results(&module, 32), &alone);
        prop_assert_eq!(&results(&module, 64), &alone);
        prop_assert_eq!(&results(&Module::parse_plain(&text).unwrap(), 32), &alone);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
        let _ = Module::parse(&text);
    }

    #[test]
    fn any_tokens_are_read_or_refused(words in prop::collection::vec(prop::sample::select(&WORDS), 0..60)) {
        let _ = Module::parse(&(HEAD.to_owned() + &words.join(" ")));
    }
}

const WORDS: [&str; 48] = [
    ".entry",
    ".func",
    "k",
    "(",
    ")",
    "{",
    "}",
    ";",
    ",",
    ".reg",
    ".b32",
    ".u64",
    "%r",
    "<",
    ">",
    "5",
    "0x10",
    "-",
    "+",
    "[",
    "]",
    "mov.u32",
    "add.u32",
    "%r1",
    "%r2",
    "@",
    "%p1",
    "!",
    "bra",
    "L",
    ":",
    ".param",
    ".shared",
    ".global",
    ".align",
    "8",
    "=",
    "ret",
    "call",
    "|",
    "0f3F800000",
    "1.5",
    ".pred",
    "setp.eq.u32",
    "_",
    "ld.global.v4.f32",
    "%tid.x",
    ".branchtargets",
];

/// Kernels that are mangled by the fuzzer.
const SEEDS: [&str; 2] = [
    include_str!("../../examples/speed.ptx"),
    ".version 8.0\n.target sm_90\n.address_size 64\n.global .align 4 .b32 g[4] = {1, 2, 3, 4};\n\
     .extern .shared .align 16 .b8 dyn[];\n.func (.param .b32 o) f(.param .b32 i) { .reg .b32 %a<4>; .reg .pred %q; \
     ld.param.b32 %a1, [i]; setp.gt.u32 %q, %a1, 1; @!%q bra D; sub.u32 %a1, %a1, 1; { .param .b32 x; .param .b32 y; \
     st.param.b32 [x], %a1; call (y), f, (x); ld.param.b32 %a2, [y]; } D: st.param.b32 [o], %a1; ret; }\n\
     .entry k(.param .u64 p, .param .u32 n) { .reg .b32 %r<20>; .reg .b64 %d<20>; .reg .f32 %f<9>; .reg .f64 %g<9>; \
     .reg .b16 %h<9>; .reg .pred %p<9>; .local .align 8 .b8 mine[32]; ld.param.u64 %d1, [p]; ld.param.u32 %r1, [n]; \
     mov.u32 %r2, %tid.x; mov.u32 %r3, 0; L: add.s32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, %r2; @%p1 bra L; \
     bar.sync 0; vote.sync.ballot.b32 %r4, %p1, -1; shfl.sync.bfly.b32 %r5|%p2, %r3, 1, 31, -1; \
     atom.global.add.u32 %r6, [%d1], 1; ld.global.v2.u32 {%r7, %r8}, [%d1+8]; st.local.u32 [mine+4], %r7; \
     cvt.rn.f32.u32 %f1, %r7; fma.rn.f32 %f2, %f1, %f1, %f1; ex2.approx.f32 %f3, %f2; cvt.rzi.s32.f32 %r9, %f3; \
     cvt.f64.f32 %g1, %f3; div.rn.f64 %g2, %g1, %g1; mov.b64 {%r10, %r11}, %g2; prmt.b32 %r12, %r10, %r11, 0x5410; \
     mov.u32 %r13, dyn; st.shared.u32 [%r13], %r12; ld.const.u32 %r14, [g+4]; and.b32 %r15, %r2, 1; \
     T: .branchtargets A, B; brx.idx %r15, T; A: mov.u32 %r16, 1; bra.uni C; B: mov.u32 %r16, 2; C: \
     { .param .b32 a; .param .b32 b; st.param.b32 [a], %r2; call.uni (b), f, (a); ld.param.b32 %r17, [b]; } \
     st.global.u32 [%d1+16], %r17; ret; }\n",
];

/// Swaps, drops, repeats and replaces words of a text.
fn mangle(text: &str, random: &mut impl FnMut() -> usize) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut word = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() || "_%$.".contains(c) {
            word.push(c);
        } else {
            parts.push(std::mem::take(&mut word));
            parts.push(c.to_string());
        }
    }
    for _ in 0..1 + random() % 6 {
        let (one, other) = (random() % parts.len(), random() % parts.len());
        match random() % 6 {
            0 => parts.swap(one, other),
            1 => parts[one].clear(),
            2 => parts[one] = parts[other].clone(),
            3 => parts[one] = WORDS[random() % WORDS.len()].to_owned(),
            4 => parts[one] = [0, 1, 31, 255, 65536, usize::MAX >> 1][random() % 6].to_string(),
            _ => {
                let part = parts[other].clone();
                parts.insert(one, part);
            }
        }
    }
    parts.concat()
}

/// A hang here is a failure: a launch is told to stop and must end soon after.
fn check_survives(text: &str) {
    let Ok(module) = Module::parse(text) else { return };
    let mut device = TestMemory::default();
    if module.variables().iter().any(|variable| variable.bytes > 1 << 20) {
        return;
    }
    let variables = device.load(&module);
    let memory = device.allocate(&[0; 4096]);
    for kernel in module.kernels() {
        let mut bytes = vec![0; kernel.param_bytes() as usize];
        for eight in bytes.chunks_exact_mut(8) {
            eight.copy_from_slice(&memory.to_le_bytes());
        }
        let options = LaunchOptions {
            grid: [2, 1, 1],
            block: [40, 1, 1],
            shared: 64,
            params: &bytes,
            variables: &variables,
            threads: 2,
            ..LaunchOptions::default()
        };
        let began = Instant::now();
        let _ = launch_for(&module, kernel.name(), &device, &options, Duration::from_millis(40));
        assert!(began.elapsed() < Duration::from_secs(10), "a launch did not stop:\n{text}");
    }
}

#[test]
fn mangled_kernels_neither_crash_nor_hang() {
    let seconds = std::env::var("SUBLET_PTX_FUZZ_SECONDS").ok().and_then(|word| word.parse().ok()).unwrap_or(2.0);
    let mut state = std::env::var("SUBLET_PTX_FUZZ_SEED").ok().and_then(|word| word.parse().ok()).unwrap_or(1_u64);
    let seed = state;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let began = Instant::now();
    let mut count = 0_u64;
    while began.elapsed() < Duration::from_secs_f64(seconds) {
        let text = mangle(SEEDS[random() % SEEDS.len()], &mut random);
        let outcome = std::panic::catch_unwind(|| check_survives(&text));
        assert!(outcome.is_ok(), "seed {seed}, text {count} failed:\n{text}");
        count += 1;
    }
    eprintln!("seed {seed}: {count} texts");
}
