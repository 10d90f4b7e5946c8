//! A kernel that is ready to be launched, unless a product beside it does its work too.

use crate::engine::EngineError;
use crate::engine::cuda::device::{Arg, Device, Launch, Product};
use crate::engine::cuda::stream::{Stream, fitting};
use crate::engine::traffic::Traffic;

/// A launch, with what it moves and computes.
pub(in crate::engine::cuda) struct Ready {
    pub(super) kernel: &'static str,
    pub(super) grid: [usize; 3],
    pub(super) threads: u32,
    pub(super) args: Vec<Arg>,
    pub(super) traffic: Traffic,
}

impl Ready {
    /// The launch, for a device that times it.
    ///
    /// # Errors
    /// Where a size does not fit into its type.
    pub(in crate::engine::cuda) fn as_launch(&self) -> Result<Launch<'_>, EngineError> {
        let grid = fitting(self.kernel, self.grid, &self.args)?;
        Ok(Launch { kernel: self.kernel, grid, block: self.threads, shared: 0, args: &self.args })
    }

    pub(in crate::engine::cuda) fn launch<D: Device>(&self, stream: &mut Stream<D>) {
        stream.stating(self.traffic).launch(self.kernel, self.grid, self.threads, &self.args);
    }

    /// Starts a product with what follows it: as `whole`, which has it fused, where that is right and not slower, and
    /// otherwise as `alone` and then this kernel. Returns whether it was fused.
    pub(in crate::engine::cuda) fn after<D: Device>(
        &self,
        stream: &mut Stream<D>,
        whole: &Product,
        alone: &Product,
    ) -> bool {
        let fuses = stream.fuses((whole, None), (alone, self));
        if fuses {
            stream.product(whole);
        } else {
            stream.product(alone);
            self.launch(stream);
        }
        fuses
    }
}
