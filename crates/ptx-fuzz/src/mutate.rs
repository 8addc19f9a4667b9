//! Mangles texts: bytes, words, lines, instructions, and pieces of other texts.

use crate::random::SplitMix64;

/// Bytes that mean something to the reader.
const BYTES: &[u8] = b";,.:{}[]()<>@!%$_|+-=\"\\/*#'0x9fdAz \n\t\0\x7f\xc3\xff";

/// Words that mean something somewhere.
const WORDS: [&str; 84] = [
    ".entry",
    ".func",
    ".reg",
    ".param",
    ".shared",
    ".local",
    ".global",
    ".const",
    ".extern",
    ".visible",
    ".weak",
    ".align",
    ".version",
    ".target",
    ".address_size",
    ".maxntid",
    ".reqntid",
    ".minnctapersm",
    ".maxnreg",
    ".pragma",
    ".loc",
    ".file",
    ".section",
    ".branchtargets",
    ".callprototype",
    ".alias",
    ".pred",
    ".b8",
    ".b16",
    ".b32",
    ".b64",
    ".b128",
    ".u8",
    ".s8",
    ".u16",
    ".s16",
    ".u32",
    ".s32",
    ".u64",
    ".s64",
    ".f16",
    ".f32",
    ".f64",
    ".v2",
    ".v4",
    ".v8",
    ".rn",
    ".rz",
    ".sat",
    ".ftz",
    ".wide",
    ".lo",
    ".hi",
    ".cc",
    ".sync",
    ".approx",
    ".volatile",
    ".nc",
    "ld",
    "st",
    "atom",
    "red",
    "bra",
    "brx.idx",
    "call",
    "ret",
    "exit",
    "bar.sync",
    "shfl.sync.idx.b32",
    "vote.sync.ballot.b32",
    "setp.eq.u32",
    "selp.b32",
    "cvt.rn.f32.s32",
    "mov.b64",
    "cvta.to.global.u64",
    "@",
    "_",
    "%tid.x",
    "%clock64",
    "WARP_SZ",
    "0f7FC00000",
    "0d7FF0000000000000",
    "1e999",
    "mad.wide.s32",
];

/// Numbers at the edges of what is counted.
const NUMBERS: [&str; 26] = [
    "0",
    "1",
    "2",
    "3",
    "7",
    "8",
    "15",
    "16",
    "31",
    "32",
    "33",
    "63",
    "64",
    "127",
    "255",
    "256",
    "1023",
    "1024",
    "65535",
    "65536",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
];

/// One to a handful of changes.
pub fn mangle(text: &mut Vec<u8>, others: &[String], random: &mut SplitMix64) {
    for _ in 0..1 + random.below(4) {
        match random.below(20) {
            0..=1 => bytes(text, random),
            2..=8 => words(text, random),
            9..=12 => lines(text, random),
            13..=17 => instructions(text, random),
            _ => splice(text, others, random),
        }
    }
}

fn bytes(text: &mut Vec<u8>, random: &mut SplitMix64) {
    if text.is_empty() {
        return;
    }
    let at = random.below(text.len());
    match random.below(5) {
        0 => text[at] ^= 1 << random.below(8),
        1 => text[at] = BYTES[random.below(BYTES.len())],
        2 => {
            text.remove(at);
        }
        3 => text.insert(at, BYTES[random.below(BYTES.len())]),
        _ => {
            let end = (at + random.below(24)).min(text.len());
            if random.chance(50) {
                text.drain(at..end);
            } else {
                let piece = text[at..end].to_vec();
                text.splice(at..at, piece);
            }
        }
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_%$".contains(&byte)
}

/// Where the words of a text are; a dot begins a word of its own.
fn word_ranges(text: &[u8]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let start = at;
        if text[at] == b'.' {
            at += 1;
        }
        while at < text.len() && is_word(text[at]) {
            at += 1;
        }
        if at > start {
            found.push((start, at));
        } else {
            at += 1;
        }
    }
    found
}

fn words(text: &mut Vec<u8>, random: &mut SplitMix64) {
    let ranges = word_ranges(text);
    if ranges.is_empty() {
        return;
    }
    let (start, end) = ranges[random.below(ranges.len())];
    let (other, until) = ranges[random.below(ranges.len())];
    let by: Vec<u8> = match random.below(8) {
        0 => Vec::new(),
        1 => WORDS[random.below(WORDS.len())].into(),
        2 => NUMBERS[random.below(NUMBERS.len())].into(),
        3 => [&text[start..end], b" ", &text[other..until]].concat(),
        // A word of the same kind is the most likely to be read.
        _ => {
            let alike: Vec<(usize, usize)> = ranges
                .into_iter()
                .filter(|(at, _)| {
                    text[*at] == text[start] || text[*at].is_ascii_digit() && text[start].is_ascii_digit()
                })
                .collect();
            let (at, to) = alike[random.below(alike.len())];
            text[at..to].to_vec()
        }
    };
    text.splice(start..end, by);
}

/// Where the pieces of a text are that end in `mark`, with the mark.
fn pieces(text: &[u8], mark: u8) -> Vec<(usize, usize)> {
    let mut start = 0;
    let mut found = Vec::new();
    for (at, _) in text.iter().enumerate().filter(|(_, byte)| **byte == mark) {
        found.push((start, at + 1));
        start = at + 1;
    }
    found
}

fn lines(text: &mut Vec<u8>, random: &mut SplitMix64) {
    rearrange(text, b'\n', random);
}

fn instructions(text: &mut Vec<u8>, random: &mut SplitMix64) {
    if random.chance(40) {
        return operands(text, random);
    }
    rearrange(text, b';', random);
}

fn rearrange(text: &mut Vec<u8>, mark: u8, random: &mut SplitMix64) {
    let found = pieces(text, mark);
    if found.len() < 2 {
        return;
    }
    let (start, end) = found[random.below(found.len())];
    let (from, to) = found[random.below(found.len())];
    let piece = text[from..to].to_vec();
    match random.below(4) {
        0 => {
            text.drain(start..end);
        }
        1 => {
            text.splice(start..end, piece);
        }
        2 => {
            text.splice(start..start, piece);
        }
        _ => {
            let last = found[(random.below(found.len()) + 1).min(found.len() - 1)].1;
            let run = text[start..last.max(start)].iter().copied().take(2000).collect::<Vec<u8>>();
            text.splice(end..end, run);
        }
    }
}

/// Changes one operand of one instruction.
fn operands(text: &mut Vec<u8>, random: &mut SplitMix64) {
    let found = pieces(text, b';');
    if found.is_empty() {
        return;
    }
    let (start, end) = found[random.below(found.len())];
    let commas: Vec<usize> = (start..end).filter(|at| text[*at] == b',').collect();
    match (commas.first(), commas.last()) {
        (Some(&first), Some(&last)) if first < last => {
            // The second operand takes the place of the last.
            let second = text[first + 1..commas[1]].to_vec();
            text.splice(last + 1..end - 1, second);
        }
        (Some(&first), _) => {
            let by = if random.chance(50) { NUMBERS[random.below(NUMBERS.len())] } else { "_" };
            text.splice(first + 1..end - 1, by.bytes());
        }
        _ => {}
    }
}

/// Puts a piece of another text in, or joins the halves of two.
fn splice(text: &mut Vec<u8>, others: &[String], random: &mut SplitMix64) {
    let Some(other) = others.get(random.below(others.len())) else { return };
    let other = other.as_bytes();
    let mark = if random.chance(50) { b'\n' } else { b';' };
    let (own, theirs) = (pieces(text, mark), pieces(other, mark));
    let (Some(&(at, _)), Some(&(from, to))) =
        (own.get(random.below(own.len())), theirs.get(random.below(theirs.len())))
    else {
        return;
    };
    if random.chance(30) {
        text.truncate(at);
        text.extend_from_slice(&other[from..]);
    } else {
        let until = theirs[random.below(theirs.len())].1.clamp(to, from + 4000);
        text.splice(at..at, other[from..until.min(other.len())].iter().copied());
    }
}
