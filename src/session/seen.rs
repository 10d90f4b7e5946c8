//! Whether data are new to a model: what it is trained on, and what its weights were trained on before.
//!
//! Data are known again by their contents. A file counts by its digest, shards by the texts that they were prepared
//! from as well where that is certain, a built-in text by its name, and a whole set by its own digest.

use super::inputs::{Data, relative};
use super::model::Source;
use crate::data::vocabulary::{Origin, origin_of};
use crate::data::{self, Dataset, Format, ShardInfo};
use crate::plan::lints::{Shards, Shared};
use crate::recipe::{Overrides, load};
use crate::run::checkpoint::{CheckpointState, TrainedOn};
use crate::run::record::TrainedBefore;
use crate::run::{RunRecord, dir};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// What files were prepared from, by their directories.
pub(super) type Origins = HashMap<PathBuf, Origin>;

/// More files than a record has digests of, which is written often.
const MOST_FILES: usize = 10_000;
/// What follows the digest of a text of which a part is in no shard that was trained on.
const PART: &str = "-part";

impl Data {
    /// What weights that have seen `trained_on` were trained on beside the training data of this run.
    pub fn trained_before(&self, trained_on: &TrainedOn) -> Option<TrainedBefore> {
        let is_val = |digest: &String| {
            self.uncut.as_ref() == Some(digest) || self.validation().any(|(_, set)| set.digest() == *digest)
        };
        let mut others = trained_on.sets.iter().filter(|digest| **digest != self.digests.train).peekable();
        others.peek().filter(|_| self.val.is_some())?;
        // of a file that this run trains on, too, a part may have been set aside
        let own = HashSet::<String>::from_iter(self.trained_files());
        let files: HashSet<&str> =
            trained_on.files.iter().filter(|file| !own.contains(*file)).map(String::as_str).collect();
        let is_known =
            others.any(is_val) || self.validation().any(|(_, set)| has_one_of(set, &self.origins[1], &files));
        Some(if is_known { TrainedBefore::ValidationData } else { TrainedBefore::OtherData })
    }

    /// By what the training data are known again: the beginnings of the digests of files, and of the texts that they
    /// were prepared from.
    fn trained_files(&self) -> Vec<String> {
        let shards = self.train.shards().zip(self.train.are_whole());
        let mut files: Vec<String> =
            shards.map(|(info, is_whole)| begin_of(info) + if is_whole { "" } else { PART }).collect();
        if files.len() + self.origins[0].values().map(|origin| origin.texts.len()).sum::<usize>()
            <= MOST_FILES
        {
            files.extend(self.texts_trained_on());
        }
        files
    }

    /// The texts of which some are among the training data.
    fn texts_trained_on(&self) -> impl Iterator<Item = String> {
        let dirs = self.train.shards().filter_map(|info| info.path.as_ref()?.parent());
        let dirs: HashSet<&Path> = dirs.collect();
        let origins = self.origins[0].iter().filter(move |(dir, _)| dirs.contains(&***dir));
        origins.flat_map(|(_, origin)| {
            let is_part = !origin.is_whole || self.uncut.is_some();
            // of a part of several texts, each may be in the rest
            let known = (!is_part || origin.texts.len() == 1).then_some(&origin.texts);
            known.into_iter().flatten().map(move |text| begin(text) + if is_part { PART } else { "" })
        })
    }

    /// By what the training data of a run are known again, and all that its weights had seen `before`, sorted. Where
    /// that is too much for a record, first the texts of shards are left out, then what was seen before.
    pub(super) fn files_seen(&self, before: &[String]) -> Vec<String> {
        if self.train.shards().len() > MOST_FILES {
            return Vec::new();
        }
        let mut files = self.trained_files();
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
        let val = self.validation().flat_map(|(set, data)| data.shards().map(move |info| (set, info)));
        let val: Vec<_> = val.map(|(set, info)| (set, info, content_of(info))).collect();
        let trained: HashSet<&str> = contents.iter().map(String::as_str).collect();
        // texts to their end
        let whole =
            |origins| Origins::values(origins).filter(|origin| origin.is_whole).flat_map(Origin::texts);
        let whole_trained: HashSet<&str> =
            whole(of_train).filter(|_| self.uncut.is_none()).chain(trained.iter().copied()).collect();
        let whole_val: HashSet<&str> =
            whole(of_val).chain(val.iter().map(|(.., content)| content.as_str())).collect();
        let partly = of_train.values().filter(|origin| origin.holds_one_of(|text| whole_val.contains(text)));
        let partly: HashSet<&str> = partly.flat_map(Origin::texts).collect();
        let is_shared = |info: &ShardInfo, content: &str| {
            let origin = info.path.as_ref().and_then(|path| origin_of(path, of_val));
            let is_prepared_from_one = |origin: &Origin| {
                origin.holds_one_of(|text| {
                    whole_trained.contains(text) || origin.is_whole && partly.contains(text)
                })
            };
            trained.contains(content) || partly.contains(content) || origin.is_some_and(is_prepared_from_one)
        };
        let shared = val.iter().filter(|(_, info, content)| is_shared(info, content));
        let named = |(set, info, _): &(Option<&str>, &ShardInfo, _)| Shared {
            name: relative(&info.name),
            set: set.map(str::to_owned),
        };
        shared.map(named).collect()
    }

    /// What lints ask about the files.
    pub fn shards(&self) -> Shards {
        let val = self.validation().flat_map(|(_, set)| set.shards());
        let largest = self.train.shards().chain(val).filter_map(|info| usize::try_from(info.range?.1).ok());
        let largest = largest.max();
        let val_is_seen =
            self.trained_before(&self.start.trained_on()) == Some(TrainedBefore::ValidationData);
        let cut = self.tasks.found.iter().filter(|task| task.cut.contexts > 0);
        let cut = cut.map(|task| (task.name.clone(), task.cut.contexts, task.examples.len())).collect();
        let skipped = self.tasks.skipped.clone();
        Shards { train: self.train.shards().len(), largest, shared: self.shared(), val_is_seen, skipped, cut }
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

/// Whether a set has a file, or shards of a text, by which one of these is known again.
fn has_one_of(set: &Dataset, origins: &Origins, files: &HashSet<&str>) -> bool {
    let is_file = |info: &ShardInfo| {
        // records of earlier versions have the digests of built-in texts
        let names = [begin_of(info), begin(info.digest.to_hex())];
        names.iter().any(|own| files.contains(&**own) || files.contains(&*format!("{own}{PART}")))
    };
    let is_known = |text: &str, is_whole: bool| {
        let text = begin(text);
        files.contains(&*text) || is_whole && files.contains(&*(text + PART))
    };
    let is_prepared_from_one = |info: &ShardInfo| {
        let origin = info.path.as_ref().and_then(|path| origin_of(path, origins));
        origin.is_some_and(|origin| origin.holds_one_of(|text| is_known(text, origin.is_whole)))
    };
    set.shards().any(|info| is_file(info) || is_prepared_from_one(info))
}

/// The directory that has the state of weights, if they have one: those of other programs have none beside them.
pub(super) fn dir_of_weights(weights: &Path) -> &Path {
    if weights.is_dir() { weights } else { weights.parent().unwrap_or(weights) }
}

/// Whether weights that have seen these training data may have seen the validation data among them. A lint tells of
/// those that are known to be.
pub(super) fn perhaps_seen(data: &Data, trained_on: &TrainedOn) -> Option<String> {
    (data.trained_before(trained_on) == Some(TrainedBefore::OtherData)).then(|| {
        "the validation data may be among those that the other run was trained on: a loss on seen data says nothing \
         about new data"
            .to_owned()
    })
}

/// What a model was trained on, as far as its checkpoint and its run say.
#[derive(Default)]
pub(super) struct TrainingData {
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
        let TrainedOn { sets, mut files } = state.map(|state| state.trained_on()).unwrap_or_default();
        files.extend(record.map(|record| record.train_files.clone()).unwrap_or_default());
        let run = source.run().filter(|_| files.is_empty());
        let recipe = run.and_then(|run| load(&run.join(dir::RECIPE), &Overrides::default()).ok());
        let train = recipe.map(|resolved| data::files(&resolved.recipe.data.train)).unwrap_or_default();
        let places = train.iter().filter_map(|path| path.canonicalize().ok()).collect();
        Self { sets, files, places }
    }

    /// Whether some of a set are among them.
    pub(super) fn has_some_of(&self, set: &Dataset, origins: &Origins) -> bool {
        let is_at_one = |info: &ShardInfo| {
            let place = info.path.as_ref().and_then(|path| path.canonicalize().ok());
            place.is_some_and(|place| self.places.contains(&place))
        };
        self.sets.contains(&set.digest())
            || has_one_of(set, origins, &self.files.iter().map(String::as_str).collect())
            || !self.places.is_empty() && set.shards().any(is_at_one)
    }
}
