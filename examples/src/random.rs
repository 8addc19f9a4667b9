//! Random numbers that are the same on every machine for the same seed (splitmix64).

/// A source of random numbers.
#[derive(Clone, Debug)]
pub struct SeededRandom {
    state: u64,
}

impl SeededRandom {
    /// The source of a seed.
    pub fn new(seed: u64) -> SeededRandom {
        SeededRandom { state: seed }
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from the first to the last of a range.
    pub fn within(&mut self, first: usize, last: usize) -> usize {
        first + (self.number() % (last - first + 1) as u64) as usize
    }

    /// One of several.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.within(0, all.len() - 1)]
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.within(1, times) == 1
    }

    /// A number from -1 to 1, of which 24 bits are random.
    pub fn unit(&mut self) -> f32 {
        ((self.number() >> 40) as f32 - 8_388_608.0) / 8_388_608.0
    }

    /// So many random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend(self.number().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_always() {
        let mut random = SeededRandom::new(1);
        assert_eq!((random.number(), random.number()), (0x910a_2dec_8902_5cc1, 0xbeeb_8da1_658e_ec67));
        assert_eq!(random.bytes(13).len(), 13);
        assert!((0..1000).all(|_| (-1.0..=1.0).contains(&random.unit())));
        assert!((0..1000).all(|_| (3..=5).contains(&random.within(3, 5))));
    }
}
