//! Sequences of kernels that come again: issued once, recorded the second time, and replayed from then on.

use super::CudaBackend;
use crate::engine::cuda::device::{Device, Recording};
use crate::engine::fused::backend::{Begun, Sequence};

/// How far a sequence of kernels has come towards being replayed.
pub(super) enum Replay {
    /// Launched once, so that the library has chosen its algorithms.
    Seen,
    /// Being recorded.
    Recording,
    /// Ready to be played.
    Recorded(Recording),
    /// The device cannot record it.
    Never,
}

impl<D: Device> CudaBackend<D> {
    /// See [`Backend::begin`](crate::engine::fused::backend::Backend::begin).
    pub(super) fn begin_sequence(&mut self, sequence: Sequence) -> Begun {
        match self.known.get(&sequence) {
            None => {
                self.known.insert(sequence, Replay::Seen);
                Begun::Issue
            }
            Some(Replay::Seen) => {
                if !self.can_record(sequence) {
                    self.known.insert(sequence, Replay::Never);
                } else if self.stream.run(D::begin_recording) == Some(true) {
                    self.known.insert(sequence, Replay::Recording);
                }
                Begun::Issue
            }
            Some(&Replay::Recorded(recording)) => {
                self.stream.run(|device| device.play(recording));
                Begun::Done
            }
            Some(Replay::Recording | Replay::Never) => Begun::Issue,
        }
    }

    /// See [`Backend::end`](crate::engine::fused::backend::Backend::end).
    pub(super) fn end_sequence(&mut self, sequence: Sequence) -> bool {
        if !matches!(self.known.get(&sequence), Some(Replay::Recording)) {
            return true;
        }
        // also after a failure, or the device would go on recording
        let recording = self.stream.device_mut().end_recording();
        let recording = self.stream.run(|_| recording).flatten();
        let recording = self.kept_by_all(sequence, recording);
        self.known.insert(sequence, recording.map_or(Replay::Never, Replay::Recorded));
        recording.is_some_and(|recording| self.stream.run(|device| device.play(recording)).is_some())
    }
}
