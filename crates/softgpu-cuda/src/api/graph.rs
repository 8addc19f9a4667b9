//! Whole graphs: creating, querying, copying, instantiating, and launching them.

use super::pointers::{CallerIn, CallerOut, CallerText};
use super::{checked_place, exports, streamed, text, write_list, write_out, write_out_if_wanted};
use crate::graph::{InstantiatedGraph, WorkGraph};
use crate::object::UserObject;
use crate::result::{CuResult, Outcome};
use crate::runtime::{Runtime, current};
use crate::stream::resolve;
use crate::work::{HostCall, JobWork};
use std::ffi::{c_char, c_int, c_void};
use std::fmt::Write;
use std::sync::Arc;

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CuGraphInstantiateParams {
    flags: u64,
    upload: usize,
    node: usize,
    result: c_int,
}

/// `CUgraphExecUpdateResultInfo`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CuGraphExecUpdateResult {
    result: c_int,
    node: usize,
    from: usize,
}

/// `CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED`.
const OTHER_SHAPE: c_int = 2;

fn graph(handle: usize) -> Outcome<(&'static Runtime, Arc<WorkGraph>)> {
    let runtime = Runtime::get()?;
    Ok((runtime, runtime.graphs.get(handle).map_err(|_| CuResult::INVALID_VALUE)?))
}

fn instantiate(place: CallerOut<usize>, handle: usize, flags: u64) -> Outcome {
    let (runtime, graph) = graph(handle)?;
    let _pass = runtime.client.pass_gate();
    write_out(checked_place(place)?, runtime.execs.insert(Arc::new(InstantiatedGraph::new(&graph, flags)?)))
}

fn update(exec: usize, handle: usize) -> Outcome<Option<usize>> {
    let (runtime, graph) = graph(handle)?;
    let _pass = runtime.client.pass_gate();
    runtime.execs.get(exec)?.update(&graph)
}

fn edges(handle: usize, from: CallerOut<usize>, to: CallerOut<usize>, count: CallerOut<usize>) -> Outcome {
    let (_, graph) = graph(handle)?;
    let all: Vec<(usize, usize)> = graph.body().edges.iter().copied().collect();
    if from.is_null() != to.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    let room = if from.is_null() { 0 } else { count.read()? };
    // SAFETY: the caller of the C function promises two lists of the length that it states.
    unsafe {
        write_list(from, count, &all.iter().map(|(from, _)| *from).collect::<Vec<_>>())?;
        for (number, (_, end)) in all.iter().take(room).enumerate() {
            write_out(to.at(number), *end)?;
        }
    }
    Ok(())
}

/// Edges have no data: a caller that asks gets zeros.
fn clear_edge_data(place: CallerOut<[u8; 8]>, count: CallerOut<usize>) -> Outcome {
    for number in 0..if place.is_null() { 0 } else { count.read()? } {
        // SAFETY: the caller of the C function promises a list of the length that it states.
        write_out(unsafe { place.at(number) }, [0; 8])?;
    }
    Ok(())
}

fn neighbours(node: usize, places: CallerOut<usize>, count: CallerOut<usize>, is_before: bool) -> Outcome {
    let runtime = Runtime::get()?;
    let own = runtime.nodes.get(node).map_err(|_| CuResult::INVALID_VALUE)?;
    let (_, graph) = graph(own.graph)?;
    let body = graph.body();
    let found = body.edges.iter().filter_map(|(from, to)| match is_before {
        true if *to == node => Some(*from),
        false if *from == node => Some(*to),
        _ => None,
    });
    // SAFETY: the caller of the C function promises a list of the length that it states.
    unsafe { write_list(places, count, &found.collect::<Vec<_>>()) }
}

fn pairs(from: CallerIn<usize>, to: CallerIn<usize>, count: usize) -> Outcome<Vec<(usize, usize)>> {
    // SAFETY: the caller of the C function promises two lists of that length.
    let (from, to) = unsafe { (from.read_list(count)?, to.read_list(count)?) };
    Ok(from.into_iter().zip(to).collect())
}

/// A drawing of a graph for Graphviz.
fn graphviz_text(graph: &WorkGraph) -> String {
    let body = graph.body();
    let mut text = "digraph graph_1 {\n".to_owned();
    let place = |handle: usize| body.nodes.iter().position(|node| node.handle == handle).unwrap_or(0);
    for (number, node) in body.nodes.iter().enumerate() {
        let label = match node.work() {
            JobWork::Kernel(call) => call.function.name.to_string_lossy().into_owned(),
            JobWork::Copy(_) => "memcpy".to_owned(),
            JobWork::Fill(_) => "memset".to_owned(),
            JobWork::Host(_) | JobWork::Callback(_) => "host".to_owned(),
            JobWork::Graph(_) => "graph".to_owned(),
            JobWork::WaitForEvent(_) => "wait".to_owned(),
            JobWork::RecordEvent(_) => "record".to_owned(),
            _ => "empty".to_owned(),
        };
        // Writing to a text cannot fail.
        let _ = writeln!(text, "  node_{number} [label=\"{label}\"];");
    }
    for (from, to) in &body.edges {
        let _ = writeln!(text, "  node_{} -> node_{};", place(*from), place(*to));
    }
    text.push_str("}\n");
    text
}

fn object(handle: usize) -> Outcome<(&'static Runtime, Arc<UserObject>)> {
    let runtime = Runtime::get()?;
    Ok((runtime, runtime.objects.get(handle).map_err(|_| CuResult::INVALID_VALUE)?))
}

exports! {
    "cuUserObjectCreate" 11030 fn cuUserObjectCreate(
        place: CallerOut<usize>,
        data: *mut c_void,
        function: Option<unsafe extern "C" fn(*mut c_void)>,
        count: u32,
        _flags: u32,
    ) {
        let runtime = Runtime::get()?;
        let function = function.filter(|_| count > 0).ok_or(CuResult::INVALID_VALUE)?;
        let object = UserObject::new(HostCall { function, data }, count as usize);
        write_out(checked_place(place)?, runtime.objects.insert(Arc::new(object)))
    }
    "cuUserObjectRetain" 11030 fn cuUserObjectRetain(handle: usize, count: u32) {
        object(handle)?.1.retain(count as usize);
        Ok(())
    }
    "cuUserObjectRelease" 11030 fn cuUserObjectRelease(handle: usize, count: u32) {
        let (runtime, object) = object(handle)?;
        if object.release(count as usize)? {
            runtime.objects.remove(handle)?;
        }
        Ok(())
    }
    "cuGraphRetainUserObject" 11030 fn cuGraphRetainUserObject(graph_handle: usize, handle: usize, count: u32, flags: u32) {
        let (_, graph) = graph(graph_handle)?;
        let (_, object) = object(handle)?;
        // The caller's own references are handed over, or more are taken.
        match flags {
            0 => object.retain(count as usize),
            1 => {}
            _ => return Err(CuResult::INVALID_VALUE),
        }
        graph.kept.add(handle, object, count as usize);
        Ok(())
    }
    "cuGraphReleaseUserObject" 11030 fn cuGraphReleaseUserObject(graph_handle: usize, handle: usize, count: u32) {
        graph(graph_handle)?.1.kept.remove(handle, count as usize)
    }
    "cuGraphCreate" 10000 fn cuGraphCreate(place: CallerOut<usize>, flags: u32) {
        let runtime = Runtime::get()?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        write_out(checked_place(place)?, WorkGraph::create(runtime).handle)
    }
    "cuGraphDestroy" 10000 fn cuGraphDestroy(handle: usize) {
        let (runtime, graph) = graph(handle)?;
        graph.destroy(runtime);
        Ok(())
    }
    "cuGraphClone" 10000 fn cuGraphClone(place: CallerOut<usize>, handle: usize) {
        let (runtime, graph) = graph(handle)?;
        let (copy, _) = graph.duplicate(runtime);
        write_out(place, copy.handle)
    }
    "cuGraphNodeFindInClone" 10000 fn cuGraphNodeFindInClone(place: CallerOut<usize>, node: usize, clone: usize) {
        let runtime = Runtime::get()?;
        let own = runtime.nodes.get(node).map_err(|_| CuResult::INVALID_VALUE)?;
        let (_, original) = graph(own.graph)?;
        let (_, copy) = graph(clone)?;
        // A copy has its nodes in the order of the original.
        let number = original.body().nodes.iter().position(|one| one.handle == node).ok_or(CuResult::INVALID_VALUE)?;
        let found = copy.body().nodes.get(number).map(|one| one.handle).ok_or(CuResult::INVALID_VALUE)?;
        write_out(place, found)
    }
    "cuGraphGetNodes" 10000 fn cuGraphGetNodes(handle: usize, places: CallerOut<usize>, count: CallerOut<usize>) {
        let (_, graph) = graph(handle)?;
        let nodes: Vec<usize> = graph.body().nodes.iter().map(|node| node.handle).collect();
        // SAFETY: the caller of the C function promises a list of the length that it states.
        unsafe { write_list(places, count, &nodes) }
    }
    "cuGraphGetRootNodes" 10000 fn cuGraphGetRootNodes(handle: usize, places: CallerOut<usize>, count: CallerOut<usize>) {
        let (_, graph) = graph(handle)?;
        let body = graph.body();
        let is_root = |node: &usize| body.edges.iter().all(|(_, to)| to != node);
        let roots: Vec<usize> = body.nodes.iter().map(|node| node.handle).filter(is_root).collect();
        // SAFETY: the caller of the C function promises a list of the length that it states.
        unsafe { write_list(places, count, &roots) }
    }
    "cuGraphGetEdges" 10000 fn cuGraphGetEdges(handle: usize, from: CallerOut<usize>, to: CallerOut<usize>, count: CallerOut<usize>) {
        edges(handle, from, to, count)
    }
    "cuGraphGetEdges" 12030 fn cuGraphGetEdges_v2(
        handle: usize,
        from: CallerOut<usize>,
        to: CallerOut<usize>,
        data: CallerOut<[u8; 8]>,
        count: CallerOut<usize>,
    ) {
        edges(handle, from, to, count)?;
        clear_edge_data(data, count)
    }
    "cuGraphNodeGetDependencies" 10000 fn cuGraphNodeGetDependencies(
        node: usize, places: CallerOut<usize>, count: CallerOut<usize>,
    ) {
        neighbours(node, places, count, true)
    }
    "cuGraphNodeGetDependencies" 12030 fn cuGraphNodeGetDependencies_v2(
        node: usize, places: CallerOut<usize>, data: CallerOut<[u8; 8]>, count: CallerOut<usize>,
    ) {
        neighbours(node, places, count, true)?;
        clear_edge_data(data, count)
    }
    "cuGraphNodeGetDependentNodes" 10000 fn cuGraphNodeGetDependentNodes(
        node: usize, places: CallerOut<usize>, count: CallerOut<usize>,
    ) {
        neighbours(node, places, count, false)
    }
    "cuGraphNodeGetDependentNodes" 12030 fn cuGraphNodeGetDependentNodes_v2(
        node: usize, places: CallerOut<usize>, data: CallerOut<[u8; 8]>, count: CallerOut<usize>,
    ) {
        neighbours(node, places, count, false)?;
        clear_edge_data(data, count)
    }
    "cuGraphAddDependencies" 10000 fn cuGraphAddDependencies(
        handle: usize, from: CallerIn<usize>, to: CallerIn<usize>, count: usize,
    ) {
        graph(handle)?.1.connect(&pairs(from, to, count)?)
    }
    "cuGraphAddDependencies" 12030 fn cuGraphAddDependencies_v2(
        handle: usize, from: CallerIn<usize>, to: CallerIn<usize>, _data: *const c_void, count: usize,
    ) {
        graph(handle)?.1.connect(&pairs(from, to, count)?)
    }
    "cuGraphRemoveDependencies" 10000 fn cuGraphRemoveDependencies(
        handle: usize, from: CallerIn<usize>, to: CallerIn<usize>, count: usize,
    ) {
        graph(handle)?.1.disconnect(&pairs(from, to, count)?)
    }
    "cuGraphRemoveDependencies" 12030 fn cuGraphRemoveDependencies_v2(
        handle: usize, from: CallerIn<usize>, to: CallerIn<usize>, _data: *const c_void, count: usize,
    ) {
        graph(handle)?.1.disconnect(&pairs(from, to, count)?)
    }
    "cuGraphDebugDotPrint" 11030 fn cuGraphDebugDotPrint(handle: usize, path: CallerText, _flags: u32) {
        let (_, graph) = graph(handle)?;
        std::fs::write(text(&path)?, graphviz_text(&graph)).map_err(|_| CuResult::OPERATING_SYSTEM)
    }
    "cuGraphInstantiate" 10000 fn cuGraphInstantiate(
        place: CallerOut<usize>, handle: usize, node: CallerOut<usize>, _log: *mut c_char, _size: usize,
    ) {
        write_out_if_wanted(node, 0)?;
        instantiate(place, handle, 0)
    }
    "cuGraphInstantiate" 11000 fn cuGraphInstantiate_v2(
        place: CallerOut<usize>, handle: usize, node: CallerOut<usize>, _log: *mut c_char, _size: usize,
    ) {
        write_out_if_wanted(node, 0)?;
        instantiate(place, handle, 0)
    }
    "cuGraphInstantiateWithFlags" 11040 fn cuGraphInstantiateWithFlags(place: CallerOut<usize>, handle: usize, flags: u64) {
        instantiate(place, handle, flags)
    }
    "cuGraphExecDestroy" 10000 fn cuGraphExecDestroy(exec: usize) {
        Runtime::get()?.execs.remove(exec).map(drop)
    }
    "cuGraphExecGetFlags" 12000 fn cuGraphExecGetFlags(exec: usize, flags: CallerOut<u64>) {
        write_out(flags, Runtime::get()?.execs.get(exec)?.flags)
    }
    "cuGraphExecUpdate" 10020 fn cuGraphExecUpdate(exec: usize, handle: usize, node: CallerOut<usize>, result: CallerOut<c_int>) {
        let odd = update(exec, handle)?;
        write_out_if_wanted(node, odd.unwrap_or(0))?;
        write_out(result, if odd.is_some() { OTHER_SHAPE } else { 0 })?;
        if odd.is_some() { Err(CuResult::GRAPH_EXEC_UPDATE_FAILURE) } else { Ok(()) }
    }
    "cuGraphExecUpdate" 12000 fn cuGraphExecUpdate_v2(exec: usize, handle: usize, place: CallerOut<CuGraphExecUpdateResult>) {
        let odd = update(exec, handle)?;
        let result = if odd.is_some() { OTHER_SHAPE } else { 0 };
        write_out(place, CuGraphExecUpdateResult { result, node: odd.unwrap_or(0), from: 0 })?;
        if odd.is_some() { Err(CuResult::GRAPH_EXEC_UPDATE_FAILURE) } else { Ok(()) }
    }
}

streamed! { own;
    "cuGraphInstantiateWithParams" 12000 fn cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz(
        place: CallerOut<usize>, handle: usize, params: CallerOut<CuGraphInstantiateParams>,
    ) {
        let wanted = params.read()?;
        if wanted.upload != 0 {
            resolve(wanted.upload, own)?;
        }
        let done = instantiate(place, handle, wanted.flags);
        write_out(params, CuGraphInstantiateParams { node: 0, result: c_int::from(done.is_err()), ..wanted })?;
        done
    }
    "cuGraphUpload" 11010 fn cuGraphUpload, cuGraphUpload_ptsz(exec: usize, stream: usize) {
        let (runtime, _) = resolve(stream, own)?;
        let _pass = runtime.client.pass_gate();
        // An instantiated graph is always where it is launched: there is nothing to upload.
        runtime.execs.get(exec).map(drop)
    }
    "cuGraphLaunch" 10000 fn cuGraphLaunch, cuGraphLaunch_ptsz(exec: usize, stream: usize) {
        current()?;
        let (runtime, stream) = resolve(stream, own)?;
        let _pass = runtime.client.pass_gate();
        let exec = runtime.execs.get(exec)?;
        if runtime.frontier(&stream)?.is_some() {
            crate::log::once("the launch of a graph cannot be captured into another: add it as a child");
            return Err(CuResult::STREAM_CAPTURE_UNSUPPORTED);
        }
        exec.launch(runtime, &stream);
        Ok(())
    }
}
