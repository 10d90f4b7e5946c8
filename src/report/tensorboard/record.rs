//! The frame around each event in a file: TensorFlow's record format.
//!
//! A record is the length of its data as u64, the masked checksum of that length, the data, and their masked checksum,
//! all little-endian. The checksum is CRC-32C (Castagnoli, RFC 3720); the mask is that of
//! tensorflow/core/lib/hash/crc32c.h.

use std::io::{self, Read};

/// The polynomial of CRC-32C with its bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;
const TABLE: [u32; 256] = {
    let (mut table, mut byte) = ([0; 256], 0);
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}

/// The checksum of some bytes as records state it: rotated and shifted, so that data which hold checksums have another
/// one.
pub(super) fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Appends the record of `data` to `out`.
pub(super) fn frame(data: &[u8], out: &mut Vec<u8>) {
    let length = (data.len() as u64).to_le_bytes();
    out.extend(length);
    out.extend(masked(&length).to_le_bytes());
    out.extend(data);
    out.extend(masked(data).to_le_bytes());
}

/// The number of bytes around the data of a record.
const AROUND: u64 = 16;

/// Reads the records of a file of `left` bytes, each into `data`, and hands them to `each`. Returns the bytes of the
/// whole ones: what follows was torn, damaged or not written by any writer of records.
///
/// # Errors
/// Those of `file`.
pub(super) fn read(mut file: impl Read, mut left: u64, mut each: impl FnMut(&[u8])) -> io::Result<u64> {
    let (mut whole, mut data) = (0, Vec::new());
    while left >= AROUND {
        let mut head = [0; 12];
        file.read_exact(&mut head)?;
        let length = u64::from_le_bytes(head[..8].try_into().expect("eight bytes"));
        if head[8..] != masked(&head[..8]).to_le_bytes() || length > left - AROUND {
            break;
        }
        data.resize(length as usize, 0);
        file.read_exact(&mut data)?;
        let mut sum = [0; 4];
        file.read_exact(&mut sum)?;
        if sum != masked(&data).to_le_bytes() {
            break;
        }
        each(&data);
        whole += length + AROUND;
        left -= length + AROUND;
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_that_are_published() {
        // RFC 3720, B.4, and the check value of the catalogue of parametrised CRC algorithms
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        for (bytes, sum) in [
            (&[0; 32][..], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&ascending, 0x46dd_794e),
            (&descending, 0x113f_db5c),
            (b"123456789", 0xe306_9283),
            (b"", 0),
        ] {
            assert_eq!(crc32c(bytes), sum, "{bytes:?}");
        }
    }

    #[test]
    fn a_frame_is_the_one_that_tensorflow_writes() {
        // the first records of files that TensorFlow and TensorBoard have written
        assert_eq!(masked(&24_u64.to_le_bytes()).to_le_bytes(), [0xa3, 0x7f, 0x4b, 0x22]);
        let data: Vec<u8> = [
            &[0x09, 0xd5, 0x85, 0x8a, 0x29, 0xd0, 0xc0, 0xda, 0x41, 0x1a, 0x0d][..],
            b"brain.Event:2R.\n,tensorboard.summary.writer.event_file_writer",
        ]
        .concat();
        let mut record = Vec::new();
        frame(&data, &mut record);
        assert_eq!(record[..12], [0x48, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0x92, 0x48, 0x9d]);
        assert_eq!(record[12..84], data[..]);
        assert_eq!(record[84..], [0x48, 0x86, 0xd1, 0x76]);
    }

    #[test]
    fn what_is_torn_or_damaged_ends_the_whole_records() {
        let mut file = Vec::new();
        for data in [&b"one"[..], b"", b"three"] {
            frame(data, &mut file);
        }
        let found = |file: &[u8]| {
            let mut found = Vec::new();
            let whole = read(file, file.len() as u64, |data| found.push(data.to_vec())).expect("memory");
            (whole, found)
        };
        let all = [&b"one"[..], b"", b"three"];
        assert_eq!(found(&file), (file.len() as u64, all.map(<[u8]>::to_vec).to_vec()));
        for cut in 35..file.len() {
            assert_eq!(found(&file[..cut]).0, 35, "{cut}");
        }
        // the third record begins at 35: its length, the sum of that, the data and their sum
        for damaged in [35, 44, 48, file.len() - 1] {
            let mut file = file.clone();
            file[damaged] ^= 1;
            assert_eq!(found(&file).1.len(), 2, "{damaged}");
        }
    }
}
