//! The recipe on a private daemon with soft GPUs.

use cookbook_five_minute_gpu::{CellError, Notebook};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use sublet::testing::{LocalHost, until};
use sublet::{BlockBuilder, BlockLease, FabricError, GpuSession, KernelArgs};

/// add(u32 n, f32 a, f32 *x, f32 *y), as `saxpy`.
const PTX: &str = include_str!("../../../crates/softgpu/kernels/basic.ptx");
const VRAM: u64 = 2 << 30;

/// One test at a time has the lease that is bound to this process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn blocks(dir: &Path) -> BlockLease {
    let builder = BlockBuilder::new().min_blocks(64).lease_secs(3600).name("notebook").in_directory(dir);
    builder.acquire().expect("blocks")
}

/// A cell: each number of the model plus one, on the GPU.
fn add_one(session: &GpuSession, model: &mut Vec<f32>) -> Result<(), FabricError> {
    let bytes = |numbers: &[f32]| numbers.iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<u8>>();
    let length = model.len() as u64 * 4;
    let (ones, sums) = (session.mem_alloc(length)?, session.mem_alloc(length)?);
    session.mem_write(&ones, 0, &bytes(&vec![1.0; model.len()]))?;
    session.mem_write(&sums, 0, &bytes(model))?;
    let module = session.module_load(PTX)?;
    let args = KernelArgs::new().push_u32(model.len() as u32).push_f32(1.0).push_buffer(&ones).push_buffer(&sums);
    session.launch_with_args(&module, "saxpy", [1, 1, 1], [64, 1, 1], args)?;
    let read = session.mem_read(&sums, 0, length)?;
    let number = |bytes: &[u8]| f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    *model = read.chunks_exact(4).map(number).collect();
    Ok(())
}

#[test]
fn cells_share_a_lease_and_each_is_metered() {
    let (_alone, host, dir) =
        (alone(), LocalHost::start().expect("a daemon"), tempfile::tempdir().expect("a directory"));
    let fabric = host.fabric().clone();
    let mut notebook = Notebook::create(fabric, VRAM, vec![1.0_f32, 2.0], blocks(dir.path())).expect("it is saved");
    assert_eq!(notebook.lease_id(), None, "no cell used the GPU yet");
    let first = notebook.run(add_one).expect("it runs");
    let second = notebook.run(|session, model| add_one(session, model).and_then(|()| add_one(session, model)));
    let second = second.expect("it runs");
    assert_eq!((first.launches, second.launches, second.vram_bytes), (1, 2, VRAM));
    assert_eq!(first.lease, second.lease);
    assert_eq!(notebook.model(), &[4.0, 5.0]);
}

#[test]
fn a_lost_gpu_is_one_sentence_and_the_next_cell_goes_on_from_the_saved_model() {
    let (_alone, host, dir) =
        (alone(), LocalHost::start().expect("a daemon"), tempfile::tempdir().expect("a directory"));
    let fabric = host.fabric().clone();
    let mut notebook = Notebook::create(fabric, VRAM, vec![0.0_f32; 4], blocks(dir.path())).expect("it is saved");
    notebook.run(add_one).expect("it runs");
    let lease = notebook.lease_id().expect("a lease").to_owned();
    let lost = notebook.run(|session, model| {
        add_one(session, model)?;
        host.revoke(&lease)?;
        until("the end is noticed", || session.sync().err());
        add_one(session, model)
    });
    let lost = lost.expect_err("its lease is over");
    assert!(matches!(lost, CellError::GpuEnded { .. }), "{lost:?}");
    assert!(lost.to_string().ends_with("; run the cell again to get a new one"), "{lost}");
    assert_eq!(notebook.model(), &[1.0; 4], "half a cell is not saved");
    let report = notebook.run(add_one).expect("it runs on a new lease");
    assert_ne!(report.lease, lease);
    assert_eq!(notebook.model(), &[2.0; 4]);
    // The program ends; the next one finds the model.
    let fabric = host.fabric().clone();
    drop(notebook);
    let reopened: Notebook<Vec<f32>> = Notebook::open(fabric, VRAM, blocks(dir.path())).expect("it was saved");
    assert_eq!(reopened.model(), &[2.0; 4]);
}

#[test]
fn a_parked_notebook_keeps_its_lease_and_a_lost_one_is_reported_once() {
    let (_alone, host, dir) =
        (alone(), LocalHost::start().expect("a daemon"), tempfile::tempdir().expect("a directory"));
    let fabric = host.fabric().clone();
    let mut notebook = Notebook::create(fabric, VRAM, vec![0.0_f32; 4], blocks(dir.path())).expect("it is saved");
    let first = notebook.run(add_one).expect("it runs");
    host.park(&first.lease).expect("it is parked");
    assert_eq!(notebook.run(add_one).expect("it comes back").lease, first.lease);
    host.revoke(&first.lease).expect("it can be ended");
    let lost = until("the end is noticed", || notebook.tick(0.0));
    assert!(matches!(lost, CellError::GpuEnded { .. }));
    assert!(notebook.tick(0.0).is_none() && notebook.lease_id().is_none());
}

#[test]
fn a_cells_own_mistake_costs_no_lease() {
    let (_alone, host, dir) =
        (alone(), LocalHost::start().expect("a daemon"), tempfile::tempdir().expect("a directory"));
    let fabric = host.fabric().clone();
    let mut notebook = Notebook::create(fabric, VRAM, vec![0.0_f32; 4], blocks(dir.path())).expect("it is saved");
    let failed = notebook.run(|session, _| session.module_load("no kernel").map(drop)).expect_err("it is no PTX");
    assert!(matches!(failed, CellError::Failed(_)), "{failed:?}");
    let lease = notebook.lease_id().expect("it is kept").to_owned();
    assert_eq!(notebook.run(add_one).expect("it runs").lease, lease);
}
