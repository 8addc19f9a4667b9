//! Which holders are reported as working.

use crate::support::{OFTEN, Rig, Tree, exe, fresh_lease, my_uid};
use std::process::Command;
use sublet_core::ids::LeaseId;
use sublet_host::HostReport;

crate::tests![a_busy_holder_worked_and_a_sleeping_one_did_not, a_holder_that_uses_the_gpu_worked];

fn a_busy_holder_worked_and_a_sleeping_one_did_not() {
    let (spinning, sleeping) = (fresh_lease(), fresh_lease());
    let rig = Rig::new(OFTEN);
    let (busy, asleep) = (Tree::of(Command::new(exe()).arg("spin"), 0), Tree::sleeper());
    rig.host.watch_holder(spinning, my_uid(), vec![busy.root()], None);
    rig.host.watch_holder(sleeping, my_uid(), vec![asleep.root()], None);
    let mut from = 0;
    for _ in 0..5 {
        from = worked(&rig, from, spinning);
    }
    assert!(!rig.reports().contains(&HostReport::Worked { lease: sleeping }));
}

fn a_holder_that_uses_the_gpu_worked() {
    let sleeping = fresh_lease();
    let rig = Rig::new(OFTEN);
    let tree = Tree::sleeper();
    rig.host.watch_holder(sleeping, my_uid(), vec![tree.root()], None);
    let pid = tree.pids[0];
    rig.script(&format!(r#"{{"cards":[{{"index":0,"processes":[{{"pid":{pid},"bytes":1048576,"busy":true}}]}}]}}"#));
    worked(&rig, 0, sleeping);
}

fn worked(rig: &Rig, from: usize, lease: LeaseId) -> usize {
    rig.after(from, "work", |report| (*report == HostReport::Worked { lease }).then_some(())).1
}
