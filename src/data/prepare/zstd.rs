//! Unpacking Zstandard (RFC 8878).

use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use std::io::{self, BufRead, Chain, Cursor, ErrorKind, Read};

/// A frame that unpacks to nothing has one of sixteen magic numbers (RFC 8878, 3.1.2).
const SKIPPABLE: u32 = 0x184d_2a50;
const MAGIC: u32 = 0xfd2f_b528;
/// Frames with a longer window are refused.
const LONGEST_WINDOW: u64 = 128 << 20;

/// Bytes of a window that a reader's usual memory covers: that of the highest usual level.
pub(super) const USUAL_WINDOW: u64 = 8 << 20;
/// Bytes of the header of a frame at most.
pub(super) const LONGEST_HEADER: u64 = 18;

/// The size of the window that the header of a frame states (RFC 8878, 3.1.1.1), as far as it is accepted; `None` if
/// no frame begins here.
pub(super) fn window(head: &[u8]) -> Option<u64> {
    let (&descriptor, rest) = head.strip_prefix(&MAGIC.to_le_bytes())?.split_first()?;
    let stated = if descriptor & 1 << 5 == 0 {
        let window = u64::from(*rest.first()?);
        let base = 1 << (10 + (window >> 3));
        base + base / 8 * (window & 7)
    } else {
        // of a single segment that is as long as the text, whose length stands behind the number of a dictionary
        let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
        let (bytes, offset) = [(1, 0), (2, 256), (4, 0), (8, 0)][usize::from(descriptor >> 6)];
        let mut length = [0; 8];
        length[..bytes].copy_from_slice(rest.get(dictionary..dictionary + bytes)?);
        u64::from_le_bytes(length).saturating_add(offset)
    };
    Some(stated.min(LONGEST_WINDOW))
}

/// What packed files consist of: frames, one after the other. Those to be skipped are.
pub(super) struct Frames<R: Read> {
    decoder: Option<Box<Decoder<R>>>,
    input: Option<R>,
}

type Decoder<R> = StreamingDecoder<Chain<Cursor<[u8; 4]>, R>, FrameDecoder>;

impl<R: BufRead> Frames<R> {
    pub(super) fn new(input: R) -> Self {
        Self { decoder: None, input: Some(input) }
    }

    /// Begins the next frame; false at the end of the input.
    fn begin(&mut self, mut input: R) -> io::Result<bool> {
        loop {
            if input.fill_buf()?.is_empty() {
                self.input = Some(input);
                return Ok(false);
            }
            let mut magic = [0; 4];
            input.read_exact(&mut magic)?;
            if u32::from_le_bytes(magic) & !0xf != SKIPPABLE {
                let decoder =
                    StreamingDecoder::new(Cursor::new(magic).chain(input)).map_err(io::Error::other)?;
                self.decoder = Some(Box::new(decoder));
                return Ok(true);
            }
            let mut length = [0; 4];
            input.read_exact(&mut length)?;
            let length = u64::from(u32::from_le_bytes(length));
            if io::copy(&mut input.by_ref().take(length), &mut io::sink())? < length {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(input) = self.input.take()
                && !self.begin(input)?
            {
                return Ok(0);
            }
            let Some(decoder) = &mut self.decoder else { return Ok(0) };
            let read = decoder.read(out)?;
            if read > 0 || out.is_empty() {
                return Ok(read);
            }
            if let Some(decoder) = self.decoder.take() {
                let (input, frame) = decoder.into_parts();
                check(&frame)?;
                self.input = Some(input.into_inner().1);
            }
        }
    }
}

/// Checks that a frame that was read to its end has unpacked to what its checksum is of, if it has one.
fn check(frame: &FrameDecoder) -> io::Result<()> {
    match frame.get_checksum_from_data() {
        Some(stated) if frame.get_calculated_checksum() != Some(stated) => {
            Err(io::Error::new(ErrorKind::InvalidData, "its checksum is that of other contents"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `seq 0 2999 | zstd` writes, with the checksum that zstd adds by default.
    const PACKED: &[u8] = include_bytes!("../../../tests/golden/texts/numbers.zst");

    fn unpacked(bytes: &[u8]) -> io::Result<String> {
        let mut text = String::new();
        Frames::new(bytes).read_to_string(&mut text).map(|_| text)
    }

    fn numbers() -> String {
        (0..3000).map(|n| format!("{n}\n")).collect()
    }

    #[test]
    fn frames_to_be_skipped_are_skipped() {
        let skipped = [&(SKIPPABLE + 3).to_le_bytes()[..], &5u32.to_le_bytes(), b"notes"].concat();
        let whole = [&skipped, PACKED, &skipped, &skipped, PACKED, &skipped].concat();
        assert_eq!(unpacked(&whole).expect("frames"), numbers().repeat(2));
        for cut in 1..skipped.len() {
            assert!(unpacked(&whole[..whole.len() - cut]).is_err(), "{cut}");
        }
        assert_eq!(unpacked(&skipped).expect("nothing"), "");
    }

    #[test]
    fn the_window_is_the_one_that_the_header_states() {
        let head = |rest: &[u8]| [&MAGIC.to_le_bytes()[..], rest].concat();
        for (rest, expected) in [
            (&[0x00, 0x88][..], Some(128 << 20)),
            (&[0x04, 0x58], Some(2 << 20)),
            (&[0x04, 0x5a], Some((2 << 20) + (2 << 18))),
            (&[0x00, 0xff], Some(LONGEST_WINDOW)),
            (&[0x20, 7], Some(7)),
            (&[0x60, 1, 1], Some(513)),
            (&[0xa1, 9, 0, 0, 1, 0], Some(1 << 16)),
            (&[0xa1, 9, 0, 0], None),
            (&[], None),
        ] {
            assert_eq!(window(&head(rest)), expected, "{rest:x?}");
        }
        assert_eq!(window(b"a text"), None);
        assert!(window(PACKED).expect("a frame") <= USUAL_WINDOW);
    }

    #[test]
    fn no_bit_changes_the_text_unseen() {
        assert_eq!(unpacked(PACKED).expect("a frame"), numbers());
        let mut meaningless = 0;
        for at in 0..PACKED.len() {
            let mut bytes = PACKED.to_vec();
            bytes[at] ^= 1 << (at % 8);
            // such as the size of the window in the header, and reserved bits
            if let Ok(text) = unpacked(&bytes) {
                assert_eq!(text, numbers(), "byte {at}");
                meaningless += 1;
            }
        }
        assert!(meaningless < 10, "{meaningless} bits have no meaning");
    }
}
