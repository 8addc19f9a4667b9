//! Lines between the daemon and its worker processes, and core's state after the GPUs and readings that they report.
//!
//! Each line of an input begins with a letter: `l` answers a request for a list, `o` one for a reading, both through
//! the GPU thread and the process thread into core's state; `c`, `d`, `r`, `R` and `m` are lines of the other kinds.
//! Properties: a line is refused or taken, a refused one changes nothing, what is understood is the same after it was
//! written and read again, and core never grants more of a GPU than it has.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sublet_core::event::{Caller, Event};
use sublet_core::facts::{DaemonEvent, GpuEvent, LeaseEvent};
use sublet_core::ids::Fence;
use sublet_core::request::{LeaseRequest, Term};
use sublet_core::rows::Rows;
use sublet_core::settings::Policy;
use sublet_core::units::{Bytes, Span, Time};
use sublet_core::{State, decide};
use sublet_host::HostReport;
use sublet_host::fuzz::{WorkerLineKind, WorkerLines, round_trip};

fuzz_target!(|data: &[u8]| {
    let mut worker = WorkerLines::new().expect("descriptors");
    let mut core = TwoTenantCore::new();
    for line in data.split(|byte| *byte == b'\n').take(32) {
        let Some((kind, line)) = line.split_first() else { continue };
        let (other, sights) = match kind {
            b'l' => (WorkerLineKind::GpuAnswer, worker.list(line)),
            b'o' => (WorkerLineKind::GpuAnswer, worker.look(line)),
            b'r' => (WorkerLineKind::GpuRequest, None),
            b'd' => (WorkerLineKind::DriverAnswer, None),
            b'R' => (WorkerLineKind::DriverRequest, None),
            b'm' => (WorkerLineKind::Context, None),
            _ => (WorkerLineKind::GpuAnswer, None),
        };
        let is_understood = round_trip(other, line).unwrap_or_else(|text| panic!("it became {text}"));
        assert!(is_understood || sights.is_none(), "a line that is not understood was taken");
        assert!(sights.is_some() || worker.reports().is_empty(), "a refused line told something");
        sights.unwrap_or_default().into_iter().for_each(|sight| core.apply_sight(sight));
    }
});

/// Core with two tenants that want memory, told what the daemon's loop would tell it.
struct TwoTenantCore {
    state: State,
    now: Time,
}

impl TwoTenantCore {
    fn new() -> TwoTenantCore {
        let mut core = TwoTenantCore { state: State::new(Rows::default(), Policy::default()), now: Time(1_000_000) };
        core.decide(Event::Daemon(DaemonEvent::Started {
            boot: "boot".to_owned(),
            clock_offset_us: 0,
            fence_floor: Fence(1),
            lease_floor: 1,
        }));
        for (tenant, gpus) in [("uid:1000", 1), ("uid:1001", 2)] {
            let ask = LeaseRequest { gpus, ..LeaseRequest::plain(Bytes::gib(1), Term::Renewed(Span::secs(300))) };
            core.decide(Event::Lease(LeaseEvent::Requested {
                by: Caller::user(tenant),
                request: ask,
                wait: None,
                root: None,
            }));
        }
        core
    }

    fn apply_sight(&mut self, sight: HostReport) {
        match sight {
            HostReport::Gpus(cards) => self.decide(Event::Gpu(GpuEvent::Listed(cards))),
            HostReport::Observed { uuid, observation } => {
                self.decide(Event::Gpu(GpuEvent::ReadingTaken { gpu: uuid, reading: observation }))
            }
            _ => {}
        }
        self.decide(Event::Daemon(DaemonEvent::Ticked));
        self.check();
    }

    fn decide(&mut self, event: Event) {
        self.now = self.now + Span::secs(1);
        drop(decide(&mut self.state, self.now, event));
    }

    /// Checks that granted leases fit on their GPUs.
    fn check(&self) {
        for card in self.state.gpus() {
            let rows = self.state.rows();
            let held = rows.leases.values().filter_map(|lease| lease.hold()).filter(|hold| hold.gpus.contains(&card));
            let promised: Bytes = held.map(|hold| hold.vram).sum();
            let total = rows.gpus[card].facts.total;
            // A GPU may be listed with less memory later on; the one tenant's lease stays, and no other is granted.
            assert!(promised <= total || promised <= Bytes::gib(2), "{promised} of {total}");
        }
    }
}
