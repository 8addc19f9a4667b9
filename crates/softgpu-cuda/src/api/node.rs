//! Nodes of graphs: adding, querying and changing them, in a graph or in an instantiated one.

use super::copy::Memcpy3D;
use super::function::function;
use super::pointers::{CallerIn, CallerOut};
use super::pool::CuMemPoolProps;
use super::{exports, read_in, write_out};
use crate::function::{KernelCall, LaunchGeometry, RawKernelParams};
use crate::graph::{InstantiatedGraph, WorkNode};
use crate::log;
use crate::result::{CuResult, Outcome};
use crate::runtime::{DriverContext, Runtime, context_named, current};
use crate::work::{FillJob, HostCall, JobWork};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// `CUDA_KERNEL_NODE_PARAMS`, first form; the second adds a library's kernel and a context.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CuKernelNodeParams {
    function: usize,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    each: *mut *mut c_void,
    extra: *mut *mut c_void,
}

/// The second form.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CuKernelNodeParamsV2 {
    first: CuKernelNodeParams,
    kernel: usize,
    context: usize,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CuMemsetNodeParams {
    at: u64,
    pitch: usize,
    value: u32,
    element: u32,
    width: usize,
    height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CuHostNodeParams {
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
}

/// `CUgraphNodeParams`: the kind of node, and its parameters.
#[repr(C)]
pub struct CuGraphNodeParams {
    kind: c_int,
    reserved: [c_int; 3],
    params: [u64; 29],
    end: u64,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`: a pool's properties, the access rights, the size; and the address it will have.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CuMemAllocNodeParams {
    pool: CuMemPoolProps,
    allowed: *const c_void,
    count: usize,
    bytes: usize,
    at: u64,
}

/// Which form of a kernel's parameters a program passes.
#[derive(Clone, Copy)]
enum KernelParamsForm {
    First(CallerIn<CuKernelNodeParams>),
    Second(CallerIn<CuKernelNodeParamsV2>),
}

fn kernel_work(runtime: &Runtime, form: KernelParamsForm) -> Outcome<(Arc<DriverContext>, JobWork)> {
    let (params, kernel, context) = match form {
        KernelParamsForm::First(params) => (read_in(params)?, 0, 0),
        KernelParamsForm::Second(params) => {
            let params = read_in(params)?;
            (params.first, params.kernel, params.context)
        }
    };
    let (_, context) = context_named(context)?;
    let handle = if params.function == 0 { kernel } else { params.function };
    let shape = LaunchGeometry { grid: params.grid, block: params.block, shared: params.shared };
    let call = function(runtime, &context, handle)?.call(
        handle,
        shape,
        // SAFETY: the caller of the C function promises parameters as the kernel declares them.
        unsafe { RawKernelParams::new(params.each, params.extra) },
    )?;
    Ok((context, JobWork::Kernel(call)))
}

fn copy_work(runtime: &Runtime, params: CallerIn<Memcpy3D>) -> Outcome<JobWork> {
    let copy = read_in(params)?.copy()?;
    copy.check(runtime)?;
    Ok(JobWork::Copy(copy))
}

fn fill_work(runtime: &Runtime, params: CallerIn<CuMemsetNodeParams>) -> Outcome<JobWork> {
    let CuMemsetNodeParams { at, pitch, value, element, width, height } = read_in(params)?;
    let fill = FillJob { at, pitch: pitch as u64, value, element, width: width as u64, height: height as u64 };
    fill.check(runtime)?;
    Ok(JobWork::Fill(fill))
}

fn host_work(params: CallerIn<CuHostNodeParams>) -> Outcome<JobWork> {
    let CuHostNodeParams { function, data } = read_in(params)?;
    Ok(JobWork::Host(HostCall { function: function.ok_or(CuResult::INVALID_VALUE)?, data }))
}

fn child_work(runtime: &Runtime, graph: usize) -> Outcome<JobWork> {
    let graph = runtime.graphs.get(graph).map_err(|_| CuResult::INVALID_VALUE)?;
    Ok(JobWork::Graph(graph.duplicate(runtime).0))
}

/// The work of a node in the form for all kinds.
fn any_work(runtime: &Runtime, params: CallerIn<CuGraphNodeParams>) -> Outcome<(Arc<DriverContext>, JobWork)> {
    if params.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    let params = params.as_raw();
    // SAFETY: the pointer is not null, so the caller of the C function promises a structure of that kind.
    let (kind, inner) = unsafe { ((*params).kind, &raw const (*params).params) };
    let (_, context) = current()?;
    // SAFETY: the structure is longer than a handle.
    let handle = || unsafe { CallerIn::new(inner.cast::<usize>()) }.read();
    let event = || runtime.events.get(handle()?);
    // SAFETY: the kind says which parameters the structure has.
    let work = unsafe {
        match kind {
            0 => return kernel_work(runtime, KernelParamsForm::Second(CallerIn::new(inner.cast()))),
            // Flags, a reserved number and a context come first.
            1 => Some(copy_work(runtime, CallerIn::new(inner.cast::<u64>().wrapping_add(2).cast()))?),
            2 => Some(fill_work(runtime, CallerIn::new(inner.cast()))?),
            3 => Some(host_work(CallerIn::new(inner.cast()))?),
            _ => None,
        }
    };
    if let Some(work) = work {
        return Ok((context, work));
    }
    let work = match kind {
        4 => child_work(runtime, handle()?)?,
        5 => JobWork::Nothing,
        6 => JobWork::WaitForEvent(event()?),
        7 => JobWork::RecordEvent(event()?),
        _ => {
            log::once(
                "nodes of this kind are not supported: kernels, copies, fills, host functions, graphs and events are",
            );
            return Err(CuResult::NOT_SUPPORTED);
        }
    };
    Ok((context, work))
}

/// Where a new node goes: its graph, and the nodes it depends on.
struct NewNodePlace {
    graph: usize,
    after: CallerIn<usize>,
    count: usize,
}

fn add(node: CallerOut<usize>, place: &NewNodePlace, context: Arc<DriverContext>, work: JobWork) -> Outcome {
    let runtime = Runtime::get()?;
    let graph = runtime.graphs.get(place.graph).map_err(|_| CuResult::INVALID_VALUE)?;
    let own = WorkNode::new(&graph, context, work);
    // SAFETY: the caller of the C function promises a list of that length.
    graph.add(runtime, &own, &unsafe { place.after.read_list(place.count)? })?;
    write_out(node, own.handle)
}

fn node(handle: usize) -> Outcome<(&'static Runtime, Arc<WorkNode>)> {
    let runtime = Runtime::get()?;
    Ok((runtime, runtime.nodes.get(handle).map_err(|_| CuResult::INVALID_VALUE)?))
}

fn exec(handle: usize) -> Outcome<(&'static Runtime, Arc<InstantiatedGraph>)> {
    let runtime = Runtime::get()?;
    Ok((runtime, runtime.execs.get(handle)?))
}

fn kernel_of(handle: usize) -> Outcome<(Arc<WorkNode>, Arc<KernelCall>)> {
    let (_, node) = node(handle)?;
    let JobWork::Kernel(call) = node.work() else { return Err(CuResult::INVALID_VALUE) };
    Ok((node, call))
}

fn kernel_params(call: &KernelCall) -> CuKernelNodeParams {
    CuKernelNodeParams {
        function: call.handle,
        grid: call.shape.grid,
        block: call.shape.block,
        shared: call.shape.shared,
        // The places are valid as long as the node has this work.
        each: call.places.as_ptr().cast_mut(),
        extra: std::ptr::null_mut(),
    }
}

fn event_of(handle: usize, place: CallerOut<usize>) -> Outcome {
    let (runtime, node) = node(handle)?;
    let (JobWork::WaitForEvent(event) | JobWork::RecordEvent(event)) = node.work() else {
        return Err(CuResult::INVALID_VALUE);
    };
    let found = runtime.events.find(|own| std::ptr::eq(own, &*event));
    write_out(place, found.map_or(0, |(handle, _)| handle))
}

exports! {
    "cuGraphAddKernelNode" 10000 fn cuGraphAddKernelNode(
        place: CallerOut<usize>, graph: usize, after: CallerIn<usize>, count: usize, params: CallerIn<CuKernelNodeParams>,
    ) {
        let (context, work) = kernel_work(Runtime::get()?, KernelParamsForm::First(params))?;
        add(place, &NewNodePlace { graph, after, count }, context, work)
    }
    "cuGraphAddKernelNode" 12000 fn cuGraphAddKernelNode_v2(
        place: CallerOut<usize>, graph: usize, after: CallerIn<usize>, count: usize, params: CallerIn<CuKernelNodeParamsV2>,
    ) {
        let (context, work) = kernel_work(Runtime::get()?, KernelParamsForm::Second(params))?;
        add(place, &NewNodePlace { graph, after, count }, context, work)
    }
    "cuGraphAddMemcpyNode" 10000 fn cuGraphAddMemcpyNode(
        place: CallerOut<usize>, graph: usize, after: CallerIn<usize>, count: usize, params: CallerIn<Memcpy3D>, context: usize,
    ) {
        let (runtime, context) = context_named(context)?;
        add(place, &NewNodePlace { graph, after, count }, context, copy_work(runtime, params)?)
    }
    "cuGraphAddMemsetNode" 10000 fn cuGraphAddMemsetNode(
        place: CallerOut<usize>, graph: usize, after: CallerIn<usize>, count: usize, params: CallerIn<CuMemsetNodeParams>,
        context: usize,
    ) {
        let (runtime, context) = context_named(context)?;
        add(place, &NewNodePlace { graph, after, count }, context, fill_work(runtime, params)?)
    }
    "cuGraphAddHostNode" 10000 fn cuGraphAddHostNode(
        place: CallerOut<usize>, graph: usize, after: CallerIn<usize>, count: usize, params: CallerIn<CuHostNodeParams>,
    ) {
        add(place, &NewNodePlace { graph, after, count }, current()?.1, host_work(params)?)
    }
    "cuGraphAddChildGraphNode" 10000 fn cuGraphAddChildGraphNode(
        place: CallerOut<usize>, graph: usize, after: CallerIn<usize>, count: usize, child: usize,
    ) {
        let (runtime, context) = current()?;
        add(place, &NewNodePlace { graph, after, count }, context, child_work(runtime, child)?)
    }
    "cuGraphAddEmptyNode" 10000 fn cuGraphAddEmptyNode(
        place: CallerOut<usize>, graph: usize, after: CallerIn<usize>, count: usize,
    ) {
        add(place, &NewNodePlace { graph, after, count }, current()?.1, JobWork::Nothing)
    }
    "cuGraphAddEventRecordNode" 11010 fn cuGraphAddEventRecordNode(
        place: CallerOut<usize>, graph: usize, after: CallerIn<usize>, count: usize, event: usize,
    ) {
        let (runtime, context) = current()?;
        add(place, &NewNodePlace { graph, after, count }, context, JobWork::RecordEvent(runtime.events.get(event)?))
    }
    "cuGraphAddEventWaitNode" 11010 fn cuGraphAddEventWaitNode(
        place: CallerOut<usize>, graph: usize, after: CallerIn<usize>, count: usize, event: usize,
    ) {
        let (runtime, context) = current()?;
        add(place, &NewNodePlace { graph, after, count }, context, JobWork::WaitForEvent(runtime.events.get(event)?))
    }
    "cuGraphAddMemAllocNode" 11040 fn cuGraphAddMemAllocNode(
        place: CallerOut<usize>, graph: usize, after: CallerIn<usize>, count: usize, params: CallerOut<CuMemAllocNodeParams>,
    ) {
        let (runtime, context) = current()?;
        let wanted = params.read()?;
        let address = runtime.reserve_for_graph(wanted.bytes as u64)?;
        let at = address.at;
        add(place, &NewNodePlace { graph, after, count }, context, JobWork::Allocate(address, wanted.bytes as u64))?;
        write_out(params, CuMemAllocNodeParams { at, ..wanted })
    }
    "cuGraphAddMemFreeNode" 11040 fn cuGraphAddMemFreeNode(
        place: CallerOut<usize>, graph: usize, after: CallerIn<usize>, count: usize, at: u64,
    ) {
        let (runtime, context) = current()?;
        if !runtime.is_graph_memory(at) {
            return Err(CuResult::INVALID_VALUE);
        }
        add(place, &NewNodePlace { graph, after, count }, context, JobWork::Free(at))
    }
    "cuGraphMemFreeNodeGetParams" 11040 fn cuGraphMemFreeNodeGetParams(handle: usize, place: CallerOut<u64>) {
        let JobWork::Free(at) = node(handle)?.1.work() else { return Err(CuResult::INVALID_VALUE) };
        write_out(place, at)
    }
    "cuDeviceGraphMemTrim" 11040 fn cuDeviceGraphMemTrim(device: c_int) {
        // Memory that graphs free is given back at once, so there is nothing to trim.
        Runtime::get()?.gpu(device).map(drop)
    }
    "cuDeviceGetGraphMemAttribute" 11040 fn cuDeviceGetGraphMemAttribute(
        device: c_int, attribute: c_int, place: CallerOut<u64>,
    ) {
        let runtime = Runtime::get()?;
        let gpu = runtime.gpu(device)?;
        match attribute {
            0 | 2 => write_out(place, runtime.used_by_graphs(gpu)),
            // High-water marks are not kept.
            1 | 3 => Err(CuResult::NOT_SUPPORTED),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
    "cuGraphAddNode" 12020 fn cuGraphAddNode(
        place: CallerOut<usize>, graph: usize, after: CallerIn<usize>, count: usize, params: CallerIn<CuGraphNodeParams>,
    ) {
        let (context, work) = any_work(Runtime::get()?, params)?;
        add(place, &NewNodePlace { graph, after, count }, context, work)
    }
    "cuGraphAddNode" 12030 fn cuGraphAddNode_v2(
        place: CallerOut<usize>,
        graph: usize,
        after: CallerIn<usize>,
        _edges: *const c_void,
        count: usize,
        params: CallerIn<CuGraphNodeParams>,
    ) {
        let (context, work) = any_work(Runtime::get()?, params)?;
        add(place, &NewNodePlace { graph, after, count }, context, work)
    }
    "cuGraphNodeGetType" 10000 fn cuGraphNodeGetType(handle: usize, kind: CallerOut<c_int>) {
        write_out(kind, node(handle)?.1.work().kind())
    }
    "cuGraphDestroyNode" 10000 fn cuGraphDestroyNode(handle: usize) {
        let (runtime, node) = node(handle)?;
        runtime.graphs.get(node.graph).map_err(|_| CuResult::INVALID_VALUE)?.remove(runtime, handle);
        Ok(())
    }
    "cuGraphKernelNodeGetParams" 10000 fn cuGraphKernelNodeGetParams(handle: usize, params: CallerOut<CuKernelNodeParams>) {
        write_out(params, kernel_params(&kernel_of(handle)?.1))
    }
    "cuGraphKernelNodeGetParams" 12000 fn cuGraphKernelNodeGetParams_v2(
        handle: usize, params: CallerOut<CuKernelNodeParamsV2>,
    ) {
        let (node, call) = kernel_of(handle)?;
        write_out(params, CuKernelNodeParamsV2 { first: kernel_params(&call), kernel: 0, context: node.context.handle })
    }
    "cuGraphKernelNodeSetParams" 10000 fn cuGraphKernelNodeSetParams(handle: usize, params: CallerIn<CuKernelNodeParams>) {
        let (runtime, node) = node(handle)?;
        node.set(kernel_work(runtime, KernelParamsForm::First(params))?.1)
    }
    "cuGraphKernelNodeSetParams" 12000 fn cuGraphKernelNodeSetParams_v2(
        handle: usize, params: CallerIn<CuKernelNodeParamsV2>,
    ) {
        let (runtime, node) = node(handle)?;
        node.set(kernel_work(runtime, KernelParamsForm::Second(params))?.1)
    }
    "cuGraphMemcpyNodeSetParams" 10000 fn cuGraphMemcpyNodeSetParams(handle: usize, params: CallerIn<Memcpy3D>) {
        let (runtime, node) = node(handle)?;
        node.set(copy_work(runtime, params)?)
    }
    "cuGraphMemsetNodeGetParams" 10000 fn cuGraphMemsetNodeGetParams(handle: usize, params: CallerOut<CuMemsetNodeParams>) {
        let JobWork::Fill(fill) = node(handle)?.1.work() else { return Err(CuResult::INVALID_VALUE) };
        let FillJob { at, pitch, value, element, width, height } = fill;
        write_out(params, CuMemsetNodeParams {
            at,
            pitch: pitch as usize,
            value,
            element,
            width: width as usize,
            height: height as usize,
        })
    }
    "cuGraphMemsetNodeSetParams" 10000 fn cuGraphMemsetNodeSetParams(handle: usize, params: CallerIn<CuMemsetNodeParams>) {
        let (runtime, node) = node(handle)?;
        node.set(fill_work(runtime, params)?)
    }
    "cuGraphHostNodeGetParams" 10000 fn cuGraphHostNodeGetParams(handle: usize, params: CallerOut<CuHostNodeParams>) {
        let JobWork::Host(call) = node(handle)?.1.work() else { return Err(CuResult::INVALID_VALUE) };
        write_out(params, CuHostNodeParams { function: Some(call.function), data: call.data })
    }
    "cuGraphHostNodeSetParams" 10000 fn cuGraphHostNodeSetParams(handle: usize, params: CallerIn<CuHostNodeParams>) {
        node(handle)?.1.set(host_work(params)?)
    }
    "cuGraphChildGraphNodeGetGraph" 10000 fn cuGraphChildGraphNodeGetGraph(handle: usize, place: CallerOut<usize>) {
        let JobWork::Graph(graph) = node(handle)?.1.work() else { return Err(CuResult::INVALID_VALUE) };
        write_out(place, graph.handle)
    }
    "cuGraphEventRecordNodeGetEvent" 11010 fn cuGraphEventRecordNodeGetEvent(handle: usize, place: CallerOut<usize>) {
        event_of(handle, place)
    }
    "cuGraphEventRecordNodeSetEvent" 11010 fn cuGraphEventRecordNodeSetEvent(handle: usize, event: usize) {
        let (runtime, node) = node(handle)?;
        node.set(JobWork::RecordEvent(runtime.events.get(event)?))
    }
    "cuGraphEventWaitNodeGetEvent" 11010 fn cuGraphEventWaitNodeGetEvent(handle: usize, place: CallerOut<usize>) {
        event_of(handle, place)
    }
    "cuGraphEventWaitNodeSetEvent" 11010 fn cuGraphEventWaitNodeSetEvent(handle: usize, event: usize) {
        let (runtime, node) = node(handle)?;
        node.set(JobWork::WaitForEvent(runtime.events.get(event)?))
    }
    "cuGraphNodeSetParams" 12020 fn cuGraphNodeSetParams(handle: usize, params: CallerIn<CuGraphNodeParams>) {
        let (runtime, node) = node(handle)?;
        node.set(any_work(runtime, params)?.1)
    }
    "cuGraphExecKernelNodeSetParams" 10010 fn cuGraphExecKernelNodeSetParams(
        handle: usize, node: usize, params: CallerIn<CuKernelNodeParams>,
    ) {
        let (runtime, exec) = exec(handle)?;
        exec.set(node, kernel_work(runtime, KernelParamsForm::First(params))?.1)
    }
    "cuGraphExecKernelNodeSetParams" 12000 fn cuGraphExecKernelNodeSetParams_v2(
        handle: usize, node: usize, params: CallerIn<CuKernelNodeParamsV2>,
    ) {
        let (runtime, exec) = exec(handle)?;
        exec.set(node, kernel_work(runtime, KernelParamsForm::Second(params))?.1)
    }
    "cuGraphExecMemcpyNodeSetParams" 10020 fn cuGraphExecMemcpyNodeSetParams(
        handle: usize, node: usize, params: CallerIn<Memcpy3D>, _context: usize,
    ) {
        let (runtime, exec) = exec(handle)?;
        exec.set(node, copy_work(runtime, params)?)
    }
    "cuGraphExecMemsetNodeSetParams" 10020 fn cuGraphExecMemsetNodeSetParams(
        handle: usize, node: usize, params: CallerIn<CuMemsetNodeParams>, _context: usize,
    ) {
        let (runtime, exec) = exec(handle)?;
        exec.set(node, fill_work(runtime, params)?)
    }
    "cuGraphExecHostNodeSetParams" 10020 fn cuGraphExecHostNodeSetParams(
        handle: usize, node: usize, params: CallerIn<CuHostNodeParams>,
    ) {
        exec(handle)?.1.set(node, host_work(params)?)
    }
    "cuGraphExecChildGraphNodeSetParams" 11010 fn cuGraphExecChildGraphNodeSetParams(
        handle: usize, node: usize, child: usize,
    ) {
        let (runtime, exec) = exec(handle)?;
        exec.set(node, child_work(runtime, child)?)
    }
    "cuGraphExecEventRecordNodeSetEvent" 11010 fn cuGraphExecEventRecordNodeSetEvent(
        handle: usize, node: usize, event: usize,
    ) {
        let (runtime, exec) = exec(handle)?;
        exec.set(node, JobWork::RecordEvent(runtime.events.get(event)?))
    }
    "cuGraphExecEventWaitNodeSetEvent" 11010 fn cuGraphExecEventWaitNodeSetEvent(
        handle: usize, node: usize, event: usize,
    ) {
        let (runtime, exec) = exec(handle)?;
        exec.set(node, JobWork::WaitForEvent(runtime.events.get(event)?))
    }
    "cuGraphExecNodeSetParams" 12020 fn cuGraphExecNodeSetParams(
        handle: usize, node: usize, params: CallerIn<CuGraphNodeParams>,
    ) {
        let (runtime, exec) = exec(handle)?;
        exec.set(node, any_work(runtime, params)?.1)
    }
    "cuGraphNodeSetEnabled" 11060 fn cuGraphNodeSetEnabled(handle: usize, node: usize, is_enabled: u32) {
        exec(handle)?.1.enable(node, is_enabled != 0)
    }
    "cuGraphNodeGetEnabled" 11060 fn cuGraphNodeGetEnabled(handle: usize, node: usize, is_enabled: CallerOut<u32>) {
        write_out(is_enabled, exec(handle)?.1.is_enabled(node)?.into())
    }
}
