//! The order of work on a device: streams, the events between them, and graphs recorded from them.

use super::CudaError;
use super::context::{Context, Function, Pinned};
use cudarc::driver::sys::{
    CUevent, CUevent_flags, CUgraphExec, CUstream, CUstream_flags, CUstreamCaptureMode,
};
use std::ffi::c_void;
use std::ops::Range;
use std::rc::Rc;

/// A queue of work on the device.
pub struct Stream {
    context: Rc<Context>,
    pub(super) stream: CUstream,
}

impl Stream {
    /// Creates a stream that does not synchronize with the default stream.
    pub fn new(context: &Rc<Context>) -> Result<Self, CudaError> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: it writes one handle.
        let status = unsafe {
            (context.driver.cuStreamCreate)(&mut stream, CUstream_flags::CU_STREAM_NON_BLOCKING as u32)
        };
        context.check("cuStreamCreate", status)?;
        Ok(Self { context: context.clone(), stream })
    }

    /// Waits until all queued work is done. Reports errors of work queued since the last call.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream lives.
        let status = unsafe { (self.context.driver.cuStreamSynchronize)(self.stream) };
        self.context.check("cuStreamSynchronize", status)
    }

    /// Whether all queued work is done, without waiting. Reports errors of work queued since the last call.
    pub fn done(&self) -> Result<bool, CudaError> {
        // SAFETY: the stream lives.
        let status = unsafe { (self.context.driver.cuStreamQuery)(self.stream) };
        self.context.driver.done("cuStreamQuery", status)
    }

    /// Makes later work wait for the event.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: both live.
        let status = unsafe { (self.context.driver.cuStreamWaitEvent)(self.stream, event.event, 0) };
        self.context.check("cuStreamWaitEvent", status)
    }

    /// Sets `bytes` bytes of device memory to zero.
    pub fn clear(&self, address: u64, bytes: usize) -> Result<(), CudaError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: no host memory is touched; the driver rejects an address that is not the device's.
        let status = unsafe { (self.context.driver.cuMemsetD8Async)(address, 0, bytes, self.stream) };
        self.context.check("cuMemsetD8Async", status)
    }

    /// Copies between two places of device memory.
    pub fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), CudaError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: no host memory is touched; the driver rejects an address that is not the device's.
        let status = unsafe { (self.context.driver.cuMemcpyDtoDAsync_v2)(to, from, bytes, self.stream) };
        self.context.check("cuMemcpyDtoDAsync_v2", status)
    }

    /// Copies a range of pinned memory to the device. The range must not change until the copy is done:
    /// record an event after it.
    pub fn upload(&self, from: &Pinned, range: Range<usize>, to: u64) -> Result<(), CudaError> {
        let bytes = &from.as_bytes()[range];
        // SAFETY: the range lies in the memory; its owner waits before it changes or frees it.
        let status = unsafe {
            (self.context.driver.cuMemcpyHtoDAsync_v2)(to, bytes.as_ptr().cast(), bytes.len(), self.stream)
        };
        self.context.check("cuMemcpyHtoDAsync_v2", status)
    }

    /// Copies to the device and waits until the copy is done.
    pub fn upload_now(&self, bytes: &[u8], to: u64) -> Result<(), CudaError> {
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the bytes are borrowed until the copy is done.
        let status = unsafe {
            (self.context.driver.cuMemcpyHtoDAsync_v2)(to, bytes.as_ptr().cast(), bytes.len(), self.stream)
        };
        let started = self.context.check("cuMemcpyHtoDAsync_v2", status);
        // also after a failure, since the copy may have begun
        let done = self.synchronize();
        started.and(done)
    }

    /// Copies from the device and waits until the copy is done.
    pub fn download(&self, from: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        if bytes.is_empty() {
            return self.synchronize();
        }
        // SAFETY: the bytes are borrowed until the copy is done.
        let status = unsafe {
            (self.context.driver.cuMemcpyDtoHAsync_v2)(
                bytes.as_mut_ptr().cast(),
                from,
                bytes.len(),
                self.stream,
            )
        };
        let started = self.context.check("cuMemcpyDtoHAsync_v2", status);
        let done = self.synchronize();
        started.and(done)
    }

    /// Launches a kernel. `arguments` holds its parameters, each aligned to its size.
    ///
    /// # Safety
    ///
    /// The arguments must match the kernel's signature. (What a kernel does to device memory is up to the
    /// kernel.)
    pub unsafe fn launch(
        &self,
        function: &Function,
        grid: [u32; 3],
        block: u32,
        shared: u32,
        arguments: &[u8],
    ) -> Result<(), CudaError> {
        // CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE and _END of cuda.h, which cudarc's bindings leave out
        const POINTER: *mut c_void = std::ptr::without_provenance_mut(1);
        const SIZE: *mut c_void = std::ptr::without_provenance_mut(2);
        const END: *mut c_void = std::ptr::null_mut();
        let mut size = arguments.len();
        let mut extra =
            [POINTER, arguments.as_ptr().cast_mut().cast(), SIZE, (&raw mut size).cast::<c_void>(), END];
        let [x, y, z] = grid;
        // SAFETY: the driver copies the arguments before it returns; the caller guarantees that they match.
        let status = unsafe {
            (self.context.driver.cuLaunchKernel)(
                function.function,
                x,
                y,
                z,
                block,
                1,
                1,
                shared,
                self.stream,
                std::ptr::null_mut(),
                extra.as_mut_ptr(),
            )
        };
        self.context.check("cuLaunchKernel", status)
    }

    /// Starts a recording: until it ends, this thread's work is recorded and not executed.
    pub fn begin_recording(&self) -> Result<(), CudaError> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        let status = unsafe { (self.context.driver.cuStreamBeginCapture_v2)(self.stream, mode) };
        self.context.check("cuStreamBeginCapture_v2", status)
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// Where something was done meanwhile that cannot be recorded, where nothing was recorded, or where the driver
    /// cannot make a graph of it. The stream can be used as before.
    pub fn end_recording(&self) -> Result<Graph, CudaError> {
        let driver = self.context.driver;
        let mut graph = std::ptr::null_mut();
        // SAFETY: it writes one handle, a null one where the recording is invalid.
        let status = unsafe { (driver.cuStreamEndCapture)(self.stream, &mut graph) };
        if graph.is_null() {
            self.context.check("cuStreamEndCapture", status)?;
            return Err(CudaError::Unsupported("cuStreamEndCapture returned no graph".to_owned()));
        }
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph was just made; it is not needed once it is instantiated.
        let instantiated = unsafe {
            let instantiated =
                if status == 0 { (driver.cuGraphInstantiateWithFlags)(&mut exec, graph, 0) } else { 0 };
            (driver.cuGraphDestroy)(graph);
            instantiated
        };
        self.context.check("cuStreamEndCapture", status)?;
        self.context.check("cuGraphInstantiateWithFlags", instantiated)?;
        if exec.is_null() {
            return Err(CudaError::Unsupported("cuGraphInstantiateWithFlags returned no graph".to_owned()));
        }
        Ok(Graph { context: self.context.clone(), exec })
    }

    /// Executes recorded work.
    pub fn play(&self, graph: &Graph) -> Result<(), CudaError> {
        // SAFETY: both live.
        let status = unsafe { (self.context.driver.cuGraphLaunch)(graph.exec, self.stream) };
        self.context.check("cuGraphLaunch", status)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: it was created and not destroyed. The driver finishes its remaining work first.
        unsafe { (self.context.driver.cuStreamDestroy_v2)(self.stream) };
    }
}

/// A marker in a stream.
pub struct Event {
    context: Rc<Context>,
    event: CUevent,
}

impl Event {
    /// Creates an event to wait for.
    pub fn new(context: &Rc<Context>) -> Result<Self, CudaError> {
        Self::with(context, CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// Creates an event that also records the time at which it was passed.
    pub fn timed(context: &Rc<Context>) -> Result<Self, CudaError> {
        Self::with(context, CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with(context: &Rc<Context>, flags: CUevent_flags) -> Result<Self, CudaError> {
        let mut event = std::ptr::null_mut();
        // SAFETY: it writes one handle.
        let status = unsafe { (context.driver.cuEventCreate)(&mut event, flags as u32) };
        context.check("cuEventCreate", status)?;
        Ok(Self { context: context.clone(), event })
    }

    /// Places the marker behind all work that the stream has now.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both live.
        let status = unsafe { (self.context.driver.cuEventRecord)(self.event, stream.stream) };
        self.context.check("cuEventRecord", status)
    }

    /// Waits until the marker is passed; returns at once if it was never placed.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the event lives.
        let status = unsafe { (self.context.driver.cuEventSynchronize)(self.event) };
        self.context.check("cuEventSynchronize", status)
    }

    /// Whether the marker is passed, without waiting; true if it was never placed.
    pub fn passed(&self) -> Result<bool, CudaError> {
        // SAFETY: the event lives.
        let status = unsafe { (self.context.driver.cuEventQuery)(self.event) };
        self.context.driver.done("cuEventQuery", status)
    }

    /// Seconds from this event to a later one. Both must be [timed](Self::timed) and passed.
    pub fn seconds_to(&self, later: &Self) -> Result<f64, CudaError> {
        let mut milliseconds = 0.0;
        // SAFETY: it writes one number.
        let status =
            unsafe { (self.context.driver.event_elapsed_time)(&mut milliseconds, self.event, later.event) };
        self.context.check("cuEventElapsedTime", status)?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: it was created and not destroyed.
        unsafe { (self.context.driver.cuEventDestroy_v2)(self.event) };
    }
}

/// Recorded work that can be played.
pub struct Graph {
    context: Rc<Context>,
    exec: CUgraphExec,
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: it was instantiated and not destroyed.
        unsafe { (self.context.driver.cuGraphExecDestroy)(self.exec) };
    }
}
