//! The devices of several ranks over fake libraries: NCCL's calls, the order of streams and events, and waits
//! that end.
//!
//! Ranks are threads with one device each. The fake driver does nothing before it must, so work that is not
//! ordered runs in the wrong order, and a wait for something that never happens is stopped with a message.

use crate::comm_support;
use crate::cuda_support;

use comm_support::{each, ends};
use cuda_support::Fakes;
use runner::comm::{Comm, CommError, Solo, shares};
use runner::cuda::Libraries;
use runner::cuda::compile::Program;
use runner::engine::EngineError;
use runner::engine::cuda::device::{Address, Arg, Collective, Device, Launch};
use runner::engine::cuda::gpu::Gpu;
use runner::engine::cuda::ranked_engine;
use runner::engine::memory::{Activations, MemoryConfig, MemoryPlan, Mode, Target};
use runner::engine::optimizer::OptimizerKind;
use runner::model::Dims;
use runner::recipe::{Attention, Precision};
use std::ops::Range;
use std::sync::Arc;

const NOTHING: Program = Program { unit: "", files: &[], options: &[] };

/// Memory for the workspaces of several devices.
const ROOM: &str = "MEMORY=(256<<20)";

/// All libraries, with NCCL compiled with these macros.
fn fakes(nccl: &[&str]) -> Fakes {
    let fakes = Fakes::whole(&[ROOM]);
    fakes.nccl(nccl);
    fakes
}

fn join(libraries: &Libraries, comm: Arc<dyn Comm>) -> Result<Gpu, EngineError> {
    let mut gpu = Gpu::open_with(libraries, 0, Precision::Fp32, Some(&NOTHING), None).expect("a device");
    gpu.join_ranks(libraries, comm)?;
    Ok(gpu)
}

/// Runs each rank of a group with a device that is connected to the others.
fn ranks<T: Send>(
    libraries: &Libraries,
    size: usize,
    seconds: u64,
    rank: impl Fn(&mut Gpu, &dyn Comm) -> T + Sync,
) -> Vec<T> {
    let ends = ends(size, seconds);
    let results = each(&ends, |comm| {
        let mut gpu = join(libraries, ends[comm.rank()].clone()).expect("all ranks are there");
        Ok(rank(&mut gpu, comm))
    });
    results.into_iter().map(|result| result.expect("it has been joined")).collect()
}

fn upload(gpu: &mut Gpu, values: &[f32]) -> Address {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let at = gpu.allocate(bytes.len(), "values").expect("memory");
    gpu.write(at, &bytes).expect("written");
    at
}

fn download(gpu: &mut Gpu, at: Address, len: usize) -> Result<Vec<f32>, EngineError> {
    let mut bytes = vec![0; 4 * len];
    gpu.read(at, &mut bytes)?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect())
}

/// `y[i] += a x[i] + b`.
fn axpy(gpu: &mut Gpu, y: Address, len: usize, a: f64, x: Address, b: f32) {
    let args = [Arg::Pointer(y), Arg::Int(len as i32), Arg::Double(a), Arg::Pointer(x), Arg::Float(b)];
    let launch = Launch { kernel: "axpy", grid: [4, 1, 1], block: 32, shared: 0, args: &args };
    gpu.launch(&launch).expect("launched");
}

/// Numbers to be summed, other numbers, and those that a kernel reads.
struct Buffers {
    sum: Address,
    beside: Address,
    one: Address,
}

const LEN: usize = 70;

impl Buffers {
    fn new(gpu: &mut Gpu) -> Self {
        let [sum, beside] = [0.0; 2].map(|value| upload(gpu, &[value; LEN]));
        Self { sum, beside, one: upload(gpu, &[1.0; LEN]) }
    }

    /// Adds `rank + 1`, starts the sum, adds 1 to other numbers meanwhile, then copies the doubled sum there.
    fn step(&self, gpu: &mut Gpu, rank: usize, owners: Option<&[Range<usize>]>) -> Result<(), EngineError> {
        axpy(gpu, self.sum, LEN, 0.0, self.one, (rank + 1) as f32);
        let at = self.sum;
        match owners {
            None => gpu.collective(&Collective::Sum { at, len: LEN })?,
            Some(owners) => {
                gpu.collective(&Collective::SumToOwners { at, owners: owners.to_vec() })?;
                gpu.collective(&Collective::Gather { at, owners: owners.to_vec() })?;
            }
        }
        axpy(gpu, self.beside, LEN, 1.0, self.one, 0.0);
        gpu.join()?;
        axpy(gpu, self.sum, LEN, 1.0, self.sum, 0.0);
        axpy(gpu, self.beside, LEN, 1.0, self.sum, 0.0);
        Ok(())
    }

    /// The result of `steps` calls of [`step`](Self::step).
    fn expected(size: usize, steps: usize) -> (f32, f32) {
        let (mut sum, mut beside) = (0.0, 0.0);
        for _ in 0..steps {
            sum = 2.0 * (size as f32 * sum + (size * (size + 1) / 2) as f32);
            beside += 1.0 + sum;
        }
        (sum, beside)
    }

    fn check(&self, gpu: &mut Gpu, size: usize, steps: usize) {
        let (sum, beside) = Self::expected(size, steps);
        assert_eq!(download(gpu, self.sum, LEN).expect("read"), [sum; LEN], "{size} ranks, {steps} steps");
        assert_eq!(
            download(gpu, self.beside, LEN).expect("read"),
            [beside; LEN],
            "{size} ranks, {steps} steps"
        );
    }
}

#[test]
fn a_sum_waits_for_earlier_work_and_later_work_waits_for_it() {
    let fakes = fakes(&[]);
    let libraries = fakes.libraries();
    let before = libraries.memory(0).expect("memory").0;
    for size in 1..4 {
        ranks(&libraries, size, 60, |gpu, comm| {
            let owners = shares(LEN, size);
            for divided in [None, Some(&owners[..])] {
                let buffers = Buffers::new(gpu);
                for step in 1..4 {
                    buffers.step(gpu, comm.rank(), divided).expect("a step");
                    buffers.check(gpu, size, step);
                }
            }
            let doubles: Vec<u8> = [0.1, 1e-9].iter().flat_map(|value: &f64| value.to_ne_bytes()).collect();
            let at = gpu.allocate(16, "doubles").expect("memory");
            gpu.write(at, &doubles).expect("written");
            gpu.collective(&Collective::SumDoubles { at, len: 2 }).expect("begun");
            gpu.join().expect("joined");
            let mut bytes = [[0; 8]; 2];
            gpu.read(at, bytes.as_flattened_mut()).expect("read");
            let sum = |value: f64| (0..size).fold(0.0, |sum, _| sum + value);
            assert_eq!(bytes.map(f64::from_ne_bytes), [sum(0.1), sum(1e-9)]);
        });
    }
    assert_eq!(libraries.memory(0).expect("memory").0, before, "everything was given back");
}

#[test]
fn sums_are_part_of_recordings() {
    let fakes = fakes(&[]);
    for size in [1, 3] {
        ranks(&fakes.libraries(), size, 60, |gpu, comm| {
            assert_eq!(gpu.records_collectives(), size == 1, "these ranks share a process");
            let owners = shares(LEN, size);
            for divided in [None, Some(&owners[..])] {
                let buffers = Buffers::new(gpu);
                buffers.step(gpu, comm.rank(), divided).expect("a step");
                assert!(gpu.begin_recording().expect("begun"));
                buffers.step(gpu, comm.rank(), divided).expect("recorded");
                let recording = gpu.end_recording().expect("ended").expect("kept");
                buffers.check(gpu, size, 1);
                for step in 2..5 {
                    gpu.play(recording).expect("played");
                    buffers.check(gpu, size, step);
                }
                buffers.step(gpu, comm.rank(), divided).expect("a step");
                buffers.check(gpu, size, 5);
                // no work waits for the sum, so the recording is not kept
                assert!(gpu.begin_recording().expect("begun"));
                gpu.collective(&Collective::Sum { at: buffers.sum, len: LEN }).expect("recorded");
                assert!(gpu.end_recording().expect("ended").is_none());
                gpu.join().expect("joined");
            }
        });
    }
}

/// The result of each rank's work after its device has begun a sum in which rank 1 of 2 takes no part.
fn left_alone(
    libraries: &Libraries,
    seconds: u64,
    leaves: impl Fn(&dyn Comm) + Sync,
    waits: impl Fn(&mut Gpu, Address) -> Result<(), EngineError> + Sync,
) -> EngineError {
    let results = ranks(libraries, 2, seconds, |gpu, comm| {
        let at = upload(gpu, &[1.0; LEN]);
        // with a recording, which must be dropped before NCCL's work is aborted
        for _ in 0..2 {
            assert!(gpu.begin_recording().expect("begun"));
            gpu.collective(&Collective::Sum { at, len: LEN }).expect("recorded");
            gpu.join().expect("joined");
            gpu.end_recording().expect("ended").expect("kept");
        }
        comm.barrier().expect("both are there");
        if comm.rank() == 1 {
            leaves(comm);
            return None;
        }
        gpu.collective(&Collective::Sum { at, len: LEN }).expect("begun");
        gpu.join().expect("joined");
        let first = waits(gpu, at).expect_err("the other does not come");
        assert!(gpu.collective(&Collective::Sum { at, len: LEN }).is_err(), "for good");
        Some(first)
    });
    results.into_iter().flatten().next().expect("rank 0 has an error")
}

#[test]
fn a_lost_rank_ends_every_wait_for_the_device() {
    let fakes = fakes(&[]);
    let libraries = fakes.libraries();
    let leave = |comm: &dyn Comm| comm.abandon("its disk is full");
    type Wait = fn(&mut Gpu, Address) -> Result<(), EngineError>;
    let waits: [Wait; 4] = [
        |gpu, at| gpu.read(at, &mut [0; 4]),
        |gpu, _| gpu.synchronize(),
        |gpu, at| gpu.write(at.offset(8), &[1; 1 << 16]),
        // the third copy needs the first slot again, which is never taken
        |gpu, at| {
            for slot in [0, 1, 0] {
                gpu.stage(slot, &[1; 10])?;
                gpu.take(slot, at)?;
            }
            gpu.stage(0, &[1; 20])
        },
    ];
    for wait in waits {
        match left_alone(&libraries, 60, leave, wait) {
            EngineError::Comm(CommError::Lost { rank, size, why }) => {
                assert_eq!((rank, size, why.as_str()), (1, 2, "its disk is full"));
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_device_that_waits_too_long_is_given_up() {
    let fakes = fakes(&[]);
    let error = left_alone(&fakes.libraries(), 1, |_| (), |gpu, at| gpu.read(at, &mut [0; 4])).to_string();
    assert!(error.starts_with("rank 0 of 2 waited 1 s for its device, and no rank is lost"), "{error}");
    assert!(error.contains("distributed.timeout_s"), "{error}");
}

#[test]
fn small_writes_wait_for_no_other_rank_until_there_are_many() {
    let fakes = fakes(&[]);
    let many = |gpu: &mut Gpu, at: Address| {
        // as many writes as their pinned memory holds do not wait
        for _ in 0..30 {
            gpu.write(at, &[0; 4000]).expect("it waits for nothing");
        }
        (0..30).try_for_each(|_| gpu.write(at, &[0; 4000]))
    };
    let error = left_alone(
        &fakes.libraries(),
        60,
        |comm| comm.abandon("it is tired"),
        |gpu, _| {
            let at = gpu.allocate(4000, "letters").expect("memory");
            many(gpu, at)
        },
    );
    assert!(error.to_string().contains("rank 1 of 2 is lost: it is tired"), "{error}");
}

#[test]
fn an_error_of_nccl_is_reported_with_its_message() {
    // the trial has one sum, two sums to owners, two broadcasts and another sum; the next call fails
    let fakes = fakes(&["FAILS=5"]);
    let mut gpu = join(&fakes.libraries(), Arc::new(Solo)).expect("a rank alone");
    let at = upload(&mut gpu, &[1.0; LEN]);
    let error = gpu.collective(&Collective::Sum { at, len: LEN }).expect_err("it fails").to_string();
    assert!(
        error.contains("rank 0 of 1: NCCL: remote process exited or there was a network error"),
        "{error}"
    );
    assert!(error.contains("NCCL_DEBUG=WARN"), "{error}");
    let error = gpu.collective(&Collective::Sum { at, len: LEN }).expect_err("for good").to_string();
    assert!(error.contains("has been aborted"), "{error}");
}

#[test]
fn links_that_sum_wrongly_are_detected_at_once() {
    let fakes = fakes(&["WRONG"]);
    let libraries = fakes.libraries();
    let ends = ends(2, 60);
    let results = each(&ends, |comm| Ok(join(&libraries, ends[comm.rank()].clone()).map(drop)));
    for (rank, result) in results.into_iter().flatten().enumerate() {
        let error = result.expect_err("the sums are wrong").to_string();
        assert!(error.contains(&format!("sum over 2 ranks gives wrong numbers on rank {rank}")), "{error}");
    }
}

#[test]
fn ranks_that_never_connect_do_not_wait_forever() {
    let fakes = fakes(&["NEVER_READY"]);
    let libraries = fakes.libraries();
    let ends = ends(2, 5);
    for result in each(&ends, |comm| Ok(join(&libraries, ends[comm.rank()].clone()).map(drop))) {
        let error = result.expect("it ends").expect_err("they are not connected").to_string();
        assert!(error.contains("waited 5 s"), "{error}");
    }
}

/// The results of opening an engine over these libraries on each of two ranks.
fn engines(libraries: [&Libraries; 2]) -> Vec<Result<(), EngineError>> {
    let ends = ends(2, 60);
    let dims = Dims { n_layer: 1, n_head: 1, n_embd: 16, block_size: 8, vocab_size: 20, padded_vocab: 20 };
    let results = each(&ends, |comm| {
        let plan = MemoryPlan::new(MemoryConfig {
            dims,
            micro_batch: 1,
            precision: Precision::Fp32,
            attention: Attention::Naive,
            target: Target::Cuda,
            mode: Mode::Train(OptimizerKind::AdamW),
            activations: Activations::default(),
        });
        let rank = comm.rank();
        Ok(ranked_engine(libraries[rank], 0, plan, None, ends[rank].clone()).map(drop))
    });
    results.into_iter().map(|result| result.expect("the closure returns none")).collect()
}

#[test]
fn without_nccl_every_rank_learns_why_there_is_no_run() {
    let (whole, bare) = (fakes(&[]), Fakes::whole(&[ROOM]));
    let (with, without) = (whole.libraries(), bare.libraries());
    for result in engines([&with, &with]) {
        result.expect("nothing is missing");
    }
    for libraries in [[&with, &without], [&without, &with]] {
        let errors: Vec<String> = engines(libraries)
            .into_iter()
            .map(|result| result.expect_err("one has none").to_string())
            .collect();
        for error in errors {
            assert!(error.contains("NCCL was not found: looked for libnccl.so.2, libnccl.so in"), "{error}");
            assert!(error.contains("nvidia-nccl-cu13"), "{error}");
        }
    }
}
