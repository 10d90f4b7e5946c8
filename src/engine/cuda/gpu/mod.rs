//! The GPU: the CUDA driver, cuBLASLt, and kernels compiled for the device at hand.
//!
//! One stream carries all work in order; a second one copies the next rows meanwhile, and a third one carries the
//! collectives of several ranks (see `ranks`). What is recorded must have run once before, because choosing algorithms
//! and loading kernels cannot be. A recording that meets something new is given up, and its caller issues it all again.

mod arguments;
mod clock;
mod code;
mod columns;
mod fusion;
mod mailbox;
mod products;
mod ranks;
mod staging;

use super::device::{Address, Collective, Device, KernelConfig, Launch, Product, Recording, Way};
use crate::cuda::compile::Program;
use crate::cuda::{
    Context, CudaError, CudaMissing, DeviceInfo, Function, Graph, Libraries, Memory, Module, Stream,
};
use crate::engine::EngineError;
use crate::engine::cuda::kernels;
use crate::engine::traffic::Mark;
use crate::recipe::Precision;
use clock::Clock;
use code::load;
use mailbox::Mailbox;
use products::Products;
use ranks::NcclRanks;
use staging::Staging;
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::rc::Rc;

/// How many of the last kernels an error names, because a failure may be reported late.
const REMEMBERED: usize = 6;

/// Whether work is being recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GraphState {
    Running,
    Recording,
    /// Recording, but something came that cannot be recorded.
    Spoilt,
}

/// A CUDA device.
pub struct Gpu {
    state: GraphState,
    recordings: Vec<Graph>,
    functions: HashMap<&'static str, Function>,
    module: Option<Rc<Module>>,
    products: Products,
    staging: Staging,
    mailbox: Mailbox,
    memory: Vec<Memory>,
    ranks: Option<NcclRanks>,
    stream: Stream,
    context: Rc<Context>,
    info: DeviceInfo,
    /// The work started last, the newest at the end.
    started: VecDeque<&'static str>,
    /// The epilogues that the library has computed rightly, or not, when they were tried.
    proved: HashMap<fusion::Kind, bool>,
    notes: Vec<String>,
    arguments: Vec<u8>,
    clock: Clock,
    /// Bytes of device memory that were free before anything was allocated.
    free_at_first: usize,
}

impl Gpu {
    /// Opens device `index`, with the kernels for this configuration. `cache` is a directory for machine code and
    /// chosen algorithms. Without it, kernels are compiled each time, and a product uses the first proposal, untimed.
    pub fn open(
        libraries: &Libraries,
        index: usize,
        config: &KernelConfig,
        cache: Option<&Path>,
    ) -> Result<Self, EngineError> {
        let files: Vec<_> = kernels::HEADERS.iter().chain(kernels::sources(config)).copied().collect();
        let always = kernels::NVRTC_OPTIONS.iter().map(|&option| option.to_owned());
        let options: Vec<String> = kernels::defines(config).into_iter().chain(always).collect();
        let program = Program { unit: &kernels::unit(config), files: &files, options: &options };
        Self::open_with(libraries, index, config.precision, Some(&program), cache)
    }

    /// Opens device `index` with other kernels, or with none, for matrix products and copies only.
    pub fn open_with(
        libraries: &Libraries,
        index: usize,
        precision: Precision,
        program: Option<&Program>,
        cache: Option<&Path>,
    ) -> Result<Self, EngineError> {
        let info = libraries.require_device(index).map_err(|CudaMissing { message, help }| {
            EngineError::Unsupported(if help.is_empty() { message } else { format!("{message}; {help}") })
        })?;
        let context = Context::open(libraries, &info)?;
        let (free_at_first, _) = context.memory()?;
        let module = match program {
            Some(program) => Some(load(libraries, &context, &info, program, cache)?),
            None => None,
        };
        Ok(Self {
            state: GraphState::Running,
            recordings: Vec::new(),
            functions: HashMap::new(),
            module,
            products: Products::new(libraries, &context, &info, precision, cache)?,
            staging: Staging::new(&context)?,
            mailbox: Mailbox::new(&context)?,
            memory: Vec::new(),
            ranks: None,
            stream: Stream::new(&context)?,
            context,
            info,
            started: VecDeque::with_capacity(REMEMBERED),
            proved: HashMap::new(),
            notes: Vec::new(),
            arguments: Vec::new(),
            clock: Clock::default(),
            free_at_first,
        })
    }

    /// The device's properties.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Bytes of device memory: (free, total).
    pub fn memory(&self) -> Result<(usize, usize), EngineError> {
        Ok(self.context.memory()?)
    }

    /// A kernel's registers and bytes of local memory per thread. Loads the kernel.
    ///
    /// # Errors
    /// Where it is not among the compiled ones, or the driver fails.
    pub fn resources(&mut self, kernel: &str) -> Result<(u32, u32), EngineError> {
        self.context.make_current()?;
        let none = || EngineError::Device("no kernels were compiled".to_owned());
        Ok(self.module.as_ref().ok_or_else(none)?.function(kernel)?.registers()?)
    }

    /// Copies between two places of device memory.
    pub fn copy(&mut self, from: Address, to: Address, bytes: usize) -> Result<(), EngineError> {
        self.context.make_current()?;
        Ok(self.stream.copy(from.0, to.0, bytes)?)
    }

    /// Notes a way to be faster that is left out.
    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn start(&mut self, what: &'static str) {
        if self.started.len() == REMEMBERED {
            self.started.pop_front();
        }
        self.started.push_back(what);
    }

    /// Adds the work started last to an error, which may come from earlier work than the call that returned
    /// it.
    fn blame(&self, error: CudaError) -> EngineError {
        let started: Vec<&str> = self.started.iter().copied().collect();
        if started.is_empty() {
            return error.into();
        }
        EngineError::Device(format!("{error}; started last: {}", started.join(", ")))
    }

    /// Refuses calls that cannot be recorded: all but launches, products and collectives wait, allocate or
    /// read what changes.
    fn not_recording(&self, what: &str) -> Result<(), EngineError> {
        self.context.make_current()?;
        match self.state {
            GraphState::Running => Ok(()),
            _ => Err(EngineError::Device(format!("{what} cannot be part of a recording"))),
        }
    }
}

impl From<CudaError> for EngineError {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::Unsupported(text) => Self::Unsupported(text),
            error => Self::Device(error.to_string()),
        }
    }
}

impl Device for Gpu {
    fn allocate(&mut self, bytes: usize, what: &'static str) -> Result<Address, EngineError> {
        self.not_recording("an allocation")?;
        let memory = Memory::new(&self.context, bytes, what)?;
        let address = memory.address();
        self.memory.push(memory);
        self.stream.clear(address, bytes)?;
        Ok(Address(address))
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), EngineError> {
        self.not_recording("a write")?;
        self.settle_for(|gpu| gpu.mailbox.awaits(bytes.len()))?;
        let written = if bytes.len() <= Mailbox::LARGEST {
            self.mailbox.send(bytes, to.0, &self.stream)
        } else {
            self.stream.upload_now(bytes, to.0)
        };
        written.map_err(|error| self.blame(error))
    }

    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), EngineError> {
        self.not_recording("a read")?;
        self.settle()?;
        self.stream.download(from.0, bytes).map_err(|error| self.blame(error))
    }

    fn stage(&mut self, slot: usize, words: &[u32]) -> Result<(), EngineError> {
        self.not_recording("staging")?;
        self.settle_for(|gpu| gpu.staging.awaits(slot, size_of_val(words)))?;
        self.staging.stage(slot, words, &self.stream).map_err(|error| self.blame(error))
    }

    fn take(&mut self, slot: usize, to: Address) -> Result<(), EngineError> {
        self.not_recording("taking what was staged")?;
        self.staging.take(slot, to.0, &self.stream).map_err(|error| self.blame(error))
    }

    fn clear(&mut self, at: Address, bytes: usize) -> Result<(), EngineError> {
        self.context.make_current()?;
        self.stream.clear(at.0, bytes).map_err(|error| self.blame(error))
    }

    fn shared_per_block(&self) -> u32 {
        self.info.shared_per_block
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), EngineError> {
        self.context.make_current()?;
        let name = launch.kernel;
        if launch.shared > self.info.shared_per_block {
            return Err(EngineError::Unsupported(format!(
                "the kernel {name} needs {} bytes of shared memory, and {} has {}",
                launch.shared, self.info.name, self.info.shared_per_block
            )));
        }
        if !self.functions.contains_key(name) {
            if self.state != GraphState::Running {
                // loading is not allowed now
                self.state = GraphState::Spoilt;
                return Ok(());
            }
            let none = || EngineError::Device(format!("no kernels were compiled, but {name} was launched"));
            let function = self.module.as_ref().ok_or_else(none)?.function(name)?;
            self.functions.insert(name, function);
        }
        arguments::pack(launch.args, &mut self.arguments);
        self.start(name);
        let Some(function) = self.functions.get_mut(name) else {
            return Err(EngineError::Device(format!("the kernel {name} is not loaded")));
        };
        let launched = function.allow_shared(launch.shared).and_then(|()| {
            // SAFETY: callers pass each kernel the arguments of its signature, which the tests in the
            // emulator check; kernels access device memory only.
            unsafe { self.stream.launch(function, launch.grid, launch.block, launch.shared, &self.arguments) }
        });
        launched.map_err(|error| self.blame(error))
    }

    fn product(&mut self, product: &Product) -> Result<(), EngineError> {
        self.context.make_current()?;
        if product.m == 0 || product.n == 0 || product.count == 0 {
            return Ok(());
        }
        let may_be_new = self.state != GraphState::Running || self.ranks.is_some();
        if may_be_new && !self.products.has_run(product)? {
            if self.state != GraphState::Running {
                self.state = GraphState::Spoilt;
                return Ok(());
            }
            // choosing an algorithm times it
            self.settle()?;
        }
        self.start("a matrix product");
        self.products.run(product, &self.stream).map_err(|error| match error {
            products::ProductError::Cuda(error) => self.blame(error),
            products::ProductError::Engine(error) => error,
        })
    }

    fn fuses(&mut self, fused: Way, apart: Way) -> bool {
        self.fuses_or_notes(fused, apart)
    }

    fn collective(&mut self, collective: &Collective) -> Result<(), EngineError> {
        self.begin_collective(collective)
    }

    fn join(&mut self) -> Result<(), EngineError> {
        self.join_collectives()
    }

    fn records_collectives(&self) -> bool {
        self.ranks.as_ref().is_none_or(NcclRanks::record)
    }

    fn begin_recording(&mut self) -> Result<bool, EngineError> {
        self.not_recording("a recording")?;
        // before anything has run, everything is new
        if self.started.is_empty() {
            return Ok(false);
        }
        self.stream.begin_recording().map_err(|error| self.blame(error))?;
        self.state = GraphState::Recording;
        Ok(true)
    }

    fn end_recording(&mut self) -> Result<Option<Recording>, EngineError> {
        self.context.make_current()?;
        if self.state == GraphState::Running {
            return Err(EngineError::Device("there is no recording to end".to_owned()));
        }
        let spoilt = self.state == GraphState::Spoilt;
        self.state = GraphState::Running;
        match self.stream.end_recording() {
            _ if spoilt => {
                self.note("no CUDA graph: the recording met work that had not run before".to_owned());
                Ok(None)
            }
            Ok(graph) => {
                self.recordings.push(graph);
                Ok(Some(Recording(self.recordings.len() - 1)))
            }
            // a device that has failed says so again at the next call
            Err(error) => {
                self.note(format!("no CUDA graph: {error}"));
                Ok(None)
            }
        }
    }

    fn play(&mut self, recording: Recording) -> Result<(), EngineError> {
        self.not_recording("another recording")?;
        let Some(graph) = self.recordings.get(recording.0) else {
            return Err(EngineError::Device(format!("there is no recording {}", recording.0)));
        };
        let played = self.stream.play(graph);
        self.start("a recording");
        played.map_err(|error| self.blame(error))
    }

    fn synchronize(&mut self) -> Result<(), EngineError> {
        self.not_recording("waiting")?;
        self.settle_all()?;
        let done = self.stream.synchronize();
        if done.is_err() {
            return done.map_err(|error| self.blame(error));
        }
        self.staging.synchronize().map_err(|error| self.blame(error))
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn mark(&mut self) -> Result<Option<Mark>, EngineError> {
        self.place_mark()
    }

    fn seconds(&mut self, pairs: &[(Mark, Mark)]) -> Result<Vec<f64>, EngineError> {
        self.seconds_between(pairs)
    }

    fn annotate(&mut self, name: Option<&dyn std::fmt::Display>) {
        clock::annotate(name);
    }

    fn memory_taken(&self) -> Option<u64> {
        // what other processes take meanwhile counts as well
        self.context.memory().ok().map(|(free, _)| self.free_at_first.saturating_sub(free) as u64)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // nothing may be freed while it is in use; a failure has been reported, or no caller is left
        let _ = self.context.make_current();
        self.disconnect();
        let _ = self.stream.synchronize();
        let _ = self.staging.synchronize();
    }
}
