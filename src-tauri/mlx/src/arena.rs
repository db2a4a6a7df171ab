//! Room for weights in one buffer of MLX's, filled by the host before tensors are made of it.
//!
//! MLX copies whatever memory it is given on a CPU. Half a gigabyte of weights would be touched twice, and the copies
//! lie wherever malloc puts them. Here MLX allocates once, the host writes in place, and the tensors are views. The
//! one operation that allocates without writing is loading, from a reader that has nothing to say.

use crate::call::{MlxError, Result, array};
use crate::tensor::{Dtype, Tensor, eval};
use std::ffi::{c_char, c_int, c_void};

/// Blocks begin at whole cache lines.
const LINE: usize = 64 / size_of::<f32>();

/// A buffer from which blocks are taken one after the other.
pub struct Arena {
    flat: Tensor,
    start: *mut f32,
    /// Floats taken, and floats there are.
    used: usize,
    len: usize,
}

/// Some floats of an arena. What they hold at first means nothing.
pub struct Block {
    flat: Tensor,
    start: *mut f32,
    at: usize,
    len: usize,
}

impl Arena {
    /// The most floats of one arena: 4 GiB.
    pub const MOST: usize = 1 << 30;

    /// Room for so many floats, at most [`Arena::MOST`].
    ///
    /// # Errors
    /// MLX's, where there is no such room.
    pub fn new(floats: usize) -> Result<Self> {
        // A line more: MLX's buffers begin anywhere.
        let len = floats.min(Self::MOST) + LINE;
        let flat = unwritten(len)?;
        eval([&flat])?;
        // SAFETY: the tensor is evaluated, and nobody but this arena has it.
        let start = unsafe { mlx_sys::mlx_array_data_float32(flat.raw()) }.cast_mut();
        let used = start.align_offset(LINE * size_of::<f32>()).min(LINE);
        Ok(Arena { flat, start, used, len })
    }

    /// The next so many floats; `None` where fewer are left.
    pub fn take(&mut self, floats: usize) -> Option<Block> {
        let at = self.used;
        let end = at.checked_add(floats)?;
        if end > self.len {
            return None;
        }
        // The first block begins at a whole line, and so does the next if this one's length is rounded up.
        self.used = (at + floats.next_multiple_of(LINE)).min(self.len);
        Some(Block { flat: self.flat.share(), start: self.start, at, len: floats })
    }
}

impl Block {
    /// The floats, to be written.
    pub fn values(&mut self) -> &mut [f32] {
        // SAFETY: inside the buffer, which `flat` keeps; no other block and no tensor has this part of it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(self.at), self.len) }
    }

    /// The same memory as bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        let values = self.values();
        // SAFETY: the same memory, and any bytes are floats.
        unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
    }

    /// The tensor of the first bytes, row-major, in place; little-endian, as everything here.
    ///
    /// # Errors
    /// If there are fewer bytes than `shape` and `dtype` say, or so many elements that MLX cannot count them in a row.
    pub fn into_tensor_of(self, dtype: Dtype, shape: &[i32]) -> Result<Tensor> {
        let elements = shape.iter().try_fold(1i32, |n, &d| n.checked_mul(d));
        let most = self.len.checked_mul(size_of::<f32>() / dtype.size()).and_then(|n| i32::try_from(n).ok());
        let fits = |elements: &i32| most.is_some_and(|most| (0..=most).contains(elements));
        let Some(elements) = elements.filter(fits) else {
            let message = format!("{shape:?} of {dtype:?} does not fit into {} floats", self.len);
            return Err(MlxError { operation: "view", message });
        };
        let floats = self.flat.slice(0, self.at as i32, (self.at + self.len) as i32)?;
        let tensor = floats.view(dtype)?.slice(0, 0, elements)?.reshape(shape)?;
        eval([&tensor])?;
        Ok(tensor)
    }

    /// The tensor of these values, row-major, in place.
    ///
    /// # Errors
    /// If there are more or fewer values than `shape` says.
    pub fn into_tensor(self, shape: &[i32]) -> Result<Tensor> {
        let tensor = self.flat.slice(0, self.at as i32, (self.at + self.len) as i32)?.reshape(shape)?;
        eval([&tensor])?;
        Ok(tensor)
    }
}

/// A file that MLX loads an array from: its header, then values that are never written.
struct Unwritten {
    header: Vec<u8>,
    at: usize,
}

/// An f32 tensor `[len]` whose memory nobody has touched.
fn unwritten(len: usize) -> Result<Tensor> {
    // The .npy format, version 1: magic, length of the description, description padded to 64 bytes in all.
    let mut description = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({len},), }}");
    while (10 + description.len() + 1) % 64 != 0 {
        description.push(' ');
    }
    description.push('\n');
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend_from_slice(&(description.len() as u16).to_le_bytes());
    header.extend_from_slice(description.as_bytes());
    let file = Box::into_raw(Box::new(Unwritten { header, at: 0 }));
    let table = mlx_sys::mlx_io_vtable {
        is_open: Some(yes),
        good: Some(yes),
        tell: Some(tell),
        seek: Some(seek),
        read: Some(read),
        read_at_offset: Some(read_at),
        write: None,
        label: Some(label),
        free: Some(free),
    };
    // SAFETY: the table's functions take the file that is passed with it; `free` ends it when MLX is done with it.
    let reader = unsafe { mlx_sys::mlx_io_reader_new(file.cast(), table) };
    // A GPU cannot load; what the CPU allocates is its memory too.
    // SAFETY: a fresh handle.
    let cpu = unsafe { mlx_sys::mlx_default_cpu_stream_new() };
    // SAFETY: reader and stream live across the call, and MLX counts its own handle to the reader.
    let tensor = array("load", |res, _| unsafe { mlx_sys::mlx_load_reader(res, reader, cpu) });
    // SAFETY: this handle is ours, and freed once.
    unsafe { mlx_sys::mlx_stream_free(cpu) };
    // SAFETY: this handle is ours, and freed once.
    unsafe { mlx_sys::mlx_io_reader_free(reader) };
    tensor
}

/// # Safety
/// `file` is what [`unwritten`] made, as for all of these.
unsafe fn file<'a>(file: *mut c_void) -> &'a mut Unwritten {
    // SAFETY: the caller's promise; MLX reads from one thread at a time.
    unsafe { &mut *file.cast() }
}

unsafe extern "C" fn yes(_file: *mut c_void) -> bool {
    true
}

unsafe extern "C" fn tell(this: *mut c_void) -> usize {
    // SAFETY: see `file`.
    unsafe { file(this) }.at
}

unsafe extern "C" fn seek(this: *mut c_void, offset: i64, whence: c_int) -> c_int {
    // SAFETY: see `file`.
    let this = unsafe { file(this) };
    let base = if whence == 1 { this.at as i64 } else { 0 };
    this.at = usize::try_from(base + offset).unwrap_or(0);
    0
}

unsafe extern "C" fn read(this: *mut c_void, data: *mut c_char, n: usize) -> usize {
    // SAFETY: see `file`; `data` has room for `n` bytes.
    unsafe {
        let at = file(this).at;
        file(this).at = at + n;
        read_at(this, data, n, at)
    }
}

/// Says that everything was read, and writes what belongs to the header.
unsafe extern "C" fn read_at(this: *mut c_void, data: *mut c_char, n: usize, offset: usize) -> usize {
    // SAFETY: see `file`; `data` has room for `n` bytes, and no more than those are written.
    unsafe {
        let header = &file(this).header;
        let part = header.get(offset..).unwrap_or(&[]);
        std::ptr::copy_nonoverlapping(part.as_ptr(), data.cast(), part.len().min(n));
    }
    n
}

unsafe extern "C" fn label(_file: *mut c_void) -> *const c_char {
    c"room for weights".as_ptr()
}

unsafe extern "C" fn free(this: *mut c_void) {
    // SAFETY: MLX calls this once, when nobody reads any more.
    drop(unsafe { Box::from_raw(this.cast::<Unwritten>()) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_tensors_in_place() {
        let mut arena = Arena::new(100).unwrap();
        let mut blocks: Vec<Block> = [6, 0, 40, 16].iter().map(|&n| arena.take(n).unwrap()).collect();
        assert!(arena.take(60).is_none(), "more than was asked for");
        assert!(arena.take(usize::MAX).is_none());
        drop(arena);
        for (i, block) in blocks.iter_mut().enumerate() {
            assert_eq!(block.values().as_ptr() as usize % 64, 0);
            block.values().fill(i as f32 + 1.0);
        }
        let place = blocks[2].values().as_ptr();
        let last = blocks.pop().unwrap();
        let tensor = blocks.pop().unwrap().into_tensor(&[5, 8]).unwrap();
        drop(blocks);
        // SAFETY: evaluated.
        assert_eq!(unsafe { mlx_sys::mlx_array_data_float32(tensor.raw()) }, place);
        assert_eq!(tensor.to_vec_f32().unwrap(), [3.0; 40]);
        let ones = Tensor::scalar(1.0).broadcast_to(&[3, 8]).unwrap();
        let product = ones.matmul(&tensor.swap_last().unwrap()).unwrap();
        drop(tensor);
        assert_eq!(product.to_vec_f32().unwrap(), [24.0; 15]);
        assert!(last.into_tensor(&[3, 5]).is_err());
    }

    #[test]
    fn bytes_become_tensors_of_any_dtype_in_place() {
        for (dtype, bytes, ones) in [
            (Dtype::F32, vec![0, 0, 0x80, 0x3f], [3, 2]),
            (Dtype::Bf16, vec![0x80, 0x3f], [3, 3]),
            (Dtype::F16, vec![0, 0x3c], [1, 5]),
            (Dtype::U32, vec![1, 0, 0, 0], [2, 2]),
            (Dtype::U8, vec![1], [7, 1]),
        ] {
            let count = (ones[0] * ones[1]) as usize;
            let room = || Arena::new(9).unwrap().take((count * dtype.size()).div_ceil(4)).unwrap();
            let mut block = room();
            block.bytes().iter_mut().zip(bytes.iter().cycle()).for_each(|(to, from)| *to = *from);
            let tensor = block.into_tensor_of(dtype, &ones).unwrap();
            assert_eq!((tensor.dtype().unwrap(), tensor.shape()), (dtype, &ones[..]));
            assert_eq!(tensor.astype(Dtype::F32).unwrap().to_vec_f32().unwrap(), vec![1.0; count], "{dtype:?}");
            assert!(room().into_tensor_of(dtype, &[ones[0], ones[1] + 4]).is_err(), "{dtype:?}");
        }
    }
}
