//! Graphs: work that is written down, made ready, and done as often as one likes.

use super::memory::{DeviceSpan, FillValue, RawCopy3D};
use super::modules::{Arguments, CudaFunction, LaunchShape};
use super::streams::{CudaStream, add_one};
use super::{Address, CudaContext, DriverHandle, Result, call};
use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicU64;

/// `CUDA_KERNEL_NODE_PARAMS`, as CUDA 12.0 has it.
#[derive(Debug)]
#[repr(C)]
pub struct RawKernelNode {
    function: DriverHandle,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    each: *mut *mut c_void,
    extra: *mut *mut c_void,
    kernel: DriverHandle,
    context: DriverHandle,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[derive(Debug)]
#[repr(C)]
pub struct RawFillNode {
    at: Address,
    pitch: usize,
    value: u32,
    element: u32,
    width: usize,
    height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[derive(Debug)]
#[repr(C)]
pub struct RawHostNode {
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
}

/// `CUgraphExecUpdateResultInfo`.
#[derive(Debug)]
#[repr(C)]
pub struct RawUpdateResult {
    result: c_int,
    node: DriverHandle,
    from: DriverHandle,
}

/// A step of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphStep {
    handle: DriverHandle,
}

/// Steps, and which come before which.
#[derive(Debug)]
pub struct CudaGraph {
    handle: DriverHandle,
}

impl CudaGraph {
    /// One without steps.
    pub fn new() -> Result<CudaGraph> {
        let mut handle = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuGraphCreate(&raw mut handle, 0)) }?;
        Ok(CudaGraph { handle })
    }

    /// What a stream was given since [`CudaStream::begin_capture`].
    pub fn end_capture(stream: &CudaStream) -> Result<CudaGraph> {
        Ok(CudaGraph { handle: stream.end_capture()? })
    }

    /// A copy.
    pub fn duplicate(&self) -> Result<CudaGraph> {
        let mut handle = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuGraphClone(&raw mut handle, self.handle)) }?;
        Ok(CudaGraph { handle })
    }

    /// How many steps it has.
    pub fn nodes_len(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the place lives until the call returns; without a list only the number is told.
        unsafe { call!(cuGraphGetNodes(self.handle, std::ptr::null_mut(), &raw mut count)) }?;
        Ok(count)
    }

    /// How many times one step comes directly before another.
    pub fn edges_len(&self) -> Result<usize> {
        let (none, mut count) = (std::ptr::null_mut(), 0);
        // SAFETY: the place lives until the call returns; without lists only the number is told.
        unsafe { call!(cuGraphGetEdges(self.handle, none, none, &raw mut count)) }?;
        Ok(count)
    }

    /// Adds a step after others, by a call that is given them as the driver wants them.
    fn add(
        &self,
        after: &[GraphStep],
        call: impl FnOnce(*mut DriverHandle, *const DriverHandle, usize) -> Result<()>,
    ) -> Result<GraphStep> {
        let after: Vec<DriverHandle> = after.iter().map(|node| node.handle).collect();
        let mut handle = 0;
        call(&raw mut handle, after.as_ptr(), after.len())?;
        Ok(GraphStep { handle })
    }

    /// Adds a launch.
    ///
    /// # Safety
    /// As for [`CudaFunction::launch`], whenever the graph runs.
    pub unsafe fn add_kernel(
        &self,
        after: &[GraphStep],
        function: CudaFunction<'_>,
        shape: LaunchShape,
        mut arguments: Arguments,
    ) -> Result<GraphStep> {
        let mut pointers = arguments.pointers();
        let params = kernel_node(function, shape, &mut pointers);
        // SAFETY: everything that is pointed to lives until the call returns, which copies it.
        self.add(after, |place, after, count| unsafe {
            call!(cuGraphAddKernelNode(place, self.handle, after, count, &raw const params))
        })
    }

    /// Adds a copy.
    ///
    /// # Safety
    /// Both ends are as they are described, whenever the graph runs.
    pub unsafe fn add_copy(&self, after: &[GraphStep], copy: &RawCopy3D, context: &CudaContext) -> Result<GraphStep> {
        // SAFETY: as the caller promises.
        self.add(after, |place, after, count| unsafe {
            call!(cuGraphAddMemcpyNode(place, self.handle, after, count, copy, context.handle()))
        })
    }

    /// Adds a fill of memory, which must be there whenever the graph runs.
    pub fn add_fill(
        &self,
        after: &[GraphStep],
        span: DeviceSpan<'_>,
        value: FillValue,
        context: &CudaContext,
    ) -> Result<GraphStep> {
        let (element, number) = match value {
            FillValue::D8(value) => (1, value.into()),
            FillValue::D16(value) => (2, value.into()),
            FillValue::D32(value) => (4, value),
        };
        let width = span.bytes() / value.width();
        let params = RawFillNode { at: span.at(), pitch: 0, value: number, element, width, height: 1 };
        // SAFETY: the description lives until the call returns.
        self.add(after, |place, after, count| unsafe {
            call!(cuGraphAddMemsetNode(place, self.handle, after, count, &raw const params, context.handle()))
        })
    }

    /// Adds a function of the host that adds one to a counter.
    pub fn add_count(&self, after: &[GraphStep], counter: &'static AtomicU64) -> Result<GraphStep> {
        let params = RawHostNode { function: Some(add_one), data: std::ptr::from_ref(counter).cast_mut().cast() };
        // SAFETY: the description lives until the call returns; the counter stays for ever.
        self.add(after, |place, after, count| unsafe {
            call!(cuGraphAddHostNode(place, self.handle, after, count, &raw const params))
        })
    }

    /// Adds all steps of another graph as one.
    pub fn add_graph(&self, after: &[GraphStep], other: &CudaGraph) -> Result<GraphStep> {
        // SAFETY: the other graph is there until the call returns, which copies it.
        self.add(after, |place, after, count| unsafe {
            call!(cuGraphAddChildGraphNode(place, self.handle, after, count, other.handle))
        })
    }

    /// Adds a step that does nothing but come after others.
    pub fn add_empty(&self, after: &[GraphStep]) -> Result<GraphStep> {
        // SAFETY: the list lives until the call returns.
        self.add(after, |place, after, count| unsafe { call!(cuGraphAddEmptyNode(place, self.handle, after, count)) })
    }

    /// Makes it ready to run.
    pub fn instantiate(&self) -> Result<GraphInstance> {
        let mut handle = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuGraphInstantiateWithFlags(&raw mut handle, self.handle, 0)) }?;
        Ok(GraphInstance { handle })
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        // SAFETY: it was made here, and is given back once.
        let _ = unsafe { call!(cuGraphDestroy(self.handle)) };
    }
}

fn kernel_node(function: CudaFunction<'_>, shape: LaunchShape, pointers: &mut [*mut c_void]) -> RawKernelNode {
    RawKernelNode {
        function: function.handle(),
        grid: shape.grid,
        block: shape.block,
        shared: shape.shared,
        each: pointers.as_mut_ptr(),
        extra: std::ptr::null_mut(),
        kernel: 0,
        context: 0,
    }
}

/// A graph that is ready to run.
#[derive(Debug)]
pub struct GraphInstance {
    handle: DriverHandle,
}

impl GraphInstance {
    /// Runs it in the order of a stream.
    ///
    /// # Safety
    /// Everything its steps name is still there.
    pub unsafe fn launch(&self, stream: &CudaStream) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { call!(cuGraphLaunch(self.handle, stream.handle())) }
    }

    /// Gives a launch other arguments from now on.
    ///
    /// # Safety
    /// As for [`CudaGraph::add_kernel`].
    pub unsafe fn set_kernel(
        &self,
        node: GraphStep,
        function: CudaFunction<'_>,
        shape: LaunchShape,
        mut arguments: Arguments,
    ) -> Result<()> {
        let mut pointers = arguments.pointers();
        let params = kernel_node(function, shape, &mut pointers);
        // SAFETY: everything that is pointed to lives until the call returns, which copies it.
        unsafe { call!(cuGraphExecKernelNodeSetParams(self.handle, node.handle, &raw const params)) }
    }

    /// Makes it what another graph of the same shape is.
    pub fn update(&self, graph: &CudaGraph) -> Result<()> {
        let mut told = RawUpdateResult { result: 0, node: 0, from: 0 };
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuGraphExecUpdate(self.handle, graph.handle, &raw mut told)) }
    }

    /// Leaves a step out from now on, or not any more.
    pub fn enable(&self, node: GraphStep, is_enabled: bool) -> Result<()> {
        // SAFETY: it takes names and a number.
        unsafe { call!(cuGraphNodeSetEnabled(self.handle, node.handle, is_enabled.into())) }
    }
}

impl Drop for GraphInstance {
    fn drop(&mut self) {
        // SAFETY: it was made here, and is given back once.
        let _ = unsafe { call!(cuGraphExecDestroy(self.handle)) };
    }
}
