//! The values that a pickle of tensors makes, each in little memory: what a value is made of stays where it is, for a
//! long name would be copied for each of a million storages.

use super::Done;
use crate::weights::ElementType;

/// An object's place among the objects of its pickle.
pub(in crate::weights) type Id = u32;

/// A value that a pickle makes.
#[derive(Debug, Clone)]
pub(in crate::weights) enum Object {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Name(Name),
    Storage(Storage),
    Tensor(Tensor),
}

/// A name that a pickle may mention.
#[derive(Debug, Clone)]
pub(in crate::weights) enum Name {
    RebuildTensor,
    OrderedDict,
    /// The type of the elements, as PyTorch calls it.
    Storage(&'static str),
}

/// Elements in an entry of the archive.
#[derive(Debug, Clone, Copy)]
pub(in crate::weights) struct Storage {
    pub(super) class: Id,
    pub(super) key: Id,
    pub(super) len: u64,
}

/// A view of a storage, in elements.
#[derive(Debug, Clone, Copy)]
pub(in crate::weights) struct Tensor {
    pub(super) storage: Id,
    pub(super) shape: Id,
    pub(super) strides: Id,
    pub(super) offset: u64,
}

/// A tensor with what it refers to.
pub(in crate::weights) struct View<'a> {
    pub(in crate::weights) elements: ElementType,
    /// The entry's name below `data/`.
    pub(in crate::weights) key: &'a str,
    /// Elements of the storage.
    pub(in crate::weights) stored: u64,
    pub(in crate::weights) offset: u64,
    pub(in crate::weights) shape: Vec<u64>,
    pub(in crate::weights) strides: Vec<u64>,
}

/// The values of a pickle.
pub(in crate::weights) struct Pickle {
    pub(super) objects: Vec<Object>,
    pub(in crate::weights) root: Id,
}

impl Pickle {
    pub(in crate::weights) fn object(&self, id: Id) -> &Object {
        &self.objects[id as usize]
    }

    /// The value of a dictionary's text key.
    pub(in crate::weights) fn get(&self, dict: Id, key: &str) -> Option<Id> {
        let Object::Dict(items) = self.object(dict) else { return None };
        items.iter().rev().find(|(name, _)| self.text(*name) == Some(key)).map(|(_, value)| *value)
    }

    pub(in crate::weights) fn text(&self, id: Id) -> Option<&str> {
        if let Object::Text(text) = self.object(id) { Some(text) } else { None }
    }

    /// A tensor of this pickle.
    pub(in crate::weights) fn view(&self, tensor: Tensor) -> Done<View<'_>> {
        let Tensor { storage, shape, strides, offset } = tensor;
        let Object::Storage(Storage { class, key, len }) = *self.object(storage) else {
            return Err(NO_STORAGE.into());
        };
        let (Object::Name(Name::Storage(elements)), Some(key)) = (self.object(class), self.text(key)) else {
            return Err(NO_STORAGE.into());
        };
        let (shape, strides) = (sizes(&self.objects, shape)?, sizes(&self.objects, strides)?);
        Ok(View { elements: element_type(elements), key, stored: len, offset, shape, strides })
    }
}

pub(super) const NO_STORAGE: &str = "its pickle has a tensor without a storage";

pub(super) fn size(objects: &[Object], id: Id) -> Done<u64> {
    match objects[id as usize] {
        Object::Int(value) if value >= 0 => Ok(value as u64),
        _ => Err("its pickle has a size that is no natural number".into()),
    }
}

pub(super) fn sizes(objects: &[Object], id: Id) -> Done<Vec<u64>> {
    match &objects[id as usize] {
        Object::Tuple(sizes) if sizes.len() <= 8 => sizes.iter().map(|&id| size(objects, id)).collect(),
        _ => Err("its pickle has a shape that is none".into()),
    }
}

/// The type of the elements of a storage class of PyTorch.
pub(super) fn storage(class: &str) -> Option<&'static str> {
    const KNOWN: [&str; 10] =
        ["Float", "Half", "BFloat16", "Double", "Long", "Int", "Short", "Char", "Byte", "Bool"];
    let elements = class.strip_suffix("Storage")?;
    KNOWN.into_iter().find(|known| *known == elements)
}

fn element_type(elements: &str) -> ElementType {
    match elements {
        "Float" => ElementType::F32,
        "Half" => ElementType::F16,
        "BFloat16" => ElementType::Bf16,
        other => ElementType::Other(other.to_owned()),
    }
}
