//! Safetensors files, streamed.
//!
//! A second copy of a model and its optimizer states may not fit in memory, so tensors go from the flat buffer
//! to the disk and back in chunks. The `safetensors` crate checks and writes the header.

use super::digest::{CHUNK, FileDigest, HashedFile};
use super::error::{Context, RunError};
use crate::model::{Dims, Tensor};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The format's own limit on a header.
const MAX_HEADER: u64 = 100_000_000;

/// A safetensors file being written: the header first, then every tensor in its order.
#[derive(Debug)]
pub(super) struct TensorWriter {
    path: PathBuf,
    file: HashedFile,
}

impl TensorWriter {
    /// Creates the file and writes the header for fp32 tensors of these names and shapes.
    pub(super) fn create(path: &Path, tensors: Vec<(String, Vec<usize>)>) -> Result<Self, RunError> {
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
        let mut file = HashedFile::create(path).context("create", path)?;
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

/// A safetensors file open for reading.
#[derive(Debug)]
pub(super) struct TensorFile {
    path: PathBuf,
    file: File,
    data_start: u64,
    metadata: Metadata,
}

impl TensorFile {
    /// Opens a file and checks its header against its length.
    pub(super) fn open(path: &Path) -> Result<Self, RunError> {
        Self::new(path, File::open(path).context("open", path)?)
    }

    /// Reads and checks the header of an open file.
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
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|error| RunError::malformed(path, format!("the safetensors header: {error}")))?;
        let data_start = 8 + header_length;
        let expected = data_start + metadata.data_len() as u64;
        if expected != length {
            let problem = format!("its header describes {expected} bytes, the file has {length}");
            return Err(RunError::malformed(path, problem));
        }
        Ok(Self { path: path.to_owned(), file, data_start, metadata })
    }

    /// The tensors' names in the order of the file.
    pub(super) fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// Type, shape and place of a tensor.
    pub(super) fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.metadata.info(name)
    }

    /// Reads elements `[start, start + out.len())` of a tensor as fp32. The caller has checked that it has as many.
    ///
    /// Errors: [`RunError::Malformed`] for types other than F32, F16 and BF16.
    pub(super) fn read(&mut self, name: &str, start: usize, out: &mut [f32]) -> Result<(), RunError> {
        let info = self.metadata.info(name).expect("the caller found this name here");
        let dtype = info.dtype;
        if !is_read(dtype) {
            return Err(RunError::malformed(&self.path, format!("`{name}` has {}", unread(dtype))));
        }
        let width = dtype.bitsize() / 8;
        let place = self.data_start + (info.data_offsets.0 + start * width) as u64;
        self.file.seek(SeekFrom::Start(place)).context("read", &self.path)?;
        let mut bytes = vec![0; CHUNK.min(out.len() * width)];
        for values in out.chunks_mut(CHUNK / width) {
            let bytes = &mut bytes[..values.len() * width];
            self.file.read_exact(bytes).context("read", &self.path)?;
            match dtype {
                Dtype::F16 => convert(bytes, values, |b| f16::from_le_bytes(b).to_f32()),
                Dtype::BF16 => convert(bytes, values, |b| bf16::from_le_bytes(b).to_f32()),
                _ => convert(bytes, values, f32::from_le_bytes),
            }
        }
        Ok(())
    }
}

fn is_read(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16)
}

fn unread(dtype: Dtype) -> String {
    format!("type {dtype}, only F32, F16 and BF16 are read")
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

/// The range of a flat buffer that a file stores for a tensor, without padding rows.
pub(super) fn stored_range(dims: &Dims, tensor: &Tensor) -> std::ops::Range<usize> {
    tensor.offset..tensor.offset + stored_shape(dims, tensor).iter().product::<usize>()
}

/// Everything that keeps a file from filling these tensors of a layout, one line each: missing, misshapen, of a type
/// that is not converted, or unknown. `names` are the file's names as `info` knows them, without prefixes. With
/// `crop`, `wpe.weight` may have more rows than the model.
pub(super) fn unfit<'a>(
    dims: &Dims,
    tensors: &[&Tensor],
    crop: bool,
    names: impl Iterator<Item = &'a str>,
    info: impl Fn(&str) -> Option<&'a TensorInfo>,
) -> Vec<String> {
    let mut problems = Vec::new();
    for tensor in tensors {
        let (name, expected) = (&tensor.name, stored_shape(dims, tensor));
        let Some(found) = info(name) else {
            problems.push(format!("`{name}` {expected:?} is missing"));
            continue;
        };
        let croppable = crop
            && name == "wpe.weight"
            && found.shape.len() == 2
            && found.shape[0] > expected[0]
            && found.shape[1] == expected[1];
        if found.shape != expected && !croppable {
            problems.push(format!("`{name}` should be {expected:?} but is {:?}", found.shape));
        }
        if !is_read(found.dtype) {
            problems.push(format!("`{name}` has {}", unread(found.dtype)));
        }
    }
    let known: HashSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let unknown = names.filter(|name| !known.contains(name));
    problems.extend(unknown.map(|name| {
        let shape = info(name).map_or(&[][..], |info| &info.shape);
        format!("`{name}` {shape:?} is not part of the model")
    }));
    problems
}
