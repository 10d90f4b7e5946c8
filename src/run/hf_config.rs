//! `config.json` of a Hugging Face GPT-2: what a checkpoint writes, and what imported weights must say.

use super::RunError;
use crate::model::Dims;
use crate::weights::{CONFIG, Stated};
use serde_json::{Value, json};

/// The id that ends a text in the vocabulary of GPT-2.
const END_OF_TEXT: usize = 50256;
/// The epsilon of LayerNorm in every GPT-2.
const EPSILON: f64 = 1e-5;
/// The names that Hugging Face uses for GELU's tanh approximation.
const TANH_GELU: [&str; 2] = ["gelu_new", "gelu_pytorch_tanh"];

/// The text of `config.json` for a model.
pub(super) fn to_json(dims: &Dims) -> String {
    // Left out, the ids would default to one that a small vocabulary does not have.
    let special = (END_OF_TEXT < dims.vocab_size).then_some(END_OF_TEXT);
    let config = json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": dims.vocab_size,
        "n_positions": dims.block_size,
        "n_ctx": dims.block_size,
        "n_embd": dims.n_embd,
        "n_layer": dims.n_layer,
        "n_head": dims.n_head,
        "activation_function": TANH_GELU[0],
        "layer_norm_epsilon": EPSILON,
        "initializer_range": 0.02,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": true,
        "bos_token_id": special,
        "eos_token_id": special,
        "torch_dtype": "float32",
    });
    format!("{config:#}\n")
}

/// The dimensions that a file states. Errors: [`RunError::Malformed`] naming what is missing or makes no model.
pub(super) fn dims_of(stated: &Stated) -> Result<Dims, RunError> {
    let number = |name: &str, theirs: &str| {
        let numbers = stated.numbers();
        let found = numbers.iter().find(|(known, _)| *known == name).and_then(|(_, number)| *number);
        let found = found
            .ok_or_else(|| RunError::malformed(&stated.file, format!("it states no usable {theirs}")))?;
        let range = Dims::range(name);
        if range.contains(&found) {
            return Ok(found as usize);
        }
        let problem =
            format!("its {theirs} is {found}, but from {} to {} are possible", range.start(), range.end());
        Err(RunError::malformed(&stated.file, problem))
    };
    let is_config = stated.file.ends_with(CONFIG);
    let vocab_size = number("vocab_size", "vocab_size")?;
    let dims = Dims {
        n_layer: number("n_layer", "n_layer")?,
        n_head: number("n_head", "n_head")?,
        n_embd: number("n_embd", "n_embd")?,
        block_size: number("block_size", if is_config { "n_positions" } else { "block_size" })?,
        vocab_size,
        padded_vocab: vocab_size,
    };
    match dims.n_embd % dims.n_head {
        0 => Ok(dims),
        _ => Err(RunError::malformed(&stated.file, "its n_head does not divide n_embd")),
    }
}

/// What a configuration asks for that this model cannot do and that no tensor's shape shows, one line each.
pub(super) fn unfit(dims: &Dims, config: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    let mut require = |key: &str, fits: &dyn Fn(&Value) -> bool, expected: String| match config.get(key) {
        Some(found) if !found.is_null() && !fits(found) => {
            problems.push(format!("config.json: `{key}` should be {expected} but is {found}"));
        }
        // What is not stated has Hugging Face's default, which is the original GPT-2's.
        _ => {}
    };
    require("n_head", &|v| v.as_u64() == Some(dims.n_head as u64), dims.n_head.to_string());
    require(
        "activation_function",
        &|v| v.as_str().is_some_and(|name| TANH_GELU.contains(&name)),
        format!("{:?}", TANH_GELU[0]),
    );
    require("n_inner", &|v| v.as_u64() == Some(4 * dims.n_embd as u64), (4 * dims.n_embd).to_string());
    require("layer_norm_epsilon", &|v| v.as_f64() == Some(EPSILON), EPSILON.to_string());
    require("tie_word_embeddings", &|v| v == true, "true".into());
    for key in ["scale_attn_by_inverse_layer_idx", "add_cross_attention"] {
        require(key, &|v| v == false, "false".into());
    }
    require("scale_attn_weights", &|v| v == true, "true".into());
    problems
}
