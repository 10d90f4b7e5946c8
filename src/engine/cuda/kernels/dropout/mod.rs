//! What launches say about dropout, and the launches of its own kernels.

use super::for_residual;
use crate::engine::cuda::device::{Address, Arg, Device};
use crate::engine::cuda::stream::{NULL, Stream, int, pointer};
use crate::engine::dropout::Site;
use crate::engine::fused::backend::AttentionShape;
use crate::engine::memory::Element;
use crate::engine::traffic::{F32, Traffic};

/// Threads of a block.
const THREADS: usize = 128;
/// What the source needs to know of these sizes, as macros.
pub(super) const DEFINES: &[(&str, u32)] = &[("DROP_THREADS", THREADS as u32)];

/// Operations of one draw, which gives factors for four numbers: seven rounds of two products, four exclusive ors and
/// two sums.
const DRAW: usize = 7 * 8;

/// The words of a draw that are the same for a whole batch.
const WORDS: usize = 6;

/// What a launch draws.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine::cuda) struct Draws {
    /// Where the words of the batch are, and the site: `None` if dropout does not act.
    pub(in crate::engine::cuda) at: Option<(Address, Site)>,
}

impl Draws {
    /// The arguments of every kernel that may drop something.
    pub(super) fn args(self) -> [Arg; 2] {
        match self.at {
            None => [NULL, Arg::Int(-1)],
            Some((words, site)) => [pointer(words), Arg::Int(site.number() as i32)],
        }
    }

    /// Adds what so many draws take, one for each element or one for four.
    pub(super) fn stated(self, traffic: Traffic, draws: usize) -> Traffic {
        match self.at {
            None => traffic,
            Some(_) => traffic.reads(WORDS, F32).computes(draws * DRAW),
        }
    }
}

/// Drops elements of `x [n, c]`, a residual stream, in place.
pub(in crate::engine::cuda) fn residual<D: Device>(
    stream: &mut Stream<D>,
    x: Address,
    stored: Element,
    [n, c]: [usize; 2],
    draws: Draws,
    cols: usize,
) {
    let traffic = Traffic::of_kernel().reads(n * c, stored.bytes()).writes(n * c, stored.bytes());
    let [words, site] = draws.args();
    let kernel = for_residual(stored, ["drop_out", "drop_out_low"]);
    let args = [pointer(x), int(c), words, site, int(cols)];
    stream.stating(draws.stated(traffic, n * c / 4)).launch(kernel, [n, 1, 1], THREADS as u32, &args);
}

/// Writes `probabilities [n_head, T, T]` of one row of the batch, times their factors, to `dropped`.
pub(super) fn probabilities<D: Device>(
    stream: &mut Stream<D>,
    [probabilities, dropped]: [Address; 2],
    shape: AttentionShape,
    draws: Draws,
    row: usize,
) {
    let (rows, cols) = (shape.n_head * shape.cols, shape.cols);
    let operand = stream.operand();
    let traffic = Traffic::of_kernel().reads(rows * cols, operand).writes(rows * cols, operand);
    let [words, site] = draws.args();
    let args = [pointer(probabilities), pointer(dropped), int(cols), words, site, int(row)];
    let stream = stream.stating(draws.stated(traffic, rows * cols));
    stream.launch("drop_probabilities", [rows, 1, 1], THREADS as u32, &args);
}
