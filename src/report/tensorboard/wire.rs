//! As much of Protocol Buffers' wire format as events need.
//!
//! A message is a sequence of fields: a key (the field's number and how its value is written), then the value. Numbers
//! are varints or have a fixed size; texts and messages come behind their length.

/// A message that is being written.
#[derive(Debug, Default)]
pub(super) struct Message(Vec<u8>);

/// How a value is written.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

impl Message {
    fn key(&mut self, field: u64, kind: u64) {
        self.varint(field << 3 | kind);
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// Adds an integer.
    pub(super) fn integer(mut self, field: u64, number: u64) -> Self {
        self.key(field, VARINT);
        self.varint(number);
        self
    }

    /// Adds a double.
    pub(super) fn double(mut self, field: u64, number: f64) -> Self {
        self.key(field, FIXED64);
        self.0.extend(number.to_le_bytes());
        self
    }

    /// Adds a float.
    pub(super) fn float(mut self, field: u64, number: f32) -> Self {
        self.key(field, FIXED32);
        self.0.extend(number.to_le_bytes());
        self
    }

    /// Adds a text or bytes.
    pub(super) fn bytes(mut self, field: u64, bytes: impl AsRef<[u8]>) -> Self {
        self.key(field, BYTES);
        self.varint(bytes.as_ref().len() as u64);
        self.0.extend(bytes.as_ref());
        self
    }

    /// Adds a message.
    pub(super) fn message(self, field: u64, message: Self) -> Self {
        self.bytes(field, message.0)
    }

    /// The bytes of the message.
    pub(super) fn done(self) -> Vec<u8> {
        self.0
    }
}

/// A value of a field that was read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    /// An integer.
    Integer(u64),
    /// A text, bytes or a message.
    Bytes(&'a [u8]),
    /// A number of a fixed size, of which no reader here needs the value.
    Fixed,
}

/// The fields of a message, up to the first byte that is none.
pub(super) fn fields(mut rest: &[u8]) -> impl Iterator<Item = (u64, Value<'_>)> {
    std::iter::from_fn(move || {
        let key = varint(&mut rest)?;
        let value = match key & 7 {
            VARINT => Value::Integer(varint(&mut rest)?),
            FIXED64 => rest.split_off(..8).map(|_| Value::Fixed)?,
            FIXED32 => rest.split_off(..4).map(|_| Value::Fixed)?,
            BYTES => {
                let length = usize::try_from(varint(&mut rest)?).ok()?;
                Value::Bytes(rest.split_off(..length)?)
            }
            _ => return None,
        };
        Some((key >> 3, value))
    })
}

/// The field of a message that holds bytes.
pub(super) fn bytes_of(message: &[u8], field: u64) -> Option<&[u8]> {
    fields(message).find_map(|(number, value)| match value {
        Value::Bytes(bytes) if number == field => Some(bytes),
        _ => None,
    })
}

/// The field of a message that holds an integer; 0, which is not written, without one.
pub(super) fn integer_of(message: &[u8], field: u64) -> u64 {
    let found = fields(message).find_map(|(number, value)| match value {
        Value::Integer(integer) if number == field => Some(integer),
        _ => None,
    });
    found.unwrap_or(0)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *rest.split_off_first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_those_of_the_specification() {
        // the examples of https://protobuf.dev/programming-guides/encoding
        assert_eq!(Message::default().integer(1, 150).done(), [0x08, 0x96, 0x01]);
        assert_eq!(Message::default().bytes(2, "testing").done(), *b"\x12\x07testing");
        let inner = Message::default().integer(1, 150);
        assert_eq!(Message::default().message(3, inner).done(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        assert_eq!(Message::default().float(2, 1.5).done(), [0x15, 0, 0, 0xc0, 0x3f]);
        assert_eq!(Message::default().double(1, -2.0).done(), [0x09, 0, 0, 0, 0, 0, 0, 0, 0xc0]);
    }

    #[test]
    fn what_is_written_is_read_back_and_what_is_torn_ends() {
        let message = Message::default().double(1, 1.0).integer(2, u64::MAX).bytes(5, "x").float(6, 1.0);
        let bytes = message.integer(7, 300).done();
        assert_eq!(bytes_of(&bytes, 5), Some(&b"x"[..]));
        assert_eq!((integer_of(&bytes, 2), integer_of(&bytes, 7), integer_of(&bytes, 8)), (u64::MAX, 300, 0));
        assert_eq!(bytes_of(&bytes, 2), None);
        let numbers: Vec<u64> = fields(&bytes).map(|(number, _)| number).collect();
        assert_eq!(numbers, [1, 2, 5, 6, 7]);
        for cut in 0..bytes.len() {
            assert!(fields(&bytes[..cut]).count() < 5, "{cut}");
        }
        assert_eq!(fields(&[0xff; 20]).count(), 0);
        assert_eq!(fields(&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]).count(), 0);
    }
}
