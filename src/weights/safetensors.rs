//! The header of a safetensors file: eight bytes for its length, then JSON that says where each tensor lies.
//!
//! The `safetensors` crate checks what it says. Runs write such files too, and read theirs back through here.

use super::{ElementType, Place};
use crate::wording::shortened;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek};

/// The format's own limit on a header.
const MAX_HEADER: u64 = 100_000_000;
/// Dimensions of a tensor at most; no format has more.
const MOST_DIMENSIONS: usize = 32;

/// Whether a file that begins so is in this format, which has a brace after the length. The first bytes of other
/// formats would be a length that no header has.
pub(super) fn begins(head: &[u8]) -> bool {
    let length = head.first_chunk().map(|length| u64::from_le_bytes(*length));
    length.is_some_and(|length| length <= MAX_HEADER) && head.get(8) == Some(&b'{')
}

/// The tensors of a header, in its order. The crate's own way to read one keeps every value of it in between, which
/// takes fifty times its length.
struct Header(Vec<(String, TensorInfo)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_map(Tensors).map(Self)
    }
}

struct Tensors;

impl<'de> Visitor<'de> for Tensors {
    type Value = Vec<(String, TensorInfo)>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut tensors: Vec<(String, TensorInfo)> = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let info: TensorInfo = map.next_value()?;
            if info.shape.len() > MOST_DIMENSIONS {
                let (name, found) = (shortened(&name, 80), info.shape.len());
                return Err(A::Error::custom(format!("`{name}` has {found} dimensions")));
            }
            tensors.push((name, info));
        }
        tensors.sort_by_key(|(_, info)| info.data_offsets);
        Ok(tensors)
    }
}

/// Where the tensors of a safetensors file lie, all of them within it.
///
/// # Errors
/// What is wrong with the file, without its name.
pub fn safetensors(file: &mut File) -> Result<BTreeMap<String, Place>, String> {
    let unreadable = |error: std::io::Error| format!("it could not be read: {error}");
    let length = file.metadata().map_err(unreadable)?.len();
    let mut prefix = [0; 8];
    file.rewind().map_err(unreadable)?;
    if length < 8 {
        return Err(format!("{length} bytes are no safetensors file"));
    }
    file.read_exact(&mut prefix).map_err(unreadable)?;
    let header_length = u64::from_le_bytes(prefix);
    if header_length > MAX_HEADER || header_length > length - 8 {
        return Err("it is no safetensors file, or its header is cut off".into());
    }
    let mut header = vec![0; header_length as usize];
    file.read_exact(&mut header).map_err(unreadable)?;
    let broken = |error: String| format!("the safetensors header: {error}");
    let Header(tensors) = serde_json::from_slice(&header).map_err(|error| broken(error.to_string()))?;
    drop(header);
    let count = tensors.len();
    let metadata = Metadata::new(None, tensors).map_err(|error| broken(error.to_string()))?;
    let data_start = 8 + header_length;
    let expected = data_start.saturating_add(metadata.data_len() as u64);
    if expected != length {
        return Err(format!("its header describes {expected} bytes, the file has {length}"));
    }
    let place = |name: String| {
        let info = metadata.info(&name)?;
        let place = Place {
            elements: elements(info.dtype),
            shape: info.shape.clone(),
            offset: data_start + info.data_offsets.0 as u64,
        };
        Some((name, place))
    };
    let places: BTreeMap<_, _> = metadata.offset_keys().into_iter().filter_map(place).collect();
    if places.len() != count {
        return Err(broken("it names a tensor twice".into()));
    }
    Ok(places)
}

fn elements(dtype: Dtype) -> ElementType {
    match dtype {
        Dtype::F32 => ElementType::F32,
        Dtype::F16 => ElementType::F16,
        Dtype::BF16 => ElementType::Bf16,
        other => ElementType::Other(other.to_string()),
    }
}
