//! What all ranks must decide alike: when to stop, when to save, and whether they still have the same model.
//!
//! Every rank runs the same loop. Its branches depend on numbers that are equal on all ranks (the loss and the norm
//! are sums over all of them) or on what is agreed here, so no rank waits for one that took another branch.

use super::{Best, Doing, Evaluations, Events, Progress, Stop, TrainConfig, TrainError, Watcher, Within};
use crate::comm::{Comm, CommError, differing, named};
use crate::engine::{Engine, EngineError, State};
use std::ops::{ControlFlow, Range};

/// The receiver of events, asked by all ranks together.
pub(super) struct Agreed<'a, E> {
    pub(super) comm: &'a dyn Comm,
    pub(super) events: &'a mut E,
    /// The stop that the ranks have agreed on.
    stop: Option<Stop>,
    /// A checkpoint was asked for and not made yet.
    save: bool,
}

const SAVE: u8 = 0x80;

/// Who looks on while a rank works, and whether they may break a pass off: of several ranks none may leave out the rest
/// of a pass, for the others would wait for it.
#[derive(Clone, Copy)]
pub(super) struct Onlooker<'a> {
    watcher: Option<&'a dyn Watcher>,
    alone: bool,
}

impl Onlooker<'_> {
    /// Says that `part` of a pass is done, which is number `pass` of `passes`. Breaks if it is to be left out.
    pub(super) fn within(self, doing: Doing, (pass, passes): (u64, u64), part: f64) -> ControlFlow<()> {
        let done = (pass as f64 + part) / passes as f64;
        let at = Within { doing, pass, passes, done, may_break: self.alone };
        let asked = self.watcher.map(|watcher| watcher.within(at));
        asked.filter(|_| self.alone).unwrap_or(ControlFlow::Continue(()))
    }
}

impl<'a, E: Events> Agreed<'a, E> {
    pub(super) fn new(comm: &'a dyn Comm, events: &'a mut E) -> Self {
        Self { comm, events, stop: None, save: false }
    }

    /// Whether to stop now: if any rank is asked to, all do, for the reason of the first one.
    pub(super) fn stop(&mut self) -> Result<Option<Stop>, TrainError<E::Error>> {
        let (mut stop, mut save) = (self.events.stop(), self.events.save_now());
        if self.comm.size() > 1 {
            let mine = Stop::code(stop) | if save { SAVE } else { 0 };
            let all = self.comm.exchange(&[mine]).map_err(EngineError::from)?;
            let all = || all.iter().flatten();
            stop = all().find_map(|word| Stop::of_code(word & !SAVE));
            save = all().any(|word| word & SAVE != 0);
        }
        self.stop = self.stop.or(stop);
        self.save |= save;
        Ok(self.stop)
    }

    /// Makes sure that all ranks measure the same things.
    pub(super) fn compare_evaluations(&self, evaluations: &Evaluations) -> Result<(), EngineError> {
        if self.comm.size() == 1 {
            return Ok(());
        }
        let differing = self.differing(evaluations.outline().as_bytes())?;
        if differing.is_empty() {
            return Ok(());
        }
        Err(EngineError::Comm(CommError::Failed(format!(
            "{} would evaluate on other data or tasks than rank 0: are the files of data.val, eval.hellaswag and \
             eval.tasks the same on all machines?",
            named(&differing)
        ))))
    }

    /// The ranks that have something else than rank 0; all ranks call this together with what they have.
    fn differing(&self, mine: &[u8]) -> Result<Vec<usize>, EngineError> {
        Ok(differing(&self.comm.exchange(mine)?))
    }

    /// Takes over what rank 0 knows of evaluations: the ranks look at one disk, but not at one moment.
    pub(super) fn as_first(&self, progress: &mut Progress) -> Result<(), EngineError> {
        if self.comm.size() == 1 {
            return Ok(());
        }
        let known = [progress.kept, progress.reached];
        let there = [progress.evaluated, known[0].is_some(), known[1].is_some()].map(u8::from);
        let numbers = |best: Option<Best>| {
            let Best { step, val_loss } = best.unwrap_or(Best { step: 0, val_loss: 0.0 });
            [step.to_le_bytes(), val_loss.to_le_bytes()].concat()
        };
        let all = self.comm.exchange(&[&there[..], &numbers(known[0]), &numbers(known[1])].concat())?;
        let first = all.first().map_or(&[][..], Vec::as_slice);
        let is_there = |flag: usize| first.get(flag).is_some_and(|flag| *flag != 0);
        let number = |at: usize| first.get(at..at + 8)?.try_into().ok();
        let read = |at: usize| {
            Some(Best {
                step: u64::from_le_bytes(number(at)?),
                val_loss: f64::from_le_bytes(number(at + 8)?),
            })
        };
        progress.evaluated = is_there(0);
        [progress.kept, progress.reached] =
            [(1, 3), (2, 19)].map(|(flag, at)| read(at).filter(|_| is_there(flag)));
        Ok(())
    }

    /// Who looks on while this rank works.
    pub(super) fn onlooker(&self) -> Onlooker<'_> {
        Onlooker { watcher: self.events.watcher(), alone: self.comm.size() == 1 }
    }

    /// Why the ranks stop, once they have agreed to.
    pub(super) fn reason(&self) -> Option<Stop> {
        self.stop
    }

    /// Whether a checkpoint has been asked for, up to the last [`stop`](Self::stop). Answered once.
    pub(super) fn save_now(&mut self) -> bool {
        std::mem::take(&mut self.save)
    }

    /// Calls the receiver for something that may take long; meanwhile the other ranks wait without a time limit.
    pub(super) fn working<T>(&mut self, call: impl FnOnce(&mut E) -> T) -> T {
        self.comm.set_working(true);
        let result = call(self.events);
        self.comm.set_working(false);
        result
    }

    /// Makes sure that all ranks are at the same step with the same parameters.
    pub(super) fn compare(&self, engine: &mut dyn Engine, progress: &Progress) -> Result<(), EngineError> {
        if self.comm.size() == 1 {
            return Ok(());
        }
        let mut mine = progress.step.to_le_bytes().to_vec();
        mine.extend(checksum(&engine.read(State::Parameters)?).to_le_bytes());
        let differing = self.differing(&mine)?;
        if differing.is_empty() {
            return Ok(());
        }
        Err(EngineError::Comm(CommError::Failed(format!(
            "the parameters of {} differ from those of rank 0 at step {}: the ranks have not computed the same, which \
             points at faulty hardware or at different libraries",
            named(&differing),
            progress.step
        ))))
    }
}

/// The rows of a step that are this rank's: the ranks divide each step's rows in order.
pub(super) fn own_rows(config: &TrainConfig, comm: &dyn Comm, step: u64) -> Range<u64> {
    let rows = config.sizes.rows(step) / comm.size() as u64;
    let first = config.sizes.rows_before(step) + comm.rank() as u64 * rows;
    first..first + rows
}

/// A checksum that changes with any changed or moved bit of the values, except with a probability of about 2^-64.
fn checksum(values: &[f32]) -> u64 {
    // odd factors, so that each is invertible and no difference of one value is lost
    values.iter().zip(0u64..).fold(0, |sum, (value, i)| {
        let word = u64::from(value.to_bits()) + 1;
        sum.wrapping_add(word.wrapping_mul((i << 1 | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_sees_one_bit_and_an_exchange() {
        let values: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        let whole = checksum(&values);
        let mut changed = values.clone();
        changed[700] = f32::from_bits(changed[700].to_bits() ^ 1);
        assert_ne!(checksum(&changed), whole);
        changed[700] = values[700];
        assert_eq!(checksum(&changed), whole);
        changed.swap(3, 4);
        assert_ne!(checksum(&changed), whole);
    }
}
