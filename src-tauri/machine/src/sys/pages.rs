//! Large zeroed memory straight from the system, in huge pages where it has them.
//!
//! Half a gigabyte of weights is 130,000 page faults in pages of 4 KB, half of the time that loading takes, and more
//! entries than the CPU's address cache has, in every decode step. In pages of 2 MB it is 260.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Size of a huge page. Where it is another, nothing but speed depends on it.
const HUGE: usize = 2 << 20;
/// Blocks begin at whole cache lines: 16 floats.
const LINE: usize = 16;

/// One mapping, given back when its last block goes.
struct Mapping {
    start: NonNull<libc::c_void>,
    bytes: usize,
}

// SAFETY: plain memory, which only its blocks read and write; none of them overlap.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and no block is left.
        unsafe { libc::munmap(self.start.as_ptr(), self.bytes) };
    }
}

/// Memory from which blocks are taken one after the other. What no block touches is never there.
pub struct Pages {
    mapping: Arc<Mapping>,
    /// The first free float, behind the mapping's start by less than a huge page.
    next: NonNull<f32>,
    left: usize,
}

/// Some floats of [`Pages`], zero at first. Nobody else's, whichever thread has it.
pub struct Block {
    start: NonNull<f32>,
    len: usize,
    _mapping: Arc<Mapping>,
}

// SAFETY: a block is the only way to its memory, as a `Vec` is.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Pages {
    /// Room for so many floats; `None` where the system has no such room.
    pub fn new(floats: usize) -> Option<Self> {
        // A huge page has to begin at a multiple of its size: one more gives room for that.
        let wanted = floats.checked_mul(size_of::<f32>())?.checked_next_multiple_of(HUGE)?;
        let bytes = wanted.checked_add(HUGE)?;
        // SAFETY: new anonymous memory, of nobody's choosing but the system's.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let start = NonNull::new(start).filter(|start| start.as_ptr() != libc::MAP_FAILED)?;
        let mapping = Arc::new(Mapping { start, bytes });
        let behind = start.as_ptr().align_offset(HUGE);
        // SAFETY: less than a huge page behind the start, and the mapping is one larger than wanted.
        let first = unsafe { start.byte_add(behind) };
        prefer_huge(first, wanted);
        Some(Pages { mapping, next: first.cast(), left: wanted / size_of::<f32>() })
    }

    /// The next so many floats; `None` where fewer are left.
    pub fn take(&mut self, floats: usize) -> Option<Block> {
        let whole = floats.checked_next_multiple_of(LINE)?;
        self.left = self.left.checked_sub(whole)?;
        let start = self.next;
        // SAFETY: `left` says that so many more are in the mapping.
        self.next = unsafe { start.add(whole) };
        Some(Block { start, len: floats, _mapping: self.mapping.clone() })
    }
}

impl Deref for Block {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: inside the mapping, which lives as long as the block; zeroed by the system, and any bits are a float.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and no other block overlaps this one.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Asks for huge pages; a system that has none to give says no, and that is all right.
#[cfg(target_os = "linux")]
fn prefer_huge(start: NonNull<libc::c_void>, bytes: usize) {
    // SAFETY: advice about memory that is mapped.
    unsafe { libc::madvise(start.as_ptr(), bytes, libc::MADV_HUGEPAGE) };
}

/// macOS chooses its pages by itself.
#[cfg(not(target_os = "linux"))]
fn prefer_huge(_start: NonNull<libc::c_void>, _bytes: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_zero_apart_and_outlive_their_pages() {
        let mut pages = Pages::new(3 << 20).unwrap();
        let mut blocks: Vec<Block> = [5, 1 << 20, 0, 17].iter().map(|&n| pages.take(n).unwrap()).collect();
        assert!(pages.take(4 << 20).is_none(), "more than was asked for");
        drop(pages);
        for (i, block) in blocks.iter_mut().enumerate() {
            assert!(block.iter().all(|&x| x == 0.0));
            assert_eq!(block.as_ptr() as usize % 64, 0);
            block.fill(i as f32 + 1.0);
        }
        for (i, block) in blocks.iter().enumerate() {
            assert!(block.iter().all(|&x| x == i as f32 + 1.0));
        }
        let last = blocks.pop().unwrap();
        drop(blocks);
        assert_eq!(std::thread::spawn(move || last[16]).join().unwrap(), 4.0);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        assert!(Pages::new(usize::MAX).is_none());
        assert!(Pages::new(usize::MAX / 8).is_none());
    }
}
