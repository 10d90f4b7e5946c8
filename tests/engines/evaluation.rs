//! Scores of tasks against PyTorch, and what they must not depend on. `tests/golden/eval/make.py` made the files.

use runner::data::tokenizer::Tokenizer;
use runner::engine::memory::{Activations, MemoryConfig, MemoryPlan, Mode, Target};
use runner::engine::optimizer::OptimizerKind;
use runner::engine::{Batch, Engine, EngineError, State, cpu, dfdx};
use runner::eval::{Definition, Kind, Limits, Scored, Share, Tally, Task, score};
use runner::model::Dims;
use runner::recipe::{Attention, Precision};
use runner::run::import;
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Largest difference of a loss per token, and of a sum over its size.
const LOSS: f64 = 1e-5;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/eval")
}

fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(folder().join("expected.json")).expect("a file")).expect("JSON")
}

/// What `make.py` calls `number`.
fn number(name: &str, i: usize) -> f64 {
    let key = name.bytes().fold(0u32, |key, byte| key.wrapping_mul(31).wrapping_add(u32::from(byte)));
    let mut x = (i as u32).wrapping_mul(2_654_435_761).wrapping_add(key);
    x = (x ^ (x >> 15)).wrapping_mul(2_246_822_519);
    x = (x ^ (x >> 13)).wrapping_mul(3_266_489_917);
    f64::from(x ^ (x >> 16)) / 2f64.powi(32) - 0.5
}

fn dims(model: &Value) -> Dims {
    let of = |key: &str| model["dims"][key].as_u64().expect("a number") as usize;
    let vocab_size = of("vocab_size");
    Dims {
        n_layer: of("n_layer"),
        n_head: of("n_head"),
        n_embd: of("n_embd"),
        block_size: of("block_size"),
        vocab_size,
        padded_vocab: vocab_size.next_multiple_of(64),
    }
}

/// Writes the weights of a golden model to an engine.
fn fill(engine: &mut dyn Engine, name: &str, dims: &Dims) {
    let layout = engine.layout().clone();
    let mut flat = vec![0.0; layout.len];
    if name == "trained" {
        import(&folder().join(name), dims, &layout, None, &mut flat).expect("the weights fit");
    } else {
        for tensor in &layout.tensors {
            let real = if tensor.name == "wte.weight" { dims.vocab_size * dims.n_embd } else { tensor.len() };
            let is_scale = tensor.name.contains("ln_") && tensor.name.ends_with("weight");
            let (base, width) =
                (if is_scale { 1.0 } else { 0.0 }, if tensor.shape.len() == 2 { 0.6 } else { 0.2 });
            for i in 0..real {
                flat[tensor.offset + i] = (base + number(&tensor.name, i) * width) as f32;
            }
        }
    }
    engine.write(State::Parameters, &flat).expect("written");
}

fn fused(name: &str, dims: Dims, micro_batch: usize, precision: Precision) -> Box<dyn Engine> {
    let config = MemoryConfig {
        dims,
        micro_batch,
        precision,
        attention: Attention::Flash,
        target: Target::Cpu { threads: 1 },
        mode: Mode::Infer,
        activations: Activations::default(),
    };
    let mut engine = cpu::engine(MemoryPlan::new(config)).expect("a small engine can be allocated");
    fill(&mut engine, name, &dims);
    Box::new(engine)
}

fn task(name: &str, definition: Definition, dims: &Dims) -> Task {
    let limits = Limits { block_size: dims.block_size, vocab_size: dims.vocab_size };
    Task::load(&folder().join(format!("{name}.jsonl")), name, definition, Tokenizer::bytes(), limits)
        .expect("a task")
}

fn scored(engine: &mut dyn Engine, task: &Task, micro_batch: usize, share: Share) -> Scored {
    let go_on = |_| Ok::<_, EngineError>(ControlFlow::Continue(()));
    score(engine, task, micro_batch, share, go_on).expect("no failure").expect("not stopped")
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}

/// Holds all scores of a model and a task against PyTorch's.
fn hold(engine: &mut dyn Engine, name: &str, file: &str, definition: Definition, golden: &Value) {
    let (dims, what) = (dims(golden), format!("{name}, {file}, {definition:?}"));
    let key = if definition == Definition::PerToken { "per_token" } else { "lm_eval" };
    let golden = &golden["tasks"][file][key];
    let task = task(file, definition, &dims);
    let found = scored(engine, &task, 3, Share::ALL);
    assert_eq!(found.answers.len(), golden["sums"].as_array().expect("a list").len(), "{what}");
    for (answer, example) in found.answers.iter().zip(&task.examples) {
        let sums = floats(&golden["sums"][answer.example]);
        assert_eq!(answer.sums.len(), sums.len(), "{what}");
        for (place, (&own, &theirs)) in answer.sums.iter().zip(&sums).enumerate() {
            let tokens = example.candidates[place].scored() as f64;
            assert!((own - theirs).abs() < LOSS * theirs.max(1.0), "{what}: sum {own} is not {theirs}");
            if golden["means"].is_array() {
                let mean = floats(&golden["means"][answer.example])[place];
                assert!((own / tokens - mean).abs() < LOSS * mean.max(1.0), "{what}: mean {mean}");
            }
        }
    }
    let tally = Tally::of(&task, &found);
    for (score, end) in
        tally.scores(&task).iter().zip(["acc", if file == "lambada" { "perplexity" } else { "acc_norm" }])
    {
        let theirs = golden[end].as_f64().expect("a number");
        assert!(
            (score.value - theirs).abs() < 1e-4 * theirs.max(0.01),
            "{what}: {end} {} is not {theirs}",
            score.value
        );
        assert!(score.name.starts_with(file) && score.name.ends_with(end), "{}", score.name);
    }
    assert_eq!(tally.not_finite, 0, "{what}");
}

#[test]
fn scores_are_those_of_pytorch() {
    let expected = expected();
    for (name, golden) in expected["models"].as_object().expect("models") {
        let mut engine = fused(name, dims(golden), 3, Precision::Fp32);
        for file in ["hellaswag", "choices", "lambada"] {
            hold(engine.as_mut(), name, file, Definition::PerToken, golden);
        }
        for file in ["hellaswag", "choices"] {
            hold(engine.as_mut(), name, file, Definition::LmEval, golden);
        }
    }
}

#[test]
fn the_loss_of_data_is_that_of_transformers() {
    let expected = expected();
    let rows = expected["loss_rows"].as_u64().expect("a number") as usize;
    let bytes = std::fs::read(folder().join("hellaswag.jsonl")).expect("a file");
    for (name, golden) in expected["models"].as_object().expect("models") {
        let dims = dims(golden);
        let t = dims.block_size;
        let of =
            |shift: usize| bytes[shift..rows * t + shift].iter().map(|&b| u32::from(b)).collect::<Vec<_>>();
        let (inputs, targets) = (of(0), of(1));
        let mut engine = fused(name, dims, rows, Precision::Fp32);
        let batch = Batch { inputs: &inputs, targets: &targets, rows, cols: t, first_row: 0 };
        let losses = engine.token_losses(batch).expect("the batch fits");
        let mean = losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() / losses.len() as f64;
        let theirs = golden["loss"].as_f64().expect("a number");
        assert!((mean - theirs).abs() < LOSS * theirs, "{name}: {mean} is not {theirs}");
        assert_eq!(mean, engine.evaluate(batch).expect("the batch fits"), "{name}: the same losses");
    }
}

/// Rows that share their beginnings are computed at once, and only as far as they are scored.
#[test]
fn losses_at_some_positions_are_bit_for_bit_those_of_whole_rows() {
    let expected = expected();
    let golden = &expected["models"]["trained"];
    let dims = dims(golden);
    let (rows, cols) = (6, dims.block_size / 2);
    let mut inputs: Vec<u32> = (0..rows * cols).map(|i| (i * i * 7 % dims.vocab_size) as u32).collect();
    for (row, shared) in [(1, cols - 3), (2, cols / 2), (4, cols)] {
        inputs.copy_within(0..shared, row * cols);
    }
    let targets: Vec<u32> = inputs.iter().map(|&token| (token * 5 + 1) % dims.vocab_size as u32).collect();
    // the last row is not asked about
    let at: Vec<usize> =
        (0..(rows - 1) * cols).filter(|&at| at % cols > cols / 3 && at % cols < cols - 2).collect();
    for precision in [Precision::Fp32, Precision::Bf16] {
        let mut whole = fused("trained", dims, rows, precision);
        let logits = whole.logits(&inputs[..cols], false).expect("logits");
        let best: Vec<u32> = logits
            .chunks_exact(dims.vocab_size)
            .map(|row| {
                (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).expect("a token") as u32
            })
            .collect();
        let mut targets = targets.clone();
        for place in (0..cols).step_by(2) {
            targets[place] = best[place];
        }
        // as many tokens as half as many rows of the whole context
        let mut packed = fused("trained", dims, rows / 2, precision);
        let batch = Batch { inputs: &inputs, targets: &targets, rows, cols, first_row: 0 };
        let found = packed.losses_at(batch, &at, true).expect("the batch fits");
        assert!(found.computed < (rows - 2) * cols, "{} tokens were computed", found.computed);
        let losses = whole.token_losses(batch).expect("the batch fits");
        assert_eq!((found.losses.len(), found.is_greedy.len()), (at.len(), at.len()));
        for (&at, found) in at.iter().zip(&found.losses) {
            assert_eq!(found.to_bits(), losses[at].to_bits(), "{precision:?}, position {at}");
        }
        for (&at, is_greedy) in at.iter().zip(&found.is_greedy).filter(|(at, _)| **at < cols) {
            assert_eq!(*is_greedy, best[at] == targets[at], "{precision:?}, position {at}");
        }
        let none = packed.losses_at(batch, &[], true).expect("the batch fits");
        assert_eq!((none.losses.len(), none.computed), (0, 0));
    }
}

#[test]
fn the_reference_gives_the_same_losses_and_choices() {
    let expected = expected();
    let golden = &expected["models"]["trained"];
    let dims = dims(golden);
    let mut reference = dfdx::CpuEngine::new(dims, OptimizerKind::AdamW).expect("valid dimensions");
    fill(&mut reference, "trained", &dims);
    hold(&mut reference, "trained", "lambada", Definition::PerToken, golden);
}

#[test]
fn micro_batch_padding_and_ranks_change_nothing_but_last_digits() {
    let expected = expected();
    let golden = &expected["models"]["trained"];
    let dims = dims(golden);
    for file in ["hellaswag", "lambada"] {
        let task = task(file, Definition::PerToken, &dims);
        let alone = scored(fused("trained", dims, 1, Precision::Fp32).as_mut(), &task, 1, Share::ALL);
        let whole = Tally::of(&task, &alone);
        for (micro_batch, ranks) in [(7, 1), (64, 1), (5, 3)] {
            let mut engine = fused("trained", dims, micro_batch, Precision::Fp32);
            let mut tally = Tally::default();
            for rank in 0..ranks {
                let found = scored(engine.as_mut(), &task, micro_batch, Share { rank, ranks });
                for answer in &found.answers {
                    assert_eq!(answer.example % ranks, rank);
                    let theirs = &alone.answers[answer.example];
                    for (own, theirs) in answer.sums.iter().zip(&theirs.sums) {
                        assert!(
                            (own - theirs).abs() < 1e-5 * theirs,
                            "{micro_batch}, {ranks}: {own}, {theirs}"
                        );
                    }
                }
                let own = Tally::of(&task, &found);
                tally.add(&Tally::of_bytes(&own.to_bytes()).expect("what was written"));
            }
            assert!((tally.loss - whole.loss).abs() < 1e-5 * whole.loss);
            assert_eq!((tally.right, tally.right_norm), (whole.right, whole.right_norm));
            assert_eq!((tally.examples, tally.tokens), (whole.examples, whole.tokens));
            // what the endings of an example come after is computed once, and nothing fills up rows
            let most = if file == "hellaswag" { tally.tokens * 7 / 10 } else { tally.tokens };
            assert!(tally.computed <= most, "{micro_batch}: {} of {}", tally.computed, tally.tokens);
        }
    }
}

#[test]
fn lower_precision_changes_digits_and_says_the_same() {
    let expected = expected();
    let golden = &expected["models"]["trained"];
    let dims = dims(golden);
    let task = task("choices", Definition::PerToken, &dims);
    let of = |precision| scored(fused("trained", dims, 8, precision).as_mut(), &task, 8, Share::ALL);
    let (whole, rounded) = (of(Precision::Fp32), of(Precision::Bf16));
    let pairs = || whole.answers.iter().zip(&rounded.answers).map(|(a, b)| (a.sums[0], b.sums[0]));
    assert!(pairs().all(|(a, b)| (a - b).abs() < 0.02 * a), "bf16 keeps two digits");
    assert!(pairs().any(|(a, b)| a != b), "bf16 rounds");
}

#[test]
fn a_stop_ends_the_work_between_two_passes() {
    let expected = expected();
    let dims = dims(&expected["models"]["narrow"]);
    let task = task("choices", Definition::PerToken, &dims);
    let mut engine = fused("narrow", dims, 8, Precision::Fp32);
    let mut asked = Vec::new();
    let stopped = score(engine.as_mut(), &task, 8, Share::ALL, |passes| {
        asked.push(passes.done);
        let go_on = if passes.done < 2 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        Ok::<_, EngineError>(go_on)
    });
    assert_eq!((stopped.expect("no failure"), asked), (None, vec![0, 1, 2]));
}

#[test]
fn what_does_not_fit_is_cut_from_the_left_and_counted() {
    let limits = Limits { block_size: 8, vocab_size: 256 };
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("long.jsonl");
    let lines = [
        r#"{"context": "abcdefghij", "endings": ["yes", "no"], "label": 0}"#,
        r#"{"context": "ab", "endings": ["0123456789", "no"], "label": 1}"#,
        r#"{"context": "", "endings": ["a", "b"], "label": 1}"#,
    ];
    std::fs::write(&path, lines.join("\n")).expect("write");
    let task = Task::load(&path, "long", Definition::PerToken, Tokenizer::bytes(), limits).expect("a task");
    assert_eq!((task.cut.contexts, task.cut.endings, task.kind), (2, 1, Kind::Choice));
    let candidate = |example: usize, place: usize| {
        let example = &task.examples[example];
        let candidate = &example.candidates[place];
        (Tokenizer::bytes().decode(&example.parts(candidate).concat()), candidate.scored())
    };
    assert_eq!(candidate(0, 0), ("fghij yes".into(), 4));
    assert_eq!(candidate(0, 1), ("efghij no"[..].into(), 3));
    assert_eq!(candidate(1, 0), ("123456789".into(), 8));
    assert_eq!(candidate(1, 1), ("ab no".into(), 3));
    assert_eq!(candidate(2, 0), ("\n a".into(), 2), "something comes before the first token that is scored");
}

#[test]
fn a_file_of_llm_c_holds_what_the_jsonl_does() {
    let limits = Limits { block_size: 1024, vocab_size: 50257 };
    let dir = tempfile::tempdir().expect("tempdir");
    let load = |path: PathBuf| Task::load(&path, "h", Definition::PerToken, Tokenizer::gpt2(), limits);
    let text = load(folder().join("hellaswag.jsonl")).expect("a task");
    let mut words: Vec<u16> = Vec::new();
    for (index, example) in text.examples.iter().enumerate() {
        let begin = words.len();
        words.extend([u16::MAX, 0, index as u16, example.label as u16, example.candidates.len() as u16]);
        let [context, _] = example.parts(&example.candidates[0]);
        let mut put = |tokens: &[u32]| {
            words.push(tokens.len() as u16);
            words.extend(tokens.iter().map(|&token| token as u16));
        };
        put(context);
        example.candidates.iter().for_each(|one| put(example.parts(one)[1]));
        words[begin + 1] = 2 * (words.len() - begin) as u16;
    }
    let header = [20_240_522, 1, text.examples.len() as i32, 4096];
    let header = header.into_iter().chain(std::iter::repeat(0)).take(256).flat_map(i32::to_le_bytes);
    let bytes: Vec<u8> = header.chain(words.iter().flat_map(|word| word.to_le_bytes())).collect();
    let written = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).expect("write");
        path
    };
    let own = load(written("val.bin", &bytes)).expect("a task");
    assert_eq!(own.examples.len(), text.examples.len());
    for (own, theirs) in own.examples.iter().zip(&text.examples) {
        let rows = |example: &runner::eval::Example| {
            example
                .candidates
                .iter()
                .map(|one| (example.parts(one).concat(), one.scored()))
                .collect::<Vec<_>>()
        };
        assert_eq!((own.label, rows(own)), (theirs.label, rows(theirs)));
    }
    let problem = |name: &str, bytes: &[u8]| load(written(name, bytes)).expect_err("refused").to_string();
    assert!(problem("cut.bin", &bytes[..bytes.len() - 4]).contains("truncated"));
    let with = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        bytes
    };
    assert!(problem("version.bin", &with(4, 3)).contains("version 3"));
    assert!(problem("start.bin", &with(1024, 9)).contains("example 0"));
    let label = problem("label.bin", &with(1024 + 6, 4));
    assert!(label.contains("label 4 is none of its 4 endings"), "{label}");
    let bytes_of =
        Task::load(&written("b.bin", &bytes), "h", Definition::PerToken, Tokenizer::bytes(), limits);
    assert!(bytes_of.expect_err("other tokens").to_string().contains("GPT-2's tokens"));
    let lm_eval = Task::load(&written("l.bin", &bytes), "h", Definition::LmEval, Tokenizer::gpt2(), limits);
    assert!(lm_eval.expect_err("no text").to_string().contains("no text"));
}
