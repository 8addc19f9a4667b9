//! Memory of GPUs, memory of the host for copies, and how bytes get from one to another.

use super::streams::CudaStream;
use super::{Address, DriverHandle, Result, call};
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ops::Range;

/// A part of some memory of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSpan<'a> {
    at: Address,
    bytes: usize,
    owner: PhantomData<&'a ()>,
}

impl<'a> DeviceSpan<'a> {
    /// Memory that stays allocated as long as its owner is borrowed.
    pub(crate) fn of<T: ?Sized>(_owner: &'a T, at: Address, bytes: usize) -> DeviceSpan<'a> {
        DeviceSpan { at, bytes, owner: PhantomData }
    }

    /// Where it begins.
    pub fn at(self) -> Address {
        self.at
    }

    /// How long it is.
    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// A part of it.
    ///
    /// # Panics
    /// If that is not all in it.
    pub fn part(self, range: Range<usize>) -> DeviceSpan<'a> {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} is not within {} bytes", self.bytes);
        DeviceSpan { at: self.at + range.start as u64, bytes: range.end - range.start, owner: PhantomData }
    }

    /// Copies bytes of the host there. They may be on their way when this returns: what comes later in
    /// the default stream sees them.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(self, bytes: &[u8]) -> Result<()> {
        let place = self.part(0..bytes.len());
        // SAFETY: the bytes live until the call returns, which has read them by then.
        unsafe { call!(cuMemcpyHtoD(place.at, bytes.as_ptr().cast(), bytes.len())) }
    }

    /// Copies bytes from there to the host.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn read(self, bytes: &mut [u8]) -> Result<()> {
        let place = self.part(0..bytes.len());
        // SAFETY: the bytes live until the call returns, and are borrowed exclusively.
        unsafe { call!(cuMemcpyDtoH(bytes.as_mut_ptr().cast(), place.at, bytes.len())) }
    }

    /// All bytes that are there.
    pub fn to_vec(self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.bytes];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    /// Copies as many bytes from somewhere else on a GPU.
    pub fn copy_from(self, from: DeviceSpan<'_>) -> Result<()> {
        let bytes = from.bytes;
        // SAFETY: both are memory of GPUs, as long as both are borrowed.
        unsafe { call!(cuMemcpyDtoD(self.part(0..bytes).at, from.at, bytes)) }
    }

    /// The same, in the order of a stream.
    pub fn copy_from_in(self, from: DeviceSpan<'_>, stream: &CudaStream) -> Result<()> {
        let bytes = from.bytes;
        // SAFETY: both are memory of GPUs, which is not freed before the copy is done.
        unsafe { call!(cuMemcpyDtoDAsync(self.part(0..bytes).at, from.at, bytes, stream.handle())) }
    }

    /// The same, where the driver finds out what kind of memory the two are.
    pub fn copy_unified_from(self, from: DeviceSpan<'_>, stream: Option<&CudaStream>) -> Result<()> {
        let (to, bytes) = (self.part(0..from.bytes).at, from.bytes);
        // SAFETY: both are memory of GPUs, which is not freed before the copy is done.
        unsafe {
            match stream {
                Some(stream) => call!(cuMemcpyAsync(to, from.at, bytes, stream.handle())),
                None => call!(cuMemcpy(to, from.at, bytes)),
            }
        }
    }

    /// Copies bytes of the host there, in the order of a stream.
    ///
    /// # Safety
    /// The bytes stay as they are until the copy is done.
    pub unsafe fn write_in(self, bytes: &[u8], stream: &CudaStream) -> Result<()> {
        let place = self.part(0..bytes.len());
        // SAFETY: as the caller promises.
        unsafe { call!(cuMemcpyHtoDAsync(place.at, bytes.as_ptr().cast(), bytes.len(), stream.handle())) }
    }

    /// Copies bytes from there to the host, in the order of a stream.
    ///
    /// # Safety
    /// The bytes are neither read, written nor freed until the copy is done.
    pub unsafe fn read_in(self, bytes: &mut [u8], stream: &CudaStream) -> Result<()> {
        let place = self.part(0..bytes.len());
        // SAFETY: as the caller promises.
        unsafe { call!(cuMemcpyDtoHAsync(bytes.as_mut_ptr().cast(), place.at, bytes.len(), stream.handle())) }
    }

    /// Fills it with a value of 1, 2 or 4 bytes, as often as that fits.
    pub fn fill(self, value: FillValue, stream: Option<&CudaStream>) -> Result<()> {
        let (at, count) = (self.at, self.bytes / value.width());
        // SAFETY: memory of a GPU, which is not freed before it is filled.
        unsafe {
            match (value, stream.map(CudaStream::handle)) {
                (FillValue::D8(value), None) => call!(cuMemsetD8(at, value, count)),
                (FillValue::D16(value), None) => call!(cuMemsetD16(at, value, count)),
                (FillValue::D32(value), None) => call!(cuMemsetD32(at, value, count)),
                (FillValue::D8(value), Some(stream)) => call!(cuMemsetD8Async(at, value, count, stream)),
                (FillValue::D16(value), Some(stream)) => call!(cuMemsetD16Async(at, value, count, stream)),
                (FillValue::D32(value), Some(stream)) => call!(cuMemsetD32Async(at, value, count, stream)),
            }
        }
    }

    /// Fills lines: so many values in each of so many lines, which begin `pitch` bytes apart.
    ///
    /// # Panics
    /// If the last line does not end within it.
    pub fn fill_lines(
        self,
        value: FillValue,
        pitch: usize,
        size: (usize, usize),
        stream: Option<&CudaStream>,
    ) -> Result<()> {
        let (width, height) = size;
        assert!(height == 0 || (height - 1) * pitch + width * value.width() <= self.bytes, "lines beyond the memory");
        let at = self.at;
        // SAFETY: memory of a GPU, which is not freed before it is filled.
        unsafe {
            match (value, stream.map(CudaStream::handle)) {
                (FillValue::D8(value), None) => call!(cuMemsetD2D8(at, pitch, value, width, height)),
                (FillValue::D16(value), None) => call!(cuMemsetD2D16(at, pitch, value, width, height)),
                (FillValue::D32(value), None) => call!(cuMemsetD2D32(at, pitch, value, width, height)),
                (FillValue::D8(value), Some(stream)) => {
                    call!(cuMemsetD2D8Async(at, pitch, value, width, height, stream))
                }
                (FillValue::D16(value), Some(stream)) => {
                    call!(cuMemsetD2D16Async(at, pitch, value, width, height, stream))
                }
                (FillValue::D32(value), Some(stream)) => {
                    call!(cuMemsetD2D32Async(at, pitch, value, width, height, stream))
                }
            }
        }
    }
}

/// What memory is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillValue {
    /// One byte.
    D8(u8),
    /// Two.
    D16(u16),
    /// Four.
    D32(u32),
}

impl FillValue {
    /// Bytes of one value.
    pub fn width(self) -> usize {
        match self {
            FillValue::D8(_) => 1,
            FillValue::D16(_) => 2,
            FillValue::D32(_) => 4,
        }
    }

    /// The bytes of one value.
    pub fn bytes(self) -> Vec<u8> {
        match self {
            FillValue::D8(value) => vec![value],
            FillValue::D16(value) => value.to_le_bytes().to_vec(),
            FillValue::D32(value) => value.to_le_bytes().to_vec(),
        }
    }
}

/// Numbers as bytes.
pub fn bytes_of<T: Number>(numbers: &[T]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.bytes()).collect()
}

/// Bytes as numbers.
pub fn numbers_of<T: Number>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(T::from_bytes).collect()
}

/// Numbers that kernels work on.
pub trait Number: Copy {
    /// Its bytes.
    fn bytes(self) -> impl Iterator<Item = u8>;
    /// From as many bytes.
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! numbers {
    ($($number:ty)*) => {
        $(impl Number for $number {
            fn bytes(self) -> impl Iterator<Item = u8> {
                self.to_le_bytes().into_iter()
            }
            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("as many bytes as a number has"))
            }
        })*
    };
}
numbers! { f32 i32 u32 u64 }

/// Memory of a GPU.
#[derive(Debug)]
pub struct Buffer {
    at: Address,
    bytes: usize,
}

impl Buffer {
    /// Takes memory of the GPU this thread works on.
    pub fn alloc(bytes: usize) -> Result<Buffer> {
        let mut at = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuMemAlloc(&raw mut at, bytes)) }?;
        Ok(Buffer { at, bytes })
    }

    /// Takes memory for lines: of so many bytes, so many of them. Also gives how far apart they begin.
    pub fn alloc_pitched(width: usize, height: usize, element: u32) -> Result<(Buffer, usize)> {
        let (mut at, mut pitch) = (0, 0);
        // SAFETY: both places live until the call returns.
        unsafe { call!(cuMemAllocPitch(&raw mut at, &raw mut pitch, width, height, element)) }?;
        Ok((Buffer { at, bytes: pitch * height }, pitch))
    }

    /// Takes memory and copies numbers there.
    pub fn holding<T: Number>(numbers: &[T]) -> Result<Buffer> {
        let bytes = bytes_of(numbers);
        let buffer = Buffer::alloc(bytes.len())?;
        buffer.all().write(&bytes)?;
        Ok(buffer)
    }

    /// All of it.
    pub fn all(&self) -> DeviceSpan<'_> {
        DeviceSpan::of(self, self.at, self.bytes)
    }

    /// The numbers in it.
    pub fn numbers<T: Number>(&self) -> Result<Vec<T>> {
        Ok(numbers_of(&self.all().to_vec()?))
    }

    /// Gives it back, and tells whether that went well.
    pub fn free(self) -> Result<()> {
        let at = self.at;
        std::mem::forget(self);
        // SAFETY: it was taken here, and is given back once.
        unsafe { call!(cuMemFree(at)) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it was taken here, and is given back once.
        let _ = unsafe { call!(cuMemFree(self.at)) };
    }
}

/// Where the allocation begins that an address is in, and how long it is.
pub fn address_range(at: Address) -> Result<(Address, usize)> {
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: both places live until the call returns.
    unsafe { call!(cuMemGetAddressRange(&raw mut base, &raw mut bytes, at)) }?;
    Ok((base, bytes))
}

/// Whether an address is memory of the host, and not of a GPU.
pub fn is_host_memory(at: Address) -> Result<bool> {
    // `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`: host, device, array, unified.
    let mut kind = 0_u32;
    // SAFETY: the place lives until the call returns, and this answer has four bytes.
    unsafe { call!(cuPointerGetAttribute((&raw mut kind).cast(), 2, at)) }?;
    Ok(kind == 1)
}

/// Memory of the host that copies to and from GPUs are fastest with.
#[derive(Debug)]
pub struct HostBuffer {
    at: *mut u8,
    bytes: usize,
}

// SAFETY: it is plain memory, which any thread may use.
unsafe impl Send for HostBuffer {}

impl HostBuffer {
    /// Takes it, with flags of `CU_MEMHOSTALLOC_…`; all zeros.
    pub fn alloc(bytes: usize, flags: u32) -> Result<HostBuffer> {
        let mut at = std::ptr::null_mut();
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuMemHostAlloc(&raw mut at, bytes, flags)) }?;
        // SAFETY: `bytes` bytes were allocated, and no other code has their address.
        unsafe { at.cast::<u8>().write_bytes(0, bytes) };
        Ok(HostBuffer { at: at.cast(), bytes })
    }

    /// Where GPUs find it.
    pub fn device_address(&self) -> Result<Address> {
        let mut at = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuMemHostGetDevicePointer(&raw mut at, self.at.cast(), 0)) }?;
        Ok(at)
    }

    /// The flags it has.
    pub fn flags(&self) -> Result<u32> {
        let mut flags = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuMemHostGetFlags(&raw mut flags, self.at.cast())) }?;
        Ok(flags)
    }
}

impl std::ops::Deref for HostBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` bytes were allocated and filled; code that lets a GPU write there is unsafe itself.
        unsafe { std::slice::from_raw_parts(self.at, self.bytes) }
    }
}

impl std::ops::DerefMut for HostBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `bytes` bytes were allocated and filled; code that lets a GPU write there is unsafe itself.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: it was taken here, and is given back once.
        let _ = unsafe { call!(cuMemFreeHost(self.at.cast())) };
    }
}

/// The program's own memory, made known to the driver for a while.
#[derive(Debug)]
pub struct Registered<'a> {
    bytes: &'a mut [u8],
}

impl<'a> Registered<'a> {
    /// Makes it known, for GPUs to reach as well.
    pub fn new(bytes: &'a mut [u8]) -> Result<Registered<'a>> {
        // SAFETY: the bytes stay where they are until the drop.
        unsafe { call!(cuMemHostRegister(bytes.as_mut_ptr().cast(), bytes.len(), 2)) }?;
        Ok(Registered { bytes })
    }

    /// Where GPUs find it.
    pub fn device_address(&mut self) -> Result<Address> {
        let mut at = 0;
        // SAFETY: the place lives until the call returns.
        unsafe { call!(cuMemHostGetDevicePointer(&raw mut at, self.bytes.as_mut_ptr().cast(), 0)) }?;
        Ok(at)
    }
}

impl std::ops::Deref for Registered<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl std::ops::DerefMut for Registered<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        // SAFETY: it was made known here, and is forgotten once.
        let _ = unsafe { call!(cuMemHostUnregister(self.bytes.as_mut_ptr().cast())) };
    }
}

/// `CU_MEMORYTYPE_HOST` and `…_DEVICE`.
const ON_HOST: c_int = 1;
const ON_GPU: c_int = 2;

/// One end of a copy of lines and layers.
#[derive(Clone, Copy, Debug)]
pub struct CopySide {
    /// Whether it is memory of the host.
    pub is_host: bool,
    /// Where it is.
    pub at: Address,
    /// Bytes from one line to the next.
    pub pitch: usize,
    /// Lines from one layer to the next.
    pub height: usize,
    /// Where in it to begin: byte of a line, line, layer.
    pub begin: [usize; 3],
}

/// `CUDA_MEMCPY2D`.
#[derive(Debug)]
#[repr(C)]
pub struct RawCopy2D {
    from_x: usize,
    from_y: usize,
    from_type: c_int,
    from_host: *const c_void,
    from_device: Address,
    from_array: DriverHandle,
    from_pitch: usize,
    to_x: usize,
    to_y: usize,
    to_type: c_int,
    to_host: *mut c_void,
    to_device: Address,
    to_array: DriverHandle,
    to_pitch: usize,
    width: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`.
#[derive(Debug)]
#[repr(C)]
pub struct RawCopy3D {
    from_x: usize,
    from_y: usize,
    from_z: usize,
    from_level: usize,
    from_type: c_int,
    from_host: *const c_void,
    from_device: Address,
    from_array: DriverHandle,
    from_reserved: DriverHandle,
    from_pitch: usize,
    from_height: usize,
    to_x: usize,
    to_y: usize,
    to_z: usize,
    to_level: usize,
    to_type: c_int,
    to_host: *mut c_void,
    to_device: Address,
    to_array: DriverHandle,
    to_reserved: DriverHandle,
    to_pitch: usize,
    to_height: usize,
    width: usize,
    height: usize,
    depth: usize,
}

impl CopySide {
    fn kind(&self) -> c_int {
        if self.is_host { ON_HOST } else { ON_GPU }
    }
    fn host(&self) -> *mut c_void {
        if self.is_host { self.at as usize as *mut c_void } else { std::ptr::null_mut() }
    }
    fn device(&self) -> Address {
        if self.is_host { 0 } else { self.at }
    }
}

/// How a copy of lines is asked for.
#[derive(Clone, Copy, Debug)]
pub enum LineCopyMode<'a> {
    /// Done when the call returns.
    Now,
    /// The same, from and to any place.
    Unaligned,
    /// In the order of a stream.
    InStream(&'a CudaStream),
}

/// Copies lines of bytes: so many bytes of so many lines.
///
/// # Safety
/// Both ends are as they are described, and they are neither freed nor accessed until the copy is done.
pub unsafe fn copy_lines(to: CopySide, from: CopySide, size: [usize; 2], how: LineCopyMode<'_>) -> Result<()> {
    let copy = RawCopy2D {
        from_x: from.begin[0],
        from_y: from.begin[1],
        from_type: from.kind(),
        from_host: from.host(),
        from_device: from.device(),
        from_array: 0,
        from_pitch: from.pitch,
        to_x: to.begin[0],
        to_y: to.begin[1],
        to_type: to.kind(),
        to_host: to.host(),
        to_device: to.device(),
        to_array: 0,
        to_pitch: to.pitch,
        width: size[0],
        height: size[1],
    };
    // SAFETY: as the caller promises.
    unsafe {
        match how {
            LineCopyMode::Now => call!(cuMemcpy2D(&raw const copy)),
            LineCopyMode::Unaligned => call!(cuMemcpy2DUnaligned(&raw const copy)),
            LineCopyMode::InStream(stream) => call!(cuMemcpy2DAsync(&raw const copy, stream.handle())),
        }
    }
}

/// A copy of layers of lines of bytes, described.
pub fn layer_copy(to: CopySide, from: CopySide, size: [usize; 3]) -> RawCopy3D {
    RawCopy3D {
        from_x: from.begin[0],
        from_y: from.begin[1],
        from_z: from.begin[2],
        from_level: 0,
        from_type: from.kind(),
        from_host: from.host(),
        from_device: from.device(),
        from_array: 0,
        from_reserved: 0,
        from_pitch: from.pitch,
        from_height: from.height,
        to_x: to.begin[0],
        to_y: to.begin[1],
        to_z: to.begin[2],
        to_level: 0,
        to_type: to.kind(),
        to_host: to.host(),
        to_device: to.device(),
        to_array: 0,
        to_reserved: 0,
        to_pitch: to.pitch,
        to_height: to.height,
        width: size[0],
        height: size[1],
        depth: size[2],
    }
}

/// Copies layers of lines of bytes.
///
/// # Safety
/// Both ends are as they are described, and they are neither freed nor accessed until the copy is done.
pub unsafe fn copy_layers(copy: &RawCopy3D, stream: Option<&CudaStream>) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        match stream {
            None => call!(cuMemcpy3D(copy)),
            Some(stream) => call!(cuMemcpy3DAsync(copy, stream.handle())),
        }
    }
}
