//! Training, opening and evaluating through the library, without a terminal and without a process of its own.

use crate::support;

use runner::data::{Cache, NoProgress, TokenStream};
use runner::engine::EngineError;
use runner::engine::memory::Mode;
use runner::engine::optimizer::OptimizerKind;
use runner::recipe::{Device, Overrides, Precision, load};
use runner::run::RunStatus;
use runner::session::inputs::Limits;
use runner::session::model::{self, Options, Source};
use runner::session::{Audience, Call, Data, Ending, Event, Requests, Silence};
use runner::train::{Stop, evaluate};
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use support::{Lab, column, train_csv, val_csv};

/// Writes down what it is told, and asks for a stop after a step.
#[derive(Default)]
struct Listener {
    heard: RefCell<Vec<String>>,
    results: RefCell<Vec<PathBuf>>,
    requests: Requests,
    stop_after: Option<u64>,
}

impl Listener {
    /// What was heard, forward passes left out.
    fn heard(&self) -> Vec<String> {
        self.heard.take().into_iter().filter(|word| word != "micro-step").collect()
    }
}

impl Audience for Listener {
    fn tell(&self, event: Event) {
        let word = match event {
            Event::Planned { run, step, plan, prediction, lints } => {
                // no cache remembers anything, and a run of a moment is not worth a timing
                assert!(prediction.is_none());
                assert!(run.join("recipe.toml").is_file(), "{} is no run", run.display());
                assert!(lints.len() < 9);
                format!("planned {step} of {}", plan.steps)
            }
            Event::Started { pulse } => {
                let moment = pulse.moment();
                assert!(moment.left.is_none() && moment.steps == 6, "how long it takes is not known yet");
                format!("started {}", moment.step)
            }
            Event::MicroStep => "micro-step".to_owned(),
            Event::Step { report, step, steps, row } => {
                assert!(report.loss.is_finite() && row.tokens_per_s > 0.0 && report.step + 1 == step);
                if self.stop_after == Some(step) {
                    assert!(self.requests.ask_to_stop(Stop::Terminate), "a run in training heeds it");
                    assert!(!self.requests.ask_to_stop(Stop::Interrupt), "the second request is refused");
                }
                format!("step {step}/{steps}")
            }
            Event::Evaluated { step, val_loss, .. } => {
                assert!(val_loss > 0.0);
                format!("evaluated {step}")
            }
            Event::Saved { step, checkpoint, .. } => {
                assert!(checkpoint.join("model.safetensors").is_file(), "{}", checkpoint.display());
                format!("saved {step}")
            }
            Event::Ended(end) => {
                assert_eq!(end.status() == RunStatus::Finished, end.ending() == Ending::Finished);
                format!("ended {:?} at {}", end.status(), end.steps_done)
            }
            Event::AlreadyFinished { by_recipe, .. } => format!("already finished, by recipe: {by_recipe}"),
            Event::Failed(error) => format!("failed: {error:#}"),
            other => format!("{other:?}"),
        };
        self.heard.borrow_mut().push(word);
    }

    fn result(&self, run: &Path) -> anyhow::Result<()> {
        self.results.borrow_mut().push(run.to_owned());
        Ok(())
    }
}

fn six_steps() -> Overrides {
    let set = ["schedule.max_steps=6", "eval.every=3"].map(str::to_owned).to_vec();
    Overrides { set, ..Overrides::default() }
}

#[test]
fn a_run_tells_its_audience_what_happens() {
    let lab = Lab::new();
    let (recipe, runs) = ([lab.path("tiny.toml")], lab.path("runs"));
    let listener = Listener::default();
    let train = || Call::new(&listener, &listener.requests, &runs, false).train(&recipe, &six_steps());
    assert_eq!(train().expect("a run"), Ending::Finished);
    assert_eq!(listener.heard.borrow().iter().filter(|word| *word == "micro-step").count(), 12);
    let steps = |range: std::ops::RangeInclusive<u64>| range.map(|step| format!("step {step}/6"));
    let expected: Vec<String> = ["planned 0 of 6", "started 0", "evaluated 0"]
        .map(str::to_owned)
        .into_iter()
        .chain(steps(1..=3))
        .chain(["evaluated 3".to_owned()])
        .chain(steps(4..=4))
        .chain(["saved 4".to_owned()])
        .chain(steps(5..=6))
        .chain(["evaluated 6", "saved 6", "ended Finished at 6"].map(str::to_owned))
        .collect();
    assert_eq!(listener.heard(), expected);
    assert_eq!(train().expect("the same run"), Ending::Finished);
    assert_eq!(listener.heard(), ["already finished, by recipe: true"]);
    let run = runs.join(&lab.runs("runs")[0]);
    assert_eq!(listener.results.take(), [run.clone(), run.clone()]);
    let resumed = Call::new(&listener, &listener.requests, &runs, false).resume(&run, &Overrides::default());
    assert_eq!(resumed.expect("the same run"), Ending::Finished);
    assert_eq!(listener.heard(), ["already finished, by recipe: false"]);
}

#[test]
fn a_request_to_stop_leaves_a_checkpoint_to_go_on_from() {
    let lab = Lab::new();
    let recipe = [lab.path("tiny.toml")];
    let whole = lab.path("whole");
    let silent = Requests::default();
    Call::new(&Silence, &silent, &whole, false).train(&recipe, &six_steps()).expect("a run");
    let listener = Listener { stop_after: Some(4), ..Listener::default() };
    let runs = lab.path("runs");
    let ended = Call::new(&listener, &listener.requests, &runs, false).train(&recipe, &six_steps());
    assert_eq!(ended.expect("stopped"), Ending::Terminated);
    assert_eq!(listener.heard().last().map(String::as_str), Some("ended Interrupted at 4"));
    // a request is for one call
    let listener = Listener::default();
    let run = runs.join(&lab.runs("runs")[0]);
    let ended = Call::new(&listener, &listener.requests, &runs, false).resume(&run, &Overrides::default());
    assert_eq!(ended.expect("finished"), Ending::Finished);
    assert_eq!(listener.heard()[..2], ["planned 4 of 6", "started 4"]);
    let whole = whole.join(&lab.runs("whole")[0]);
    assert_eq!(column(&run, "loss"), column(&whole, "loss"));
    assert_eq!(train_csv(&run).numbers("step").len(), 6);
}

#[test]
fn a_failure_is_told_and_classified() {
    let lab = Lab::new();
    let listener = Listener::default();
    let runs = lab.path("runs");
    let call = |recipe: &str, set: &[&str]| {
        let set = set.iter().map(|&set| set.to_owned()).collect();
        let overrides = Overrides { set, ..Overrides::default() };
        Call::new(&listener, &listener.requests, &runs, false).train(&[lab.path(recipe)], &overrides)
    };
    let error = call("nothing.toml", &[]).expect_err("no such recipe");
    assert_eq!(Ending::of(&error), Ending::Refused);
    assert!(listener.heard().is_empty(), "an error that ends the call is its result");
    // what is wrong with one recipe's data is told, for other recipes might follow
    assert_eq!(call("tiny.toml", &["data.val=missing.bin"]).expect("told"), Ending::Refused);
    let heard = listener.heard();
    assert!(
        heard.len() == 1 && heard[0].contains("data.val") && heard[0].contains("missing.bin"),
        "{heard:?}"
    );
    assert_eq!(listener.results.take(), [""; 0].map(PathBuf::from));
}

#[test]
fn a_model_is_opened_and_evaluated_without_a_run() {
    let lab = Lab::new();
    let run = lab.train(&[]);
    let runs = lab.path("runs");
    let id = run.file_name().expect("a name");
    let newest = run.join("checkpoints/step-00000012");
    let recipe = load(&run.join("recipe.toml"), &Overrides::default()).expect("a recipe").recipe;
    let cache = &Cache::new(lab.path("cache"), None);
    let loss = |named: &Path, options: Options| {
        let options = Options { device: Device::Cpu, threads: 1, micro_batch: 3, ..options };
        let mut model = model::open(named, &runs, &options, &Silence).expect("a model");
        let (block_size, vocab_size) = (model.dims.block_size, model.dims.vocab_size);
        let limits = Limits { block_size, vocab_size };
        let data = Data::open(&recipe.data, limits, cache, &NoProgress).expect("data");
        let rows = TokenStream::new(data.val.as_ref().expect("validation data"), 0, false);
        let go_on = |_| Ok::<_, EngineError>(ControlFlow::Continue(()));
        let loss = evaluate(model.engine.as_mut(), &rows, 0..8, (3, block_size), go_on).expect("no failure");
        (model.source, loss.expect("not stopped").mean())
    };
    let logged = *val_csv(&run).numbers("val_loss").last().expect("a row");
    let (source, mean) = loss(Path::new(id), Options::default());
    assert_eq!(source, Source::Run { run: run.clone(), checkpoint: newest.clone() });
    assert!((mean - logged).abs() < 1e-5, "{mean} is not {logged}");
    let (source, same) =
        loss(&newest, Options { mode: Mode::Train(OptimizerKind::AdamW), ..Options::default() });
    assert_eq!((source, same), (Source::Checkpoint(newest.clone()), mean));
    let (_, rounded) = loss(&newest, Options { precision: Precision::Bf16, ..Options::default() });
    assert!(rounded != mean && (rounded - mean).abs() < 0.05, "{rounded} is {mean} rounded");
    for (micro_batch, said) in [(1 << 24, "of memory, but only"), (1 << 60, "more than a PiB of memory")] {
        let options = Options { device: Device::Cpu, micro_batch, ..Options::default() };
        let error = model::open(&newest, &runs, &options, &Silence).err().expect("there is no such memory");
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!(Ending::of(&error), Ending::Refused);
    }
}
