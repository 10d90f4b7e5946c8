//! The part of Python's pickle that PyTorch's files need, read as data.
//!
//! A pickle is a program for a small stack machine, and Python's runs whatever functions it names. This machine knows
//! the objects of a file of tensors only: it builds plain values, takes the few names below for what they stand for,
//! and refuses every other with that name. It does not recurse, and what it keeps is bounded.
//!
//! The instructions are those of Python's `pickletools`, protocols 2 to 5.

use super::ElementType;
use std::collections::HashMap;

/// A file of tensors has a few thousand objects.
const MOST_OBJECTS: usize = 1 << 20;

/// An object's place in [`Pickle::objects`].
pub(super) type Id = usize;

/// A value that a pickle makes.
#[derive(Debug, Clone)]
pub(super) enum Object {
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
pub(super) enum Name {
    RebuildTensor,
    OrderedDict,
    Storage(ElementType),
}

/// Elements in an entry of the archive.
#[derive(Debug, Clone)]
pub(super) struct Storage {
    pub(super) elements: ElementType,
    /// The entry's name below `data/`.
    pub(super) key: String,
    pub(super) len: u64,
}

/// A view of a storage, in elements.
#[derive(Debug, Clone)]
pub(super) struct Tensor {
    pub(super) storage: Storage,
    pub(super) offset: u64,
    pub(super) shape: Vec<u64>,
    pub(super) strides: Vec<u64>,
}

/// The values of a pickle.
pub(super) struct Pickle {
    pub(super) objects: Vec<Object>,
    pub(super) root: Id,
}

impl Pickle {
    /// The value of a dictionary's text key.
    pub(super) fn get(&self, dict: Id, key: &str) -> Option<Id> {
        let Object::Dict(items) = &self.objects[dict] else { return None };
        items.iter().rev().find(|(name, _)| self.text(*name) == Some(key)).map(|(_, value)| *value)
    }

    pub(super) fn text(&self, id: Id) -> Option<&str> {
        if let Object::Text(text) = &self.objects[id] { Some(text) } else { None }
    }
}

/// Whether a file that begins so is a bare pickle.
pub(super) fn begins(head: &[u8]) -> bool {
    matches!(head, [0x80, 2..=5, ..])
}

type Done<T> = Result<T, String>;

struct Machine<'a> {
    rest: &'a [u8],
    objects: Vec<Object>,
    stack: Vec<Id>,
    /// Lengths of the stack where sequences begin.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

/// Reads a whole pickle.
pub(super) fn read(bytes: &[u8]) -> Done<Pickle> {
    let mut machine = Machine {
        rest: bytes,
        objects: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
    };
    while !machine.step()? {}
    let root = machine.pop()?;
    Ok(Pickle { objects: machine.objects, root })
}

impl Machine<'_> {
    /// Carries out one instruction; true after the last.
    fn step(&mut self) -> Done<bool> {
        match self.byte()? {
            0x80 => match self.byte()? {
                2..=5 => {}
                other => return Err(format!("its pickle has protocol {other}, 2 to 5 are read")),
            },
            0x95 => drop(self.take(8)?),
            b'.' => return Ok(true),
            b'(' => self.marks.push(self.stack.len()),
            b'N' => self.push(Object::None)?,
            0x88 => self.push(Object::Bool(true))?,
            0x89 => self.push(Object::Bool(false))?,
            b'J' => {
                let value = i32::from_le_bytes(self.array()?);
                self.push(Object::Int(value.into()))?;
            }
            b'K' => {
                let value = self.byte()?;
                self.push(Object::Int(value.into()))?;
            }
            b'M' => {
                let value = u16::from_le_bytes(self.array()?);
                self.push(Object::Int(value.into()))?;
            }
            0x8a => self.long()?,
            b'G' => {
                let value = f64::from_be_bytes(self.array()?);
                self.push(Object::Float(value))?;
            }
            b'X' => {
                let len = u32::from_le_bytes(self.array()?);
                self.utf8(len as usize)?;
            }
            0x8c => {
                let len = self.byte()?;
                self.utf8(len.into())?;
            }
            b'}' => self.push(Object::Dict(Vec::new()))?,
            b']' => self.push(Object::List(Vec::new()))?,
            b')' => self.push(Object::Tuple(Vec::new()))?,
            b't' => {
                let items = self.since_mark()?;
                self.push(Object::Tuple(items))?;
            }
            count @ 0x85..=0x87 => {
                let at = self.stack.len().checked_sub(usize::from(count) - 0x84).ok_or_else(underflow)?;
                let items = self.stack.split_off(at);
                self.push(Object::Tuple(items))?;
            }
            b'q' => {
                let slot = self.byte()?;
                self.remember(slot.into())?;
            }
            b'r' => {
                let slot = u32::from_le_bytes(self.array()?);
                self.remember(slot)?;
            }
            0x94 => self.remember(self.memo.len() as u32)?,
            b'h' => {
                let slot = self.byte()?;
                self.recall(slot.into())?;
            }
            b'j' => {
                let slot = u32::from_le_bytes(self.array()?);
                self.recall(slot)?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.name(&module, &name)?;
            }
            0x93 => {
                let (name, module) = (self.pop_text()?, self.pop_text()?);
                self.name(&module, &name)?;
            }
            b'R' => self.reduce()?,
            b'Q' => self.persistent()?,
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.top_dict()?.push((key, value));
            }
            b'u' => {
                let items = self.since_mark()?;
                let (pairs, rest) = items.as_chunks::<2>();
                if !rest.is_empty() {
                    return Err("its pickle has a key without a value".into());
                }
                self.top_dict()?.extend(pairs.iter().map(|[key, value]| (*key, *value)));
            }
            b'a' => {
                let item = self.pop()?;
                self.top_list()?.push(item);
            }
            b'e' => {
                let items = self.since_mark()?;
                self.top_list()?.extend(items);
            }
            // attributes of a dictionary, such as the versions that a state dict carries
            b'b' => {
                self.pop()?;
                self.top_dict()?;
            }
            0x81 | 0x92 | b'o' | b'i' => {
                return Err(format!(
                    "its pickle makes an object of a class, which is not read; {SAVE_WEIGHTS}"
                ));
            }
            other => return Err(format!("its pickle has the instruction 0x{other:02x}, which is not read")),
        }
        Ok(false)
    }

    fn take(&mut self, len: usize) -> Done<&[u8]> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or("its pickle is cut off")?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Done<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("as many bytes"))
    }

    fn byte(&mut self) -> Done<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn utf8(&mut self, len: usize) -> Done<()> {
        let text = str::from_utf8(self.take(len)?).map_err(|_| "its pickle has a text that is not UTF-8")?;
        let text = text.to_owned();
        self.push(Object::Text(text))
    }

    fn line(&mut self) -> Done<String> {
        let len = self.rest.iter().position(|&byte| byte == b'\n').ok_or("its pickle is cut off")?;
        let text = String::from_utf8_lossy(self.take(len)?).into_owned();
        self.take(1)?;
        Ok(text)
    }

    /// An integer of up to eight bytes; larger ones mean nothing in a file of tensors.
    fn long(&mut self) -> Done<()> {
        let len = usize::from(self.byte()?);
        let bytes = self.take(len)?;
        let sign = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 };
        let mut value = [sign; 8];
        value.get_mut(..len).ok_or("its pickle has an integer of more than 64 bits")?.copy_from_slice(bytes);
        self.push(Object::Int(i64::from_le_bytes(value)))
    }

    fn push(&mut self, object: Object) -> Done<()> {
        if self.objects.len() == MOST_OBJECTS {
            return Err(format!("its pickle makes more than {MOST_OBJECTS} objects"));
        }
        self.stack.push(self.objects.len());
        self.objects.push(object);
        Ok(())
    }

    fn pop(&mut self) -> Done<Id> {
        self.stack.pop().ok_or_else(underflow)
    }

    fn pop_text(&mut self) -> Done<String> {
        let id = self.pop()?;
        match &self.objects[id] {
            Object::Text(text) => Ok(text.clone()),
            _ => Err("its pickle has a name that is no text".into()),
        }
    }

    fn since_mark(&mut self) -> Done<Vec<Id>> {
        let mark = self.marks.pop().filter(|&mark| mark <= self.stack.len()).ok_or_else(underflow)?;
        Ok(self.stack.split_off(mark))
    }

    fn remember(&mut self, slot: u32) -> Done<()> {
        let top = *self.stack.last().ok_or_else(underflow)?;
        self.memo.insert(slot, top);
        Ok(())
    }

    fn recall(&mut self, slot: u32) -> Done<()> {
        let id = *self.memo.get(&slot).ok_or("its pickle asks for an object that it has not made")?;
        self.stack.push(id);
        Ok(())
    }

    fn top_dict(&mut self) -> Done<&mut Vec<(Id, Id)>> {
        match self.stack.last().map(|&id| &mut self.objects[id]) {
            Some(Object::Dict(items)) => Ok(items),
            _ => Err("its pickle fills what is no dictionary".into()),
        }
    }

    fn top_list(&mut self) -> Done<&mut Vec<Id>> {
        match self.stack.last().map(|&id| &mut self.objects[id]) {
            Some(Object::List(items)) => Ok(items),
            _ => Err("its pickle appends to what is no list".into()),
        }
    }

    fn name(&mut self, module: &str, name: &str) -> Done<()> {
        let known = match (module, name) {
            ("torch._utils", "_rebuild_tensor_v2") => Name::RebuildTensor,
            ("collections", "OrderedDict") => Name::OrderedDict,
            ("torch", name) if let Some(elements) = storage(name) => Name::Storage(elements),
            _ => {
                let named: String =
                    format!("{module}.{name}").chars().take(80).flat_map(char::escape_debug).collect();
                return Err(format!("its pickle names `{named}`, which is not read; {SAVE_WEIGHTS}"));
            }
        };
        self.push(Object::Name(known))
    }

    /// A call, of the two functions that files of tensors call.
    fn reduce(&mut self) -> Done<()> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let Object::Tuple(arguments) = &self.objects[arguments] else {
            return Err("its pickle calls a function without arguments".into());
        };
        let made = match (&self.objects[function], &arguments[..]) {
            (Object::Name(Name::OrderedDict), []) => Object::Dict(Vec::new()),
            (Object::Name(Name::RebuildTensor), [storage, offset, shape, strides, ..]) => {
                let Object::Storage(storage) = &self.objects[*storage] else {
                    return Err("its pickle has a tensor without a storage".into());
                };
                Object::Tensor(Tensor {
                    storage: storage.clone(),
                    offset: self.size(*offset)?,
                    shape: self.sizes(*shape)?,
                    strides: self.sizes(*strides)?,
                })
            }
            _ => return Err("its pickle calls what is no function of a file of tensors".into()),
        };
        self.push(made)
    }

    /// What lies outside the pickle: `("storage", type, key, location, elements)`.
    fn persistent(&mut self) -> Done<()> {
        let id = self.pop()?;
        let malformed = || "its pickle refers to what is no storage".to_owned();
        let Object::Tuple(parts) = &self.objects[id] else { return Err(malformed()) };
        let [kind, class, key, _, len, ..] = &parts[..] else { return Err(malformed()) };
        match [kind, class, key].map(|&part| &self.objects[part]) {
            [Object::Text(kind), Object::Name(Name::Storage(elements)), Object::Text(key)]
                if kind == "storage" =>
            {
                let storage = Storage { elements: elements.clone(), key: key.clone(), len: self.size(*len)? };
                self.push(Object::Storage(storage))
            }
            _ => Err(malformed()),
        }
    }

    fn size(&self, id: Id) -> Done<u64> {
        match self.objects[id] {
            Object::Int(value) if value >= 0 => Ok(value as u64),
            _ => Err("its pickle has a size that is no natural number".into()),
        }
    }

    fn sizes(&self, id: Id) -> Done<Vec<u64>> {
        match &self.objects[id] {
            Object::Tuple(sizes) if sizes.len() <= 8 => sizes.iter().map(|&id| self.size(id)).collect(),
            _ => Err("its pickle has a shape that is none".into()),
        }
    }
}

pub(super) const SAVE_WEIGHTS: &str =
    "save the weights alone, with `torch.save(model.state_dict(), \"weights.pt\")`";

fn underflow() -> String {
    "its pickle takes more from the stack than there is".into()
}

/// The type of the elements of a storage class of PyTorch.
fn storage(class: &str) -> Option<ElementType> {
    Some(match class {
        "FloatStorage" => ElementType::F32,
        "HalfStorage" => ElementType::F16,
        "BFloat16Storage" => ElementType::Bf16,
        "DoubleStorage" | "LongStorage" | "IntStorage" | "ShortStorage" | "CharStorage" | "ByteStorage"
        | "BoolStorage" => ElementType::Other(class.trim_end_matches("Storage").to_owned()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
