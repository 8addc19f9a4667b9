//! Graphs: work with its order, which can be run any number of times.

use crate::engine::JobId;
use crate::handles;
use crate::object::RetainedObjects;
use crate::result::{CuResult, Outcome};
use crate::runtime::{DriverContext, Runtime};
use crate::stream::WorkStream;
use crate::work::JobWork;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A node: work of a graph.
pub struct WorkNode {
    /// Its handle.
    pub handle: usize,
    /// The handle of its graph.
    pub graph: usize,
    /// The context in which it runs.
    pub context: Arc<DriverContext>,
    work: Mutex<JobWork>,
}

impl WorkNode {
    /// A node that is not in its graph's list yet.
    pub fn new(graph: &WorkGraph, context: Arc<DriverContext>, work: JobWork) -> Arc<WorkNode> {
        Arc::new(WorkNode { handle: handles::fresh(), graph: graph.handle, context, work: Mutex::new(work) })
    }

    /// What it does.
    pub fn work(&self) -> JobWork {
        self.work.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces its work by other work of the same kind.
    pub fn set(&self, work: JobWork) -> Outcome {
        let mut own = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        if own.kind() != work.kind() {
            return Err(CuResult::INVALID_VALUE);
        }
        *own = work;
        Ok(())
    }
}

/// Nodes in the order of their creation, and their dependencies.
#[derive(Clone, Default)]
pub struct GraphBody {
    /// The nodes.
    pub nodes: Vec<Arc<WorkNode>>,
    /// From, to.
    pub edges: BTreeSet<(usize, usize)>,
}

/// A graph.
pub struct WorkGraph {
    /// Its handle.
    pub handle: usize,
    /// Objects of the program that it keeps.
    pub kept: RetainedObjects,
    body: Mutex<GraphBody>,
}

impl WorkGraph {
    /// A new one, without nodes.
    pub fn create(runtime: &Runtime) -> Arc<WorkGraph> {
        let graph =
            Arc::new(WorkGraph { handle: handles::fresh(), kept: RetainedObjects::default(), body: Mutex::default() });
        runtime.graphs.insert_as(graph.handle, Arc::clone(&graph));
        graph
    }

    /// Its nodes and edges.
    pub fn body(&self) -> MutexGuard<'_, GraphBody> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a node after others of the graph.
    pub fn add(&self, runtime: &Runtime, node: &Arc<WorkNode>, after: &[usize]) -> Outcome {
        let mut body = self.body();
        if after.iter().any(|before| body.nodes.iter().all(|own| own.handle != *before)) {
            return Err(CuResult::INVALID_VALUE);
        }
        body.nodes.push(Arc::clone(node));
        body.edges.extend(after.iter().map(|before| (*before, node.handle)));
        drop(body);
        runtime.nodes.insert_as(node.handle, Arc::clone(node));
        Ok(())
    }

    /// Adds edges; refused if they would make a cycle.
    pub fn connect(&self, edges: &[(usize, usize)]) -> Outcome {
        let mut body = self.body();
        let known: BTreeSet<usize> = body.nodes.iter().map(|node| node.handle).collect();
        let is_odd = |(from, to): &(usize, usize)| from == to || !known.contains(from) || !known.contains(to);
        if edges.iter().any(is_odd) || edges.iter().any(|edge| body.edges.contains(edge)) {
            return Err(CuResult::INVALID_VALUE);
        }
        let mut changed = body.clone();
        changed.edges.extend(edges);
        order(&changed)?;
        *body = changed;
        Ok(())
    }

    /// Removes edges.
    pub fn disconnect(&self, edges: &[(usize, usize)]) -> Outcome {
        let mut body = self.body();
        if edges.iter().any(|edge| !body.edges.contains(edge)) {
            return Err(CuResult::INVALID_VALUE);
        }
        body.edges.retain(|edge| !edges.contains(edge));
        Ok(())
    }

    /// Removes a node.
    pub fn remove(&self, runtime: &Runtime, node: usize) {
        let mut body = self.body();
        body.nodes.retain(|own| own.handle != node);
        body.edges.retain(|(from, to)| *from != node && *to != node);
        drop(body);
        if let Ok(node) = runtime.nodes.remove(node)
            && let JobWork::Graph(child) = node.work()
        {
            child.forget(runtime);
        }
    }

    /// Forgets the handles of a child and its nodes; instantiated graphs still have its work.
    fn forget(&self, runtime: &Runtime) {
        let nodes = self.body().nodes.clone();
        for node in nodes {
            let _ = runtime.nodes.remove(node.handle);
            if let JobWork::Graph(child) = node.work() {
                child.forget(runtime);
            }
        }
        let _ = runtime.graphs.remove(self.handle);
    }

    /// These nodes and all that they depend on.
    pub fn all_before(&self, nodes: &[usize]) -> BTreeSet<usize> {
        let body = self.body();
        let (mut found, mut next) = (BTreeSet::new(), nodes.to_vec());
        while let Some(node) = next.pop() {
            if found.insert(node) {
                next.extend(body.edges.iter().filter(|(_, to)| *to == node).map(|(from, _)| *from));
            }
        }
        found
    }

    /// Forgets the graph and its nodes.
    pub fn destroy(&self, runtime: &Runtime) {
        let nodes: Vec<usize> = self.body().nodes.iter().map(|node| node.handle).collect();
        nodes.into_iter().for_each(|node| self.remove(runtime, node));
        let _ = runtime.graphs.remove(self.handle);
        self.kept.clear();
    }

    /// Copies the graph. Returns the new nodes by the old ones.
    pub fn duplicate(&self, runtime: &Runtime) -> (Arc<WorkGraph>, BTreeMap<usize, usize>) {
        let (copy, body) = (WorkGraph::create(runtime), self.body().clone());
        let mut new = BTreeMap::new();
        for node in &body.nodes {
            let own = WorkNode::new(&copy, Arc::clone(&node.context), node.work());
            new.insert(node.handle, own.handle);
            copy.body().nodes.push(Arc::clone(&own));
            runtime.nodes.insert_as(own.handle, own);
        }
        copy.body().edges = body.edges.iter().filter_map(|(from, to)| Some((*new.get(from)?, *new.get(to)?))).collect();
        (copy, new)
    }
}

/// The indices of the nodes in an order in which each comes after those it depends on.
fn order(body: &GraphBody) -> Outcome<Vec<usize>> {
    let place: BTreeMap<usize, usize> = body.nodes.iter().enumerate().map(|(at, node)| (node.handle, at)).collect();
    let mut missing = vec![0; body.nodes.len()];
    let mut then: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (from, to) in &body.edges {
        if let (Some(from), Some(to)) = (place.get(from), place.get(to)) {
            missing[*to] += 1;
            then.entry(*from).or_default().push(*to);
        }
    }
    let mut ready: BTreeSet<usize> = (0..missing.len()).filter(|at| missing[*at] == 0).collect();
    let mut sorted = Vec::with_capacity(missing.len());
    while let Some(at) = ready.pop_first() {
        sorted.push(at);
        for next in then.get(&at).into_iter().flatten() {
            missing[*next] -= 1;
            if missing[*next] == 0 {
                ready.insert(*next);
            }
        }
    }
    if sorted.len() == body.nodes.len() { Ok(sorted) } else { Err(CuResult::INVALID_VALUE) }
}

/// A step of a run: what, where, and after which of the earlier ones.
type Step = (JobWork, Arc<DriverContext>, Vec<usize>);

/// An instantiated graph: a copy of its work that later changes of the graph do not reach.
pub struct InstantiatedGraph {
    /// The flags of its instantiation.
    pub flags: u64,
    kept: Arc<RetainedObjects>,
    content: Mutex<InstantiatedContent>,
}

struct InstantiatedContent {
    graph: GraphBody,
    changed: BTreeMap<usize, JobWork>,
    disabled: BTreeSet<usize>,
    steps: Vec<Step>,
    last: Option<JobId>,
}

impl InstantiatedGraph {
    /// Instantiates a graph.
    pub fn new(graph: &WorkGraph, flags: u64) -> Outcome<InstantiatedGraph> {
        let (kept, graph) = (graph.kept.duplicate(), copy_of_body(&graph.body()));
        let steps = steps(&graph, &BTreeMap::new(), &BTreeSet::new())?;
        let content =
            InstantiatedContent { graph, changed: BTreeMap::new(), disabled: BTreeSet::new(), steps, last: None };
        Ok(InstantiatedGraph { flags, kept: Arc::new(kept), content: Mutex::new(content) })
    }

    fn content(&self) -> MutexGuard<'_, InstantiatedContent> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits it to a stream. It never overlaps with itself: each run comes after the one before.
    pub fn launch(&self, runtime: &'static Runtime, stream: &WorkStream) {
        let mut content = self.content();
        let job = runtime.engine.submit_graph(runtime, stream, &content.steps, content.last, &self.kept);
        content.last = Some(job);
    }

    /// Replaces the work of a node by other work of the same kind.
    pub fn set(&self, node: usize, work: JobWork) -> Outcome {
        let mut content = self.content();
        let own = content.graph.nodes.iter().find(|own| own.handle == node).ok_or(CuResult::INVALID_VALUE)?;
        if own.work().kind() != work.kind() {
            return Err(CuResult::INVALID_VALUE);
        }
        content.changed.insert(node, work);
        content.refresh()
    }

    /// Disables or enables a node.
    pub fn enable(&self, node: usize, is_enabled: bool) -> Outcome {
        let mut content = self.content();
        if content.graph.nodes.iter().all(|own| own.handle != node) {
            return Err(CuResult::INVALID_VALUE);
        }
        if is_enabled {
            content.disabled.remove(&node)
        } else {
            content.disabled.insert(node)
        };
        content.refresh()
    }

    /// True if a node is enabled.
    pub fn is_enabled(&self, node: usize) -> Outcome<bool> {
        let content = self.content();
        if content.graph.nodes.iter().all(|own| own.handle != node) {
            return Err(CuResult::INVALID_VALUE);
        }
        Ok(!content.disabled.contains(&node))
    }

    /// Takes over the work of another graph of the same shape. Returns the first node that differs in shape.
    pub fn update(&self, graph: &WorkGraph) -> Outcome<Option<usize>> {
        let new = copy_of_body(&graph.body());
        let mut content = self.content();
        let old = &content.graph;
        if old.nodes.len() != new.nodes.len() {
            return Ok(new.nodes.last().map(|node| node.handle));
        }
        let odd = old.nodes.iter().zip(&new.nodes).find(|(old, new)| old.work().kind() != new.work().kind());
        if let Some((_, node)) = odd {
            return Ok(Some(node.handle));
        }
        let places = |body: &GraphBody| -> BTreeSet<(usize, usize)> {
            let place = |handle: usize| body.nodes.iter().position(|node| node.handle == handle).unwrap_or(usize::MAX);
            body.edges.iter().map(|(from, to)| (place(*from), place(*to))).collect()
        };
        if places(old) != places(&new) {
            return Ok(new.nodes.first().map(|node| node.handle));
        }
        // Nodes are still named as in the graph that it was instantiated from.
        content.changed = old.nodes.iter().zip(&new.nodes).map(|(old, new)| (old.handle, new.work())).collect();
        content.refresh()?;
        Ok(None)
    }
}

impl InstantiatedContent {
    fn refresh(&mut self) -> Outcome {
        self.steps = steps(&self.graph, &self.changed, &self.disabled)?;
        Ok(())
    }
}

/// A copy of a body with nodes that no other code changes.
fn copy_of_body(body: &GraphBody) -> GraphBody {
    let copy = |node: &Arc<WorkNode>| {
        let (context, work) = (Arc::clone(&node.context), Mutex::new(node.work()));
        Arc::new(WorkNode { handle: node.handle, graph: node.graph, context, work })
    };
    GraphBody { nodes: body.nodes.iter().map(copy).collect(), edges: body.edges.clone() }
}

/// The work of a graph in order, with child graphs expanded in place.
fn steps(body: &GraphBody, changed: &BTreeMap<usize, JobWork>, disabled: &BTreeSet<usize>) -> Outcome<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    // The last step of each node.
    let mut end: BTreeMap<usize, usize> = BTreeMap::new();
    for at in order(body)? {
        let node = &body.nodes[at];
        let before = body.edges.iter().filter(|(_, to)| *to == node.handle);
        let after: Vec<usize> = before.filter_map(|(from, _)| end.get(from).copied()).collect();
        let work = match changed.get(&node.handle) {
            _ if disabled.contains(&node.handle) => JobWork::Nothing,
            Some(work) => work.clone(),
            None => node.work(),
        };
        let context = Arc::clone(&node.context);
        let last = if let JobWork::Graph(child) = &work {
            let own = self::steps(&copy_of_body(&child.body()), &BTreeMap::new(), &BTreeSet::new())?;
            let first = steps.len();
            for (work, context, inside) in own {
                let inside = inside.into_iter().map(|step| step + first);
                let all = if inside.len() == 0 { after.clone() } else { inside.collect() };
                steps.push((work, context, all));
            }
            let all = if steps.len() == first { after } else { (first..steps.len()).collect() };
            steps.push((JobWork::Nothing, context, all));
            steps.len() - 1
        } else {
            steps.push((work, context, after));
            steps.len() - 1
        };
        end.insert(node.handle, last);
    }
    Ok(steps)
}
