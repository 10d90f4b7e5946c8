//! Tokenizers, token shards, the order of rows, batches.
