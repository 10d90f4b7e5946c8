//! llm.c's model file.
//!
//! The layout is that of `gpt2_build_from_checkpoint` in Andrej Karpathy's llm.c (`train_gpt2.cu`): 256 integers of 32
//! bits, then each kind of tensor of all blocks together. Linear layers are `[out, in]`, as PyTorch has them.

use super::{Contents, ElementType, Place, Stated};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

const MODEL: i32 = 20_240_326;
const DATA: i32 = 20_240_520;
const HEADER: usize = 256 * 4;
/// Larger dimensions are no GPT-2's; products of smaller ones stay within 64 bits.
const LARGEST: i32 = 1 << 24;
const MOST_LAYERS: i32 = 1 << 10;

fn first(head: &[u8]) -> Option<i32> {
    Some(i32::from_le_bytes(*head.first_chunk()?))
}

/// Whether a file that begins so is a model of llm.c.
pub(super) fn is_model(head: &[u8]) -> bool {
    first(head) == Some(MODEL)
}

/// Whether a file that begins so holds tokens.
pub(super) fn is_data(head: &[u8]) -> bool {
    first(head) == Some(DATA)
}

/// Reads the header, and computes where each tensor lies.
pub(super) fn read(path: &Path, file: &mut File) -> Result<Contents, String> {
    let mut header = [0; HEADER];
    file.read_exact(&mut header).map_err(|_| "its header of 1024 bytes is cut off".to_owned())?;
    let at = |i: usize| i32::from_le_bytes([0, 1, 2, 3].map(|byte| header[4 * i + byte]));
    let (elements, width) = match at(1) {
        3 => (ElementType::F32, 4),
        5 => (ElementType::Bf16, 2),
        other => {
            return Err(format!(
                "it has version {other} of llm.c's model format, 3 (fp32) and 5 (bf16) are read"
            ));
        }
    };
    let names = ["maxT", "V", "L", "NH", "C", "padded V"];
    for (i, name) in names.iter().enumerate() {
        let most = if *name == "L" { MOST_LAYERS } else { LARGEST };
        if !(1..=most).contains(&at(i + 2)) {
            return Err(format!("its header has {name} = {}, which is no GPT-2's", at(i + 2)));
        }
    }
    let [t, v, l, heads, c, padded] = [2, 3, 4, 5, 6, 7].map(|i| at(i) as u64);
    if padded < v {
        return Err(format!("its header has {padded} rows for {v} token ids"));
    }
    let mut tensors = BTreeMap::new();
    let mut end = HEADER as u64;
    let mut put = |name: String, shape: &[u64], rows: u64| {
        let place = shape.iter().map(|&n| n as usize).collect();
        tensors.insert(name, Place { elements: elements.clone(), shape: place, offset: end });
        // all factors are below 2^24 and a tensor has two
        end += rows * shape[1..].iter().product::<u64>() * width;
    };
    put("wte.weight".into(), &[v, c], padded);
    put("wpe.weight".into(), &[t, c], t);
    let parts: [(&str, &[u64]); 12] = [
        ("ln_1.weight", &[c]),
        ("ln_1.bias", &[c]),
        ("attn.c_attn.weight", &[3 * c, c]),
        ("attn.c_attn.bias", &[3 * c]),
        ("attn.c_proj.weight", &[c, c]),
        ("attn.c_proj.bias", &[c]),
        ("ln_2.weight", &[c]),
        ("ln_2.bias", &[c]),
        ("mlp.c_fc.weight", &[4 * c, c]),
        ("mlp.c_fc.bias", &[4 * c]),
        ("mlp.c_proj.weight", &[c, 4 * c]),
        ("mlp.c_proj.bias", &[c]),
    ];
    for (part, shape) in parts {
        (0..l).for_each(|block| put(format!("h.{block}.{part}"), shape, shape[0]));
    }
    put("ln_f.weight".into(), &[c], c);
    put("ln_f.bias".into(), &[c], c);
    let found = file.metadata().map_err(|error| format!("it could not be read: {error}"))?.len();
    if found != end {
        return Err(format!("its header describes {end} bytes, the file has {found}"));
    }
    let stated = Stated {
        file: path.to_owned(),
        n_layer: Some(l),
        n_head: Some(heads),
        n_embd: Some(c),
        block_size: Some(t),
        vocab_size: Some(v),
    };
    Ok(Contents { tensors, stated: Some(stated), problems: Vec::new() })
}
