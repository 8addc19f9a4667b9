//! `CUDA_VISIBLE_DEVICES`: which GPUs a program sees, and in which order.

use sublet_softgpu::SoftGpuState;
use sublet_softgpu::layout::SoftGpu;

/// The GPUs that this process may see.
pub fn visible_gpus(state: &SoftGpuState) -> Vec<usize> {
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(list) => parse_visible_list(&list, &state.gpus().iter().map(SoftGpu::uuid_text).collect::<Vec<_>>()),
        Err(_) => (0..state.gpus().len()).collect(),
    }
}

/// Reads the list as the driver does: numbers or prefixes of UUIDs, up to the first that names no GPU; a GPU that is
/// named twice makes the list empty.
fn parse_visible_list(list: &str, uuids: &[String]) -> Vec<usize> {
    let mut found = Vec::new();
    for name in list.split(',').map(str::trim) {
        let gpu = match name.parse::<usize>() {
            Ok(number) => (number < uuids.len()).then_some(number),
            Err(_) if name.starts_with("GPU-") => {
                let mut alike = uuids.iter().enumerate().filter(|(_, uuid)| uuid.starts_with(name));
                alike.next().filter(|_| alike.next().is_none()).map(|(number, _)| number)
            }
            Err(_) => None,
        };
        let Some(gpu) = gpu else { break };
        if found.contains(&gpu) {
            return Vec::new();
        }
        found.push(gpu);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::parse_visible_list;

    #[test]
    fn a_visible_list_is_parsed_like_the_drivers() {
        let uuids = ["GPU-0a1b".to_owned(), "GPU-0a2c".to_owned(), "GPU-ff00".to_owned()];
        for (list, gpus) in [
            ("0,1,2", vec![0, 1, 2]),
            ("2, 0", vec![2, 0]),
            ("", vec![]),
            ("-1", vec![]),
            ("1,7,0", vec![1]),
            ("1,1", vec![]),
            ("GPU-ff", vec![2]),
            ("GPU-0a2c,0", vec![1, 0]),
            ("GPU-0a", vec![]),
            ("none", vec![]),
        ] {
            assert_eq!(parse_visible_list(list, &uuids), gpus, "{list}");
        }
    }
}
