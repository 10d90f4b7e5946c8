//! Checkpoints on disk: they come back bit for bit or say what happened to them.

use proptest::prelude::*;
use runner::engine::State;
use runner::engine::optimizer::OptimizerState;
use runner::engine::optimizer::adamw::{EXP_AVG, EXP_AVG_SQ};
use runner::model::{Dims, ParamLayout};
use runner::regular::OpenDir;
use runner::run::checkpoint::{self, CheckpointData, CheckpointState, Reader, Scaler, Writer};
use runner::run::{RunError, import};
use std::fs;
use std::path::{Path, PathBuf};

const STATES: [State; 3] = [State::Parameters, State::Optimizer(&EXP_AVG), State::Optimizer(&EXP_AVG_SQ)];

fn model(vocab_multiple: usize) -> (Dims, ParamLayout) {
    let dims = Dims {
        n_layer: 2,
        n_head: 2,
        n_embd: 6,
        block_size: 5,
        vocab_size: 11,
        padded_vocab: 11usize.next_multiple_of(vocab_multiple),
    };
    (dims, ParamLayout::new(&dims))
}

/// Values that differ everywhere; zero in gaps and padding rows, as an engine hands them over.
fn values(dims: &Dims, layout: &ParamLayout, state: State) -> Vec<f32> {
    let mut out = vec![0.0; layout.len];
    let which = STATES.iter().position(|one| *one == state).expect("a buffer of a checkpoint");
    let mut n = 1.0 + which as f32 * 1e6;
    for tensor in &layout.tensors {
        let used = if tensor.name == "wte.weight" { dims.vocab_size * dims.n_embd } else { tensor.len() };
        for value in &mut out[tensor.offset..tensor.offset + used] {
            *value = n.sin() * 1e-3 + n;
            n += 1.0;
        }
    }
    out
}

fn state(step: u64) -> CheckpointState {
    CheckpointState {
        step,
        tokens: step * 512,
        updates_applied: step - 1,
        rows_consumed: step * 8,
        scaler: Scaler { scale: 32768.0, good_steps: 17 },
        elapsed_s: 0.1,
        recipe_hash: "abc".into(),
        micro_batch: 4,
        best_val: Some(3.25),
        ..CheckpointState::default()
    }
}

fn write(run: &Path, step: u64) -> PathBuf {
    let (dims, layout) = model(1);
    let [parameters, first, second] = STATES.map(|s| values(&dims, &layout, s));
    let buffers = [(STATES[0], &parameters[..]), (STATES[1], &first), (STATES[2], &second)];
    let data = CheckpointData { dims: &dims, layout: &layout, buffers: &buffers, state: state(step) };
    checkpoint::write(run, &data).expect("write")
}

fn fill(reader: &mut Reader, which: State, vocab_multiple: usize) -> Result<Vec<f32>, RunError> {
    let (dims, layout) = model(vocab_multiple);
    let mut out = vec![9.0; which.len_in(&layout)];
    reader.fill(which, &dims, &layout, &mut out).map(|()| out)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn flip(path: &Path, byte: usize) {
    let mut bytes = fs::read(path).expect("read");
    bytes[byte] ^= 4;
    fs::write(path, bytes).expect("write");
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .expect("read")
        .map(|e| e.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn steps(run: &Path) -> Vec<u64> {
    checkpoint::list(run).expect("list").into_iter().map(|(step, _)| step).collect()
}

fn opened(run: &Path) -> OpenDir {
    OpenDir::open(run).expect("a directory")
}

#[test]
fn every_number_comes_back_as_it_was() {
    let run = tempfile::tempdir().expect("tempdir");
    let (dims, layout) = model(1);
    let special = [f32::NAN, -f32::NAN, f32::INFINITY, -0.0, f32::MIN_POSITIVE, 1e-45, f32::MAX];
    let mut buffers = STATES.map(|s| values(&dims, &layout, s));
    for buffer in &mut buffers {
        buffer[layout.ln_f_bias.start..][..6].copy_from_slice(&special[..6]);
        buffer[layout.wte.start] = special[6];
    }
    let mut writer =
        Writer::begin(&opened(run.path()), &dims, &layout, STATES.to_vec(), state(1000), &[]).expect("begin");
    for (which, buffer) in STATES.into_iter().zip(&buffers) {
        writer.put(which, buffer).expect("put");
    }
    assert_eq!(steps(run.path()), [0u64; 0], "it has no name before it is finished");
    let path = writer.finish().expect("finish");
    assert_eq!(path, run.path().join("checkpoints/step-00001000"));
    assert_eq!(names(&path), ["config.json", "model.safetensors", "optimizer.safetensors", "state.json"]);

    let mut reader = Reader::open(&path).expect("open");
    let mut read = reader.state().clone();
    assert_eq!(read.files.len(), 3);
    read.files.clear();
    assert_eq!(read, CheckpointState { format_version: checkpoint::FORMAT_VERSION, ..state(1000) });
    for (which, buffer) in STATES.into_iter().zip(&buffers) {
        assert_eq!(bits(&fill(&mut reader, which, 1).expect("fill")), bits(buffer), "{which:?}");
    }
    assert!(fill(&mut reader, State::Gradients, 1).expect("zero").iter().all(|v| v.to_bits() == 0));
}

#[test]
fn padding_is_not_stored_so_either_kind_loads_into_the_other() {
    for (from, to) in [(1, 128), (128, 1), (128, 128)] {
        let run = tempfile::tempdir().expect("tempdir");
        let (dims, layout) = model(from);
        let mut writer = Writer::begin(&opened(run.path()), &dims, &layout, STATES.to_vec(), state(7), &[])
            .expect("begin");
        for which in STATES {
            writer.put(which, &values(&dims, &layout, which)).expect("put");
        }
        let mut reader = Reader::open(&writer.finish().expect("finish")).expect("open");
        let (dims, layout) = model(to);
        for which in STATES {
            let read = fill(&mut reader, which, to).expect("fill");
            assert_eq!(bits(&read), bits(&values(&dims, &layout, which)), "{from} to {to}, {which:?}");
        }
    }
}

/// The state of a rule that keeps it for matrices only.
static MOMENTUM: OptimizerState = OptimizerState {
    name: "momentum_buffer",
    label: "the momentum",
    covers: |tensor| tensor.shape.len() == 2,
};

#[test]
fn a_state_that_covers_some_tensors_is_stored_for_those() {
    let run = tempfile::tempdir().expect("tempdir");
    let (dims, layout) = model(8);
    let states = [State::Parameters, State::Optimizer(&MOMENTUM)];
    let mut writer =
        Writer::begin(&opened(run.path()), &dims, &layout, states.to_vec(), state(1), &[]).expect("begin");
    let values = values(&dims, &layout, State::Parameters);
    let covered = [&values[..], &values[..layout.decayed]];
    states.iter().zip(covered).for_each(|(which, values)| writer.put(*which, values).expect("put"));
    let path = writer.finish().expect("finish");
    let file = fs::read(path.join("optimizer.safetensors")).expect("read");
    let header = String::from_utf8_lossy(&file[8..]);
    assert!(
        header.contains("\"momentum_buffer.h.0.mlp.c_fc.weight\"") && !header.contains("ln_f"),
        "{header}"
    );
    let read = fill(&mut Reader::open(&path).expect("open"), states[1], 8).expect("fill");
    assert_eq!(bits(&read), bits(covered[1]));
}

/// The state of a rule that keeps it for tensors that do not lie together.
static SOME: OptimizerState = OptimizerState {
    name: "some",
    label: "something",
    covers: |tensor| tensor.name == "wpe.weight" || tensor.name.ends_with("c_fc.weight"),
};

#[test]
fn a_buffer_holds_the_tensors_that_its_state_covers_one_after_the_other() {
    let run = tempfile::tempdir().expect("tempdir");
    let (dims, layout) = model(8);
    let some = State::Optimizer(&SOME);
    let all = values(&dims, &layout, State::Parameters);
    let held: Vec<f32> = some.parts(&layout).into_iter().flat_map(|part| &all[part]).copied().collect();
    assert_eq!((some.parts(&layout).len(), held.len()), (3, some.len_in(&layout)));
    let states = vec![State::Parameters, some];
    let mut writer =
        Writer::begin(&opened(run.path()), &dims, &layout, states, state(1), &[]).expect("begin");
    writer.put(State::Parameters, &all).expect("put");
    writer.put(some, &held).expect("put");
    let path = writer.finish().expect("finish");
    let file = fs::read(path.join("optimizer.safetensors")).expect("read");
    let file = safetensors::SafeTensors::deserialize(&file).expect("tensors");
    assert_eq!(file.len(), 3);
    for tensor in layout.tensors.iter().filter(|tensor| (SOME.covers)(tensor)) {
        let bytes = file.tensor(&format!("some.{}", tensor.name)).expect("stored").data();
        let stored: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert_eq!(bits(&stored), bits(&all[tensor.range()]), "{}", tensor.name);
    }
    let read = fill(&mut Reader::open(&path).expect("open"), some, 8).expect("fill");
    assert_eq!(bits(&read), bits(&held));
}

#[test]
fn a_state_that_a_checkpoint_does_not_have_is_named() {
    let run = tempfile::tempdir().expect("tempdir");
    let mut reader = Reader::open(&write(run.path(), 1)).expect("open");
    let error = fill(&mut reader, State::Optimizer(&MOMENTUM), 1).expect_err("another optimizer").to_string();
    let names =
        ["optimizer.safetensors", "no `momentum_buffer`, the momentum that the optimizer goes on from"];
    assert!(names.iter().all(|name| error.contains(name)), "{error}");
}

#[test]
fn an_optimizer_without_states_has_checkpoints_too() {
    let run = tempfile::tempdir().expect("tempdir");
    let (dims, layout) = model(1);
    let states = vec![State::Parameters];
    let mut writer =
        Writer::begin(&opened(run.path()), &dims, &layout, states, state(1), &[]).expect("begin");
    let values = values(&dims, &layout, State::Parameters);
    writer.put(State::Parameters, &values).expect("put");
    let mut reader = Reader::open(&writer.finish().expect("finish")).expect("open");
    reader.verify().expect("every file is whole");
    assert_eq!(bits(&fill(&mut reader, State::Parameters, 1).expect("fill")), bits(&values));
}

#[test]
fn a_checkpoint_has_parameters_then_optimizer_states() {
    let run = tempfile::tempdir().expect("tempdir");
    let (dims, layout) = model(1);
    let [parameters, first, second] = STATES;
    for (buffers, problem) in [
        (vec![], "begins with the parameters"),
        (vec![first, second], "begins with the parameters"),
        (vec![first, parameters], "begins with the parameters"),
        (vec![parameters, first, parameters], "followed by optimizer states"),
        (vec![parameters, State::Gradients], "followed by optimizer states"),
    ] {
        let begin = || Writer::begin(&opened(run.path()), &dims, &layout, buffers, state(1), &[]).map(drop);
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(begin)).expect_err("refused");
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        assert!(said.as_ref().is_some_and(|said| said.contains(problem)), "{said:?}");
    }
    assert!(fs::read_dir(run.path()).expect("the run's directory").next().is_none(), "nothing was written");
}

#[test]
fn a_checkpoint_is_weights_to_start_from() {
    let run = tempfile::tempdir().expect("tempdir");
    let path = write(run.path(), 3);
    let (dims, layout) = model(8);
    for path in [path.clone(), path.join("model.safetensors")] {
        let mut out = vec![9.0; layout.len];
        let recorded = CheckpointState::read(&run.path().join("checkpoints/step-00000003")).expect("a state");
        let digest = recorded.digest_of_model();
        import(&path, &dims, &layout, Some(&digest), &mut out).expect("import");
        assert_eq!(bits(&out), bits(&values(&dims, &layout, State::Parameters)));
    }
}

#[test]
fn an_abandoned_writer_leaves_nothing() {
    let run = tempfile::tempdir().expect("tempdir");
    let (dims, layout) = model(1);
    let mut writer =
        Writer::begin(&opened(run.path()), &dims, &layout, STATES.to_vec(), state(1), &[]).expect("begin");
    writer.put(State::Parameters, &vec![0.0; layout.len]).expect("put");
    drop(writer);
    assert_eq!(names(&run.path().join("checkpoints")), [""; 0]);
}

#[test]
fn damage_is_named_and_an_older_checkpoint_found() {
    for file in ["config.json", "model.safetensors", "optimizer.safetensors", "state.json"] {
        let run = tempfile::tempdir().expect("tempdir");
        let (good, bad, cut) = (write(run.path(), 10), write(run.path(), 20), write(run.path(), 30));
        let length = fs::metadata(bad.join(file)).expect("stat").len() as usize;
        flip(&bad.join(file), length - 9);
        let bytes = fs::read(cut.join(file)).expect("read");
        fs::write(cut.join(file), &bytes[..length - 7]).expect("write");
        let newest = checkpoint::newest_intact(run.path()).expect("readable");
        assert_eq!(newest.reader.expect("the oldest is whole").path(), good);
        let reasons: Vec<_> = newest.rejected.iter().map(|r| r.reason.to_string()).collect();
        assert_eq!(newest.rejected.iter().map(|r| &r.path).collect::<Vec<_>>(), [&cut, &bad]);
        assert!(reasons.iter().all(|reason| reason.contains(file)), "{reasons:?}");
        if file != "state.json" {
            assert!(reasons.iter().all(|r| r.contains("truncated or corrupted")), "{reasons:?}");
            let digest = blake3::hash(&fs::read(good.join(file)).expect("read")).to_hex().to_string();
            assert!(reasons[1].contains(&digest), "{reasons:?}");
        }
        let aside = checkpoint::set_aside(&opened(run.path()), &bad).expect("rename");
        assert!(aside.join(file).exists() && !bad.exists());
        assert_eq!(steps(run.path()), [10, 30]);
    }
}

#[test]
fn a_missing_file_a_wrong_name_and_a_newer_format_are_told_apart() {
    let run = tempfile::tempdir().expect("tempdir");
    let path = write(run.path(), 10);
    fs::rename(&path, checkpoint::path_of(run.path(), 11)).expect("rename");
    let path = checkpoint::path_of(run.path(), 11);
    let rejected = checkpoint::newest_intact(run.path()).expect("readable").rejected;
    assert!(rejected[0].reason.to_string().contains("step 10"), "{}", rejected[0].reason);
    fs::remove_file(path.join("optimizer.safetensors")).expect("remove");
    let error = Reader::open(&path).expect_err("incomplete");
    assert!(error.to_string().contains("optimizer.safetensors"), "{error}");
    fs::write(path.join("state.json"), r#"{"format_version": 99}"#).expect("write");
    let error = checkpoint::newest_intact(run.path()).expect_err("not to be passed over");
    assert!(matches!(error, RunError::NewerFormat { found: 99, .. }), "{error}");
}

#[test]
fn tensors_of_another_model_are_listed_all_at_once() {
    let run = tempfile::tempdir().expect("tempdir");
    let mut reader = Reader::open(&write(run.path(), 1)).expect("open");
    let (mut dims, _) = model(1);
    (dims.n_layer, dims.block_size) = (3, 4);
    let layout = ParamLayout::new(&dims);
    let mut out = vec![0.0; layout.len];
    let error =
        reader.fill(State::Optimizer(&EXP_AVG), &dims, &layout, &mut out).expect_err("misfit").to_string();
    assert!(error.contains("`wpe.weight` should be [4, 6] but is [5, 6]"), "{error}");
    assert!(error.contains("`h.2.attn.c_attn.weight` [6, 18] is missing"), "{error}");
    assert_eq!(error.lines().count(), 1 + 1 + 12, "{error}");
    dims.n_layer = 1;
    let layout = ParamLayout::new(&dims);
    let mut out = vec![0.0; layout.len];
    let error = reader.fill(State::Parameters, &dims, &layout, &mut out).expect_err("misfit").to_string();
    assert!(error.contains("`h.1.ln_1.bias` [6] is not part of the model"), "{error}");
}

#[test]
fn a_checkpoint_of_the_same_step_is_replaced() {
    let run = tempfile::tempdir().expect("tempdir");
    let path = write(run.path(), 5);
    flip(&path.join("model.safetensors"), 2000);
    assert_eq!(write(run.path(), 5), path);
    Reader::open(&path).expect("open").verify().expect("the new one");
    assert_eq!(names(&run.path().join("checkpoints")), ["step-00000005"]);
}

#[test]
fn rotation_keeps_the_newest() {
    let run = tempfile::tempdir().expect("tempdir");
    assert_eq!(
        checkpoint::rotate(&opened(run.path()), 2, &[], None).expect("none yet"),
        Vec::<PathBuf>::new()
    );
    let paths: Vec<_> = (1..=5).map(|step| write(run.path(), step)).collect();
    assert_eq!(
        checkpoint::rotate(&opened(run.path()), 0, &[], None).expect("keep all"),
        Vec::<PathBuf>::new()
    );
    assert_eq!(checkpoint::rotate(&opened(run.path()), 2, &[], Some(&paths[4])).expect("rotate"), paths[..3]);
    assert_eq!(steps(run.path()), [4, 5]);
    assert_eq!(names(&run.path().join("checkpoints")).len(), 2);
}

#[test]
fn rotation_never_deletes_the_only_intact_checkpoint() {
    let run = tempfile::tempdir().expect("tempdir");
    let paths: Vec<_> = (1..=5).map(|step| write(run.path(), step)).collect();
    for damaged in &paths[2..] {
        flip(&damaged.join("model.safetensors"), 2000);
    }
    checkpoint::rotate(&opened(run.path()), 2, &[], None).expect("rotate");
    assert_eq!(steps(run.path()), [2, 4, 5]);
    // An incomplete one is no reason to delete a complete one.
    fs::remove_file(paths[4].join("state.json")).expect("remove");
    checkpoint::rotate(&opened(run.path()), 1, &[], None).expect("rotate");
    assert_eq!(steps(run.path()), [2, 4, 5]);
    checkpoint::rotate(&opened(run.path()), 1, &[], Some(&write(run.path(), 6))).expect("rotate");
    assert_eq!(steps(run.path()), [6]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn one_flipped_bit_anywhere_is_found(file in 0usize..3, place: prop::sample::Index, bit in 0u8..8) {
        let run = tempfile::tempdir().expect("tempdir");
        let file = ["config.json", "model.safetensors", "optimizer.safetensors"][file];
        let path = write(run.path(), 1).join(file);
        let mut bytes = fs::read(&path).expect("read");
        let place = place.index(bytes.len());
        bytes[place] ^= 1 << bit;
        fs::write(&path, bytes).expect("write");
        let newest = checkpoint::newest_intact(run.path()).expect("readable");
        prop_assert!(newest.reader.is_none());
        prop_assert!(newest.rejected[0].reason.to_string().contains(file));
    }
}
