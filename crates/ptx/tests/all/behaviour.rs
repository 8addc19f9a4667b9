//! Small kernels, one behaviour each: what threads see, and how launches end.

use crate::common::{LaunchOptions, TestMemory, launch, launch_for, params};
use expect_test::{Expect, expect};
use std::sync::Mutex;
use std::time::Duration;
use sublet_ptx::Module;

const HEAD: &str = ".version 8.0\n.target sm_90\n.address_size 64\n";

/// A module around a body: `%tid` is in `%t`, the result of each thread in `%o`.
fn module_around(before: &str, body: &str) -> String {
    format!(
        "{HEAD}{before}.entry k(.param .u64 out) {{ .reg .b32 %r<50>, %t, %o; .reg .b64 %d<50>; .reg .b16 %h<20>; \
         .reg .f32 %f<20>; .reg .pred %p<20>; .reg .b64 %out, %at; ld.param.u64 %out, [out]; mov.u32 %t, %tid.x; \
         mov.u32 %o, 0; mad.wide.u32 %at, %t, 4, %out;\n{body}\nst.global.u32 [%at], %o; ret; }}\n"
    )
}

/// What the threads of one block wrote, or why there is nothing.
fn outcome(text: &str, threads: u32) -> Result<Vec<u32>, String> {
    let module = Module::parse(text).map_err(|error| error.to_string())?;
    let mut device = TestMemory::default();
    let variables = device.load(&module);
    let out = device.allocate(&vec![0; threads as usize * 4]);
    let bytes = params(&[&out.to_le_bytes()]);
    let options = LaunchOptions {
        block: [threads, 1, 1],
        params: &bytes,
        variables: &variables,
        shared: 1024,
        ..LaunchOptions::default()
    };
    launch_for(&module, "k", &device, &options, Duration::from_secs(60)).map_err(|fault| fault.to_string())?;
    Ok(device.read_u32(out))
}

/// Runs of equal values as `value*count`.
fn run_lengths(values: &[u32]) -> String {
    let mut parts: Vec<(u32, usize)> = Vec::new();
    for &value in values {
        match parts.last_mut() {
            Some((last, count)) if *last == value => *count += 1,
            _ => parts.push((value, 1)),
        }
    }
    let part =
        |(value, count): &(u32, usize)| if *count == 1 { format!("{value:x}") } else { format!("{value:x}*{count}") };
    parts.iter().map(part).collect::<Vec<_>>().join(" ")
}

fn check_with(before: &str, body: &str, threads: u32, expect: &Expect) {
    let told = match outcome(&module_around(before, body), threads) {
        Ok(values) => run_lengths(&values),
        Err(why) => why,
    };
    expect.assert_eq(&told);
}

#[expect(clippy::needless_pass_by_value, reason = "tests read better")]
fn check(body: &str, expect: Expect) {
    check_with("", body, 32, &expect);
}

#[test]
fn a_carry_goes_from_one_addition_to_the_next() {
    check("mov.u32 %r1, -1; add.cc.u32 %r2, %r1, %t; addc.cc.u32 %r3, %r1, 0; addc.u32 %o, 0, 0;", expect!["0 1*31"]);
}

#[test]
fn a_borrow_goes_from_one_subtraction_to_the_next() {
    check("sub.cc.u32 %r2, %t, 3; subc.u32 %o, 5, 0;", expect!["4*3 5*29"]);
}

#[test]
fn a_product_may_set_the_carry_and_take_it() {
    check(
        "mad.lo.cc.u32 %r1, %t, -1, 5; madc.hi.u32 %o, %t, -1, 0;",
        expect!["0 1 2 3 4 5*2 6 7 8 9 a b c d e f 10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e"],
    );
}

#[test]
fn sides_of_a_branch_meet_again() {
    check(
        "setp.lt.u32 %p1, %t, 7; @%p1 bra A; mov.u32 %o, 1; bra B; A: mov.u32 %o, 2; B: activemask.b32 %r1; \
         popc.b32 %r1, %r1; mad.lo.u32 %o, %o, 256, %r1;",
        expect!["220*7 120*25"],
    );
}

#[test]
fn lanes_that_leave_a_loop_wait_for_the_others() {
    check(
        "mov.u32 %r1, 0; L: setp.ge.u32 %p1, %r1, %t; @%p1 bra E; add.u32 %r1, %r1, 1; \
         setp.eq.u32 %p2, %r1, 5; @%p2 bra E; bra L; E: activemask.b32 %r2; popc.b32 %r2, %r2; \
         mad.lo.u32 %o, %r2, 256, %r1;",
        expect!["2000 2001 2002 2003 2004 2005*27"],
    );
}

#[test]
fn lanes_that_end_early_do_not_hold_up_the_others() {
    check("setp.lt.u32 %p1, %t, 4; @%p1 exit; activemask.b32 %o;", expect!["0*4 fffffff0*28"]);
}

#[test]
fn a_table_of_targets_sends_lanes_apart_and_together_again() {
    check(
        "and.b32 %r1, %t, 3; TS: .branchtargets A, B, C, A; brx.idx %r1, TS; A: mov.u32 %o, 10; bra Z; \
         B: mov.u32 %o, 11; bra Z; C: mov.u32 %o, 12; Z: activemask.b32 %r2; popc.b32 %r2, %r2; \
         mad.lo.u32 %o, %r2, 256, %o;",
        expect![
            "200a 200b 200c 200a*2 200b 200c 200a*2 200b 200c 200a*2 200b 200c 200a*2 200b 200c 200a*2 200b 200c 200a*2 200b 200c 200a*2 200b 200c 200a"
        ],
    );
}

#[test]
fn an_index_past_a_table_is_a_fault() {
    check(
        "TS: .branchtargets A, A; brx.idx %t, TS; A: mov.u32 %o, 1;",
        expect![
            "kernel `k`: read of 1 bytes at 0x2, where no memory is mapped (line 5: `TS: .branchtargets A, A; brx.idx %t, TS; A: mov.u32 %o, 1;`, block 0,0,0 thread 2,0,0)"
        ],
    );
}

#[test]
fn shuffles_stay_in_their_segment() {
    check(
        "shfl.sync.down.b32 %o|%p1, %t, 3, 0x181f, -1;",
        expect!["3 4 5 6 7 5 6 7 b c d e f d e f 13 14 15 16 17 15 16 17 1b 1c 1d 1e 1f 1d 1e 1f"],
    );
    check(
        "shfl.sync.up.b32 %o|%p1, %t, 2, 0, -1;",
        expect!["0 1 0 1 2 3 4 5 6 7 8 9 a b c d e f 10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d"],
    );
    check(
        "shfl.sync.bfly.b32 %r1|%p1, %t, 16, 0x1f, -1; selp.u32 %o, %r1, 99, %p1;",
        expect!["10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f 0 1 2 3 4 5 6 7 8 9 a b c d e f"],
    );
    check("shfl.sync.idx.b32 %o, %t, 5, 0x1f, -1;", expect!["5*32"]);
    check("shfl.sync.up.b32 %r1|%p1, %t, 1, 0, -1; selp.u32 %o, 1, 0, %p1;", expect!["0 1*31"]);
}

#[test]
fn votes_count_only_members() {
    check("setp.lt.u32 %p1, %t, 5; vote.sync.ballot.b32 %o, %p1, -1;", expect!["1f*32"]);
    check("setp.lt.u32 %p1, %t, 5; vote.sync.all.pred %p2, %p1, 0x1f; selp.u32 %o, 1, 0, %p2;", expect!["1*32"]);
    check("setp.lt.u32 %p1, %t, 5; vote.sync.any.pred %p2, !%p1, 0x1f; selp.u32 %o, 1, 0, %p2;", expect!["0*32"]);
    check("setp.lt.u32 %p1, %t, 5; vote.sync.uni.pred %p2, %p1, -1; selp.u32 %o, 1, 0, %p2;", expect!["0*32"]);
    check(
        "setp.ge.u32 %p9, %t, 30; @%p9 exit; setp.lt.u32 %p1, %t, 31; vote.sync.ballot.b32 %o, %p1, -1;",
        expect!["3fffffff*30 0*2"],
    );
}

#[test]
fn matches_reductions_and_elections_look_across_lanes() {
    check(
        "and.b32 %r1, %t, 1; match.any.sync.b32 %o, %r1, -1; and.b32 %o, %o, 0xff;",
        expect!["55 aa 55 aa 55 aa 55 aa 55 aa 55 aa 55 aa 55 aa 55 aa 55 aa 55 aa 55 aa 55 aa 55 aa 55 aa 55 aa"],
    );
    check("match.all.sync.b32 %o|%p1, %t, -1;", expect!["0*32"]);
    check("redux.sync.add.u32 %o, %t, 0xff;", expect!["1c*32"]);
    check("sub.s32 %r1, %t, 3; redux.sync.min.s32 %o, %r1, -1;", expect!["fffffffd*32"]);
    check("elect.sync %o|%p1, 0xf0; selp.u32 %o, 7, %o, %p1;", expect!["4*4 7 4*27"]);
}

#[test]
fn narrow_loads_extend_by_sign_and_stores_cut() {
    check(
        "st.global.u32 [%at], 0x8081fe7f; ld.global.s8 %r1, [%at+1]; ld.global.u8 %r2, [%at+1]; \
         ld.global.s16 %r3, [%at+2]; ld.global.s8 %d1, [%at+3]; cvt.u32.u64 %r4, %d1; \
         xor.b32 %o, %r1, %r3; xor.b32 %o, %o, %r4; xor.b32 %o, %o, %r2;",
        expect!["ffff8001*32"],
    );
}

#[test]
fn shared_local_and_param_memory_have_generic_addresses() {
    check(
        ".shared .align 8 .b8 buf[256]; .local .align 4 .b8 mine[64]; mov.u64 %d1, buf; cvta.shared.u64 %d2, %d1; \
         mul.wide.u32 %d3, %t, 8; add.u64 %d4, %d2, %d3; st.u32 [%d4], %t; mov.u64 %d5, mine; cvta.local.u64 %d6, %d5; \
         st.u32 [%d6+4], %t; ld.local.u32 %r1, [%d5+4]; ld.u32 %r2, [%d4]; add.u32 %o, %r1, %r2; \
         isspacep.shared %p1, %d4; isspacep.local %p2, %d6; isspacep.global %p3, %out; \
         and.pred %p1, %p1, %p2; and.pred %p1, %p1, %p3; selp.u32 %r3, 256, 0, %p1; add.u32 %o, %o, %r3; \
         mov.b64 %d7, out; cvta.param.u64 %d8, %d7; ld.u64 %d9, [%d8]; setp.ne.u64 %p4, %d9, %out; @%p4 trap;",
        expect![
            "100 102 104 106 108 10a 10c 10e 110 112 114 116 118 11a 11c 11e 120 122 124 126 128 12a 12c 12e 130 132 134 136 138 13a 13c 13e"
        ],
    );
}

#[test]
fn vectors_move_together() {
    check(
        ".shared .align 16 .b8 buf[512]; mov.u32 %r9, buf; mad.lo.u32 %r9, %t, 16, %r9; \
         add.u32 %r1, %t, 1; add.u32 %r2, %t, 2; add.u32 %r3, %t, 3; \
         st.shared.v4.u32 [%r9], {%t, %r1, %r2, %r3}; ld.shared.v2.u32 {_, %r5}, [%r9+8]; \
         mov.b64 %d1, {%r5, %t}; mov.b64 {%r6, %r7}, %d1; sub.u32 %o, %r6, %r7;",
        expect!["3*32"],
    );
}

#[test]
fn dynamic_shared_memory_follows_the_static() {
    check_with(
        ".extern .shared .align 16 .b8 dyn[];\n",
        ".shared .align 4 .b8 own[20]; mov.u32 %r1, own; mov.u32 %r2, dyn; mad.lo.u32 %r3, %t, 4, %r2; \
         st.shared.u32 [%r3], %t; bar.sync 0; ld.shared.u32 %o, [dyn+12]; add.u32 %o, %o, %r2; \
         mov.u32 %r4, %dynamic_smem_size; add.u32 %o, %o, %r4;",
        32,
        &expect!["423*32"],
    );
}

#[test]
fn variables_begin_with_their_values_and_addresses() {
    check_with(
        ".const .align 4 .b32 table[4] = {1, -2, 0x30, 4};\n.global .align 8 .f64 half = 0d3FE0000000000000;\n\
         .global .align 8 .u64 pointer = generic(table)+8;\n",
        "ld.global.u64 %d1, [pointer]; ld.u32 %r1, [%d1]; ld.const.u32 %r2, [table+4]; \
         ld.global.u32 %r3, [half+4]; add.u32 %o, %r1, %r2; add.u32 %o, %o, %r3;",
        32,
        &expect!["3fe0002e*32"],
    );
}

const FACTORIAL: &str = ".func (.param .b32 result) factorial(.param .b32 n) { .reg .b32 %a<4>; .reg .pred %q; \
    ld.param.b32 %a1, [n]; setp.gt.u32 %q, %a1, 1; mov.u32 %a2, 1; @!%q bra DONE; sub.u32 %a3, %a1, 1; \
    { .param .b32 in; .param .b32 back; st.param.b32 [in], %a3; call (back), factorial, (in); \
    ld.param.b32 %a2, [back]; } mul.lo.u32 %a2, %a2, %a1; DONE: st.param.b32 [result], %a2; ret; }\n";

#[test]
fn lanes_recurse_to_different_depths() {
    check_with(
        FACTORIAL,
        "and.b32 %r1, %t, 7; { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call.uni (b), factorial, (a); \
         ld.param.b32 %o, [b]; } activemask.b32 %r2; popc.b32 %r2, %r2; setp.ne.u32 %p1, %r2, 32; @%p1 trap;",
        10,
        &expect![
            "kernel `k`: the kernel trapped (line 6: `and.b32 %r1, %t, 7; { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call.uni (b), factorial, (a); ld.param.b32 %o, [b]; } activemask.b32 %r2; popc.b32 %r2, %r2; setp.ne.u32 %p1, %r2, 32; @%p1 trap;`, block 0,0,0 thread 0,0,0)"
        ],
    );
    check_with(
        FACTORIAL,
        "and.b32 %r1, %t, 7; { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call.uni (b), factorial, (a); \
         ld.param.b32 %o, [b]; }",
        10,
        &expect!["1*2 2 6 18 78 2d0 13b0 1*2"],
    );
}

#[test]
fn endless_recursion_is_a_fault() {
    check_with(
        ".func forever() { .local .align 16 .b8 pad[64]; call.uni forever, (); ret; }\n",
        "call.uni forever, ();",
        1,
        &expect![
            "kernel `k`: calls nest deeper than 513 (line 4: `.func forever() { .local .align 16 .b8 pad[64]; call.uni forever, (); ret; }`, block 0,0,0 thread 0,0,0)"
        ],
    );
}

#[test]
fn calls_through_a_register_go_where_each_lane_points() {
    let functions = ".func (.param .b32 o) one(.param .b32 i) { .reg .b32 %a; ld.param.b32 %a, [i]; add.u32 %a, %a, 1; \
         st.param.b32 [o], %a; ret; }\n.func (.param .b32 o) two(.param .b32 i) { .reg .b32 %a; ld.param.b32 %a, [i]; \
         mul.lo.u32 %a, %a, 2; st.param.b32 [o], %a; ret; }\n";
    let body = "mov.u64 %d1, one; mov.u64 %d2, two; and.b32 %r1, %t, 1; setp.eq.u32 %p1, %r1, 0; selp.b64 %d3, %d1, %d2, %p1; \
         { .param .b32 a; .param .b32 b; st.param.b32 [a], %t; P: .callprototype (.param .b32 _) _ (.param .b32 _); \
         call (b), %d3, (a), P; ld.param.b32 %o, [b]; } activemask.b32 %r2; setp.ne.u32 %p2, %r2, -1; @%p2 trap;";
    check_with(
        functions,
        body,
        32,
        &expect!["1 2 3 6 5 a 7 e 9 12 b 16 d 1a f 1e 11 22 13 26 15 2a 17 2e 19 32 1b 36 1d 3a 1f 3e"],
    );
}

#[test]
fn functions_may_take_and_give_registers() {
    check_with(
        ".func (.reg .b32 %sum) plus(.reg .b32 %x, .reg .b32 %y) { add.u32 %sum, %x, %y; ret; }\n",
        "call.uni (%o), plus, (%t, 100);",
        4,
        &expect!["64 65 66 67"],
    );
}

#[test]
fn barriers_reduce_over_the_whole_block() {
    check_with("", "setp.lt.u32 %p1, %t, 40; bar.red.popc.u32 %o, 0, %p1;", 70, &expect!["28*70"]);
    check_with(
        "",
        "setp.lt.u32 %p1, %t, 40; bar.red.and.pred %p2, 0, %p1; selp.u32 %o, 1, 2, %p2;",
        70,
        &expect!["2*70"],
    );
    check_with(
        "",
        "setp.lt.u32 %p1, %t, 40; bar.red.or.pred %p2, 1, !%p1; selp.u32 %o, 1, 2, %p2;",
        70,
        &expect!["1*70"],
    );
}

#[test]
fn some_warps_may_meet_at_a_numbered_barrier() {
    check_with(
        "",
        ".shared .u32 flag; setp.ge.u32 %p1, %t, 64; @%p1 bra REST; setp.lt.u32 %p2, %t, 32; @%p2 bra WAIT; \
         st.shared.u32 [flag], 5; bar.arrive 3, 64; bra REST; WAIT: bar.sync 3, 64; ld.shared.u32 %o, [flag]; REST:",
        96,
        &expect!["5*32 0*64"],
    );
}

#[test]
fn ended_warps_do_not_hold_up_a_barrier() {
    check_with("", "setp.ge.u32 %p1, %t, 32; @%p1 exit; bar.sync 0; mov.u32 %o, 1;", 64, &expect!["1*32 0*32"]);
}

#[test]
fn a_barrier_that_only_some_lanes_come_to_is_a_fault() {
    check(
        "setp.lt.u32 %p1, %t, 16; @!%p1 bra S;\nbar.sync 0;\nS:",
        expect![
            "kernel `k`: barrier 0 waits for threads that do not come to it (line 6: `bar.sync 0;`, block 0,0,0 thread 16,0,0)"
        ],
    );
}

#[test]
fn a_barrier_that_only_some_warps_come_to_is_a_fault() {
    check_with(
        "",
        "setp.lt.u32 %p1, %t, 32; @%p1 bra S;\nbar.sync 1;\nbra E;\nS: bar.sync 2;\nE:",
        64,
        &expect![
            "kernel `k`: barrier 2 waits for threads that do not come to it (line 8: `S: bar.sync 2;`, block 0,0,0 thread 0,0,0)"
        ],
    );
}

#[test]
fn an_address_out_of_range_is_reported_with_line_and_thread() {
    check(
        "mad.wide.u32 %d1, %t, 8, %out;\nst.global.u32 [%d1], %t;",
        expect![
            "kernel `k`: write of 4 bytes at 0x700000000080, where no memory is mapped (line 6: `st.global.u32 [%d1], %t;`, block 0,0,0 thread 16,0,0)"
        ],
    );
    check(
        "mov.u64 %d1, 0;\nld.global.u64 %d2, [%d1];",
        expect![
            "kernel `k`: read of 8 bytes at 0x0, where no memory is mapped (line 6: `ld.global.u64 %d2, [%d1];`, block 0,0,0 thread 0,0,0)"
        ],
    );
    check(
        ".shared .b32 s; mov.u32 %r1, s;\nld.shared.u32 %o, [%r1+1028];",
        expect![
            "kernel `k`: read of 4 bytes at 0x404, where no memory is mapped (line 6: `ld.shared.u32 %o, [%r1+1028];`, block 0,0,0 thread 0,0,0)"
        ],
    );
}

#[test]
fn an_odd_address_is_a_fault() {
    check(
        "ld.global.u16 %h1, [%at+1];",
        expect![
            "kernel `k`: read of 2 bytes at 0x700000000001, which is not a multiple of 2 (line 5: `ld.global.u16 %h1, [%at+1];`, block 0,0,0 thread 0,0,0)"
        ],
    );
}

#[test]
fn a_runaway_kernel_is_stopped() {
    let module = Module::parse(&module_around("", "L: add.u32 %o, %o, 1; bra L;")).unwrap();
    let mut device = TestMemory::default();
    let out = device.allocate(&[0; 4096]);
    let bytes = params(&[&out.to_le_bytes()]);
    let options =
        LaunchOptions { block: [64, 1, 1], grid: [8, 1, 1], params: &bytes, threads: 2, ..LaunchOptions::default() };
    let began = std::time::Instant::now();
    let fault = launch_for(&module, "k", &device, &options, Duration::from_millis(50)).unwrap_err();
    assert_eq!(fault.kind, sublet_ptx::FaultKind::Stopped);
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[test]
fn lanes_of_a_warp_may_spin_for_a_lock() {
    check(
        ".shared .u32 lock; .shared .u32 count; setp.eq.u32 %p1, %t, 0; @%p1 st.shared.u32 [lock], 0; \
         @%p1 st.shared.u32 [count], 0; bar.warp.sync -1; SPIN: atom.shared.cas.b32 %r1, [lock], 0, 1; \
         setp.ne.u32 %p2, %r1, 0; @%p2 bra NEXT; ld.shared.u32 %r2, [count]; add.u32 %r2, %r2, 1; \
         st.shared.u32 [count], %r2; atom.shared.exch.b32 %r3, [lock], 0; NEXT: @%p2 bra SPIN; bar.warp.sync -1; \
         ld.shared.u32 %o, [count];",
        expect!["20*32"],
    );
}

#[test]
fn a_lock_may_be_released_after_the_loop_that_waits_for_it() {
    check(
        ".shared .u32 lock; .shared .u32 count; SPIN: atom.shared.cas.b32 %r1, [lock], 0, 1; \
         setp.ne.u32 %p2, %r1, 0; @%p2 bra SPIN; ld.shared.u32 %r2, [count]; add.u32 %r2, %r2, 1; \
         st.shared.u32 [count], %r2; atom.shared.exch.b32 %r3, [lock], 0; bar.warp.sync -1; ld.shared.u32 %o, [count];",
        expect!["20*32"],
    );
    check_with(
        "",
        ".shared .u32 lock; .shared .u32 count; SPIN: atom.shared.cas.b32 %r1, [lock], 0, 1; \
         setp.ne.u32 %p2, %r1, 0; @%p2 bra SPIN; ld.shared.u32 %r2, [count]; add.u32 %r2, %r2, 1; \
         st.shared.u32 [count], %r2; atom.shared.exch.b32 %r3, [lock], 0; bar.sync 0; ld.shared.u32 %r4, [count]; \
         shfl.sync.down.b32 %r5, %t, 1, 31, -1; mad.lo.u32 %o, %r4, 256, %r5;",
        36,
        &expect![
            "2401 2402 2403 2404 2405 2406 2407 2408 2409 240a 240b 240c 240d 240e 240f 2410 2411 2412 2413 2414 2415 2416 2417 2418 2419 241a 241b 241c 241d 241e 241f*2 2421 2422 2423 2400"
        ],
    );
}

#[test]
fn lanes_that_left_a_long_loop_still_shuffle_with_those_that_come_later() {
    check(
        "and.b32 %r1, %t, 1; mul.lo.u32 %r1, %r1, 120000; mov.u32 %r2, 0; \
         L: setp.ge.u32 %p1, %r2, %r1; @%p1 bra E; add.u32 %r2, %r2, 1; bra L; \
         E: shfl.sync.idx.b32 %r3, %r2, 31, 31, -1; bar.sync 0; activemask.b32 %r4; popc.b32 %r4, %r4; \
         add.u32 %o, %r3, %r4;",
        expect!["1d4e0*32"],
    );
}

#[test]
fn a_warp_may_wait_for_what_another_writes() {
    check_with(
        "",
        ".shared .u32 flag; setp.ge.u32 %p1, %t, 32; @%p1 bra W; L: ld.volatile.shared.u32 %r1, [flag]; \
         setp.eq.u32 %p2, %r1, 0; @%p2 bra L; mov.u32 %o, %r1; bra E; W: st.volatile.shared.u32 [flag], 9; E:",
        64,
        &expect!["9*32 0*32"],
    );
}

#[test]
fn asynchronous_copies_are_there_after_the_wait() {
    check(
        ".shared .align 16 .b8 buf[512]; st.global.u32 [%at], %t; bar.sync 0; mov.u32 %r1, buf; mad.lo.u32 %r1, %t, 4, %r1; \
         cp.async.ca.shared.global [%r1], [%at], 4; cp.async.commit_group; cp.async.wait_group 0; bar.sync 0; \
         ld.shared.u32 %o, [%r1];",
        expect!["0 1 2 3 4 5 6 7 8 9 a b c d e f 10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f"],
    );
}

#[test]
fn atomics_return_what_was_there() {
    check(
        ".shared .u32 n; st.shared.u32 [n], 0; bar.sync 0; atom.shared.add.u32 %o, [n], 2;",
        expect!["0 2 4 6 8 a c e 10 12 14 16 18 1a 1c 1e 20 22 24 26 28 2a 2c 2e 30 32 34 36 38 3a 3c 3e"],
    );
    check(
        ".shared .u32 n; st.shared.u32 [n], 0; bar.sync 0; atom.shared.inc.u32 %o, [n], 2;",
        expect!["0 1 2 0 1 2 0 1 2 0 1 2 0 1 2 0 1 2 0 1 2 0 1 2 0 1 2 0 1 2 0 1"],
    );
    check(
        ".shared .f32 n; st.shared.f32 [n], 0f00000000; bar.sync 0; red.shared.add.f32 [n], 0f3F800000; bar.sync 0; ld.shared.u32 %o, [n];",
        expect!["42000000*32"],
    );
}

#[test]
fn a_failed_assertion_says_what_and_where() {
    check_with(
        ".global .align 1 .b8 m[6] = {120, 32, 62, 32, 48, 0};\n.global .align 1 .b8 f[5] = {97, 46, 99, 117, 0};\n\
         .global .align 1 .b8 g[5] = {109, 97, 105, 110, 0};\n\
         .extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);\n",
        "mov.u64 %d1, m; mov.u64 %d2, f; mov.u64 %d3, g; { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; \
         .param .b64 e; st.param.b64 [a], %d1; st.param.b64 [b], %d2; st.param.b32 [c], 42; st.param.b64 [d], %d3; \
         st.param.b64 [e], 1; call.uni __assertfail, (a, b, c, d, e); }",
        1,
        &expect![
            "kernel `k`: assertion `x > 0` failed at a.cu:42 in `main` (line 9: `mov.u64 %d1, m; mov.u64 %d2, f; mov.u64 %d3, g; { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e; st.param.b64 [a], %d1; st.param.b64 [b], %d2; st.param.b32 [c], 42; st.param.b64 [d], %d3; st.param.b64 [e], 1; call.uni __assertfail, (a, b, c, d, e); }`, block 0,0,0 thread 0,0,0)"
        ],
    );
}

#[test]
fn the_clock_goes_on_between_two_reads() {
    check(
        "mov.u64 %d1, %clock64; mov.u32 %r1, %clock; mov.u64 %d2, %clock64; setp.gt.u64 %p1, %d2, %d1; selp.u32 %o, 1, 0, %p1;",
        expect!["1*32"],
    );
}

#[test]
fn special_registers_tell_threads_apart() {
    check_with(
        "",
        "mov.u32 %r1, %laneid; mov.u32 %r2, %warpid; mov.u32 %r3, %nwarpid; mov.u32 %r4, %lanemask_lt; popc.b32 %r4, %r4; \
         sub.u32 %r4, %r4, %r1; mad.lo.u32 %o, %r2, 256, %r1; mad.lo.u32 %o, %r3, 65536, %o; add.u32 %o, %o, %r4; \
         mov.u32 %r5, %envreg3; add.u32 %o, %o, %r5;",
        34,
        &expect![
            "20000 20001 20002 20003 20004 20005 20006 20007 20008 20009 2000a 2000b 2000c 2000d 2000e 2000f 20010 20011 20012 20013 20014 20015 20016 20017 20018 20019 2001a 2001b 2001c 2001d 2001e 2001f 20100 20101"
        ],
    );
}

#[test]
fn blocks_are_spread_over_axes_and_workers() {
    let text = format!(
        "{HEAD}.entry k(.param .u64 out) {{ .reg .b32 %r<12>; .reg .b64 %d<4>; ld.param.u64 %d1, [out]; \
         mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z; mov.u32 %r4, %nctaid.x; mov.u32 %r5, %nctaid.y; \
         mad.lo.u32 %r6, %r3, %r5, %r2; mad.lo.u32 %r6, %r6, %r4, %r1; mov.u32 %r7, %tid.y; mov.u32 %r8, %tid.z; \
         mad.lo.u32 %r9, %r8, 2, %r7; mad.lo.u32 %r9, %r6, 4, %r9; mad.wide.u32 %d2, %r9, 4, %d1; \
         atom.global.add.u32 %r10, [%d2], %r9; ret; }}"
    );
    let module = Module::parse(&text).unwrap();
    let mut device = TestMemory::default();
    let out = device.allocate(&[0; 24 * 4 * 4]);
    let bytes = params(&[&out.to_le_bytes()]);
    let options =
        LaunchOptions { grid: [2, 3, 4], block: [5, 2, 2], params: &bytes, threads: 4, ..LaunchOptions::default() };
    let stats = launch(&module, "k", &device, &options).unwrap();
    // Five threads along x add to each place.
    assert_eq!(device.read_u32(out), (0..96).map(|index| index * 5).collect::<Vec<_>>());
    assert_eq!((stats.blocks, stats.thread_instructions), (24, 24 * 20 * 15));
}

#[test]
fn kernels_print() {
    let text = module_around(
        ".global .align 1 .b8 format[16] = {116, 61, 37, 100, 32, 102, 61, 37, 46, 50, 102, 10, 0};\n\
         .extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n",
        ".local .align 8 .b8 args[16]; mov.u64 %d1, args; cvta.local.u64 %d2, %d1; st.local.u32 [%d1], %t; \
         st.local.f64 [%d1+8], 0d3FF8000000000000; mov.u64 %d3, format; { .param .b64 a; .param .b64 b; .param .b32 r; \
         st.param.b64 [a], %d3; st.param.b64 [b], %d2; call.uni (r), vprintf, (a, b); }",
    );
    let module = Module::parse(&text).unwrap();
    let mut device = TestMemory::default();
    let variables = device.load(&module);
    let out = device.allocate(&[0; 8]);
    let bytes = params(&[&out.to_le_bytes()]);
    let told = Mutex::new(String::new());
    let print = |line: &str| told.lock().unwrap().push_str(line);
    let options = LaunchOptions {
        block: [2, 1, 1],
        params: &bytes,
        variables: &variables,
        print: Some(&print),
        ..LaunchOptions::default()
    };
    launch(&module, "k", &device, &options).unwrap();
    assert_eq!(*told.lock().unwrap(), "t=0 f=1.50\nt=1 f=1.50\n");
}

#[test]
fn what_is_not_run_is_refused_by_name() {
    check("frobnicate.u32 %o, %t;", expect!["line 5, column 1: unknown instruction `frobnicate.u32`"]);
    check(".reg .f16 %x; add.f16 %x, %x, %x;", expect!["line 5, column 15: `add.f16` is not supported"]);
    check(".reg .f16x2 %x;", expect!["0*32"]);
    check("wgmma.fence.sync.aligned;", expect!["line 5, column 1: `wgmma.fence.sync.aligned` is not supported"]);
    check(
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r2];",
        expect!["line 5, column 1: `ldmatrix.sync.aligned.m8n8.x1.shared.b16` is not supported"],
    );
    check(
        "cp.async.bulk.commit_group;",
        expect!["line 5, column 1: `cp.async.bulk.commit_group` with `.bulk` is not supported"],
    );
    check("add.s16x2 %o, %t, %t;", expect!["line 5, column 1: `add.s16x2` is not supported"]);
    check("add.u32.odd %o, %t, 1;", expect!["line 5, column 1: `add.u32.odd` with `.odd` is not supported"]);
    check("add.u32 %o, %nothing, 1;", expect!["line 5, column 1: `%nothing` is not declared"]);
    check("add.u64 %d1, %t, 1;", expect!["line 5, column 1: `%t` has 32 bits, and 64 are needed"]);
    check("bra NOWHERE;", expect!["line 5, column 1: label `NOWHERE` does not stand in this function"]);
}

#[test]
fn a_hostile_module_meets_a_limit() {
    let told = |text: &str| match Module::parse(&format!("{HEAD}{text}")) {
        Ok(_) => "read".to_owned(),
        Err(error) => error.to_string(),
    };
    let many = |part: &str, count: usize| part.repeat(count);
    let registers = (0..70_000).map(|index| format!("mov.u32 %r{index}, 0;")).collect::<String>();
    let functions = (0..17_000).map(|index| format!(".func f{index}() {{ ret; }}\n")).collect::<String>();
    let answers = [
        told(&format!(".entry k() {{ {} }}", many("{", 100))),
        told(&format!(".entry k() {{ .reg .b32 %r<4000000000>; {registers} ret; }}")),
        told(".entry k() { .local .align 4 .b8 x[99999999999]; ret; }"),
        told(".global .align 4 .b8 x[99999999999999999];"),
        told(".entry k() { .shared .align 4 .b8 x[300000]; .reg .b32 %r; mov.u32 %r, x; ret; }"),
        told(&format!(
            ".entry k() {{ .reg .pred %p; {} ret; }}",
            (0..70_000).map(|i| format!("L{i}: ")).collect::<String>()
        )),
        told(".entry k(.param .align 4 .b8 x[99999]) { ret; }"),
        told(&functions),
        told(&many("/", 100_000)),
        told(&many("(", 100_000)),
        told(&format!(".global .b8 x[] = {};", many("{", 100_000))),
    ];
    expect![[r#"
        line 4, column 77: the nesting of scopes: more than the limit of 64
        line 4, column 1234095: the bytes of a function's registers: more than the limit of 8388608
        line 4, column 34: the local bytes of a thread: more than the limit of 524288
        line 4, column 22: a variable's bytes: more than the limit of 274877906944
        line 4, column 1: the shared bytes of a block: more than the limit of 232448
        line 4, column 1: the branches and labels of a function: more than the limit of 65536
        line 4, column 10: the bytes of parameters: more than the limit of 32768
        line 16388, column 1: the functions of a module: more than the limit of 16384
        read
        line 4, column 1: expected a directive, found `(`
        line 4, column 100019: expected a value, found `;`
    "#]]
    .assert_eq(&(answers.join("\n") + "\n"));
}

#[test]
fn a_launch_that_cannot_be_is_refused() {
    let module = Module::parse(&format!("{HEAD}.entry k(.param .u32 n) .reqntid 32 {{ ret; }}")).unwrap();
    let device = TestMemory::default();
    let refusal = |options: LaunchOptions<'_>| launch(&module, "k", &device, &options).unwrap_err().to_string();
    let told = [
        refusal(LaunchOptions { block: [64, 1, 1], params: &[0; 4], ..LaunchOptions::default() }),
        refusal(LaunchOptions { block: [2048, 1, 1], params: &[0; 4], ..LaunchOptions::default() }),
        refusal(LaunchOptions { block: [u32::MAX, u32::MAX, u32::MAX], params: &[0; 4], ..LaunchOptions::default() }),
        refusal(LaunchOptions { grid: [0, 1, 1], params: &[0; 4], ..LaunchOptions::default() }),
        refusal(LaunchOptions { params: &[0; 3], ..LaunchOptions::default() }),
        refusal(LaunchOptions { shared: u32::MAX, params: &[0; 4], ..LaunchOptions::default() }),
    ];
    expect![[r#"
        kernel `k`: the kernel requires another block than 64x1x1
        kernel `k`: a block of 2048x1x1 threads is not within 1 to 1024
        kernel `k`: a block of 4294967295x4294967295x4294967295 threads is not within 1 to 1024
        kernel `k`: a grid of 0x1x1 blocks is not valid
        kernel `k`: 3 parameter bytes given, 4 needed
        kernel `k`: 4294967295 shared bytes are more than 232448
    "#]]
    .assert_eq(&(told.join("\n") + "\n"));
}
