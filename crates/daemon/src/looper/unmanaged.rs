//! GPUs that the configuration leaves unmanaged: nothing is leased on them.

use sublet_core::reading::GpuFacts;

/// The names from the configuration, each a GPU's number or UUID.
pub(super) struct Unmanaged {
    names: Vec<String>,
    /// Names that a listing since the daemon's start had. Such a GPU may disappear later without harm.
    found: Vec<String>,
}

impl Unmanaged {
    pub(super) fn new(names: Vec<String>) -> Unmanaged {
        Unmanaged { names, found: Vec::new() }
    }

    /// Marks the unmanaged GPUs of a listing as unusable. A name that no listing had yet is probably a typing error, and the
    /// GPU that was meant is unknown: then no GPU is leased until the configuration is corrected.
    pub(super) fn apply(&mut self, gpus: &mut [GpuFacts]) {
        for name in &self.names {
            let index = name.parse().ok();
            match gpus.iter_mut().find(|gpu| gpu.uuid == *name || Some(gpu.index) == index) {
                Some(gpu) => {
                    gpu.unusable = Some("the configuration leaves it unmanaged".to_owned());
                    self.found.push(name.clone());
                }
                None if self.found.contains(name) => {}
                None => {
                    let why = format!(
                        "`unmanaged` in the configuration names GPU `{name}`, which this host does not have; correct it \
                         (`nvidia-smi -L` lists the GPUs) and restart the daemon"
                    );
                    tracing::error!("nothing is leased: {why}");
                    gpus.iter_mut().for_each(|gpu| gpu.unusable = Some(why.clone()));
                }
            }
        }
        self.found.sort();
        self.found.dedup();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_core::units::Bytes;

    fn gpu(index: u32) -> GpuFacts {
        GpuFacts::plain(index, Bytes::gib(24))
    }

    fn unusable(unmanaged: &mut Unmanaged, indexes: &[u32]) -> Vec<u32> {
        let mut gpus: Vec<GpuFacts> = indexes.iter().copied().map(gpu).collect();
        unmanaged.apply(&mut gpus);
        gpus.iter().filter(|gpu| gpu.unusable.is_some()).map(|gpu| gpu.index).collect()
    }

    #[test]
    fn named_gpus_are_unusable_and_may_disappear_later() {
        let mut unmanaged = Unmanaged::new(vec!["1".to_owned(), "GPU-2".to_owned()]);
        assert_eq!(unusable(&mut unmanaged, &[0, 1, 2]), [1, 2]);
        assert_eq!(unusable(&mut unmanaged, &[0, 2]), [2]);
    }

    #[test]
    fn a_name_that_was_never_listed_makes_every_gpu_unusable() {
        let mut unmanaged = Unmanaged::new(vec!["1".to_owned(), "7".to_owned()]);
        assert_eq!(unusable(&mut unmanaged, &[0, 1, 2]), [0, 1, 2]);
        assert_eq!(unusable(&mut unmanaged, &[0, 1, 7]), [1, 7]);
        assert_eq!(unusable(&mut unmanaged, &[0, 1]), [1]);
    }
}
