//! The part of Python's pickle that PyTorch's files need, read as data.
//!
//! A pickle is a program for a small stack machine, and Python's runs whatever functions it names. This machine knows
//! the objects of a file of tensors only: it builds plain values, takes the few names below for what they stand for,
//! and refuses every other with that name. It does not recurse, and what it keeps is bounded.
//!
//! The instructions are those of Python's `pickletools`, protocols 2 to 5.

mod values;

use std::collections::HashMap;
use values::{NO_STORAGE, Name, Storage, Tensor, size, sizes, storage};

pub(super) use values::{Id, Object, Pickle, View};

/// A file of tensors has a few thousand objects.
const MOST_OBJECTS: usize = 1 << 20;
/// References to objects at most, in all lists, tuples and dictionaries and on the stack. An instruction of two bytes
/// makes one.
const MOST_REFERENCES: usize = 1 << 23;

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
    /// References that were made.
    references: usize,
}

/// Reads a whole pickle.
pub(super) fn read(bytes: &[u8]) -> Done<Pickle> {
    let mut machine = Machine {
        rest: bytes,
        objects: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        references: 0,
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
            b'(' => {
                self.refer()?;
                self.marks.push(self.stack.len());
            }
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
        self.refer()?;
        self.stack.push(self.objects.len() as Id);
        self.objects.push(object);
        Ok(())
    }

    /// Counts a reference, which takes memory wherever it is moved to.
    fn refer(&mut self) -> Done<()> {
        self.references += 1;
        if self.references > MOST_REFERENCES {
            return Err(format!("its pickle refers more than {MOST_REFERENCES} times to its objects"));
        }
        Ok(())
    }

    fn object(&self, id: Id) -> &Object {
        &self.objects[id as usize]
    }

    fn pop(&mut self) -> Done<Id> {
        self.stack.pop().ok_or_else(underflow)
    }

    fn pop_text(&mut self) -> Done<String> {
        let id = self.pop()?;
        match self.object(id) {
            // a name of this length is none that is known
            Object::Text(text) => Ok(text.chars().take(200).collect()),
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
        match self.memo.len() {
            // more than there are objects
            0..=MOST_OBJECTS => Ok(()),
            _ => Err(format!("its pickle remembers more than {MOST_OBJECTS} objects")),
        }
    }

    fn recall(&mut self, slot: u32) -> Done<()> {
        let id = *self.memo.get(&slot).ok_or("its pickle asks for an object that it has not made")?;
        self.refer()?;
        self.stack.push(id);
        Ok(())
    }

    fn top_dict(&mut self) -> Done<&mut Vec<(Id, Id)>> {
        match self.stack.last().map(|&id| &mut self.objects[id as usize]) {
            Some(Object::Dict(items)) => Ok(items),
            _ => Err("its pickle fills what is no dictionary".into()),
        }
    }

    fn top_list(&mut self) -> Done<&mut Vec<Id>> {
        match self.stack.last().map(|&id| &mut self.objects[id as usize]) {
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
        let Object::Tuple(arguments) = self.object(arguments) else {
            return Err("its pickle calls a function without arguments".into());
        };
        let made = match (self.object(function), &arguments[..]) {
            (Object::Name(Name::OrderedDict), []) => Object::Dict(Vec::new()),
            (Object::Name(Name::RebuildTensor), &[storage, offset, shape, strides, ..]) => {
                let Object::Storage(_) = self.object(storage) else { return Err(NO_STORAGE.into()) };
                sizes(&self.objects, shape)?;
                sizes(&self.objects, strides)?;
                Object::Tensor(Tensor { storage, shape, strides, offset: size(&self.objects, offset)? })
            }
            _ => return Err("its pickle calls what is no function of a file of tensors".into()),
        };
        self.push(made)
    }

    /// What lies outside the pickle: `("storage", type, key, location, elements)`.
    fn persistent(&mut self) -> Done<()> {
        let id = self.pop()?;
        let malformed = || "its pickle refers to what is no storage".to_owned();
        let Object::Tuple(parts) = self.object(id) else { return Err(malformed()) };
        let &[kind, class, key, _, len, ..] = &parts[..] else { return Err(malformed()) };
        match [kind, class, key].map(|part| self.object(part)) {
            [Object::Text(kind), Object::Name(Name::Storage(_)), Object::Text(_)] if kind == "storage" => {
                let len = size(&self.objects, len)?;
                self.push(Object::Storage(Storage { class, key, len }))
            }
            _ => Err(malformed()),
        }
    }
}

pub(super) const SAVE_WEIGHTS: &str =
    "save the weights alone, with `torch.save(model.state_dict(), \"weights.pt\")`";

fn underflow() -> String {
    "its pickle takes more from the stack than there is".into()
}

#[cfg(test)]
mod tests;
