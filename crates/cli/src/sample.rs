//! Fixed values for tests of the output.

use sublet_wire::{
    Bound, Exclusivity, Gpu, GpuState, Gpus, Lease, LeaseState, Leases, Occupant, Offer, ParkingSpace, Tier,
    UnreadableGpu, Vram, Waiting,
};

/// The current time in the tests.
pub const NOW: f64 = 1_700_000_000.0;

/// Ana's training lease, held for a minute.
pub fn lease() -> Lease {
    Lease {
        id: "L7".into(),
        state: LeaseState::Active,
        tenant: "uid:1000".into(),
        user: "ana".into(),
        name: Some("train".into()),
        requested_vram_bytes: Vram::Bytes(10 << 30),
        vram_bytes: Some(10 << 30),
        gpus: 1,
        gpu_uuids: vec!["GPU-0a".into()],
        gpu_indices: vec![0],
        tier: Tier::Batch,
        priority: 0,
        exclusivity: Exclusivity::Shared,
        fence: Some(12),
        proof: Some("0123456789abcdef0123456789abcdef".into()),
        ttl_s: 300,
        fixed_term: false,
        requested_unix_s: NOW - 90.0,
        granted_unix_s: Some(NOW - 60.0),
        on_gpus_unix_s: Some(NOW - 60.0),
        expires_unix_s: Some(NOW + 240.0),
        remaining_s: Some(240.0),
        idle: false,
        pids: vec![4312, 4313],
        seen_bytes: Some((78 << 30) / 10),
        peak_bytes: Some(8 << 30),
        calls: None,
        not_parkable: None,
        foreign_processes: None,
        resume_blocked: None,
        parked: None,
        method: None,
        overuse: None,
        ends_soon: None,
        has_hook: false,
        may_lose: false,
        waiting: None,
        ended: None,
    }
}

/// The same lease on two GPUs.
pub fn two_gpu_lease() -> Lease {
    Lease { gpus: 2, gpu_uuids: vec!["GPU-2c".into(), "GPU-3d".into()], gpu_indices: vec![2, 3], ..lease() }
}

/// Ben's request for a whole GPU, which waits.
pub fn waiting() -> Lease {
    Lease {
        id: "L8".into(),
        state: LeaseState::Waiting,
        tenant: "uid:1001".into(),
        user: "ben".into(),
        name: None,
        requested_vram_bytes: Vram::Whole,
        vram_bytes: None,
        gpu_uuids: vec![],
        gpu_indices: vec![],
        tier: Tier::Interactive,
        fence: None,
        proof: None,
        requested_unix_s: NOW - 30.0,
        granted_unix_s: None,
        expires_unix_s: None,
        remaining_s: None,
        pids: vec![],
        seen_bytes: None,
        peak_bytes: None,
        calls: None,
        waiting: Some(Waiting {
            place: 2,
            place_exact: true,
            why: "GPU 0 is not empty".into(),
            planned_s: Some(1500.0),
            expected_s: Some(40.0),
            expected_p90_s: Some(120.0),
            offers: vec![Offer { vram_bytes: 6 << 30, gpus: 1, over_in_s: Some(900.0) }],
            bound: Some(Bound { at_latest_s: Some(7200.0), settled_in_s: Some(600.0), why_none: None }),
        }),
        ..lease()
    }
}

/// A queue in which Ben's own request is second.
pub fn queue() -> Leases {
    let first = Lease {
        id: "-".into(),
        user: "ana".into(),
        requested_vram_bytes: Vram::Bytes(16 << 30),
        gpus: 2,
        tier: Tier::Batch,
        requested_unix_s: NOW - 300.0,
        waiting: Some(Waiting {
            place: 1,
            place_exact: true,
            why: "GPU 0 has 4 GiB of 16 GiB".into(),
            planned_s: None,
            expected_s: None,
            expected_p90_s: None,
            offers: vec![],
            bound: None,
        }),
        ..waiting()
    };
    Leases { leases: vec![first, waiting()], more: false }
}

/// Parking space in host memory.
pub fn parking() -> ParkingSpace {
    ParkingSpace {
        by_driver: true,
        driver_limits: vec!["managed memory cannot leave a GPU this way".into()],
        size_bytes: 32 << 30,
        booked_bytes: 8 << 30,
        ready_bytes: 4 << 30,
        free_bytes: Some(20 << 30),
        pages: "huge pages of shared memory".into(),
        advice: None,
    }
}

/// Three GPUs: shared, empty, unreadable.
pub fn gpus() -> Gpus {
    let first = Gpu {
        index: 0,
        uuid: "GPU-0a".into(),
        name: "NVIDIA A100-SXM4-40GB".into(),
        state: GpuState::InService,
        state_why: None,
        aside: None,
        mode: sublet_wire::Mode::Observe,
        unreadable: None,
        total_bytes: 40 << 30,
        used_bytes: Some(11 << 30),
        unowned_bytes: Some(3 << 30),
        committed_bytes: Some(14 << 30),
        promisable_bytes: 26 << 30,
        context_bytes: Some(420 << 20),
        coarse: false,
        occupants: vec![holder(), unleased()],
    };
    let empty = Gpu {
        index: 1,
        uuid: "GPU-1b".into(),
        state: GpuState::Draining,
        state_why: Some("an operator drains it".into()),
        used_bytes: Some(0),
        unowned_bytes: Some(0),
        committed_bytes: Some(256 << 20),
        promisable_bytes: 0,
        context_bytes: None,
        coarse: true,
        occupants: vec![],
        ..first.clone()
    };
    let silent = Gpu {
        index: 2,
        uuid: "GPU-2c".into(),
        state: GpuState::InService,
        state_why: None,
        unreadable: Some(UnreadableGpu {
            sentence: "the GPU did not answer; no new leases there until it does".into(),
        }),
        used_bytes: None,
        unowned_bytes: None,
        committed_bytes: None,
        ..empty.clone()
    };
    Gpus {
        gpus: vec![first, empty, silent],
        kind: "real".into(),
        soft_state: None,
        trouble: None,
        config_trouble: None,
        parking: Some(parking()),
    }
}

fn holder() -> Occupant {
    Occupant {
        lease: Some("L7".into()),
        pid: None,
        user: Some("ana".into()),
        tier: Some(Tier::Batch),
        state: "active".into(),
        reserved_bytes: Some(10 << 30),
        seen_bytes: Some((78 << 30) / 10),
        since_unix_s: Some(NOW - 60.0),
        exceeds_lease: false,
    }
}

fn unleased() -> Occupant {
    Occupant {
        lease: None,
        pid: Some(991),
        user: None,
        tier: None,
        state: "unleased".into(),
        reserved_bytes: None,
        seen_bytes: Some(3 << 30),
        since_unix_s: None,
        exceeds_lease: false,
    }
}
