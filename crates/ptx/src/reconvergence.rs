//! Where the sides of a branch meet again: immediate post-dominators.
//!
//! Works on indices of basic blocks only. A block that cannot reach the end of
//! its function (an endless loop) has no meeting point.

/// For each block, the block in which all ways to the end meet first, if any.
///
/// `successors[block]` are the blocks that follow; a block without any ends the
/// function.
pub(crate) fn reconvergence_points(successors: &[Vec<usize>]) -> Vec<Option<usize>> {
    let count = successors.len();
    let end = count;
    let mut predecessors = vec![Vec::new(); count + 1];
    for (block, next) in successors.iter().enumerate() {
        for &next in next {
            predecessors[next].push(block);
        }
        if next.is_empty() {
            predecessors[end].push(block);
        }
    }
    let order = reverse_post_order(&predecessors, end);
    let mut position = vec![usize::MAX; count + 1];
    for (index, &block) in order.iter().enumerate() {
        position[block] = index;
    }
    let mut meeting_block = vec![usize::MAX; count + 1];
    meeting_block[end] = end;
    let mut changed = true;
    while changed {
        changed = false;
        for &block in order.iter().skip(1) {
            let mut found = usize::MAX;
            let ending = successors[block].is_empty().then_some(end);
            for next in successors[block].iter().copied().chain(ending) {
                if meeting_block[next] == usize::MAX {
                    continue;
                }
                found = if found == usize::MAX {
                    next
                } else {
                    common_post_dominator(&meeting_block, &position, found, next)
                };
            }
            if meeting_block[block] != found {
                meeting_block[block] = found;
                changed = true;
            }
        }
    }
    meeting_block.truncate(count);
    meeting_block.into_iter().map(|meet| (meet < end).then_some(meet)).collect()
}

/// Blocks from the end backwards, each after all that it reaches where possible.
fn reverse_post_order(predecessors: &[Vec<usize>], end: usize) -> Vec<usize> {
    let mut seen = vec![false; predecessors.len()];
    let mut stack = vec![(end, 0)];
    let mut order = Vec::new();
    seen[end] = true;
    while let Some((block, next)) = stack.last_mut() {
        match predecessors[*block].get(*next) {
            Some(&before) => {
                *next += 1;
                if !std::mem::replace(&mut seen[before], true) {
                    stack.push((before, 0));
                }
            }
            None => {
                order.push(*block);
                stack.pop();
            }
        }
    }
    order.reverse();
    order
}

fn common_post_dominator(meeting_block: &[usize], position: &[usize], mut one: usize, mut other: usize) -> usize {
    while one != other {
        while position[one] > position[other] {
            one = meeting_block[one];
        }
        while position[other] > position[one] {
            other = meeting_block[other];
        }
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(successors: &[&[usize]], expect: &[Option<usize>]) {
        let successors: Vec<Vec<usize>> = successors.iter().map(|next| next.to_vec()).collect();
        assert_eq!(reconvergence_points(&successors), expect);
    }

    #[test]
    fn the_sides_of_an_if_meet_after_it() {
        check(&[&[1, 2], &[3], &[3], &[]], &[Some(3), Some(3), Some(3), None]);
    }

    #[test]
    fn a_loop_meets_at_its_exit_even_with_a_break() {
        // 0 -> 1 (head) -> 2 or 4 (break); 2 -> 1 or 4; 4 ends.
        check(&[&[1], &[2, 3], &[1, 3], &[]], &[Some(1), Some(3), Some(3), None]);
    }

    #[test]
    fn an_endless_loop_has_no_reconvergence_point() {
        check(&[&[1, 2], &[1], &[]], &[Some(2), None, None]);
    }

    #[test]
    fn branches_that_both_end_have_no_reconvergence_point() {
        check(&[&[1, 2], &[], &[]], &[None, None, None]);
    }
}
