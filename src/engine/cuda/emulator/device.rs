//! A device that is the host: fenced memory, kernels run by the emulator, matrix products by the CPU.

use super::ranks::EmulatedRanks;
use super::{Counted, Emulator, Memory, ThreadOrder, Watch};
use crate::comm::Comm;
use crate::engine::EngineError;
use crate::engine::cuda::device::{
    Address, Arg, Collective, Device, KernelConfig, Launch, Product, Recording, Way,
};
use crate::engine::cuda::kernels;
use crate::engine::memory::Element;
use crate::engine::traffic::Mark;
use crate::recipe::Precision;
use std::path::Path;
use std::sync::Arc;

/// How an [`EmulatedDevice`] behaves where real devices differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Behaviour {
    /// The order in which threads run.
    pub order: ThreadOrder,
    /// Whether products can have other operations fused into them.
    pub fuses: bool,
    /// Whether sequences can be recorded.
    pub records: bool,
}

/// Bytes of shared memory that a block can have: as much as on a Hopper.
const SHARED: u32 = 227 << 10;

/// Work that was started.
#[derive(Debug, Clone)]
enum Work {
    Kernel { kernel: &'static str, grid: [u32; 3], block: u32, shared: u32, args: Vec<Arg> },
    Product(Product),
    Collective(Collective),
    Join,
}

/// A device whose work runs on the host, at once and in order.
pub struct EmulatedDevice {
    emulator: Emulator,
    memory: Memory,
    pub(super) precision: Precision,
    behaviour: Behaviour,
    /// Staged batches; `None` once taken.
    staged: [Option<Vec<u32>>; 2],
    recording: Option<Vec<Work>>,
    recorded: Vec<Vec<Work>>,
    ranks: EmulatedRanks,
    /// Bytes of shared memory that a block can have.
    shared: u32,
    /// Bytes allocated.
    allocated: usize,
    /// How many recordings were played.
    played: usize,
    /// What launches have touched, if it is counted.
    counted: Option<Vec<Counted>>,
    /// Made at the first launch after an allocation.
    watch: Option<Watch>,
    /// How many moments of the clock were taken.
    marks: usize,
}

impl EmulatedDevice {
    /// A device for a configuration, whose kernels are compiled when they are launched, or found in `cache`.
    pub fn new(config: &KernelConfig, behaviour: Behaviour, cache: &Path) -> Self {
        Self::of(Emulator::new(config, cache), config.precision, behaviour)
    }

    /// A device that runs these kernels.
    pub fn of(emulator: Emulator, precision: Precision, behaviour: Behaviour) -> Self {
        Self {
            emulator,
            memory: Memory::default(),
            precision,
            behaviour,
            staged: [None, None],
            recording: None,
            recorded: Vec::new(),
            ranks: EmulatedRanks::default(),
            shared: SHARED,
            allocated: 0,
            played: 0,
            counted: None,
            watch: None,
            marks: 0,
        }
    }

    /// A device whose kernels also count what they touch.
    pub fn counting(config: &KernelConfig, behaviour: Behaviour, cache: &Path) -> Self {
        let emulator = Emulator::counting(config, cache);
        Self { counted: Some(Vec::new()), ..Self::of(emulator, config.precision, behaviour) }
    }

    /// What every launch since the last call has touched, in order; empty unless the device counts.
    pub fn take_counted(&mut self) -> Vec<Counted> {
        self.counted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Makes this device one of the ranks that `comm` connects.
    pub fn with_ranks(self, comm: Arc<dyn Comm>) -> Self {
        Self { ranks: EmulatedRanks::new(comm), ..self }
    }

    /// Gives blocks other shared memory than a Hopper's.
    pub fn with_shared(self, bytes: u32) -> Self {
        Self { shared: bytes, ..self }
    }

    /// Bytes allocated, not counting fences.
    pub fn allocated_bytes(&self) -> usize {
        self.allocated
    }

    /// How many recordings were played.
    pub fn played(&self) -> usize {
        self.played
    }

    fn bytes(&self, at: Address, len: usize) -> Result<&[u8], EngineError> {
        self.memory.bytes(at).and_then(|bytes| bytes.get(..len)).ok_or_else(|| outside(at, len))
    }

    fn bytes_mut(&mut self, at: Address, len: usize) -> Result<&mut [u8], EngineError> {
        self.memory.bytes_mut(at).and_then(|bytes| bytes.get_mut(..len)).ok_or_else(|| outside(at, len))
    }

    /// Numbers as a product reads them: in tf32 the product rounds its operands itself.
    pub(super) fn load(&self, at: Address, element: Element, len: usize) -> Result<Vec<f32>, EngineError> {
        let bytes = self.bytes(at, len * element.bytes())?;
        Ok(kernels::floats(bytes, element, self.precision))
    }

    pub(super) fn store(&mut self, at: Address, element: Element, values: &[f32]) -> Result<(), EngineError> {
        let bytes = kernels::bytes(values, element, self.precision);
        self.bytes_mut(at, bytes.len())?.copy_from_slice(&bytes);
        Ok(())
    }

    fn carry_out(&mut self, work: &Work) -> Result<(), EngineError> {
        match work {
            Work::Product(product) => self.multiply(product)?,
            Work::Collective(collective) => self.ranks.begin(collective.clone()),
            Work::Join => self.ranks.join(&mut self.memory)?,
            Work::Kernel { kernel, grid, block, shared, args } => {
                let launch = Launch { kernel, grid: *grid, block: *block, shared: *shared, args };
                if self.counted.is_some() && self.watch.is_none() {
                    self.watch = Some(Watch::new(&self.memory));
                }
                let watch = self.watch.as_ref();
                let touched =
                    self.emulator.launch_watched(&launch, self.behaviour.order, watch).map_err(failed)?;
                if let Some(counted) = &mut self.counted {
                    counted.push(Counted { kernel, touched });
                }
            }
        }
        self.memory.check().map_err(|overrun| failed(format!("after {work:?}: {overrun}")))
    }

    fn submit(&mut self, work: Work) -> Result<(), EngineError> {
        match &mut self.recording {
            Some(recording) => {
                recording.push(work);
                Ok(())
            }
            None => self.carry_out(&work),
        }
    }
}

impl Device for EmulatedDevice {
    fn allocate(&mut self, bytes: usize, what: &'static str) -> Result<Address, EngineError> {
        self.allocated += bytes;
        self.watch = None;
        Ok(self.memory.allocate(bytes, what))
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), EngineError> {
        self.bytes_mut(to, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), EngineError> {
        self.ranks.idle()?;
        bytes.copy_from_slice(self.bytes(from, bytes.len())?);
        Ok(())
    }

    fn stage(&mut self, slot: usize, words: &[u32]) -> Result<(), EngineError> {
        self.staged[slot] = Some(words.to_vec());
        Ok(())
    }

    fn take(&mut self, slot: usize, to: Address) -> Result<(), EngineError> {
        let words = self.staged[slot].take().ok_or_else(|| failed(format!("slot {slot} is empty")))?;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.write(to, &bytes)
    }

    fn clear(&mut self, at: Address, bytes: usize) -> Result<(), EngineError> {
        if bytes > 0 {
            self.bytes_mut(at, bytes)?.fill(0);
        }
        Ok(())
    }

    fn shared_per_block(&self) -> u32 {
        self.shared
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), EngineError> {
        let Launch { kernel, grid, block, shared, args } = *launch;
        if shared > self.shared {
            return Err(failed(format!(
                "{kernel} wants {shared} bytes of shared memory, there are {}",
                self.shared
            )));
        }
        self.submit(Work::Kernel { kernel, grid, block, shared, args: args.to_vec() })
    }

    fn product(&mut self, product: &Product) -> Result<(), EngineError> {
        self.submit(Work::Product(*product))
    }

    fn fuses(&mut self, _: Way, _: Way) -> bool {
        self.behaviour.fuses
    }

    fn collective(&mut self, collective: &Collective) -> Result<(), EngineError> {
        self.submit(Work::Collective(collective.clone()))
    }

    fn join(&mut self) -> Result<(), EngineError> {
        self.submit(Work::Join)
    }

    fn records_collectives(&self) -> bool {
        true
    }

    fn begin_recording(&mut self) -> Result<bool, EngineError> {
        if self.behaviour.records {
            self.recording = Some(Vec::new());
        }
        Ok(self.behaviour.records)
    }

    fn end_recording(&mut self) -> Result<Option<Recording>, EngineError> {
        let recording = self.recording.take().ok_or_else(|| failed("nothing was being recorded"))?;
        self.recorded.push(recording);
        Ok(Some(Recording(self.recorded.len() - 1)))
    }

    fn play(&mut self, recording: Recording) -> Result<(), EngineError> {
        self.played += 1;
        let works = std::mem::take(&mut self.recorded[recording.0]);
        let done = works.iter().try_for_each(|work| self.carry_out(work));
        self.recorded[recording.0] = works;
        done
    }

    fn synchronize(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn notes(&self) -> &[String] {
        &[]
    }

    /// A clock that ticks once, a second, whenever it is looked at.
    fn mark(&mut self) -> Result<Option<Mark>, EngineError> {
        self.marks += 1;
        Ok(Some(Mark(self.marks)))
    }

    fn seconds(&mut self, pairs: &[(Mark, Mark)]) -> Result<Vec<f64>, EngineError> {
        let passed = |&(begin, end): &(Mark, Mark)| {
            let is_known = (1..=self.marks).contains(&begin.0) && begin.0 <= end.0 && end.0 <= self.marks;
            is_known.then(|| (end.0 - begin.0) as f64).ok_or_else(|| failed(format!("no clock had {end:?}")))
        };
        let seconds = pairs.iter().map(passed).collect();
        self.marks = 0;
        seconds
    }
}

pub(super) fn failed(error: impl std::fmt::Display) -> EngineError {
    EngineError::Device(format!("emulator: {error}"))
}

fn outside(at: Address, len: usize) -> EngineError {
    failed(format!("{len} bytes at {:#x} are not inside one allocation", at.0))
}
