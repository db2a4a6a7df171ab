//! An end without ceremony.

/// Ends the process now, whatever its threads do: nothing is flushed, and no exit handler runs. For a process whose engine is
/// in the middle of a long computation: MLX's exit handlers would pull away what that thread still uses.
pub fn leave_at_once(code: i32) -> ! {
    sys::exit(code)
}

mod sys {
    //! The system call that no safe crate of this workspace wraps.

    /// `_exit`.
    pub fn exit(code: i32) -> ! {
        // SAFETY: ends the process; takes a plain number and does not return.
        unsafe { libc::_exit(code) }
    }
}
