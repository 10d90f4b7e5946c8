//! Safetensors files, streamed.
//!
//! A second copy of a model and its optimizer states may not fit in memory, so tensors go from the flat buffer
//! to the disk and back in chunks. The `safetensors` crate checks and writes the header.

use super::digest::{CHUNK, FileDigest, HashedFile};
use super::error::{Context, RunError};
use crate::model::{Dims, Tensor};
use crate::regular::{self, OpenDir};
use crate::weights::{self, ElementType, Foreign, Place};
use crate::wording::shortened;
use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The format's own limit on a header.
const MAX_HEADER: u64 = 100_000_000;
/// Dimensions of a tensor at most; no format has more.
const MOST_DIMENSIONS: usize = 32;

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

/// A safetensors file being written: the header first, then every tensor in its order.
#[derive(Debug)]
pub(super) struct TensorWriter {
    path: PathBuf,
    file: HashedFile,
}

impl TensorWriter {
    /// Creates the file and writes the header for fp32 tensors of these names and shapes.
    pub(super) fn create(
        dir: &OpenDir,
        name: &str,
        tensors: Vec<(String, Vec<usize>)>,
    ) -> Result<Self, RunError> {
        let path = &dir.join(name);
        let mut end = 0;
        let infos = tensors.into_iter().map(|(name, shape)| {
            let start = end;
            end += 4 * shape.iter().product::<usize>();
            (name, TensorInfo { dtype: Dtype::F32, shape, data_offsets: (start, end) })
        });
        // Without this entry the Hugging Face loader refuses the file.
        let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let metadata = Metadata::new(Some(format), infos.collect()).expect("the offsets are contiguous");
        let mut header = serde_json::to_vec(&metadata).expect("names and numbers are valid JSON");
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut file = HashedFile::new(dir.create_file(name).context("create", path)?);
        file.write(&(header.len() as u64).to_le_bytes()).context("write", path)?;
        file.write(&header).context("write", path)?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Appends the next tensor's elements.
    pub(super) fn put(&mut self, values: &[f32]) -> Result<(), RunError> {
        self.file.write_f32(values).context("write", &self.path)
    }

    /// Makes the file durable.
    pub(super) fn finish(self) -> Result<FileDigest, RunError> {
        self.file.finish().context("write", &self.path)
    }
}

/// A file of tensors open for reading: safetensors, or one of those that [`weights`] knows.
#[derive(Debug)]
pub(super) struct TensorFile {
    path: PathBuf,
    file: File,
    /// In the order of the file, where it has one.
    names: Vec<String>,
    places: HashMap<String, Place>,
    /// What the file says of the model that GPT-2 does not have, one line each.
    pub(super) problems: Vec<String>,
}

impl TensorFile {
    /// Opens a file, and checks that all its tensors lie in it.
    pub(super) fn open(path: &Path) -> Result<Self, RunError> {
        let mut file = regular::open(path).context("open", path)?;
        let foreign =
            weights::foreign(path, &mut file).map_err(|problem| RunError::malformed(path, problem))?;
        let Some(Foreign { tensors, problems, .. }) = foreign else { return Self::new(path, file) };
        let names = tensors.keys().cloned().collect();
        Ok(Self { path: path.to_owned(), file, names, places: tensors.into_iter().collect(), problems })
    }

    /// Reads and checks the header of an open safetensors file.
    pub(super) fn new(path: &Path, mut file: File) -> Result<Self, RunError> {
        let length = file.metadata().context("read", path)?.len();
        let mut prefix = [0; 8];
        file.rewind().context("read", path)?;
        if length < 8 {
            return Err(RunError::malformed(path, format!("{length} bytes are no safetensors file")));
        }
        file.read_exact(&mut prefix).context("read", path)?;
        let header_length = u64::from_le_bytes(prefix);
        if header_length > MAX_HEADER || header_length > length - 8 {
            return Err(RunError::malformed(path, "it is no safetensors file, or its header is cut off"));
        }
        let mut header = vec![0; header_length as usize];
        file.read_exact(&mut header).context("read", path)?;
        let broken = |error: String| RunError::malformed(path, format!("the safetensors header: {error}"));
        let Header(tensors) = serde_json::from_slice(&header).map_err(|error| broken(error.to_string()))?;
        drop(header);
        let count = tensors.len();
        let metadata = Metadata::new(None, tensors).map_err(|error| broken(error.to_string()))?;
        let data_start = 8 + header_length;
        let expected = data_start.saturating_add(metadata.data_len() as u64);
        if expected != length {
            let problem = format!("its header describes {expected} bytes, the file has {length}");
            return Err(RunError::malformed(path, problem));
        }
        let names = metadata.offset_keys();
        if names.len() != count {
            return Err(broken("it names a tensor twice".into()));
        }
        let place = |name: &String| {
            let info = metadata.info(name)?;
            let place = Place {
                elements: elements(info.dtype),
                shape: info.shape.clone(),
                offset: data_start + info.data_offsets.0 as u64,
            };
            Some((name.clone(), place))
        };
        let places = names.iter().filter_map(place).collect();
        Ok(Self { path: path.to_owned(), file, names, places, problems: Vec::new() })
    }

    /// The tensors' names.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Type, shape and place of a tensor.
    pub(super) fn info(&self, name: &str) -> Option<&Place> {
        self.places.get(name)
    }

    /// Reads elements `[start, start + out.len())` of a tensor as fp32. The caller has checked that it has as many.
    ///
    /// Errors: [`RunError::Malformed`] for types other than F32, F16 and BF16.
    pub(super) fn read(&mut self, name: &str, start: usize, out: &mut [f32]) -> Result<(), RunError> {
        let place = self.places.get(name).expect("the caller found this name here");
        let Some(width) = place.elements.width() else {
            return Err(RunError::malformed(&self.path, format!("`{name}` has {}", unread(&place.elements))));
        };
        let first = place.offset + (start * width) as u64;
        self.file.seek(SeekFrom::Start(first)).context("read", &self.path)?;
        let mut bytes = vec![0; CHUNK.min(out.len() * width)];
        for values in out.chunks_mut(CHUNK / width) {
            let bytes = &mut bytes[..values.len() * width];
            self.file.read_exact(bytes).context("read", &self.path)?;
            match place.elements {
                ElementType::F16 => convert(bytes, values, |b| f16::from_le_bytes(b).to_f32()),
                ElementType::Bf16 => convert(bytes, values, |b| bf16::from_le_bytes(b).to_f32()),
                _ => convert(bytes, values, f32::from_le_bytes),
            }
        }
        Ok(())
    }
}

fn elements(dtype: Dtype) -> ElementType {
    match dtype {
        Dtype::F32 => ElementType::F32,
        Dtype::F16 => ElementType::F16,
        Dtype::BF16 => ElementType::Bf16,
        other => ElementType::Other(other.to_string()),
    }
}

fn unread(elements: &ElementType) -> String {
    let name = match elements {
        ElementType::Other(name) => name,
        _ => "of a strange width",
    };
    format!("type {name}, only F32, F16 and BF16 are read")
}

fn convert<const N: usize>(bytes: &[u8], values: &mut [f32], from: impl Fn([u8; N]) -> f32) {
    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *value = from(*bytes);
    }
}

/// A tensor's shape in a file, which leaves out the padding rows of the embedding.
pub(super) fn stored_shape(dims: &Dims, tensor: &Tensor) -> Vec<usize> {
    let mut shape = tensor.shape.clone();
    if tensor.name == "wte.weight" {
        shape[0] = dims.vocab_size;
    }
    shape
}

/// The elements of a tensor that a file stores, its first ones: padding rows come last.
pub(super) fn stored_len(dims: &Dims, tensor: &Tensor) -> usize {
    stored_shape(dims, tensor).iter().product()
}

/// A tensor as a file has it, for [`unfit`].
#[derive(Debug, Clone)]
pub(super) struct Found<'a> {
    pub(super) elements: &'a ElementType,
    /// In the layout of the model.
    pub(super) shape: Vec<usize>,
}

/// What keeps a file from filling the tensors of a layout, one line for each tensor.
#[derive(Debug, Default)]
pub(super) struct Unfit {
    /// Tensors of the model that the file lacks.
    pub(super) missing: Vec<String>,
    /// Tensors of another shape, or of a type that is not converted.
    pub(super) different: Vec<String>,
    /// Tensors that the model does not have.
    pub(super) unknown: Vec<String>,
}

impl Unfit {
    /// All lines.
    pub(super) fn all(self) -> Vec<String> {
        [self.missing, self.different, self.unknown].concat()
    }
}

/// Compares a file with these tensors of a layout. `names` are the file's names as `info` knows them, without
/// prefixes. `accepts` may take a shape that is not the model's.
pub(super) fn unfit<'a>(
    dims: &Dims,
    tensors: &[&Tensor],
    names: impl Iterator<Item = &'a str>,
    info: impl Fn(&str) -> Option<Found<'a>>,
    accepts: impl Fn(&Tensor, &[usize]) -> bool,
) -> Unfit {
    let mut problems = Unfit::default();
    for tensor in tensors {
        let (name, expected) = (&tensor.name, stored_shape(dims, tensor));
        let Some(found) = info(name) else {
            problems.missing.push(format!("`{name}` {expected:?} is missing"));
            continue;
        };
        if found.shape != expected && !accepts(tensor, &found.shape) {
            problems.different.push(format!("`{name}` should be {expected:?} but is {:?}", found.shape));
        }
        if found.elements.width().is_none() {
            problems.different.push(format!("`{name}` has {}", unread(found.elements)));
        }
    }
    let known: HashSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let unknown = names.filter(|name| !known.contains(name));
    problems.unknown.extend(unknown.map(|name| {
        let shape = info(name).map_or_else(Vec::new, |info| info.shape);
        format!("`{name}` {shape:?} is not part of the model")
    }));
    problems
}
