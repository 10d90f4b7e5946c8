//! Whether data are new to a model: what it is trained on, and what its weights were trained on before.
//!
//! Data are known again by their contents. A file counts by its digest, shards by the texts that they were prepared
//! from as well where that is certain, a built-in text by its name, and a whole set by its own digest.

use super::inputs::{Data, relative};
use super::model::Source;
use crate::data::origin::{Held, Origins, held};
use crate::data::{self, Dataset, Format, ShardInfo};
use crate::plan::lints::{Shards, Shared};
use crate::recipe::{Overrides, load};
use crate::run::checkpoint::{CheckpointState, TrainedOn};
use crate::run::record::TrainedBefore;
use crate::run::{RunRecord, dir};
use std::collections::HashSet;
use std::iter;
use std::path::{Path, PathBuf};

/// More files than a record has digests of, which is written often.
const MOST_FILES: usize = 10_000;
/// What follows the digest of a text of which a part is in no shard that was trained on.
const PART: &str = "-part";

impl Data {
    /// What weights that have seen `trained_on` were trained on beside the training data of this run, and which of
    /// several sets of validation data are known to be among that.
    pub fn trained_before(&self, trained_on: &TrainedOn) -> (Option<TrainedBefore>, Vec<String>) {
        let mut others = trained_on.sets.iter().filter(|digest| **digest != self.digests.train);
        if self.val.is_none() || others.clone().next().is_none() {
            return (None, Vec::new());
        }
        // of a file that this run trains on, too, a part may have been set aside
        let own = HashSet::<String>::from_iter(self.trained_files());
        let files: HashSet<&str> =
            trained_on.files.iter().filter(|file| !own.contains(*file)).map(String::as_str).collect();
        // the same files in another order, or with other shares
        if files.is_empty() && !trained_on.files.is_empty() && trained_on.sets.len() == 1 {
            return (None, Vec::new());
        }
        let is_seen = |set: &Dataset| {
            others.clone().any(|digest| set.digest() == *digest)
                || has_one_of(&Vec::from_iter(set.shards()), &self.origins[1], &files)
        };
        let seen: Vec<Option<&str>> =
            self.validation().filter(|(_, set)| is_seen(set)).map(|(name, _)| name).collect();
        let is_known = !seen.is_empty() || others.any(|digest| self.uncut.as_ref() == Some(digest));
        let before = if is_known { TrainedBefore::ValidationData } else { TrainedBefore::OtherData };
        (Some(before), seen.into_iter().flatten().map(str::to_owned).collect())
    }

    /// By what the training data are known again: the beginnings of the digests of files, and of the texts that they
    /// were prepared from.
    fn trained_files(&self) -> Vec<String> {
        let shards = || self.train.shards().zip(self.train.are_whole());
        let mut files: Vec<String> =
            shards().map(|(info, is_whole)| begin_of(info) + if is_whole { "" } else { PART }).collect();
        let whole = shards().filter_map(|(info, is_whole)| is_whole.then_some(info));
        let of_whole = held(&self.origins[0], whole);
        let texts = of_whole.iter().flat_map(|held| &held.whole).map(begin);
        files.extend(texts);
        // of a shard that is cut in two, all may be the other part's but what a single text has
        let is_single = |held: &&Held| held.one_of.is_empty() && held.whole.len() + held.part.len() == 1;
        let of_cut: Vec<Held> = shards()
            .filter(|(_, is_whole)| !is_whole)
            .flat_map(|(info, _)| held(&self.origins[0], iter::once(info)))
            .collect();
        let of_cut = of_cut.iter().filter(is_single).flat_map(|held| held.whole.iter().chain(&held.part));
        let parts = of_whole.iter().flat_map(|held| &held.part).chain(of_cut);
        files.extend(parts.map(|text| begin(text) + PART));
        files
    }

    /// By what the training data of a run are known again, and all that its weights had seen `before`, sorted. Where
    /// that is too much for a record, first the texts of shards are left out, then what was seen before.
    pub(super) fn files_seen(&self, before: &[String]) -> Vec<String> {
        let shards = self.train.shards().len();
        if shards > MOST_FILES {
            return Vec::new();
        }
        let mut files = self.trained_files();
        if files.len() > MOST_FILES {
            files.truncate(shards);
        }
        if files.len() + before.len() <= MOST_FILES {
            files.extend_from_slice(before);
        }
        files.sort_unstable();
        files.dedup();
        files
    }

    /// The shards of validation data of which something is trained on, as far as that is certain.
    pub(super) fn shared(&self) -> Vec<Shared> {
        let [of_train, of_val] = &self.origins;
        let mut contents: Vec<String> = self.train.shards().map(content_of).collect();
        // the parts of a shard that is cut in two have no token in common
        if let Some(cut) = self.train.are_whole().position(|is_whole| !is_whole) {
            let is_elsewhere = |at: usize| at != cut && contents[at] == contents[cut];
            if !(0..contents.len()).any(is_elsewhere) {
                contents[cut] += " to the cut";
            }
        }
        let whole_shards = self.train.shards().zip(self.train.are_whole());
        let trained = held(of_train, whole_shards.filter_map(|(info, is_whole)| is_whole.then_some(info)));
        let contents: HashSet<&str> = contents.iter().map(String::as_str).collect();
        let whole: HashSet<&str> =
            trained.iter().flat_map(|held| &held.whole).chain(&contents).copied().collect();
        let mut shared = Vec::new();
        for (name, set) in self.validation() {
            let shards: Vec<_> = set.shards().map(|info| (info, content_of(info))).collect();
            let validated = held(of_val, set.shards());
            let of_files = shards.iter().map(|(_, content)| content.as_str());
            let whole_here: HashSet<&str> =
                validated.iter().flat_map(|held| &held.whole).copied().chain(of_files).collect();
            // texts that are trained on in part, as far as this set has them from beginning to end
            let found = trained.iter().filter(|held| held.has(|text, _| whole_here.contains(text)));
            let found = found.flat_map(|held| held.whole.iter().chain(&held.part).chain(&held.one_of));
            let partly: HashSet<&str> = found.copied().filter(|text| whole_here.contains(text)).collect();
            let is_one = |text: &str, _| whole.contains(text) || partly.contains(text);
            let is_prepared_from_one = validated.iter().any(|held| held.has(is_one));
            let is_shared = |(info, content): &&(&ShardInfo, String)| {
                contents.contains(&**content)
                    || partly.contains(&**content)
                    || is_prepared_from_one
                        && held(of_val, iter::once(*info)).iter().any(|held| held.has(is_one))
            };
            let here = shards.iter().filter(is_shared);
            let set = name.map(str::to_owned);
            shared.extend(here.map(|(info, _)| Shared { name: relative(&info.name), set: set.clone() }));
        }
        shared
    }

    /// What lints ask about the files.
    pub fn shards(&self) -> Shards {
        let val = self.validation().flat_map(|(_, set)| set.shards());
        let largest = self.train.shards().chain(val).filter_map(|info| usize::try_from(info.range?.1).ok());
        let largest = largest.max();
        let (before, sets) = self.trained_before(&self.start.trained_on());
        let seen_before = (before == Some(TrainedBefore::ValidationData)).then_some(sets);
        let cut = self.tasks.found.iter().filter(|task| task.cut.contexts > 0);
        let cut = cut.map(|task| (task.name.clone(), task.cut.contexts, task.examples.len())).collect();
        let skipped = self.tasks.skipped.clone();
        Shards { train: self.train.shards().len(), largest, shared: self.shared(), seen_before, skipped, cut }
    }
}

/// The first 16 hexadecimal digits of a digest.
fn begin(digest: impl AsRef<str>) -> String {
    digest.as_ref().chars().take(16).collect()
}

/// What two shards with common contents share: a digest, or the beginning of a built-in text's name.
fn content_of(info: &ShardInfo) -> String {
    match info.format {
        Format::Builtin => beginning(info).to_owned(),
        _ => info.digest.to_string(),
    }
}

/// What stands for a file or a built-in text.
fn begin_of(info: &ShardInfo) -> String {
    match info.format {
        Format::Builtin => beginning(info).to_owned(),
        _ => begin(info.digest.to_hex()),
    }
}

/// The name of a built-in text without its length: those of one seed begin alike.
fn beginning(info: &ShardInfo) -> &str {
    info.name.split(",words").next().unwrap_or(&info.name)
}

/// Whether some shards are a file, or hold some of a text, by which one of these is known again.
fn has_one_of(shards: &[&ShardInfo], origins: &Origins, files: &HashSet<&str>) -> bool {
    let is_known = |own: &str, is_whole: bool| {
        files.contains(own) || is_whole && files.contains(&*format!("{own}{PART}"))
    };
    // records of earlier versions have the digests of built-in texts
    let names = |info: &ShardInfo| [begin_of(info), begin(info.digest.to_hex())];
    shards.iter().any(|info| names(info).iter().any(|own| is_known(own, true)))
        || held(origins, shards.iter().copied())
            .iter()
            .any(|held| held.has(|text, is_whole| is_known(&begin(text), is_whole)))
}

/// The directory that has the state of weights, if they have one: those of other programs have none beside them.
pub(super) fn dir_of_weights(weights: &Path) -> &Path {
    if weights.is_dir() { weights } else { weights.parent().unwrap_or(weights) }
}

/// Whether weights that have seen these training data may have seen the validation data among them. A lint tells of
/// those that are known to be.
pub(super) fn perhaps_seen(data: &Data, trained_on: &TrainedOn) -> Option<String> {
    (data.trained_before(trained_on).0 == Some(TrainedBefore::OtherData)).then(|| {
        "the validation data may be among those that the other run was trained on: a loss on seen data says nothing \
         about new data"
            .to_owned()
    })
}

/// What a model was trained on, as far as its checkpoint and its run say.
#[derive(Default)]
pub(super) struct TrainingData {
    /// Whether data of its own run are among them: the first checkpoint of a branch is that of the other run.
    pub(super) has_own: bool,
    /// The digests of whole sets.
    sets: Vec<String>,
    /// By what files are known again.
    files: Vec<String>,
    /// Where the files were, of a run that says no more of them: one of an earlier version, or of very many files.
    places: HashSet<PathBuf>,
}

impl TrainingData {
    /// Reads what the checkpoint of a model says, beside the record of its run.
    pub(super) fn of(source: &Source, record: Option<&RunRecord>) -> Self {
        let state = CheckpointState::read(dir_of_weights(source.weights())).ok();
        let has_own = state.as_ref().is_none_or(CheckpointState::has_trained);
        let TrainedOn { sets, mut files } = state.map(|state| state.trained_on()).unwrap_or_default();
        if files.is_empty() && has_own {
            files = record.map(|record| record.train_files.clone()).unwrap_or_default();
        }
        let run = source.run().filter(|_| files.is_empty() && has_own);
        let recipe = run.and_then(|run| load(&run.join(dir::RECIPE), &Overrides::default()).ok());
        let train = recipe.map(|resolved| data::files(&resolved.recipe.data.train)).unwrap_or_default();
        let places = train.iter().filter_map(|path| path.canonicalize().ok()).collect();
        Self { has_own, sets, files, places }
    }

    /// Whether something of the shards that have the first `rows` rows of a set is among them.
    pub(super) fn has_some_of(&self, set: &Dataset, rows: u64, origins: &Origins) -> bool {
        let mut before = 0;
        let mut read = Vec::new();
        for info in set.shards() {
            if info.rows > 0 && before < rows {
                read.push(info);
            }
            before += info.rows;
        }
        let is_at_one = |info: &&ShardInfo| {
            let place = info.path.as_ref().and_then(|path| path.canonicalize().ok());
            place.is_some_and(|place| self.places.contains(&place))
        };
        self.sets.contains(&set.digest())
            || has_one_of(&read, origins, &self.files.iter().map(String::as_str).collect())
            || !self.places.is_empty() && read.iter().any(is_at_one)
    }
}
