//! Everything that reads files from elsewhere, as functions of bytes: they are a value that keeps its promises, or
//! refused with a message. The targets of `fuzz/` call them, and so do the tests beside this file.

use runner::data::prepare::{Hooks, Options, Prepared, Validation, prepare};
use runner::data::vocabulary::stated;
use runner::data::{Cache, Dataset, NoProgress, OpenOptions, TokenStream, Tokenizer, TokenizerKind, inspect};
use runner::eval::{Definition, Limits, Share, Task};
use runner::model::{Dims, ParamLayout};
use runner::recipe::{DataDigests, Overrides, identity, load, to_toml};
use runner::report::gather::{Scratch, Wanted};
use runner::report::metrics;
use runner::report::runs::Run;
use runner::report::target::Target;
use runner::report::tensorboard::Export;
use runner::run::{CheckpointState, RunRecord, TrainRow, ValRow, cut, import, records};
use runner::weights;
use std::fs;
use std::path::{Path, PathBuf};

/// A reader of bytes, with a directory for temporary files.
pub(crate) type Reader = fn(&Path, &[u8]);

/// All readers by name.
pub(crate) const ALL: [(&str, Reader); 12] = [
    ("config", config),
    ("corpus", corpus),
    ("log", log),
    ("megatron", megatron),
    ("recipe", recipe),
    ("run", run),
    ("safetensors", safetensors),
    ("shard", shard),
    ("state", state),
    ("task", task),
    ("tokenizer", tokenizer),
    ("vocabulary", vocabulary),
];

/// Writes a file into a directory and returns its path.
fn write(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, bytes).expect("a temporary file");
    path
}

/// An error that says something.
fn check(error: &impl ToString) {
    assert!(!error.to_string().is_empty());
}

/// Hugging Face's `config.json`, and the index of a model in several files: any bytes are one or refused, and no name in
/// them leads out of the directory.
pub(crate) fn config(dir: &Path, data: &[u8]) {
    let model = dir.join("model");
    fs::create_dir_all(&model).expect("a directory");
    write(&model, "config.json", data);
    let index = write(&model, "model.safetensors.index.json", data);
    match weights::files(&model) {
        Ok(files) => {
            for file in files {
                assert_eq!(file.parent(), index.parent());
                assert!(!file.ends_with(".."), "{}", file.display());
            }
        }
        Err(problems) => assert!(!problems.is_empty()),
    }
    if let Err(error) = import::dims(&model) {
        check(&error);
    }
}

/// Files of text, whatever their names say: any bytes become the tokens that the card counts, or are refused and leave
/// nothing behind. JSON lines become what another parser finds in them.
pub(crate) fn corpus(dir: &Path, data: &[u8]) {
    const NAMES: [&str; 7] =
        ["a.txt", "a.jsonl", "a.parquet", "a.txt.gz", "a.jsonl.gz", "a.txt.zst", "a.jsonl.zst"];
    let Some((&kind, bytes)) = data.split_first() else { return };
    let name = NAMES[usize::from(kind) % NAMES.len()];
    let path = write(dir, name, bytes);
    let out = dir.join("out");
    // which has texts that cannot be cut
    let is_gpt2 = kind & 64 != 0;
    let options = Options {
        sources: vec![path.display().to_string()],
        out: out.clone(),
        tokenizer: if is_gpt2 { TokenizerKind::Gpt2 } else { TokenizerKind::Bytes },
        field: "text".into(),
        split_on: (kind >= 128).then(|| "\n\n".into()),
        shard_tokens: 100_000,
        validation: Validation::None,
        separator: None,
        shuffle_seed: (kind % 2 == 1).then_some(1),
        // what is packed may be long
        limit_tokens: Some(if is_gpt2 { 1 << 24 } else { 1 << 20 }),
        threads: if is_gpt2 { 3 } else { 1 },
    };
    match prepare(&options, &Hooks { progress: &NoProgress, fault: &|_| Ok(()) }) {
        Ok(Prepared::Now(card)) => {
            let shards = card.train.files.iter().map(|name| fs::read(out.join(name)).expect("a shard"));
            let tokens: Vec<u8> = shards
                .flat_map(|shard| shard[1024..].iter().copied().step_by(2).collect::<Vec<_>>())
                .collect();
            assert_eq!((tokens.len() as u64, card.tokens), (card.tokens, card.train.tokens));
            if !is_gpt2 && name == "a.jsonl" && options.shuffle_seed.is_none() && card.tokens < 1 << 20 {
                let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
                let texts = lines.map(|line| {
                    let line: serde_json::Value = serde_json::from_slice(line).expect("an object");
                    line["text"].as_str().expect("a text").to_owned()
                });
                assert_eq!(tokens, texts.collect::<String>().into_bytes());
            }
            fs::remove_dir_all(&out).expect("removed");
        }
        Ok(Prepared::Before(_)) => panic!("the directory is new"),
        Err(error) => {
            check(&error);
            assert!(!out.exists(), "{error}");
        }
    }
}

/// `train.csv` and `val.csv`: any bytes are rows or an error; what is cut back has no row that was to go, and cutting it
/// again changes nothing.
pub(crate) fn log(_: &Path, data: &[u8]) {
    let path = Path::new("train.csv");
    let Some((&step, bytes)) = data.split_first() else { return };
    let first_step_to_drop = u64::from(step);
    if let Ok(rows) = records::parse::<TrainRow>(path, bytes.to_vec()) {
        rows.for_each(drop);
    }
    if let Ok(rows) = records::parse::<ValRow>(path, bytes.to_vec()) {
        rows.for_each(drop);
    }
    if let Ok((kept, left)) = cut::cut(path, bytes, first_step_to_drop) {
        let (again, same) = cut::cut(path, &left, first_step_to_drop).expect("what is left can be cut");
        assert!(again == kept || again.elapsed_s.is_nan() && kept.elapsed_s.is_nan(), "{kept:?} {again:?}");
        assert_eq!(same, left);
        assert!(kept.last_step.is_none_or(|step| step < first_step_to_drop));
    }
}

/// Megatron-LM's data: any bytes as the index beside 64 tokens are refused, or describe those tokens and no others.
pub(crate) fn megatron(dir: &Path, data: &[u8]) {
    let tokens: Vec<u8> = (1..=64u16).flat_map(|token| (257 * token).to_le_bytes()).collect();
    let path = write(dir, "m.bin", &tokens);
    write(dir, "m.idx", data);
    match Dataset::open(&[path.display().to_string()], open_options(&cache_in(dir), 4, 1 << 30)) {
        Ok(set) => {
            // of 16 or of 32 bits each
            assert!(matches!(set.tokens(), 32 | 64));
            let seen = inspect(&path, &cache_in(dir), &NoProgress).expect("what can be trained on is shown");
            assert!(seen.documents.is_none_or(|documents| documents.tokens <= set.tokens()));
        }
        Err(error) => check(&error),
    }
}

/// Recipes: any text is either a recipe or refused with a message, which can be shown; a recipe that was read can be
/// written and is then the same.
pub(crate) fn recipe(dir: &Path, data: &[u8]) {
    let path = write(dir, "r.toml", data);
    let none = Overrides::default();
    match load(&path, &none) {
        Ok(resolved) => {
            let digests = DataDigests { train: "t".into(), val: "v".into(), init_from: None };
            let text = to_toml(&resolved.recipe, dir);
            let again = load(&write(dir, "again.toml", text.as_bytes()), &none).expect(&text);
            assert_eq!(identity(&again.recipe, &digests), identity(&resolved.recipe, &digests));
            assert_eq!(again.recipe, resolved.recipe, "{text}");
        }
        Err(diagnostics) => check(&diagnostics.render(false)),
    }
    // the same text as the value of a flag
    if let Ok(text) = std::str::from_utf8(data)
        && let Some((value, _)) = text.split_once('\n')
    {
        let base = write(dir, "base.toml", b"data.train = \"t\"\nschedule.max_steps = 1\n");
        let set = Overrides { set: vec![value.to_owned()], ..Overrides::default() };
        if let Err(diagnostics) = load(&base, &set) {
            check(&diagnostics.render(false));
        }
    }
}

/// A run of somebody else: any bytes as its record, its recipe, its logs and its samples are shown and exported as far
/// as they can be read.
pub(crate) fn run(dir: &Path, data: &[u8]) {
    let run = dir.join("run");
    fs::create_dir_all(&run).expect("a directory");
    for name in ["run.json", "recipe.toml", "train.csv", "val.csv", "samples.txt"] {
        write(&run, name, data);
    }
    let exported = tempfile::tempdir_in(dir).expect("a directory");
    let news = Export::new(&run, exported.path()).update().expect("the directory can be written");
    assert!(news.problems.iter().all(|problem| !problem.is_empty()));
    // as many as a command line may name
    let targets = ["loss", "val_loss"].map(|name| metrics::find(name).expect("a metric"));
    let targets = targets.map(|metric| (0..12).map(|value| Target::new(&[], metric, f64::from(value))));
    let targets: Vec<Target> = targets.into_iter().flatten().collect::<Result<_, _>>().expect("losses");
    let wanted = Wanted { cut: None, further: &[], targets: &targets };
    match Run::read_whole(&run, wanted, &mut Scratch::default()) {
        Ok(run) => assert!(run.warnings.iter().all(|warning| !warning.is_empty())),
        Err(error) => check(&error),
    }
}

/// Weights, in the formats of safetensors, PyTorch and llm.c: any bytes are a model of these dimensions, all of whose
/// elements are read, or refused.
pub(crate) fn safetensors(dir: &Path, data: &[u8]) {
    let dims = Dims { n_layer: 1, n_head: 1, n_embd: 2, block_size: 2, vocab_size: 3, padded_vocab: 4 };
    let layout = ParamLayout::new(&dims);
    let path = write(dir, "weights.safetensors", data);
    let mut out = vec![f32::NAN; layout.len];
    match import(&path, &dims, &layout, None, &mut out) {
        Ok(()) => drop(import::check(&path, &dims, &layout).expect("what was imported can be")),
        Err(error) => check(&error),
    }
}

/// Files of tokens: any bytes under any extension are a data set whose rows can all be read, or refused.
pub(crate) fn shard(dir: &Path, data: &[u8]) {
    let Some((&kind, bytes)) = data.split_first() else { return };
    // text is encoded and kept, which is slow and not what is looked for here
    let name = ["a.bin", "a.npy", "a.dat"][usize::from(kind) % 3];
    let path = write(dir, name, bytes);
    let block_size = 1 + usize::from(kind >> 4);
    match Dataset::open(&[path.display().to_string()], open_options(&cache_in(dir), block_size, 50257)) {
        Ok(set) => {
            let (mut inputs, mut targets) = (vec![0; block_size], vec![0; block_size]);
            let stream = TokenStream::new(&set, u64::from(kind), true);
            for row in 0..set.rows().min(64) {
                stream.fill(row, 1, &mut inputs, &mut targets);
                assert!(inputs.iter().chain(&targets).all(|&token| token < 50257));
                let (_, token) = stream.locate(row);
                assert!(token + (block_size as u64) < set.tokens());
            }
            assert!(set.unigram_entropy().is_finite());
        }
        Err(error) => check(&error),
    }
}

fn cache_in(dir: &Path) -> Cache {
    Cache::new(dir.to_owned(), None)
}

fn open_options(cache: &Cache, block_size: usize, vocab_size: usize) -> OpenOptions<'_> {
    OpenOptions { block_size, vocab_size, tokenizer: Tokenizer::gpt2(), cache, progress: &NoProgress }
}

/// `state.json` and `run.json`: any bytes are read or refused; what was read is written as what reads the same. A
/// state's checksum is put right first, or nothing would get past it.
pub(crate) fn state(_: &Path, data: &[u8]) {
    let path = Path::new("state.json");
    let state = CheckpointState::from_json(path, data);
    assert!(state.map_or_else(|error| !error.to_string().is_empty(), |_| true));
    if let Ok(serde_json::Value::Object(mut fields)) = runner::json::value(data) {
        fields.shift_remove("checksum");
        let text = serde_json::Value::Object(fields.clone()).to_string();
        let checksum = blake3::hash(text.as_bytes()).to_hex().to_string();
        fields.insert("checksum".to_owned(), checksum.into());
        let text = serde_json::Value::Object(fields).to_string();
        if let Ok(state) = CheckpointState::from_json(path, text.as_bytes()) {
            assert!(state.files.keys().all(|name| !name.contains('/') && name != ".."), "{:?}", state.files);
            let again = CheckpointState::from_json(path, state.to_json().as_bytes());
            // NaN, which JSON cannot hold, is never read
            assert_eq!(again.expect("its own spelling"), state);
        }
    }
    if let Ok(record) = RunRecord::from_json(Path::new("run.json"), data) {
        let text = serde_json::to_vec(&record).expect("plain data");
        assert_eq!(RunRecord::from_json(Path::new("run.json"), &text).expect("its own spelling"), record);
    }
}

/// Files of examples to score: any bytes are a task whose examples fit into the model, or refused.
pub(crate) fn task(dir: &Path, data: &[u8]) {
    let path = write(dir, "task.jsonl", data);
    let limits = Limits { block_size: 16, vocab_size: 50257 };
    for definition in [Definition::PerToken, Definition::LmEval] {
        match Task::load(&path, "task", definition, Tokenizer::gpt2(), limits) {
            Ok(task) => {
                for example in &task.examples {
                    assert!(example.label < example.candidates.len());
                    for candidate in &example.candidates {
                        let (tokens, scored) = (example.parts(candidate).concat(), candidate.scored());
                        assert!(tokens.len() <= 17 && scored < tokens.len() && scored > 0);
                    }
                }
                // what scoring begins with
                assert_eq!(task.passes(4, Share::ALL) == 0, task.examples.is_empty());
            }
            Err(error) => check(&error),
        }
    }
}

/// A model's `tokenizer.json`: any bytes are a vocabulary that decodes what it encodes, are taken for GPT-2's, or
/// refused.
pub(crate) fn tokenizer(dir: &Path, data: &[u8]) {
    let model = dir.join("tokenizer");
    fs::create_dir_all(&model).expect("a directory");
    write(&model, "tokenizer.json", data);
    match Tokenizer::stated_by_model(&model) {
        Ok(tokenizer) => tokenizer.iter().for_each(round_trip),
        Err(error) => check(&error),
    }
}

fn round_trip(tokenizer: &Tokenizer) {
    let ids = 0..tokenizer.vocab_size().min(300) as u32;
    let text = tokenizer.decode(&ids.clone().collect::<Vec<_>>());
    if let Some(characters) = tokenizer.characters() {
        assert!(characters.text().starts_with(&text), "{text:?}");
        assert_eq!(tokenizer.encode_ordinary(&text), ids.collect::<Vec<_>>());
    }
}

/// What says which text tokens stand for, nanoGPT's `meta.pkl` and `dataset.json`: any bytes are a vocabulary that
/// decodes what it encodes, or refused.
pub(crate) fn vocabulary(dir: &Path, data: &[u8]) {
    let Some((&kind, bytes)) = data.split_first() else { return };
    let names = ["meta.pkl", "dataset.json"];
    let at = usize::from(kind) % 2;
    // only one of the two is there
    let _ = fs::remove_file(dir.join(names[1 - at]));
    write(dir, names[at], bytes);
    let tokens = write(dir, "train-000001.bin", &[1, 0, 2, 0, 3, 0]);
    match stated(&[tokens.display().to_string()]) {
        Ok(Some(stated)) => round_trip(&stated.tokenizer),
        Ok(None) => {}
        Err(error) => check(&error),
    }
}
