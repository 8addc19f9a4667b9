//! Arguments of a kernel, packed as the driver takes them.

use super::GpuBuffer;
use crate::error::FabricError;
use std::marker::PhantomData;

/// Arguments of a kernel, in the order of its parameters.
///
/// A buffer that was pushed cannot be freed while the arguments are in use.
#[derive(Clone, Debug, Default)]
pub struct KernelArgs<'a> {
    bytes: Vec<u8>,
    /// Where each argument begins, and its size.
    places: Vec<(usize, usize)>,
    /// The sessions of the buffers.
    sessions: Vec<u64>,
    buffers: PhantomData<&'a GpuBuffer>,
}

impl<'a> KernelArgs<'a> {
    /// No arguments.
    pub fn new() -> KernelArgs<'a> {
        KernelArgs::default()
    }

    /// Appends bytes at the next multiple of their size, as compilers lay parameters out.
    fn push<const N: usize>(mut self, value: [u8; N]) -> KernelArgs<'a> {
        let at = self.bytes.len().next_multiple_of(N);
        self.bytes.resize(at, 0);
        self.bytes.extend_from_slice(&value);
        self.places.push((at, N));
        self
    }

    /// A 32-bit number without a sign.
    pub fn push_u32(self, value: u32) -> KernelArgs<'a> {
        self.push(value.to_ne_bytes())
    }

    /// A 64-bit number without a sign.
    pub fn push_u64(self, value: u64) -> KernelArgs<'a> {
        self.push(value.to_ne_bytes())
    }

    /// A 32-bit number.
    pub fn push_i32(self, value: i32) -> KernelArgs<'a> {
        self.push(value.to_ne_bytes())
    }

    /// A 64-bit number.
    pub fn push_i64(self, value: i64) -> KernelArgs<'a> {
        self.push(value.to_ne_bytes())
    }

    /// A 32-bit number with a fraction.
    pub fn push_f32(self, value: f32) -> KernelArgs<'a> {
        self.push(value.to_ne_bytes())
    }

    /// A 64-bit number with a fraction.
    pub fn push_f64(self, value: f64) -> KernelArgs<'a> {
        self.push(value.to_ne_bytes())
    }

    /// The address of a buffer.
    pub fn push_buffer(mut self, buffer: &'a GpuBuffer) -> KernelArgs<'a> {
        self.sessions.push(buffer.session());
        self.push(buffer.address().to_ne_bytes())
    }

    /// How many arguments there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are no arguments.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// All of them, side by side.
    pub(super) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Refuses buffers of other sessions, and arguments that differ from the kernel's parameters (`None`: unknown).
    pub(super) fn check(
        &self,
        session: u64,
        kernel: &str,
        parameters: Option<&[(usize, usize)]>,
    ) -> Result<(), FabricError> {
        if self.sessions.iter().any(|own| *own != session) {
            return Err(FabricError::InvalidArgument(format!(
                "an argument of kernel `{kernel}` is a buffer of another session"
            )));
        }
        match parameters {
            Some(parameters) if parameters != self.places => Err(FabricError::InvalidArgument(format!(
                "kernel `{kernel}` takes {}, and the call has {}",
                listed(parameters),
                listed(&self.places)
            ))),
            _ => Ok(()),
        }
    }
}

/// The number of parameters and their sizes, in words.
fn listed(places: &[(usize, usize)]) -> String {
    let sizes: Vec<String> = places.iter().map(|(_, size)| size.to_string()).collect();
    match places.len() {
        0 => "no arguments".to_owned(),
        1 => format!("1 argument of {} bytes", sizes.concat()),
        n => format!("{n} arguments of {} bytes", sizes.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_lie_at_multiples_of_their_sizes() {
        let args = KernelArgs::new().push_u32(1).push_u64(2).push_i32(-1).push_f32(1.0).push_f64(0.5).push_i64(-2);
        assert_eq!(args.places, [(0, 4), (8, 8), (16, 4), (20, 4), (24, 8), (32, 8)]);
        assert_eq!((args.len(), args.bytes.len()), (6, 40));
        assert_eq!(args.bytes[8..16], 2_u64.to_ne_bytes());
    }

    #[test]
    fn arguments_that_differ_from_the_parameters_are_named() {
        let args = KernelArgs::new().push_u32(1).push_u64(2);
        args.check(1, "f", None).unwrap();
        args.check(1, "f", Some(&[(0, 4), (8, 8)])).unwrap();
        let error = args.check(1, "f", Some(&[(0, 4)])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "kernel `f` takes 1 argument of 4 bytes, and the call has 2 arguments of 4, 8 bytes"
        );
    }
}
