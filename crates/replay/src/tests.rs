//! Whole replays against schedules worked out by hand, and what must always add up.

use crate::drive::{JobStage, LeaseTerms, ReplayRun, ReplaySetup, drive};
use crate::host_gpus::HostGpus;
use crate::policies::{PolicyName, for_replay, policy};
use crate::report::{ReplayOptions, ReplayReport, replay};
use crate::synthetic::{SyntheticShape, make};
use crate::trace::Trace;
use crate::{alibaba, csv, json, plots};
use expect_test::expect;
use sublet_core::request::Tier;
use sublet_core::settings::Policy;
use sublet_core::units::{Bytes, Span, Time};

const HEADER: &str = "arrival_s,tenant,vram,gpus,duration_s,tier";

fn trace(lines: &str) -> Trace {
    let lines: Vec<&str> = lines.lines().map(str::trim).collect();
    csv::read(&format!("{HEADER}\n{}", lines.join("\n")), "a test").unwrap()
}

fn gpus(text: &str) -> HostGpus {
    text.parse().unwrap()
}

fn run_on(trace: &Trace, host_gpus: &str, name: PolicyName, leases: LeaseTerms, until: Option<Time>) -> ReplayRun {
    let (host_gpus, policy) = (gpus(host_gpus), for_replay(policy(name, &Policy::default()), None, None));
    drive(&ReplaySetup { trace, host_gpus: &host_gpus, policy, leases, until, slot: Span::secs(600) })
}

fn options(policies: &[PolicyName], leases: LeaseTerms) -> ReplayOptions {
    ReplayOptions {
        rules: Policy::default(),
        policies: policies.to_vec(),
        leases,
        starved: 10.0,
        places: None,
        until: None,
        parking: None,
    }
}

fn report_on(trace: &Trace, host_gpus: &str, leases: LeaseTerms) -> ReplayReport {
    replay(trace, &gpus(host_gpus), &options(&PolicyName::ALL, leases), |_| {})
}

/// In whole seconds, how long each job waited.
fn waits(run: &ReplayRun) -> Vec<u64> {
    run.courses.iter().map(|course| (course.waited.0 + 500_000) / 1_000_000).collect()
}

fn many_jobs(seed: u64) -> Trace {
    let shape = SyntheticShape { seed, jobs: 2_000, tenants: 7, chatty: true, load: 0.9 };
    make(&shape, &gpus("4x24GiB"), Bytes::mib(256)).unwrap()
}

// ---- schedules worked out by hand ------------------------------------------------

#[test]
fn fifo_on_one_gpu_is_served_by_arrival_and_fair_by_arrival_less_head_start() {
    // Two do not fit beside each other on the GPU.
    let trace = trace(
        "0,ann,6GiB,1,100,batch
         10,ben,6GiB,1,50,batch
         20,cat,6GiB,1,30,interactive",
    );
    let fifo = run_on(&trace, "1x10GiB", PolicyName::Fifo, LeaseTerms::Renewed, None);
    // ann 0 to 100, ben 100 to 150, cat 150 to 180.
    assert_eq!(waits(&fifo), [0, 90, 130]);
    assert_eq!(fifo.ended.since(Time::ZERO).secs_ceil(), 181, "two looks of a microsecond each");
    // ann 0 to 100, cat 100 to 130 by 20 minutes of head start, ben 130 to 180.
    let fair = run_on(&trace, "1x10GiB", PolicyName::Fair, LeaseTerms::Renewed, None);
    assert_eq!(waits(&fair), [0, 120, 80]);
}

#[test]
fn utilisation_is_what_the_schedule_says() {
    let trace = trace(
        "0,ann,6GiB,1,100,batch
         10,ben,6GiB,1,50,batch
         20,cat,6GiB,1,30,batch",
    );
    let report = report_on(&trace, "1x10GiB", LeaseTerms::Renewed);
    let used = &report.policies[0].utilisation;
    let close = |left: f64, right: f64| (left - right).abs() < 1e-4;
    assert!(close(used.share, 6.0 / 9.75), "{used:?}");
    assert!(close(used.time_somebody_waited, 140.0 / 180.0), "{used:?}");
    assert!(close(used.idle_while_waiting, 3.75 * 140.0 / (9.75 * 180.0)), "{used:?}");
    assert!(close(used.time_waited_beside_room, 0.0), "nobody who waits would fit: {used:?}");
}

#[test]
fn time_waited_beside_reserved_room_is_reported() {
    // The gang takes both GPUs for 100 s; the job behind it would fit on the empty one, but not
    // beside the gang, and not until then.
    let trace = trace(
        "0,ann,6GiB,1,100,batch
         10,ben,6GiB,2,50,batch
         20,cat,5GiB,1,90,batch",
    );
    let fifo = run_on(&trace, "2x10GiB", PolicyName::Fifo, LeaseTerms::Fixed, None);
    assert_eq!(waits(&fifo), [0, 90, 130]);
    assert_eq!(fifo.usage.fitting_us / 1_000_000, 80, "from 20 s to 100 s");
}

#[test]
fn at_the_hold_cap_jobs_take_turns_and_with_fixed_terms_they_do_not() {
    let trace = trace(
        "0,ann,6GiB,1,3600,batch
         0,ben,6GiB,1,3600,batch",
    );
    // ann 0 to 1800, ben to 3600, ann to 5400, ben to 7200.
    let turns = run_on(&trace, "1x10GiB", PolicyName::Fifo, LeaseTerms::Renewed, None);
    assert_eq!(waits(&turns), [1800, 3600]);
    assert_eq!(turns.courses.iter().map(|course| course.turns).collect::<Vec<_>>(), [2, 2]);
    let fixed = run_on(&trace, "1x10GiB", PolicyName::Fifo, LeaseTerms::Fixed, None);
    assert_eq!(waits(&fixed), [0, 3600]);
    assert_eq!(fixed.courses.iter().map(|course| course.turns).collect::<Vec<_>>(), [1, 1]);
    let report = report_on(&trace, "1x10GiB", LeaseTerms::Renewed);
    assert_eq!((report.policies[0].turns, report.policies[0].cut), (4, 2));
}

#[test]
fn a_job_without_rivals_is_renewed_past_the_hold_cap() {
    let run = run_on(&trace("0,ann,6GiB,1,86400,batch"), "1x10GiB", PolicyName::Fair, LeaseTerms::Renewed, None);
    assert_eq!((run.courses[0].turns, run.courses[0].waited), (1, Span::ZERO));
    assert_eq!(run.ended, Time(86_400_000_001), "and the last look");
}

#[test]
fn fairness_is_judged_where_more_is_wanted_than_there_is() {
    let trace = trace(
        "0,ann,6GiB,1,3600,batch
         0,ben,6GiB,1,3600,batch",
    );
    // One of two tenants has the GPU in each of six slots of 10 minutes, and always the same one.
    let fixed = &report_on(&trace, "1x10GiB", LeaseTerms::Fixed).policies[0].fairness;
    assert_eq!((fixed.jain, fixed.jain_per_slot, fixed.contended_slots), (0.5, 0.5, 6));
    // With time slices, ann has it for two thirds of nine slots: (2 + 1)² / (2 × (4 + 1)).
    let turns = &report_on(&trace, "1x10GiB", LeaseTerms::Renewed).policies[0].fairness;
    assert_eq!((turns.jain, turns.jain_per_slot, turns.contended_slots), (0.9, 0.5, 9));
}

#[test]
fn what_can_never_fit_is_refused_in_the_words_of_the_core() {
    let trace = trace(
        "0,ann,60GiB,1,10,batch
         1,ann,6GiB,3,10,batch
         2,ann,6GiB,2,10,batch",
    );
    let outcome = &report_on(&trace, "2x10GiB", LeaseTerms::Renewed).policies[0];
    assert_eq!((outcome.jobs, outcome.finished, outcome.refused), (3, 1, 2));
    assert_eq!(outcome.refusals.len(), 1);
    assert!(outcome.refusals[0].why.starts_with("this can never be granted"), "{:?}", outcome.refusals);
    let one_place = ReplayOptions {
        rules: Policy::default(),
        places: Some(0),
        ..options(&[PolicyName::Fifo], LeaseTerms::Renewed)
    };
    let outcome = &replay(&trace, &gpus("2x10GiB"), &one_place, |_| {}).policies[0];
    assert_eq!((outcome.finished, outcome.refused, outcome.refusals.len()), (0, 3, 2));
}

// ---- what must always add up -----------------------------------------------------

#[test]
fn every_job_is_counted_and_every_byte_second_belongs_to_a_tenant() {
    let trace = many_jobs(5);
    let halfway = Time(trace.jobs[1_000].arrival.0);
    for (leases, until) in
        [(LeaseTerms::Renewed, None), (LeaseTerms::Fixed, None), (LeaseTerms::Renewed, Some(halfway))]
    {
        for name in PolicyName::ALL {
            let run = run_on(&trace, "4x24GiB", name, leases, until);
            let count = |stage| run.courses.iter().filter(|course| course.stage == stage).count();
            let places =
                [JobStage::Finished, JobStage::Refused, JobStage::Waiting, JobStage::Running, JobStage::NotYet]
                    .map(count);
            assert_eq!(places.iter().sum::<usize>(), 2_000);
            let work = trace.jobs.iter().zip(&run.courses);
            let work: u128 =
                work.map(|(job, course)| u128::from(job.bytes()) * u128::from(job.duration.0 - course.left.0)).sum();
            assert_eq!(run.usage.granted, work, "work done is bytes granted, times time");
            let service: u128 = (0..trace.tenants.len()).map(|n| run.usage.tenant_usage(n).service).sum();
            assert_eq!(run.usage.granted, service, "and each piece is one tenant's");
            if until.is_none() {
                assert_eq!(places[0], 2_000, "all work is done in the end");
                assert_eq!(run.charged, run.usage.granted, "the core charged just that");
            } else {
                assert!(places[2] > 0 && places[3] > 0, "halfway, somebody waits and somebody runs: {places:?}");
                assert!(run.charged < run.usage.granted);
                assert_eq!(run.ended, halfway);
            }
            assert!(run.usage.granted <= run.usage.leasable_byte_us());
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_report_and_another_one_does_not() {
    let text = |seed| {
        let trace = many_jobs(seed);
        serde_json::to_string(&report_on(&trace, "4x24GiB", LeaseTerms::Renewed)).unwrap()
    };
    assert_eq!(text(3), text(3));
    assert_ne!(text(3), text(4));
}

#[test]
fn a_trace_that_was_written_is_read_again_as_it_was() {
    let trace = many_jobs(8);
    let again = csv::read(&trace.to_csv(), "again").unwrap();
    assert_eq!((&again.jobs, &again.tenants), (&trace.jobs, &trace.tenants));
}

#[test]
fn names_with_spaces_at_their_ends_and_empty_names_survive_being_written_as_csv() {
    let job = r#"{"arrival_s":0,"tenant":"TENANT","vram":1,"gpus":1,"duration_s":1,"tier":"spot","name":"NAME"}"#;
    for (tenant, name) in [("\u{a0}ann", "x\u{2003}"), (" ann ", ""), ("a,\"b", " "), ("\u{feff}ann", "\u{3000}")] {
        let quoted = |text: &str| text.replace('"', "\\\"");
        let trace = json::read(&job.replace("TENANT", &quoted(tenant)).replace("NAME", &quoted(name)), "").unwrap();
        let again = csv::read(&trace.to_csv(), "").unwrap();
        assert_eq!((again.jobs, again.tenants), (trace.jobs, trace.tenants), "{tenant:?} {name:?}");
    }
}

#[test]
fn a_synthetic_trace_has_what_makes_sharing_hard() {
    let trace = many_jobs(1);
    let of = |name: &str| {
        let tenant = trace.tenants.iter().position(|tenant| tenant == name).unwrap() as u32;
        trace.jobs.iter().filter(move |job| job.tenant == tenant)
    };
    assert_eq!(of("dumper").count(), 400, "a fifth of a small trace");
    assert!(of("dumper").all(|job| job.arrival == of("dumper").next().unwrap().arrival), "all at once");
    assert!((400..700).contains(&of("chatty").count()), "{}", of("chatty").count());
    assert!(of("chatty").all(|job| job.tier == Tier::Interactive && job.duration <= Span::secs(180)));
    assert!(trace.jobs.iter().any(|job| job.gpus > 1), "gangs");
    let could = u128::from(gpus("4x24GiB").leasable(Bytes::mib(256)).0) * u128::from(trace.span().0);
    let load = trace.demand() as f64 / could as f64;
    assert!((0.85..1.0).contains(&load), "{load}");
}

#[test]
fn faster_arrivals_change_only_arrivals_and_are_noted() {
    let mut trace = many_jobs(1);
    let before = trace.clone();
    trace.speed_up(4.0);
    assert_eq!(trace.demand(), before.demand());
    assert_eq!(trace.jobs[1_999].arrival.0, (before.jobs[1_999].arrival.0 as f64 / 4.0).round() as u64);
    assert!(trace.notes.last().unwrap().contains("4 times closer"), "{:?}", trace.notes);
}

// ---- reading ---------------------------------------------------------------------

fn refused(text: &str) -> String {
    let read = if json::is_json(text) { json::read } else { csv::read };
    read(text, "a test").unwrap_err().to_string()
}

#[test]
fn what_is_not_a_trace_is_refused_with_its_line() {
    let csv = |line: &str| refused(&format!("{HEADER}\n0,ann,1GiB,1,10,batch\n{line}\n"));
    let all = [
        refused(""),
        refused(HEADER),
        refused("arrival_s,tenant,vram,gpus,duration_s\n0,ann,1GiB,1,10\n"),
        refused(&format!("{HEADER},colour\n0,ann,1GiB,1,10,batch,red\n")),
        csv("1,ann,1GiB,1,10"),
        csv("1,ann,1GiB,1,ten,batch"),
        csv("1,ann,1GiB,0,10,batch"),
        csv("1,ann,1GiB,65,10,batch"),
        csv("1,ann,0,1,10,batch"),
        csv("1,ann,2000TiB,1,10,batch"),
        csv("1,ann,1Gig,1,10,batch"),
        csv("1,ann,1GiB,1,0,batch"),
        csv("1,ann,1GiB,1,1e9,batch"),
        csv("1,ann,1GiB,1,NaN,batch"),
        csv("-1,ann,1GiB,1,10,batch"),
        csv("inf,ann,1GiB,1,10,batch"),
        csv("1,,1GiB,1,10,batch"),
        csv("1,ann,1GiB,1,10,Batch"),
        csv("1,\"ann,1GiB,1,10,batch"),
        csv("5,ann,1GiB,1,10,batch\n4,ann,1GiB,1,10,batch"),
        refused(
            "[\n {\"arrival_s\": 0, \"tenant\": \"ann\", \"vram\": 5, \"gpus\": 1, \"duration_s\": 1, \"tier\": \"batch\"},\n\n {\"arrival_s\": 0, \"tenant\": \"ann\", \"vram\": 0, \"gpus\": 1, \"duration_s\": 1, \"tier\": \"batch\"}]",
        ),
        refused("[{\"arrival_s\": 0,\n \"color\": 1}]"),
        refused("[{\"arrival_s\": 0]"),
        refused(
            "{\"arrival_s\": 0, \"tenant\": \"ann\", \"vram\": 5, \"gpus\": 1, \"duration_s\": 1, \"tier\": \"batch\"}\n{\"arrival_s\": 0, \"tenant\": \"ann\", \"vram\": 5, \"gpus\": 1, \"duration_s\": 1, \"tier\": \"fast\"}",
        ),
        refused("[]"),
    ];
    expect![[r#"
        it is empty
        there is no job in it
        line 1: column `tier` is missing
        line 1: column `colour` is not known; there are: arrival_s, tenant, vram, gpus, duration_s, tier, priority, name
        line 3: 5 fields, but the header has 6
        line 3: `duration_s` "ten" is not a number that fits there
        line 3: `gpus` 0 is not 1 to 64
        line 3: `gpus` 65 is not 1 to 64
        line 3: `vram` of 0 bytes is not between 1 byte and 1024 TiB
        line 3: `vram` of 2199023255552000 bytes is not between 1 byte and 1024 TiB
        line 3: `vram`: "1Gig" is not a size: write bytes, or a number and K, M, G or T
        line 3: `duration_s` 0 is not above 0 and at most a year
        line 3: `duration_s` 1000000000 is not above 0 and at most a year
        line 3: `duration_s` NaN is not above 0 and at most a year
        line 3: `arrival_s` -1 is not between 0 and a century
        line 3: `arrival_s` inf is not between 0 and a century
        line 3: `tenant` must be 1 to 64 characters, without control characters
        line 3: `tier` "Batch" is not `interactive`, `batch` or `spot`
        line 3: a quote is not closed
        line 4: `arrival_s` 4 is before the last job's, 5: a trace must be sorted by arrival
        line 4: `vram` of 0 bytes is not between 1 byte and 1024 TiB
        line 2: unknown field `color`, expected one of `arrival_s`, `tenant`, `vram`, `gpus`, `duration_s`, `tier`, `priority`, `name`
        line 1: expected `,` or `}`
        line 2: unknown variant `fast`, expected one of `interactive`, `batch`, `spot`
        there is no job in it
    "#]].assert_eq(&(all.join("\n") + "\n"));
}

#[test]
fn csv_json_and_json_lines_give_the_same_trace() {
    let table =
        "vram,arrival_s,tenant,gpus,duration_s,tier,name,priority\n1GiB,0.5,\"a, \"\"b\"\"\",2,1.25,spot,x,-3\n";
    let array = r#"[{"arrival_s": 0.5, "tenant": "a, \"b\"", "vram": "1G", "gpus": 2, "duration_s": 1.25, "tier": "spot", "name": "x", "priority": -3}]"#;
    let lines = &array[1..array.len() - 1];
    let trace = csv::read(table, "t").unwrap();
    assert_eq!(json::read(array, "t").unwrap(), trace);
    assert_eq!(json::read(lines, "t").unwrap(), trace);
    assert_eq!(trace.jobs[0].vram, Bytes::gib(1));
    assert_eq!((trace.jobs[0].arrival, trace.jobs[0].duration), (Time(500_000), Span(1_250_000)));
}

#[test]
fn gpus_are_parsed_from_counts_and_sizes() {
    assert_eq!(gpus("4x24GiB,2x80G").gpus.len(), 6);
    assert_eq!(gpus("4x24GiB,2x80G").to_string(), "4x24GiB,2x80GiB");
    assert_eq!(gpus("80GiB").to_string(), "1x80GiB");
    for text in ["", "8", "8x80", "0x80GiB", "8xGiB", "8x80GiB,", "2000x80GiB", "2x5MiB", "2x9999T"] {
        assert!(text.parse::<HostGpus>().is_err(), "{text}");
    }
}

/// Made up in the form of the published list.
const ALIBABA: &str = "\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod-a,4000,8192,1,500,,LS,Running,100,400,110
pod-b,4000,8192,0,0,,LS,Running,120,500,120
pod-c,4000,8192,2,1000,,BE,Failed,130,190,130
pod-d,4000,8192,1,250,,LS,Pending,140,900,
pod-e,4000,8192,1,250,V100,Burstable,Succeeded,150,150,150
";

#[test]
fn alibabas_list_becomes_a_trace_with_notes_on_derived_values() {
    let read = |text: &str| alibaba::read(text, &gpus("2x10GiB"), Bytes::mib(256), 3, 1);
    let trace = read(ALIBABA).unwrap();
    let leasable = Bytes::gib(10).less(Bytes::mib(256));
    let [first, second] = &trace.jobs[..] else { panic!("{:?}", trace.jobs) };
    assert_eq!((first.arrival, first.duration), (Time(100_000_000), Span::secs(290)));
    assert_eq!((first.vram, first.gpus, first.tier), (Bytes(leasable.0 / 2), 1, Tier::Interactive));
    assert_eq!((second.vram, second.gpus, second.tier), (leasable, 2, Tier::Spot));
    expect![[r#"
        Alibaba cluster-trace-gpu-v2023 (USENIX ATC '23, "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent")
        tenants are not in the trace: 3 were drawn by seed 1, the n-th with weight 1/n
        bytes are not in the trace: thousandths of a GPU were taken of 9.8 GiB each
        tiers are from its qos: LS and Guaranteed interactive, Burstable batch, BE spot; it has no priorities
        a task arrives when it was created and works from scheduling to deletion; how busy its GPU was is not in the trace
        left out of 5 tasks: 1 without a GPU, 1 never scheduled (how long they would have run is unknown), 1 deleted when they were scheduled
    "#]].assert_eq(&format!("{}\n{}\n", trace.source, trace.notes.join("\n")));
    let strange = ALIBABA.replace("Burstable", "Sometimes");
    assert!(read(&strange).is_ok(), "a task that is left out is not judged");
    assert_eq!(
        read(&ALIBABA.replace(",BE,", ",XX,")).unwrap_err().to_string(),
        "line 4: `qos` \"XX\" is not LS, Guaranteed, Burstable or BE"
    );
}

// ---- plots -----------------------------------------------------------------------

#[test]
fn plots_have_titles_units_both_policies_and_no_tags_of_others() {
    let trace = trace(
        "0,<b>ann</b>,6GiB,1,4000,batch
         10,ben,6GiB,1,50,batch",
    );
    let plots = plots::all_plots(&report_on(&trace, "1x10GiB", LeaseTerms::Renewed));
    assert_eq!(
        plots.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        ["wait-distribution.svg", "p99-by-tenant.svg", "over-time.svg"]
    );
    for (name, svg) in &plots {
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{name}");
        assert!(svg.contains(">fifo<") && svg.contains(">fair<") && svg.contains("<title>"), "{name}");
        assert!(!svg.contains("<b>") && !svg.contains("NaN") && !svg.contains("inf"), "{name}");
    }
    assert!(plots[1].1.contains("&lt;b&gt;ann") && plots[1].1.contains("waited no longer (minutes)"), "{}", plots[1].1);
    assert!(plots[2].1.contains("(minutes)") && plots[2].1.matches("<polyline").count() == 6);
}

// ---- parking, and what waiters are told --------------------------------------------

fn parked_on(trace: &Trace, host_gpus: &str, finish: bool) -> ReplayRun {
    let mut rules = Policy::default();
    rules.parking.stretches_slices = finish;
    let policy = for_replay(policy(PolicyName::Fair, &rules), None, Some(Bytes::gib(256)));
    let host_gpus = gpus(host_gpus);
    drive(&ReplaySetup {
        trace,
        host_gpus: &host_gpus,
        policy,
        leases: LeaseTerms::Renewed,
        until: None,
        slot: Span::secs(600),
    })
}

fn mean_completion_s(run: &ReplayRun) -> f64 {
    let took: Vec<f64> = run.courses.iter().filter_map(|course| course.took).map(|took| took.as_secs_f64()).collect();
    assert_eq!(took.len(), run.courses.len(), "all finish");
    took.iter().sum::<f64>() / took.len() as f64
}

#[test]
fn a_batch_job_is_parked_for_an_interactive_one_and_goes_on_after_it() {
    let trace = trace(
        "0,ann,6GiB,1,100,batch
         10,ben,6GiB,1,50,interactive",
    );
    let run = parked_on(&trace, "1x10GiB", true);
    assert_eq!(run.preemptions, 1);
    let [ann, ben] = &run.courses[..] else { panic!("{:?}", run.courses) };
    // Two moves of 6 GiB take 0.276 s each.
    let near = |span: Option<Span>, seconds: f64| (span.unwrap().as_secs_f64() - seconds).abs() < 0.01;
    assert!(near(ben.took, 50.276), "{ben:?}");
    assert!(near(ann.took, 150.552), "{ann:?}");
    assert_eq!((ann.turns, ben.turns), (2, 1));
}

#[test]
fn twenty_short_jobs_finish_one_after_the_other() {
    let lines: Vec<String> = (0..20).map(|n| format!("0.{n:02},ann,4GiB,1,13,batch")).collect();
    let trace = trace(&lines.join("\n"));
    let (before, after) = (parked_on(&trace, "1x6GiB", false), parked_on(&trace, "1x6GiB", true));
    let (before_s, after_s) = (mean_completion_s(&before), mean_completion_s(&after));
    // One after the other without a break: 13 s × 10.5.
    assert!(after_s < 136.5 * 1.03, "{after_s}");
    assert!(before_s > 136.5 * 1.6, "{before_s}");
    assert!(after.preemptions <= 2, "{} until it is known how long they take", after.preemptions);
}

#[test]
fn nine_of_ten_requests_start_within_their_prediction() {
    let shape = SyntheticShape { seed: 3, jobs: 4_000, tenants: 12, chatty: true, load: 0.6 };
    let trace = make(&shape, &gpus("4x24GiB"), Bytes::mib(256)).unwrap();
    for run in
        [run_on(&trace, "4x24GiB", PolicyName::Fair, LeaseTerms::Renewed, None), parked_on(&trace, "4x24GiB", true)]
    {
        let report = run.calibration.report();
        assert!(report.known > 100, "{report:?}");
        assert!((0.85..=0.95).contains(&report.within_p90.unwrap()), "{report:#?}");
        assert!((0.4..=0.75).contains(&report.within_p50.unwrap()), "{report:#?}");
        let both = report.bound.unwrap();
        assert!(both.requests > 20 && both.expected.mean_s <= both.other.mean_s / 2.0, "{both:?}");
    }
}
