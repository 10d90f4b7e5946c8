//! Weights from elsewhere: what fits is read, what does not is listed.

use half::{bf16, f16};
use runner::model::{Dims, ParamLayout};
use runner::run::import;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn model() -> (Dims, ParamLayout) {
    let dims = Dims { n_layer: 2, n_head: 2, n_embd: 6, block_size: 5, vocab_size: 11, padded_vocab: 16 };
    (dims, ParamLayout::new(&dims))
}

/// A tensor of a file.
#[derive(Clone)]
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Stored {
    fn new(dtype: Dtype, shape: &[usize], values: impl Iterator<Item = f32>) -> Self {
        let bytes = values.flat_map(|v| match dtype {
            Dtype::F16 => f16::from_f32(v).to_le_bytes().to_vec(),
            Dtype::BF16 => bf16::from_f32(v).to_le_bytes().to_vec(),
            Dtype::F64 => f64::from(v).to_le_bytes().to_vec(),
            _ => v.to_le_bytes().to_vec(),
        });
        Self { dtype, shape: shape.to_vec(), bytes: bytes.collect() }
    }

    /// Small integers, which every type holds exactly; `seed` tells the tensors apart.
    fn counting(dtype: Dtype, shape: &[usize], seed: usize) -> Self {
        let len = shape.iter().product::<usize>();
        Self::new(dtype, shape, (0..len).map(|i| ((i * 7 + seed) % 200) as f32))
    }
}

type File = BTreeMap<String, Stored>;

/// The model's tensors under their unprefixed names.
fn weights(dtype: Dtype) -> File {
    let (dims, layout) = model();
    let tensors = layout.tensors.iter().enumerate().map(|(seed, tensor)| {
        let mut shape = tensor.shape.clone();
        if tensor.name == "wte.weight" {
            shape[0] = dims.vocab_size;
        }
        (tensor.name.clone(), Stored::counting(dtype, &shape, seed))
    });
    tensors.collect()
}

fn prefixed(file: File) -> File {
    file.into_iter().map(|(name, tensor)| (format!("transformer.{name}"), tensor)).collect()
}

fn save(path: &Path, file: &File) {
    let views = file.iter().map(|(name, t)| {
        (name, TensorView::new(t.dtype, t.shape.clone(), &t.bytes).expect("shape and bytes agree"))
    });
    serialize_to_file(views, None, path).expect("save");
}

fn load(path: &Path) -> Result<Vec<f32>, String> {
    let (dims, layout) = model();
    let mut out = vec![9.0; layout.len];
    match import(path, &dims, &layout, None, &mut out) {
        Ok(()) => Ok(out),
        Err(error) => {
            assert!(error.is_usage(), "{error}");
            Err(error.to_string())
        }
    }
}

/// What the buffer should hold after reading [`weights`].
fn expected() -> Vec<f32> {
    let (dims, layout) = model();
    let mut out = vec![0.0; layout.len];
    for (seed, tensor) in layout.tensors.iter().enumerate() {
        let len = if tensor.name == "wte.weight" { dims.vocab_size * dims.n_embd } else { tensor.len() };
        for (i, value) in out[tensor.offset..][..len].iter_mut().enumerate() {
            *value = ((i * 7 + seed) % 200) as f32;
        }
    }
    out
}

fn load_file(file: &File) -> Result<Vec<f32>, String> {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("weights.safetensors");
    save(&path, file);
    load(&path)
}

#[test]
fn every_precision_and_either_naming_gives_the_same_weights() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
        for file in [weights(dtype), prefixed(weights(dtype))] {
            assert_eq!(load_file(&file).expect("fits"), expected(), "{dtype}");
        }
    }
}

#[test]
fn masks_and_a_tied_head_are_passed_over() {
    let mut file = weights(Dtype::F32);
    file.insert("lm_head.weight".into(), file["wte.weight"].clone());
    file.insert("h.0.attn.bias".into(), Stored::counting(Dtype::F32, &[1, 1, 5, 5], 0));
    file.insert("h.1.attn.masked_bias".into(), Stored::counting(Dtype::F64, &[], 0));
    assert_eq!(load_file(&prefixed(file.clone())).expect("fits"), expected());
    // The same values in another type are the same head.
    file.insert("lm_head.weight".into(), weights(Dtype::BF16)["wte.weight"].clone());
    assert_eq!(load_file(&file).expect("fits"), expected());
}

#[test]
fn a_head_of_its_own_is_refused() {
    let mut file = weights(Dtype::F32);
    file.insert("lm_head.weight".into(), Stored::counting(Dtype::F32, &[11, 6], 1));
    assert!(load_file(&file).expect_err("untied").contains("tied"));
    for (dtype, shape) in [(Dtype::F32, [12, 6]), (Dtype::F64, [11, 6])] {
        file.insert("lm_head.weight".into(), Stored::counting(dtype, &shape, 0));
        assert!(load_file(&file).expect_err("misshapen").contains("lm_head.weight"));
    }
}

#[test]
fn a_longer_position_embedding_is_cropped_and_a_shorter_one_refused() {
    let mut file = weights(Dtype::F16);
    let seed = 1;
    assert_eq!(model().1.tensors[seed].name, "wpe.weight");
    file.insert("wpe.weight".into(), Stored::counting(Dtype::F16, &[9, 6], seed));
    assert_eq!(load_file(&file).expect("fits"), expected());
    file.insert("wpe.weight".into(), Stored::counting(Dtype::F16, &[4, 6], seed));
    let error = load_file(&file).expect_err("too short");
    assert!(error.contains("`wpe.weight` should be [5, 6] but is [4, 6]"), "{error}");
}

#[test]
fn all_that_does_not_fit_is_listed_at_once() {
    let mut file = weights(Dtype::F32);
    file.remove("h.1.mlp.c_fc.weight");
    file.insert("ln_f.bias".into(), Stored::counting(Dtype::F32, &[7], 0));
    file.insert("h.0.ln_1.bias".into(), Stored::counting(Dtype::F64, &[6], 0));
    file.insert("h.2.attn.c_attn.bias".into(), Stored::counting(Dtype::F32, &[18], 0));
    file.insert("h.x.attn.bias".into(), Stored::counting(Dtype::F32, &[1], 0));
    file.insert("transformer.wte.weight".into(), file["wte.weight"].clone());
    let error = load_file(&file).expect_err("six problems");
    for line in [
        "`h.1.mlp.c_fc.weight` [6, 24] is missing",
        "`ln_f.bias` should be [6] but is [7]",
        "`h.0.ln_1.bias` has type F64, only F32, F16 and BF16 are read",
        "`h.2.attn.c_attn.bias` [18] is not part of the model",
        "`h.x.attn.bias` [1] is not part of the model",
        "`wte.weight` is there twice",
    ] {
        assert!(error.contains(line), "{line} in {error}");
    }
    assert!(error.contains("the weights have 3 blocks: set model.n_layer = 3"), "{error}");
    assert_eq!(error.lines().count(), 8, "{error}");
    assert!(error.starts_with("the weights `") && error.contains("weights.safetensors"), "{error}");
}

#[test]
fn a_directory_is_a_model_whole_or_in_shards() {
    let dir = tempfile::tempdir().expect("tempdir");
    assert!(load(dir.path()).expect_err("empty").contains("neither model.safetensors nor"));
    let file = prefixed(weights(Dtype::BF16));
    let (mut shards, mut map) = (vec![File::new(); 2], serde_json::Map::new());
    for (i, (name, tensor)) in file.iter().enumerate() {
        map.insert(name.clone(), format!("model-{:05}-of-00002.safetensors", i % 2 + 1).into());
        shards[i % 2].insert(name.clone(), tensor.clone());
    }
    for (i, shard) in shards.iter().enumerate() {
        save(&dir.path().join(format!("model-{:05}-of-00002.safetensors", i + 1)), shard);
    }
    let index = dir.path().join("model.safetensors.index.json");
    fs::write(&index, serde_json::json!({"metadata": {}, "weight_map": map}).to_string()).expect("write");
    assert_eq!(load(dir.path()).expect("shards"), expected());
    let second = dir.path().join("model-00002-of-00002.safetensors");
    fs::remove_file(&second).expect("remove");
    assert!(load(dir.path()).expect_err("a shard short").contains("model-00002-of-00002.safetensors"));
    // any number of names of one file would take no more place on the disk
    fs::hard_link(dir.path().join("model-00001-of-00002.safetensors"), &second).expect("a second name");
    let error = load(dir.path()).expect_err("one file");
    assert!(error.contains("model-00002-of-00002.safetensors` is also `"), "{error}");
    fs::remove_file(&second).expect("remove");
    save(&second, &file);
    let error = load(dir.path()).expect_err("tensors that both have");
    assert!(error.contains("` is there twice") && error.lines().count() < 20, "{error}");
    fs::write(&index, "{}").expect("write");
    assert!(load(dir.path()).expect_err("no map").contains("weight_map"));
    save(&dir.path().join("model.safetensors"), &file);
    assert_eq!(load(dir.path()).expect("whole"), expected());
}

#[test]
fn a_configuration_of_another_network_is_refused() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("model.safetensors");
    save(&path, &weights(Dtype::F32));
    let config = dir.path().join("config.json");
    // As the original GPT-2 has it.
    fs::write(&config, r#"{"n_head": 2, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05}"#)
        .expect("write");
    assert_eq!(load(dir.path()).expect("fits"), expected());
    fs::write(&config, r#"{"n_head": 3, "activation_function": "relu"}"#).expect("write");
    for path in [dir.path(), path.as_path()] {
        let error = load(path).expect_err("another network");
        assert!(error.contains("`n_head` should be 2 but is 3"), "{error}");
        assert!(error.contains("activation_function"), "{error}");
    }
}

/// The length of the header may spell the first bytes of a pickle.
#[test]
fn a_header_of_any_length_is_that_of_safetensors() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("w.safetensors");
    save(&path, &weights(Dtype::F32));
    let bytes = fs::read(&path).expect("read");
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("8 bytes")) as usize;
    for padded in [0x1_0280_usize, 0x1_0580] {
        assert!(padded > length && matches!(padded.to_le_bytes(), [0x80, 2..=5, ..]));
        let spaces = vec![b' '; padded - length];
        let header = [&padded.to_le_bytes()[..], &rest[..length], &spaces].concat();
        fs::write(&path, [&header[..], &rest[length..]].concat()).expect("write");
        assert_eq!(load(&path).expect("fits"), expected(), "{padded:#x}");
    }
}

#[test]
fn what_is_no_safetensors_file_is_refused_without_a_panic() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("w.safetensors");
    assert!(load(&path).expect_err("missing").contains("w.safetensors"));
    save(&path, &weights(Dtype::F32));
    let bytes = fs::read(&path).expect("read");
    let mut huge = bytes.clone();
    huge[..8].fill(0xff);
    for bad in [&b""[..], &b"short"[..], &bytes[..100], &bytes[..bytes.len() - 1], &huge] {
        fs::write(&path, bad).expect("write");
        assert!(load(&path).expect_err("broken").contains("w.safetensors"));
    }
    // Any header may come from a stranger.
    let header_length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let flips: Vec<_> =
        (0..8 + header_length).flat_map(|place| [1, 4, 0x20, 0x80].map(|flip| (place, flip))).collect();
    // a reader waits for the clock to pass the moment at which a file was written: it does so once for many files
    for flips in flips.chunks(256) {
        let files = flips.iter().map(|(place, flip)| {
            let path = dir.path().join(format!("{place}-{flip}.safetensors"));
            let mut flipped = bytes.clone();
            flipped[*place] ^= flip;
            fs::write(&path, flipped).expect("write");
            path
        });
        for path in files.collect::<Vec<_>>() {
            let _ = load(&path);
            fs::remove_file(path).expect("removed");
        }
    }
}

#[test]
fn weights_that_were_put_in_the_place_of_others_are_refused() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("model.safetensors");
    save(&path, &weights(Dtype::F32));
    let (dims, layout) = model();
    let mut out = vec![0.0; layout.len];
    let digest = runner::run::import::content_digest(&path).expect("a digest");
    import(&path, &dims, &layout, Some(&digest), &mut out).expect("the same");
    let mut other = weights(Dtype::F32);
    other.insert("wpe.weight".to_owned(), Stored::counting(Dtype::F32, &[5, 6], 77));
    save(&path, &other);
    let refused = import(&path, &dims, &layout, Some(&digest), &mut out).expect_err("others").to_string();
    assert!(refused.contains("other weights were put in their place"), "{refused}");
    import(&path, &dims, &layout, None, &mut out).expect("they fit");
}
