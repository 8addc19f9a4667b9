//! The only source of chance: SplitMix64. On one machine a trace depends on its seed alone; between machines the last
//! bit of [`ReplayRng::log_normal`] may differ.

/// A stream of numbers.
#[derive(Clone, Debug)]
pub struct ReplayRng(u64);

impl ReplayRng {
    /// The stream of this seed.
    pub fn new(seed: u64) -> ReplayRng {
        ReplayRng(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number below `n`; zero if `n` is.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(n)) >> 64) as u64
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Normal, mean 0 and deviation 1: the sum of twelve draws is near enough.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    /// Log-normal with this median and spread, within limits.
    pub fn log_normal(&mut self, median: f64, sigma: f64, low: f64, high: f64) -> f64 {
        (median * (sigma * self.normal()).exp()).clamp(low, high)
    }
}

/// A Zipf distribution over `n` items: weight 1 for the first, then 1/2, 1/3, …
#[derive(Clone, Debug)]
pub struct Zipf(Vec<f64>);

impl Zipf {
    /// Over `n` items.
    pub fn new(n: usize) -> Zipf {
        let mut sum = 0.0;
        Zipf(
            (1..=n.max(1))
                .map(|rank| {
                    sum += 1.0 / rank as f64;
                    sum
                })
                .collect(),
        )
    }

    /// The index of a random item.
    pub fn draw(&self, rng: &mut ReplayRng) -> usize {
        let at = rng.unit() * self.0[self.0.len() - 1];
        self.0.partition_point(|sum| *sum <= at).min(self.0.len() - 1)
    }
}
