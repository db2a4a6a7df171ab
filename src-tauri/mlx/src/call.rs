//! One call into the C API: the error handler, the thread's stream, and the status turned into a `Result`.

use crate::tensor::Tensor;
use mlx_sys::{mlx_array, mlx_stream};
use std::cell::{OnceCell, RefCell};
use std::ffi::{CStr, c_char, c_void};
use std::sync::Once;

/// What MLX said when it refused an operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{operation}: {message}")]
pub struct MlxError {
    /// The operation of the C API.
    pub operation: &'static str,
    /// MLX's own message.
    pub message: String,
}

/// The result of every operation here.
pub type Result<T> = std::result::Result<T, MlxError>;

thread_local! {
    static LAST_ERROR: RefCell<Option<String>> = const { RefCell::new(None) };
    static STREAM: OnceCell<mlx_stream> = const { OnceCell::new() };
}

static HANDLER: Once = Once::new();

/// MLX's default handler ends the process; this one keeps the message for the call that failed.
unsafe extern "C" fn keep_message(message: *const c_char, _data: *mut c_void) {
    if message.is_null() {
        return;
    }
    // SAFETY: MLX passes a NUL-terminated string that lives for the duration of the call.
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
    // "… at /path/to/mlx/c/file.cpp:123" says nothing to a user.
    let text = text.split(" at /").next().unwrap_or(&text).to_owned();
    LAST_ERROR.with(|last| *last.borrow_mut() = Some(text));
}

/// Installs the error handler; cheap after the first call. Every entry to the C API goes through here.
pub(crate) fn prepare() {
    HANDLER.call_once(|| {
        // SAFETY: the handler is a plain function and needs no data.
        unsafe { mlx_sys::mlx_set_error_handler(Some(keep_message), std::ptr::null_mut(), None) };
    });
}

/// This thread's default stream on the default device.
pub(crate) fn stream() -> mlx_stream {
    STREAM.with(|cell| {
        *cell.get_or_init(|| {
            // SAFETY: the handles are made here and passed as the API wants them; the stream is kept for the
            // thread's lifetime (it is one pointer).
            unsafe {
                let mut device = mlx_sys::mlx_device_new();
                mlx_sys::mlx_get_default_device(&mut device);
                let mut stream = mlx_sys::mlx_stream_new();
                mlx_sys::mlx_get_default_stream(&mut stream, device);
                mlx_sys::mlx_device_free(device);
                stream
            }
        })
    })
}

/// Turns a status into a result, with the message that the handler kept.
pub(crate) fn check(operation: &'static str, status: i32) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    let message = LAST_ERROR.with(|last| last.borrow_mut().take());
    Err(MlxError { operation, message: message.unwrap_or_else(|| "failed without a message".into()) })
}

/// Runs an operation that writes one array.
pub(crate) fn array(operation: &'static str, call: impl FnOnce(*mut mlx_array, mlx_stream) -> i32) -> Result<Tensor> {
    prepare();
    // SAFETY: an empty handle, owned by the tensor from here on, whatever the call does with it.
    let mut result = unsafe { Tensor::from_raw(mlx_sys::mlx_array_new()) };
    check(operation, call(result.raw_mut(), stream()))?;
    Ok(result)
}
