//! Why weights do not fit, in as few lines as it takes.
//!
//! A model with one block too many lacks twelve tensors, and weights of another architecture lack all of them: a list
//! says less than its cause.

use super::tensors::Unfit;
use crate::model::Dims;

/// How many lines of a kind are shown.
const FEW: usize = 4;

/// The first few lines of a kind, and how many more there are.
pub(super) fn few(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(FEW);
    // one line more costs no more than saying that there is one
    if more > 1 {
        lines.truncate(FEW);
        lines.push(format!("and {more} more like that"));
    }
    lines
}

/// What is likely to be the cause, and what to do. `shape` tells the shape of the file's tensors, whose `names` are
/// without prefixes.
pub(super) fn likely(
    dims: &Dims,
    unfit: &Unfit,
    shape: impl Fn(&str) -> Option<Vec<usize>>,
    names: &[&str],
) -> Vec<String> {
    if unfit.missing.is_empty() && unfit.different.is_empty() && unfit.unknown.is_empty() {
        return Vec::new();
    }
    let Some(embedding) = shape("wte.weight") else { return vec![other_names(names)] };
    let mut causes = Vec::new();
    let blocks = blocks(names);
    if blocks != dims.n_layer {
        causes.push(format!("the weights have {blocks} blocks: set model.n_layer = {blocks}"));
    }
    if let [rows, width] = embedding[..] {
        if width != dims.n_embd {
            causes.push(format!("the weights are {width} wide: set model.n_embd = {width}"));
        } else if rows > dims.vocab_size && rows != dims.padded_vocab {
            causes.push(padding(dims, rows));
        } else if rows < dims.vocab_size {
            causes.push(format!(
                "the weights have {rows} token ids: set model.vocab_size = {rows}; model.vocab_multiple pads it"
            ));
        }
    }
    if let Some([rows, _]) = shape("wpe.weight").as_deref()
        && *rows < dims.block_size
    {
        causes.push(format!("the weights have {rows} positions: set model.block_size = {rows} or less"));
    }
    causes
}

/// What to do about an embedding with more rows than the model has ids.
fn padding(dims: &Dims, rows: usize) -> String {
    let multiples = [128, 64, 32, 16, 8];
    let fits = multiples.into_iter().find(|multiple| dims.vocab_size.next_multiple_of(*multiple) == rows);
    let keep = format!("model.vocab_size = {rows} keeps all {rows} rows as token ids");
    match fits {
        Some(multiple) => format!(
            "if the rows beyond model.vocab_size = {} are padding, set model.vocab_multiple = {multiple} and they are \
             left out; {keep}",
            dims.vocab_size
        ),
        None => keep,
    }
}

/// One more than the highest number of a block.
fn blocks(names: &[&str]) -> usize {
    let number = |name: &&str| name.strip_prefix("h.")?.split('.').next()?.parse::<usize>().ok();
    names.iter().filter_map(number).max().map_or(0, |last| last.saturating_add(1))
}

/// What is said of weights whose names are not those of a GPT-2.
fn other_names(names: &[&str]) -> String {
    let prefix =
        names.iter().find_map(|name| name.strip_suffix("wte.weight").filter(|prefix| !prefix.is_empty()));
    if let Some(prefix) = prefix {
        return format!("the names begin with `{prefix}`: save them without it");
    }
    let first: Vec<String> = names.iter().take(3).map(|name| format!("`{name}`")).collect();
    match first.is_empty() {
        true => "the weights have no tensors".to_owned(),
        false => format!("these are not the weights of a GPT-2: the first names are {}", first.join(", ")),
    }
}
