//! Tokenizers, token shards, fetching them, the order of rows, and batches.
//!
//! Training reads one endless stream of rows: [`Dataset`] turns files (or built-in text) into numbered rows
//! of `block_size` tokens, [`RowOrder`] says which row comes g-th, and [`TokenStream`] joins the two. All
//! faults of the data are found when the set is opened, so reading a row afterwards cannot fail.
//! [`Dataset::check`] finds what others change after that.

mod appearance;
mod cache;
pub mod card;
pub mod dataset;
pub mod error;
pub mod fetch;
mod foreign;
pub mod format;
mod guard;
pub mod inspect;
pub mod lipsum;
mod llmc;
mod mapping;
mod megatron;
pub mod mixture;
pub mod order;
pub mod origin;
pub mod prepare;
pub mod progress;
mod reading;
mod scan;
mod shard;
mod source;
mod stream;
mod text;
pub mod tokenizer;
mod tokens;
pub mod unfinished;
pub mod vocabulary;
pub mod write;

pub use cache::Cache;
pub use dataset::{Dataset, OpenOptions};
pub use error::DataError;
pub use format::Format;
pub use inspect::{Inspection, inspect};
pub use order::RowOrder;
pub use progress::{NoProgress, Progress};
pub use shard::ShardInfo;
pub use source::{files, named_or_matching};
pub use stream::TokenStream;
pub use tokenizer::{Tokenizer, TokenizerKind};
pub use write::write_llmc;
