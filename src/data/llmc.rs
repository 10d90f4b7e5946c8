//! The header of llm.c's shards: 256 little-endian 32-bit words, of which the first three are the magic number, the
//! version (1) and the number of tokens.

use std::ops::Range;

/// First word of GPT-2 shards. Read as 16-bit tokens, its first half would be 55432, which is not a token of GPT-2, so
/// no headerless file is mistaken for a shard.
pub(super) const MAGIC: i32 = 20_240_520;
/// First word of Llama 3 shards: 32-bit tokens of another vocabulary.
pub(super) const LLAMA3_MAGIC: i32 = 20_240_801;
/// Size of the header in bytes.
pub(super) const HEADER: usize = 1024;
/// The bytes of the header where this program stores the checksum of the tokens: words 3 to 10, which llm.c leaves at
/// zero and does not read.
pub(super) const CHECKSUM: Range<usize> = 12..44;
