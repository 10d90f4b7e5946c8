//! A data set: shards in order, cut into numbered rows.

use super::cache::Cache;
use super::format::Format;
use super::guard::Guard;
use super::mixture::{self, Mixture};
use super::reading::{Reading, checksum};
use super::scan::Scanner;
use super::shard::{self, ShardInfo};
use super::source::expand;
use super::tokens::{Tokens, entropy};
use super::{DataError, Progress, Tokenizer};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Files over this many bytes report progress, and their checks are cached.
pub(super) const BIG: u64 = 64 << 20;

/// How to read a data set.
#[derive(Clone, Copy)]
pub struct OpenOptions<'a> {
    /// Inputs per row, T, at least 1.
    pub block_size: usize,
    /// Number of token ids that the model knows.
    pub vocab_size: usize,
    /// What makes tokens of text.
    pub tokenizer: &'a Tokenizer,
    /// Where encoded texts and results of checks are kept.
    pub cache: &'a Cache,
    /// Is told about long passes over files.
    pub progress: &'a dyn Progress,
}

/// A checked data set with rows of fixed length. Reading it cannot fail, and threads may share it. Whether its files
/// are still what they were, [`check`](Self::check) tells.
pub struct Dataset {
    shards: Vec<Shard>,
    pub(super) block_size: usize,
    vocab_size: usize,
    rows: u64,
    reading: Reading,
    /// Where the rows come from several sources, how these take turns.
    mixture: Option<Mixture>,
    /// Held while the files are looked at: of what one thread finds, another must not drop the rows.
    looking: Mutex<()>,
}

struct Shard {
    info: ShardInfo,
    tokens: Arc<Tokens>,
    /// The tokens that belong to the set, a part of the shard's where the set was split.
    part: Range<u64>,
    /// Of the mapped file, if there is one.
    guard: Option<Guard>,
    /// The number of rows in all earlier shards.
    first_row: u64,
}

impl Shard {
    fn is_whole(&self) -> bool {
        self.part == (0..self.tokens.len())
    }
}

impl Dataset {
    /// Opens and checks every file that `specs` names: paths, globs (in sorted order) and `builtin:` names.
    ///
    /// Each shard is read through once, for its digest and its largest token. Shards shorter than a row add no rows.
    ///
    /// # Errors
    /// When a file has a fault that would make a later read fail or mean something else, or when the set has not one
    /// whole row.
    pub fn open(specs: &[String], options: OpenOptions) -> Result<Self, DataError> {
        let OpenOptions { block_size, vocab_size, tokenizer, cache, progress } = options;
        let scanner = Scanner { cache, progress, big: BIG };
        let mut set = Self::empty(block_size, vocab_size);
        for source in expand(specs)? {
            let shard::Opened { info, tokens, guard } = shard::open(&source, tokenizer, &scanner)?;
            if info.range.is_some_and(|(min, max)| min < 0 || max as usize >= vocab_size)
                && let Some((index, token)) = tokens.first_outside(vocab_size)
            {
                return Err(DataError::Token { name: info.name, token, index, vocab_size });
            }
            let part = 0..info.tokens;
            set.push(Shard { info, tokens, part, guard, first_row: 0 });
        }
        match set.shards().max_by_key(|info| info.tokens) {
            Some(longest) if set.rows == 0 => Err(DataError::TooShort {
                name: longest.name.clone(),
                others: match set.shards.len() {
                    1 => String::new(),
                    n => format!(", the longest of {n} files,"),
                },
                tokens: longest.tokens,
                block_size,
            }),
            _ => Ok(set),
        }
    }

    /// Opens several sources, each a path, a glob or a `builtin:` name, whose rows are read in proportion to their
    /// weights: see [`mixture`]. A single source is read as [`open`](Self::open) does, whatever its
    /// weight.
    ///
    /// # Errors
    /// As for [`open`](Self::open), and when a weight is so small that it comes to no row of a thousand.
    pub fn open_mixture(parts: &[(String, f64)], options: OpenOptions) -> Result<Self, DataError> {
        if let [(name, _)] = parts {
            return Self::open(std::slice::from_ref(name), options);
        }
        let shares = mixture::shares(parts)?;
        let mut set = Self::empty(options.block_size, options.vocab_size);
        let mut sources = Vec::new();
        for ((name, _), share) in parts.iter().zip(shares) {
            let (first, source) = (set.rows, Self::open(std::slice::from_ref(name), options)?);
            let (tokens, digest) = (source.tokens(), source.digest());
            source.shards.into_iter().for_each(|shard| set.push(shard));
            sources.push(mixture::Source {
                name: name.clone(),
                share,
                tokens,
                rows: first..set.rows,
                digest,
            });
        }
        set.mixture = Some(Mixture::new(sources));
        Ok(set)
    }

    /// The sources of a mixture, in the order of the recipe; none for a set that is no mixture.
    pub fn sources(&self) -> &[mixture::Source] {
        self.mixture.as_ref().map_or(&[], Mixture::sources)
    }

    pub(super) fn mixture(&self) -> Option<&Mixture> {
        self.mixture.as_ref()
    }

    fn empty(block_size: usize, vocab_size: usize) -> Self {
        let (reading, looking) = (Reading::default(), Mutex::new(()));
        Self { shards: Vec::new(), block_size, vocab_size, rows: 0, reading, mixture: None, looking }
    }

    /// The names in `specs` that lead to nothing, with the reason: missing files, globs without a match, unknown
    /// built-in names. It opens no file, so it is quick however large the data are.
    pub fn missing(specs: &[String]) -> Vec<DataError> {
        super::source::missing(specs)
    }

    /// Adds a shard behind the others, with the rows that its part holds.
    fn push(&mut self, mut shard: Shard) {
        shard.info.tokens = shard.part.end - shard.part.start;
        shard.info.rows = shard.info.tokens.saturating_sub(1) / self.block_size as u64;
        shard.first_row = self.rows;
        self.rows += shard.info.rows;
        self.shards.push(shard);
    }

    /// Cuts the set in two: of its N tokens in reading order, the last ⌊`fraction` · N⌋ are the second part,
    /// the others the first. No token belongs to both, so none is a target in one part and an input in the
    /// other. The product is rounded to a 64-bit floating-point number first, so ⌊0.29 · 100⌋ is 28: what runs were
    /// trained on stays what it was.
    ///
    /// The cut depends on the data and the fraction alone, not on the length of a row.
    ///
    /// # Errors
    /// [`DataError::SplitTooShort`] if one of the parts has not one whole row, [`DataError::SplitMixture`] for a
    /// mixture.
    pub fn split(self, fraction: f64) -> Result<(Self, Self), DataError> {
        if self.mixture.is_some() {
            return Err(DataError::SplitMixture);
        }
        let tokens = self.tokens();
        // files of 2^53 tokens, the most that a float counts exactly, do not exist
        let cut = tokens - ((fraction * tokens as f64) as u64).min(tokens);
        let empty = || Self::empty(self.block_size, self.vocab_size);
        let (mut first, mut second) = (empty(), empty());
        let mut before = 0;
        for shard in self.shards {
            let here = cut.saturating_sub(before).min(shard.info.tokens);
            before += shard.info.tokens;
            let Range { start, end } = shard.part;
            for (set, part) in [(&mut first, start..start + here), (&mut second, start + here..end)] {
                if !part.is_empty() {
                    set.push(Shard {
                        info: shard.info.clone(),
                        tokens: shard.tokens.clone(),
                        part,
                        // each part looks after the rows that were read of it
                        guard: shard.guard.as_ref().map(Guard::twin),
                        first_row: 0,
                    });
                }
            }
        }
        for (part, what) in [(&first, "first"), (&second, "last")] {
            if part.rows == 0 {
                let (tokens, of, block_size) = (part.tokens(), tokens, self.block_size);
                return Err(DataError::SplitTooShort { what, tokens, of, block_size });
            }
        }
        Ok((first, second))
    }

    /// Inputs per row, T.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Number of rows R, at least 1: the sum over the shards of (tokens - 1) / T.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Number of tokens in all shards, including those outside whole rows.
    pub fn tokens(&self) -> u64 {
        self.shards().map(|info| info.tokens).sum()
    }

    /// Tokens before the end of the first `rows` rows that are in none of them: what shards have behind their last
    /// whole row, or all of them where they are shorter than a row. Which these are depends on the length of a row.
    pub fn passed_over(&self, rows: u64) -> u64 {
        let ends = self.shards.iter().skip(1).map(|shard| shard.first_row).chain([self.rows]);
        let behind = self.shards.iter().zip(ends).take_while(|(_, end)| *end < rows);
        let left = |(shard, end): (&Shard, u64)| {
            (shard.part.end - shard.part.start) - (end - shard.first_row) * self.block_size as u64
        };
        behind.map(left).sum()
    }

    /// Whether each shard belongs to the set with its first token, and whether with all of them, in reading order.
    pub fn are_whole(&self) -> impl Iterator<Item = (bool, bool)> {
        self.shards.iter().map(|shard| (shard.part.start == 0, shard.is_whole()))
    }

    /// The shards in reading order. Of a shard of which a part belongs to the set, the number of tokens and rows is the
    /// part's, the range and the digest are the whole shard's.
    pub fn shards(&self) -> impl ExactSizeIterator<Item = &ShardInfo> {
        self.shards.iter().map(|shard| &shard.info)
    }

    /// blake3 of the shards' contents in order, as 64 hexadecimal digits. Names and directories of files have
    /// no influence, except that the extension may say that a file is text. A part of a shard enters with the shard's
    /// contents and the numbers of its first token and of the one behind its last. The sources of a mixture enter with
    /// their shares and digests, in order.
    pub fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        if let Some(mixture) = &self.mixture {
            for source in mixture.sources() {
                hasher.update(b"source").update(&source.share.to_le_bytes()).update(source.digest.as_bytes());
            }
            return hasher.finalize().to_hex().to_string();
        }
        for shard in &self.shards {
            let info = &shard.info;
            // as text, the same bytes are other tokens
            let kind = match info.format {
                Format::Text | Format::Builtin => b"text",
                // as 16-bit tokens too
                Format::Megatron { bits: 32 } => b"wide",
                Format::LlmC | Format::Npy | Format::Headerless | Format::Megatron { .. } => b"toks",
            };
            match shard.is_whole() {
                true => hasher.update(kind),
                // the contents of a part are those of its shard between two tokens
                false => hasher
                    .update(b"part")
                    .update(&shard.part.start.to_le_bytes())
                    .update(&shard.part.end.to_le_bytes())
                    .update(kind),
            };
            hasher.update(info.digest.as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }

    /// Copies row `row`: its T tokens into `inputs`, and the T tokens that start one later into `targets`.
    /// Panics if there is no such row or a slice is not of length T.
    ///
    /// A token outside the vocabulary, which only a file has that was changed since it was opened, is read as 0;
    /// [`outside`](Self::outside) and [`check`](Self::check) tell of it.
    pub fn fill(&self, row: u64, inputs: &mut [u32], targets: &mut [u32]) {
        assert_eq!(
            (inputs.len(), targets.len()),
            (self.block_size, self.block_size),
            "slices of block_size tokens"
        );
        let mut read = self.reading.lock();
        let checksum = self.copy(row, inputs, targets);
        read.note(row, checksum);
        let last = targets.len() - 1;
        let largest = inputs.iter().fold(targets[last], |largest, &token| largest.max(token));
        if largest as usize >= self.vocab_size {
            let is_outside = |token: &u32| *token as usize >= self.vocab_size;
            let tokens = inputs.iter().chain(&targets[last..]).copied();
            let first = tokens.enumerate().find(|(_, token)| is_outside(token));
            read.outside = read.outside.or(first.map(|(index, token)| (row, index, token)));
            inputs.iter_mut().chain(targets).filter(|token| is_outside(token)).for_each(|token| *token = 0);
        }
    }

    /// Copies a row as it is, and returns its checksum.
    fn copy(&self, row: u64, inputs: &mut [u32], targets: &mut [u32]) -> u64 {
        let (shard, at) = self.find(row);
        let last = targets.len() - 1;
        shard.tokens.read(at, inputs);
        targets[..last].copy_from_slice(&inputs[1..]);
        shard.tokens.read(at + inputs.len() as u64, &mut targets[last..]);
        checksum(inputs) ^ u64::from(targets[last]).rotate_right(24)
    }

    /// Tells of a token outside the vocabulary that was read since the set was opened; costs next to nothing.
    ///
    /// # Errors
    /// [`DataError::InUse`] with the token and its place.
    pub fn outside(&self) -> Result<(), DataError> {
        let Some((row, index, token)) = self.reading.lock().outside else { return Ok(()) };
        let (shard, at) = self.find(row);
        let what = format!(
            "token {token} at index {} is not below model.vocab_size, which is {}",
            at + index as u64,
            self.vocab_size
        );
        Err(DataError::InUse { name: shard.info.name.clone(), what })
    }

    /// Checks that everything that was read came from the files as they were when the set was opened. Asks the system
    /// what has been done to each file, and reads its contents again only where that is something.
    ///
    /// # Errors
    /// [`DataError::InUse`] names the file and what has changed.
    pub fn check(&self) -> Result<(), DataError> {
        self.verify(|_| false)
    }

    /// Checks as [`check`](Self::check) does, and also reads the contents of every file that is not big (up to 64 MiB,
    /// as whenever a set is opened). A change that the file system does not tell of is found as well.
    ///
    /// # Errors
    /// [`DataError::InUse`] names the file and what has changed.
    pub fn check_contents(&self) -> Result<(), DataError> {
        self.verify(|guard| guard.bytes() <= BIG)
    }

    fn verify(&self, again: impl Fn(&Guard) -> bool) -> Result<(), DataError> {
        let _alone = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        self.outside()?;
        let before = self.reading.take();
        let mut suspects = Vec::new();
        for guard in self.shards.iter().map(|shard| &shard.guard) {
            suspects.push(match guard {
                Some(guard) => guard.check(again(guard))?,
                None => false,
            });
        }
        if !suspects.contains(&true) {
            // rows that were read since the files were looked at are left for the next time
            return Ok(());
        }
        let (mut inputs, mut targets) = (vec![0; self.block_size], vec![0; self.block_size]);
        let mut now = |row| self.copy(row, &mut inputs, &mut targets);
        match [before, self.reading.take()].iter().find_map(|rows| rows.first_differing(&mut now)) {
            None => self.outside(),
            Some(row) => {
                let (shard, at) = self.find(row);
                let what = format!("the row from token {at} on was read with other tokens than it has now");
                Err(DataError::InUse { name: shard.info.name.clone(), what })
            }
        }
    }

    /// The name of the shard that holds row `row`, and the index of the row's first token in that shard; for
    /// messages. Panics if there is no such row.
    pub fn locate(&self, row: u64) -> (&str, u64) {
        let (shard, at) = self.find(row);
        (&shard.info.name, at)
    }

    /// Entropy of the token frequencies in nats per token: the loss of the best model that ignores context.
    /// Reads the whole set.
    pub fn unigram_entropy(&self) -> f64 {
        let ids =
            self.shards().filter_map(|info| info.range).map(|(_, max)| max as usize + 1).max().unwrap_or(0);
        let mut counts = vec![0u64; ids];
        for shard in &self.shards {
            counts
                .iter_mut()
                .zip(shard.tokens.histogram(shard.part.clone(), ids))
                .for_each(|(sum, n)| *sum += n);
        }
        entropy(&counts)
    }

    fn find(&self, row: u64) -> (&Shard, u64) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // the last shard that starts at or before the row; one without rows starts where the next one does
        let shard = &self.shards[self.shards.partition_point(|shard| shard.first_row <= row) - 1];
        (shard, shard.part.start + (row - shard.first_row) * self.block_size as u64)
    }
}
