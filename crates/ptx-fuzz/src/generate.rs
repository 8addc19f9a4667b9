//! Kernels made up by a grammar: most of them are valid, few of them make sense.

use crate::random::SplitMix64;
use std::fmt::Write as _;

/// Every instruction of the conformance tests with the letters of its registers.
const TABLE: &str = include_str!("../../ptx/tests/h200.txt");

/// Registers of each kind.
const KINDS: [(char, &str); 6] = [('p', "pred"), ('h', "b16"), ('w', "b32"), ('q', "b64"), ('f', "f32"), ('d', "f64")];
/// How many registers of each kind a function has.
const COUNT: usize = 6;

const SPECIALS: [&str; 22] = [
    "%tid.x",
    "%tid.y",
    "%tid.z",
    "%ntid.x",
    "%ntid.y",
    "%ctaid.x",
    "%ctaid.y",
    "%nctaid.x",
    "%laneid",
    "%warpid",
    "%nwarpid",
    "%smid",
    "%nsmid",
    "%gridid",
    "%lanemask_eq",
    "%lanemask_lt",
    "%lanemask_ge",
    "%clock",
    "%clock_hi",
    "%dynamic_smem_size",
    "%total_smem_size",
    "%globaltimer_lo",
];
const INTEGERS: [&str; 20] = [
    "0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "15",
    "16",
    "31",
    "32",
    "33",
    "63",
    "64",
    "255",
    "65535",
    "0x7fffffff",
    "-2147483648",
    "4294967295",
    "0xffffffffffffffff",
    "-9223372036854775808",
];
const FLOATS: [&str; 12] = [
    "0f00000000",
    "0f80000000",
    "0f3F800000",
    "0f7F800000",
    "0f7FC00000",
    "0fFFFFFFFF",
    "0f00000001",
    "1.5",
    "-0.0",
    "0d7FF0000000000000",
    "0dFFF8000000000000",
    "1e300",
];
const WHOLE: [&str; 4] = ["b32", "u32", "s32", "f32"];
const COMPARISONS: [&str; 18] = [
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
];

/// A table of instructions: name, letters of the registers.
fn table() -> &'static [(&'static str, &'static str)] {
    static LINES: std::sync::OnceLock<Vec<(&str, &str)>> = std::sync::OnceLock::new();
    LINES.get_or_init(|| {
        TABLE
            .lines()
            .filter_map(|line| {
                let mut words = line.split(' ');
                Some((words.next()?, words.next()?))
            })
            .collect()
    })
}

/// A module with one kernel and the functions it calls.
pub fn module(random: &mut SplitMix64) -> String {
    let mut text = String::from(".version 8.3\n.target sm_90\n.address_size 64\n");
    text +=
        ".global .align 16 .b8 g0[256] = {1, 2, 3, 4, 5, 6, 7, 8};\n.global .align 8 .u64 g1[4] = {g0, f0, g0+16};\n";
    text += ".const .align 16 .b8 c0[128] = {9, 8, 7};\n.extern .shared .align 16 .b8 dyn[];\n";
    text += ".shared .align 16 .b8 s1[64];\n.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n";
    text += ".func (.param .b32 r) f0(.param .b32 x);\n.func f1(.param .align 8 .b8 x[16]);\n";
    let kernel = Writer::new(random, true)
        .function(".visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)");
    let first = Writer::new(random, false).function(".func (.param .b32 r) f0(.param .b32 x)");
    let second = Writer::new(random, false).function(".func f1(.param .align 8 .b8 x[16])");
    text + &first + &second + &kernel
}

/// Writes one function.
struct Writer<'r> {
    random: &'r mut SplitMix64,
    text: String,
    is_kernel: bool,
    /// It has a result `r`.
    returns: bool,
    labels: usize,
    /// Statements that may still be written.
    left: usize,
}

impl<'r> Writer<'r> {
    fn new(random: &'r mut SplitMix64, is_kernel: bool) -> Self {
        let left = if is_kernel { 8 + random.below(60) } else { 2 + random.below(10) };
        Writer { random, text: String::new(), is_kernel, returns: false, labels: 0, left }
    }

    fn function(mut self, head: &str) -> String {
        self.returns = head.contains(" r)");
        self.prologue();
        while self.left > 0 {
            self.statement(0);
        }
        self.epilogue();
        let mut text = format!("{head}\n{{\n");
        for (letter, ty) in KINDS {
            let _ = writeln!(text, ".reg .{ty} %{letter}<{COUNT}>;");
        }
        let loops = self.labels + 1;
        let _ = writeln!(text, ".reg .b64 %a<4>, %x<4>;\n.reg .b32 %t<4>, %c<{loops}>;\n.reg .pred %k<{loops}>;");
        text += ".shared .align 16 .b8 s0[512];\n.local .align 16 .b8 l0[64];\n";
        text += "P0: .callprototype (.param .b32 _) _ (.param .b32 _);\n";
        text + &self.text + "}\n"
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Bases of good addresses, and different values in every thread.
    fn prologue(&mut self) {
        if self.is_kernel {
            self.line("ld.param.u64 %a0, [a];\nld.param.u64 %a1, [b];\nld.param.u64 %a2, [c];\nld.param.u32 %w0, [n];");
        } else {
            self.line("mov.u64 %a0, g0;\nmov.u64 %a1, g0;\ncvta.shared.u64 %a2, s1;\nld.param.b32 %w0, [x];");
        }
        self.line("mov.u32 %w1, %tid.x;\nmov.u32 %t0, %ctaid.x;\nmad.lo.u32 %w2, %t0, 37, %w1;\nmov.u64 %a3, g0;");
        if self.random.chance(70) {
            self.line("mul.lo.u32 %w3, %w2, 2654435769;\ncvt.u64.u32 %q0, %w3;\nmul.lo.u64 %q1, %q0, %q0;");
            self.line("cvt.rn.f32.u32 %f0, %w3;\nmov.b32 %f1, %w3;\ncvt.rn.f64.s32 %d0, %w3;\nmov.b64 %d1, %q1;");
            self.line("cvt.u16.u32 %h0, %w3;\nsetp.lt.u32 %p0, %w1, 13;\nsetp.gt.s32 %p1, %w3, 0;");
        }
    }

    /// Stores the computed values to memory.
    fn epilogue(&mut self) {
        if !self.is_kernel {
            if self.returns && self.random.chance(80) {
                self.line("st.param.b32 [r], %w3;");
            }
            self.line("ret;");
            return;
        }
        self.line("and.b32 %t0, %w2, 63;\nmad.wide.u32 %x0, %t0, 8, %a0;");
        for index in 0..COUNT {
            let _ = writeln!(self.text, "xor.b32 %w0, %w0, %w{index};\nxor.b64 %q0, %q0, %q{index};");
        }
        self.line("st.global.u32 [%x0], %w0;\nst.global.u64 [%x0+512], %q0;\nret;");
    }

    fn register(&mut self, letter: char) -> String {
        format!("%{letter}{}", self.random.below(COUNT))
    }

    /// A value to read: a register, or sometimes a constant.
    fn value(&mut self, letter: char) -> String {
        if letter == 'p' || self.random.chance(85) {
            return self.register(letter);
        }
        match letter {
            'f' | 'd' => self.random.pick(&FLOATS).to_owned(),
            _ if self.random.chance(30) => (self.random.bits() as u32).to_string(),
            _ => self.random.pick(&INTEGERS).to_owned(),
        }
    }

    fn guard(&mut self) -> String {
        match self.random.below(10) {
            0 => format!("@{} ", self.register('p')),
            1 => format!("@!{} ", self.register('p')),
            _ => String::new(),
        }
    }

    fn statements(&mut self, depth: usize) {
        for _ in 0..self.random.below(5) {
            self.statement(depth + 1);
        }
    }

    fn statement(&mut self, depth: usize) {
        self.left = self.left.saturating_sub(1);
        match self.random.below(if depth > 3 { 70 } else { 100 }) {
            0..=27 => self.compute(),
            28..=33 => self.select(),
            34..=52 => self.access(),
            53..=58 => self.atomic(),
            59..=66 => self.cross_lane_instruction(),
            67..=69 => self.rare_instruction(),
            70..=76 => self.if_else(depth),
            77..=83 => self.loop_statement(depth),
            84..=86 => self.table(depth),
            // Few barriers work where lanes have diverged.
            87..=90 if depth == 0 || self.random.chance(20) => self.barrier(),
            87..=97 => self.call(),
            98 => {
                let label = self.label();
                let p = self.register('p');
                let _ = writeln!(self.text, "B{label}:");
                self.statements(depth);
                // A loop that ends at a random predicate.
                let _ = writeln!(self.text, "@{p} bra B{label};");
            }
            _ => {
                let guard = self.guard();
                let end = self.random.pick(&["ret", "exit", "trap", "ret.uni"]);
                let _ = writeln!(self.text, "@%p{} {end};\n{guard}membar.gl;", self.random.below(COUNT));
            }
        }
    }

    fn label(&mut self) -> usize {
        self.labels += 1;
        self.labels - 1
    }

    fn compute(&mut self) {
        let all = table();
        let (name, letters) = all[self.random.below(all.len())];
        let guard = self.guard();
        let mut operands = Vec::new();
        for (index, letter) in letters.chars().enumerate() {
            operands.push(if index == 0 { self.register(letter) } else { self.value(letter) });
        }
        let _ = writeln!(self.text, "{guard}{name} {};", operands.join(", "));
    }

    fn select(&mut self) {
        let guard = self.guard();
        let (letter, ty) =
            [('w', "u32"), ('w', "s32"), ('q', "u64"), ('f', "f32"), ('d', "f64"), ('h', "s16")][self.random.below(6)];
        let (d, a, b, p, q) =
            (self.register(letter), self.value(letter), self.value(letter), self.register('p'), self.register('p'));
        let known = match ty.as_bytes()[0] {
            b'f' => 14,
            b'u' => 10,
            _ => 6,
        };
        // Rarely a comparison that is not for this type.
        let known = if self.random.chance(2) { COMPARISONS.len() } else { known };
        let comparison = match self.random.below(known) {
            unordered @ 6.. if ty.starts_with('f') => COMPARISONS[(unordered + 4).min(17)],
            index => COMPARISONS[index],
        };
        let wide = ty.replace(['u', 's', 'f'], "b");
        let line = match self.random.below(9) {
            0 => format!("setp.{comparison}.{ty} {p}|{q}, {a}, {b};"),
            1 => format!("setp.{comparison}.and.{ty} {p}, {a}, {b}, {q};"),
            2 | 3 => format!("setp.{comparison}.{ty} {p}, {a}, {b};"),
            4 => format!("selp.{wide} {d}, {a}, {b}, {p};"),
            5 => format!("mov.{wide} {d}, {a};"),
            6 => format!("mov.u32 {}, {};", self.register('w'), self.random.pick(&SPECIALS)),
            7 => format!("mov.b64 {{{}, {}}}, {};", self.register('w'), self.register('w'), self.register('q')),
            _ => format!("mov.b64 {}, {{{}, {}}};", self.register('q'), self.register('w'), self.register('w')),
        };
        let _ = writeln!(self.text, "{guard}{line}");
    }

    /// An address in a space, of which most are good for `bytes`.
    fn address(&mut self, space: &str, bytes: usize) -> String {
        let mask = [60, 240, 508, 1008][self.random.below(4)] & !(bytes - 1);
        let offset = self.random.below(64) & !(bytes - 1);
        let (w, q) = (self.register('w'), self.register('q'));
        if self.random.chance(1) {
            return format!("[{q}+{offset}]");
        }
        match space {
            ".shared" | ".shared::cta" => match self.random.below(4) {
                0 => format!("[s0+{offset}]"),
                1 => format!("[s1+{}]", (offset / 2) & !(bytes - 1)),
                2 => format!("[dyn+{offset}]"),
                _ => {
                    let _ = writeln!(self.text, "and.b32 %t1, {w}, {};", mask & 255);
                    String::from("[%t1]")
                }
            },
            ".local" => match self.random.below(3) {
                0 => {
                    let _ = writeln!(self.text, "mov.u64 %x1, l0;");
                    format!("[%x1+{}]", (offset / 2) & !(bytes - 1))
                }
                _ => format!("[l0+{}]", offset & 48 & !(bytes - 1)),
            },
            ".const" => format!("[c0+{offset}]"),
            ".param" if self.is_kernel => format!("[{}]", ["a", "b", "c+0", "n"][self.random.below(4)]),
            ".param" => String::from("[x]"),
            "" if self.random.chance(40) => {
                let from = self.random.pick(&["shared.u64 %x1, s0", "local.u64 %x1, l0", "global.u64 %x1, g0"]);
                let _ = writeln!(self.text, "cvta.{from};");
                format!("[%x1+{}]", (offset / 2) & !(bytes - 1))
            }
            _ if self.random.chance(15) => format!("[g0+{offset}]"),
            _ => {
                let base = self.random.below(3);
                let _ = writeln!(
                    self.text,
                    "and.b32 %t1, {w}, {mask};\ncvt.u64.u32 %x1, %t1;\nadd.s64 %x1, %x1, %a{base};"
                );
                if self.random.chance(20) { format!("[%x1+{offset}]") } else { String::from("[%x1]") }
            }
        }
    }

    fn access(&mut self) {
        const TYPES: [(&str, char, usize); 15] = [
            ("u8", 'w', 1),
            ("s8", 'w', 1),
            ("b8", 'h', 1),
            ("u16", 'h', 2),
            ("s16", 'w', 2),
            ("b16", 'h', 2),
            ("u32", 'w', 4),
            ("s32", 'q', 4),
            ("b32", 'w', 4),
            ("f32", 'f', 4),
            ("u64", 'q', 8),
            ("s64", 'q', 8),
            ("b64", 'q', 8),
            ("f64", 'd', 8),
            ("b128", 'q', 16),
        ];
        const SPACES: [&str; 9] =
            [".global", ".global", ".global", ".shared", ".shared::cta", ".local", ".const", ".param", ""];
        let known = TYPES.len() - usize::from(self.random.chance(98));
        let (ty, letter, size) = TYPES[self.random.below(known)];
        let space = self.random.pick(&SPACES);
        let count = [1, 1, 1, 2, 4][self.random.below(5)];
        let count = if size * count > 16 { 1 } else { count };
        let is_load = self.random.chance(if matches!(space, ".const" | ".param") { 99 } else { 50 });
        let address = self.address(space, size * count);
        let vector = ["", "", ".v2", "", ".v4"][count];
        let how = self.random.pick(&["", "", "", "", ".volatile", ".relaxed.gpu"]);
        let guard = self.guard();
        let values: Vec<String> =
            (0..count).map(|_| if is_load { self.register(letter) } else { self.value(letter) }).collect();
        let values = if count == 1 { values.concat() } else { format!("{{{}}}", values.join(", ")) };
        let _ = if is_load {
            let how = if how.is_empty() && space == ".global" && self.random.chance(20) { ".nc" } else { how };
            let (how, space) = if how == ".nc" { ("", ".global.nc") } else { (how, space) };
            writeln!(self.text, "{guard}ld{how}{space}{vector}.{ty} {values}, {address};")
        } else {
            writeln!(self.text, "{guard}st{how}{space}{vector}.{ty} {address}, {values};")
        };
    }

    fn atomic(&mut self) {
        const KINDS: [(&str, &str, char, usize); 17] = [
            ("add", "u32", 'w', 4),
            ("add", "s32", 'w', 4),
            ("add", "u64", 'q', 8),
            ("add", "f32", 'f', 4),
            ("add", "f64", 'd', 8),
            ("min", "s32", 'w', 4),
            ("max", "u64", 'q', 8),
            ("and", "b32", 'w', 4),
            ("or", "b64", 'q', 8),
            ("xor", "b32", 'w', 4),
            ("exch", "b32", 'w', 4),
            ("exch", "b64", 'q', 8),
            ("cas", "b32", 'w', 4),
            ("cas", "b64", 'q', 8),
            ("inc", "u32", 'w', 4),
            ("dec", "u32", 'w', 4),
            ("min", "u32", 'w', 4),
        ];
        let (name, ty, letter, size) = KINDS[self.random.below(KINDS.len())];
        let space = self.random.pick(&[".global", ".shared", ""]);
        let address = self.address(space, size);
        let guard = self.guard();
        let b = self.value(letter);
        let c = if name == "cas" { format!(", {}", self.value(letter)) } else { String::new() };
        let how = self.random.pick(&["", "", ".relaxed.gpu", ".acq_rel.sys"]);
        let _ = if self.random.chance(25) && name != "exch" && name != "cas" {
            writeln!(self.text, "{guard}red{how}{space}.{name}.{ty} {address}, {b};")
        } else {
            let d = self.register(letter);
            writeln!(self.text, "{guard}atom{how}{space}.{name}.{ty} {d}, {address}, {b}{c};")
        };
    }

    /// Instructions that read values of other lanes.
    fn cross_lane_instruction(&mut self) {
        let members = match self.random.below(4) {
            0 => self.value('w'),
            1 => String::from("0x0000ffff"),
            _ => String::from("-1"),
        };
        let guard = self.guard();
        let whole = self.random.pick(&WHOLE);
        let letter = if whole == "f32" { 'f' } else { 'w' };
        let (d, a, b, c) = (self.register(letter), self.value(letter), self.value('w'), self.value('w'));
        let (w, p, q) = (self.register('w'), self.register('p'), self.register('p'));
        let line = match self.random.below(12) {
            0..=2 => {
                let mode = self.random.pick(&["up", "down", "bfly", "idx"]);
                let c = if self.random.chance(60) { "31" } else { c.as_str() };
                let pair = if self.random.chance(50) { format!("{d}|{p}") } else { d };
                format!("shfl.sync.{mode}.{whole} {pair}, {a}, {b}, {c}, {members};")
            }
            3 => format!("vote.sync.ballot.b32 {w}, {p}, {members};"),
            4 => format!("vote.sync.{}.pred {p}, {q}, {members};", self.random.pick(&["all", "any", "uni"])),
            5 => format!("match.any.sync.b32 {w}, {b}, {members};"),
            6 => format!("match.all.sync.b64 {w}|{p}, {}, {members};", self.value('q')),
            7 => format!(
                "redux.sync.{} {w}, {b}, {members};",
                self.random.pick(&["add.u32", "min.s32", "max.u32", "xor.b32"])
            ),
            8 => format!("elect.sync {w}|{p}, {members};"),
            9 => format!("bar.warp.sync {members};"),
            10 => format!("activemask.b32 {w};"),
            _ => format!("shfl.{}.b32 {w}, {b}, {c}, 31;", self.random.pick(&["up", "bfly"])),
        };
        let _ = writeln!(self.text, "{guard}{line}");
    }

    fn rare_instruction(&mut self) {
        let guard = self.guard();
        let (w, q, h) = (self.register('w'), self.register('q'), self.register('h'));
        let line = match self.random.below(13) {
            0 => format!("nanosleep.u32 {w};"),
            1 => String::from("membar.cta;"),
            2 => String::from("fence.acq_rel.gpu;"),
            3 => format!("isspacep.shared {}, {q};", self.register('p')),
            4 => format!("mov.u64 {q}, %clock64;"),
            5 => format!("mov.u64 {q}, f0;"),
            6 => format!(
                "lop3.b32 {w}, {}, {}, {}, {};",
                self.value('w'),
                self.value('w'),
                self.value('w'),
                self.random.below(256)
            ),
            7 => format!("prmt.b32 {w}, {}, {}, {};", self.value('w'), self.value('w'), self.value('w')),
            8 => format!("add.cc.u32 {w}, {w}, -1;\naddc.u32 {w}, {w}, 0;"),
            9 => format!("mov.b32 {{{h}, {}}}, {w};", self.register('h')),
            10 => String::from(
                "cp.async.ca.shared.global [s0], [%a0], 16;\ncp.async.commit_group;\ncp.async.wait_group 0;",
            ),
            11 => format!("ex2.approx.ftz.f32 {}, {};", self.register('f'), self.value('f')),
            _ => format!("sin.approx.f32 {}, {};", self.register('f'), self.value('f')),
        };
        let _ = writeln!(self.text, "{guard}{line}");
    }

    fn if_else(&mut self, depth: usize) {
        let (label, p) = (self.label(), self.register('p'));
        let not = if self.random.chance(50) { "!" } else { "" };
        let _ = writeln!(self.text, "@{not}{p} bra T{label};");
        self.statements(depth);
        let _ = writeln!(self.text, "bra E{label};\nT{label}:");
        self.statements(depth);
        let _ = writeln!(self.text, "E{label}:");
    }

    fn loop_statement(&mut self, depth: usize) {
        let (label, w) = (self.label(), self.register('w'));
        let _ = writeln!(self.text, "and.b32 %c{label}, {w}, {};\nL{label}:", [1, 3, 7][self.random.below(3)]);
        let _ = writeln!(self.text, "setp.eq.u32 %k{label}, %c{label}, 0;\n@%k{label} bra O{label};");
        let _ = writeln!(self.text, "sub.u32 %c{label}, %c{label}, 1;");
        self.statements(depth);
        let _ = writeln!(self.text, "bra L{label};\nO{label}:");
    }

    fn table(&mut self, depth: usize) {
        let (label, w) = (self.label(), self.register('w'));
        let _ = writeln!(
            self.text,
            "and.b32 %t2, {w}, 3;\nX{label}: .branchtargets Y{label}, Z{label}, Q{label}, Z{label};"
        );
        let _ = writeln!(self.text, "brx.idx %t2, X{label};\nY{label}:");
        self.statements(depth);
        let _ = writeln!(self.text, "bra.uni Q{label};\nZ{label}:");
        self.statements(depth);
        let _ = writeln!(self.text, "Q{label}:");
    }

    fn barrier(&mut self) {
        let number = if self.random.chance(93) { String::from("0") } else { self.value('w') };
        let (w, p, q) = (self.register('w'), self.register('p'), self.register('p'));
        let line = match self.random.below(17) {
            0..=10 => format!("bar.sync {number};"),
            11 | 12 => format!("bar.red.popc.u32 {w}, {number}, {p};"),
            13 | 14 => format!("barrier.red.and.pred {q}, {number}, {p};"),
            15 => format!("bar.sync {number}, {};", [32, 64, 96][self.random.below(3)]),
            _ => format!("bar.arrive {number}, {};", [32, 64][self.random.below(2)]),
        };
        self.line(&line);
    }

    fn call(&mut self) {
        let (w, d) = (self.value('w'), self.register('w'));
        let guard = self.guard();
        let text = match self.random.below(25) {
            0..=9 => format!("st.param.b32 [y], {w};\n{guard}call.uni (z), f0, (y);"),
            10..=13 => format!("st.param.b32 [y], {w};\nmov.u64 %x2, f0;\n{guard}call (z), %x2, (y), P0;"),
            14 => format!("st.param.b32 [y], {w};\n{guard}call (z), {}, (y), P0;", self.register('q')),
            15..=19 => format!("st.param.b32 [v+8], {w};\n{guard}call f1, (v);"),
            20..=22 => String::from("st.param.b64 [u], %a3;\nst.param.b64 [t], %a3;\ncall (z), vprintf, (u, t);"),
            _ => format!("{guard}call (z), f0, ({d});"),
        };
        let _ = writeln!(
            self.text,
            "{{\n.param .b32 y;\n.param .b32 z;\n.param .b64 u;\n.param .b64 t;\n.param .align 8 .b8 v[16];\n{text}\nld.param.b32 {d}, [z];\n}}"
        );
    }
}
