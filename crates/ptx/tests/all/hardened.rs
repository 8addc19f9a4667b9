//! What a kernel may not do to its host, and what random texts once did: each test is a
//! finding, or a rule that one led to.

use crate::common::{LaunchOptions, TestMemory, launch, launch_for, params};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use sublet_ptx::{FaultKind, Module};

const HEAD: &str = ".version 8.0\n.target sm_90\n.address_size 64\n";

#[test]
fn warps_that_meet_at_barriers_for_ever_are_stopped() {
    let module = Module::parse(&format!("{HEAD}.entry k() {{ L: bar.sync 0; bra L; }}")).unwrap();
    for block in [32, 96] {
        let began = Instant::now();
        let options = LaunchOptions { block: [block, 1, 1], ..LaunchOptions::default() };
        let fault = launch_for(&module, "k", &TestMemory::default(), &options, Duration::from_millis(30)).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Stopped);
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}

/// Reads registers, local memory and a called function's memory before it writes them,
/// and leaves other values there for the blocks that come after it.
const UNDEFINED: &str = ".func (.param .b32 r) deep(.param .b32 n)
{
    .reg .b32 %n, %s, %u;
    .reg .pred %p;
    .local .align 4 .b8 mine[64];
    ld.param.b32 %n, [n];
    ld.local.u32 %s, [mine+8];
    st.local.u32 [mine+8], 77;
    add.u32 %s, %s, %u;
    add.u32 %u, %n, 1000;
    setp.eq.u32 %p, %n, 0;
    @%p bra OUT;
    sub.u32 %n, %n, 1;
    { .param .b32 a; .param .b32 b; st.param.b32 [a], %n; call (b), deep, (a); ld.param.b32 %n, [b]; }
    add.u32 %s, %s, %n;
OUT:
    st.param.b32 [r], %s;
    ret;
}
.entry k(.param .u64 out)
{
    .reg .b32 %b, %t, %i, %x, %y, %z;
    .reg .b64 %q;
    .reg .pred %p, %never;
    .local .align 8 .b8 own[32];
    .shared .align 8 .b8 ours[128];
    mov.u32 %b, %ctaid.x;
    mov.u32 %t, %tid.x;
    ld.local.u32 %y, [own+4];
    add.u32 %x, %x, %y;
    @%never add.u32 %x, %x, 1;
    ld.shared.u32 %y, [ours+16];
    add.u32 %x, %x, %y;
    st.local.u32 [own+4], %b;
    bar.sync 0;
    st.shared.u32 [ours+16], %b;
    and.b32 %z, %b, 7;
    { .param .b32 a; .param .b32 b; st.param.b32 [a], %z; call (b), deep, (a); ld.param.b32 %y, [b]; }
    add.u32 %x, %x, %y;
    ld.param.u64 %q, [out];
    mad.lo.u32 %i, %b, 64, %t;
    mad.wide.u32 %q, %i, 4, %q;
    st.global.u32 [%q], %x;
    setp.eq.u32 %never, %t, %t;
    mov.u32 %x, 12345;
    ret;
}
";

#[test]
fn what_a_block_did_not_write_is_zero() {
    let module = Module::parse(&(HEAD.to_owned() + UNDEFINED)).unwrap();
    for threads in [1, 4] {
        let mut device = TestMemory::default();
        let out = device.allocate(&[0xFF; 100 * 64 * 4]);
        let bytes = params(&[&out.to_le_bytes()]);
        let options =
            LaunchOptions { grid: [100, 1, 1], block: [64, 1, 1], params: &bytes, threads, ..LaunchOptions::default() };
        launch(&module, "k", &device, &options).unwrap();
        assert!(device.read_u32(out).iter().all(|value| *value == 0), "with {threads} workers");
    }
}

#[test]
fn local_memory_that_no_call_has_come_to_is_out_of_range() {
    let text = UNDEFINED.replace("ld.local.u32 %y, [own+4];", "ld.local.u32 %y, [own+16384];");
    let module = Module::parse(&(HEAD.to_owned() + &text)).unwrap();
    let mut device = TestMemory::default();
    let bytes = params(&[&device.allocate(&[0; 256]).to_le_bytes()]);
    let fault =
        launch(&module, "k", &device, &LaunchOptions { params: &bytes, ..LaunchOptions::default() }).unwrap_err();
    let expected = FaultKind::OutOfRange { address: 16384, bytes: 4, write: false, read_only: false };
    assert_eq!(fault.kind, expected);
}

#[test]
fn a_format_that_names_a_long_text_many_times_prints_a_bounded_text() {
    // Half of the memory is a long text, the other half `%s%s%s...`, and each names the long text.
    let text = format!(
        "{HEAD}.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n\
         .entry k(.param .u64 f, .param .u64 v) {{ .reg .b64 %f, %v; ld.param.u64 %f, [f]; ld.param.u64 %v, [v]; \
         {{ .param .b64 a; .param .b64 b; .param .b32 r; st.param.b64 [a], %f; st.param.b64 [b], %v; \
         call.uni (r), vprintf, (a, b); }} ret; }}"
    );
    let module = Module::parse(&text).unwrap();
    let mut device = TestMemory::default();
    let long = device.allocate(&[b'x'; 60_000].into_iter().chain([0]).collect::<Vec<u8>>());
    let format = device.allocate(&[b"%s".repeat(20_000), vec![0]].concat());
    let values = device.allocate(&long.to_le_bytes().repeat(20_000));
    let bytes = params(&[&format.to_le_bytes(), &values.to_le_bytes()]);
    let longest = AtomicUsize::new(0);
    let print = |line: &str| {
        longest.fetch_max(line.len(), Relaxed);
    };
    let options = LaunchOptions { block: [1, 1, 1], params: &bytes, print: Some(&print), ..LaunchOptions::default() };
    launch(&module, "k", &device, &options).unwrap();
    assert!((1 << 20..2 << 20).contains(&longest.load(Relaxed)), "{} bytes", longest.load(Relaxed));
}

#[test]
fn parameters_of_a_length_that_wraps_around_are_refused() {
    for text in [
        ".entry k(.param .u32 a, .param .align 8 .b8 b[18446744073709551615], .param .u64 c) { ret; }",
        ".func f(.param .u32 a, .param .align 8 .b8 b[18446744073709551600]) { ret; } .entry k() { ret; }",
        ".func f() { .reg .b64 %q; P: .callprototype _ (.param .u32 a, .param .b8 b[18446744073709551615]); ret; }",
    ] {
        let error = Module::parse(&(HEAD.to_owned() + text)).unwrap_err().to_string();
        assert!(error.contains("the bytes of parameters"), "{error}");
    }
}
