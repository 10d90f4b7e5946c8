//! Whether data are new to a model: what it is trained on, and what its weights were trained on before.
//!
//! Data are known again by their contents. A file counts by its digest, shards by the texts that they were prepared
//! from as well where that is certain, a built-in text by its name, and a whole set by its own digest.

use super::inputs::{Data, relative};
use super::model::Source;
use crate::data::origin::{Held, Origins, Stretch, held, stretches};
use crate::data::{self, Dataset, Format, ShardInfo};
use crate::plan::lints::{Shards, Shared};
use crate::recipe::{Overrides, load};
use crate::run::checkpoint::{self, CheckpointState, TrainedOn};
use crate::run::record::TrainedBefore;
use crate::run::{RunRecord, dir};
use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;
use std::slice;

/// More files than a record has digests of, which is written often.
const MOST_FILES: usize = 10_000;
/// What follows the digest of a text of which a part is in no shard that was trained on.
const PART: &str = "-part";
/// What follows the digest of a file of which the end was set aside.
const BEGIN: &str = "-begin";

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
        let is_whole = |file: &String| !file.ends_with(PART) && !file.ends_with(BEGIN);
        let is_same = files.is_empty() && trained_on.files.iter().all(is_whole);
        if is_same && !trained_on.files.is_empty() && trained_on.sets.len() == 1 {
            return (None, Vec::new());
        }
        let is_seen = |set: &Dataset| {
            others.clone().any(|digest| set.digest() == *digest)
                || has_one_of(&stretches(set, u64::MAX), &self.origins[1], &files)
        };
        let seen: Vec<Option<&str>> =
            self.validation().filter(|(_, set)| is_seen(set)).map(|(name, _)| name).collect();
        let is_known = !seen.is_empty() || others.any(|digest| self.uncut.as_ref() == Some(digest));
        let before = if is_known { TrainedBefore::ValidationData } else { TrainedBefore::OtherData };
        (Some(before), seen.into_iter().flatten().map(str::to_owned).collect())
    }

    /// By what the training data are known again: the beginnings of the digests of files, and behind them those of the
    /// texts that they were prepared from.
    fn trained_files(&self) -> Vec<String> {
        let shards = stretches(&self.train, u64::MAX);
        let of_shard = |shard: &Stretch| begin_of(shard.info) + if shard.is_whole { "" } else { BEGIN };
        let mut files: Vec<String> = shards.iter().map(of_shard).collect();
        for Held { whole, part, .. } in held(&self.origins[0], &shards) {
            files.extend(whole.into_iter().map(begin));
            files.extend(part.into_iter().map(|text| begin(text) + PART));
        }
        files
    }

    /// By what the training data of a run are known again, and all that its weights had seen `before`, sorted. Where
    /// that is too much for a record, first the texts of shards are left out, then what was seen before.
    pub(super) fn files_seen(&self, before: &[String]) -> Vec<String> {
        let shards = stretches(&self.train, u64::MAX).len();
        if shards > MOST_FILES {
            return Vec::new();
        }
        let mut files = self.trained_files();
        if files.len() > MOST_FILES {
            files.truncate(shards);
        }
        let own = BTreeSet::from_iter(files);
        // a checkpoint that is gone on from has those of this run among them
        let both: BTreeSet<&String> = own.iter().chain(before).collect();
        match both.len() <= MOST_FILES {
            true => both.into_iter().cloned().collect(),
            false => own.into_iter().collect(),
        }
    }

    /// The shards of validation data of which something is trained on, as far as that is certain.
    pub(super) fn shared(&self) -> Vec<Shared> {
        let [of_train, of_val] = &self.origins;
        let train = stretches(&self.train, u64::MAX);
        let mut contents: Vec<String> = train.iter().map(|shard| content_of(shard.info)).collect();
        // the parts of a shard that is cut in two have no token in common
        let cut = train.iter().position(|shard| !shard.is_whole);
        // which a further shard of the same contents has, where validation data have it from its beginning
        let begun = cut.map(|cut| content_of(train[cut].info));
        if let Some(cut) = cut {
            let is_elsewhere = |at: usize| {
                // of built-in texts of one seed, one may end before the cut of the other
                let is_as_long =
                    train[at].info.format != Format::Builtin || train[at].info.name == train[cut].info.name;
                at != cut && contents[at] == contents[cut] && is_as_long
            };
            if !(0..contents.len()).any(is_elsewhere) {
                let own = contents[cut].clone();
                contents.iter_mut().filter(|one| **one == own).for_each(|one| *one += " to the cut");
            }
        }
        let trained = held(of_train, &train);
        let contents: HashSet<&str> = contents.iter().map(String::as_str).collect();
        let whole: HashSet<&str> =
            trained.iter().flat_map(|held| &held.whole).chain(&contents).copied().collect();
        let mut shared = Vec::new();
        for (name, set) in self.validation() {
            let shards = stretches(set, u64::MAX);
            let of_files: Vec<String> = shards.iter().map(|shard| content_of(shard.info)).collect();
            let validated = held(of_val, &shards);
            let whole_here = validated.iter().flat_map(|held| &held.whole).copied();
            let whole_here: HashSet<&str> = whole_here.chain(of_files.iter().map(String::as_str)).collect();
            // texts that are trained on in part, as far as this set has them from beginning to end
            let found = trained.iter().filter(|held| held.has(|text, _| whole_here.contains(text)));
            let found = found.flat_map(|held| held.whole.iter().chain(&held.part).chain(&held.one_of));
            let partly: HashSet<&str> = found.copied().filter(|text| whole_here.contains(text)).collect();
            let is_prepared_from = |shards: &[Stretch], is_one: &dyn Fn(&str) -> bool| {
                held(of_val, shards).iter().any(|held| held.has(|text, _| is_one(text)))
            };
            let is_one = |text: &str| whole.contains(text) || partly.contains(text);
            let are_prepared_from_one = is_prepared_from(&shards, &is_one);
            for (shard, content) in shards.iter().zip(&of_files) {
                let alone = slice::from_ref(shard);
                let is_certain = contents.contains(&**content)
                    || shard.is_first && begun.as_ref() == Some(content)
                    || are_prepared_from_one && is_prepared_from(alone, &|text| whole.contains(text));
                if is_certain
                    || partly.contains(&**content)
                    || are_prepared_from_one && is_prepared_from(alone, &is_one)
                {
                    let (name, set) = (relative(&shard.info.name), name.map(str::to_owned));
                    shared.push(Shared { name, set, is_certain });
                }
            }
        }
        shared
    }

    /// What lints ask about the files.
    pub fn shards(&self) -> Shards {
        let val = self.validation().flat_map(|(_, set)| set.shards()).map(|info| ("data.val", info));
        let all = Vec::from_iter(self.train.shards().map(|info| ("data.train", info)).chain(val));
        let largest = all.iter().filter_map(|(_, info)| usize::try_from(info.range?.1).ok()).max();
        // a part that is set aside is of the same file
        let mut known = HashSet::new();
        let unwritten = all.iter().filter(|(_, info)| info.holes > 0 && known.insert(&info.name));
        let unwritten = unwritten.map(|(key, info)| (*key, relative(&info.name), info.holes)).collect();
        let is_mixture = !self.train.sources().is_empty();
        let train = Some((true, &self.train)).filter(|_| !is_mixture);
        let sets = train.into_iter().chain(self.validation().map(|(_, set)| (false, set)));
        let repeated = sets.flat_map(|(trains, set)| repeated(set).map(move |name| (trains, name))).collect();
        let (before, sets) = self.trained_before(&self.start.trained_on());
        let seen_before = (before == Some(TrainedBefore::ValidationData)).then_some(sets);
        let cut = self.tasks.found.iter().filter(|task| task.cut.contexts > 0);
        let cut = cut.map(|task| (task.name.clone(), task.cut.contexts, task.examples.len())).collect();
        let skipped = self.tasks.skipped.clone();
        Shards {
            train: self.train.shards().len(),
            largest,
            unwritten,
            repeated,
            shared: self.shared(),
            seen_before,
            skipped,
            cut,
        }
    }
}

/// The files of a set whose contents an earlier one has.
fn repeated(set: &Dataset) -> impl Iterator<Item = String> {
    let mut known = HashSet::new();
    let again = move |info: &&ShardInfo| info.tokens > 0 && !known.insert(content_of(info));
    set.shards().filter(again).map(|info| relative(&info.name))
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

/// Whether shards are a file, or hold some of a text, by which one of these is known again.
fn has_one_of(shards: &[Stretch], origins: &Origins, files: &HashSet<&str>) -> bool {
    let is_known = |own: &str, is_first: bool, is_whole: bool| {
        files.contains(own)
            || is_first && files.contains(&*format!("{own}{BEGIN}"))
            || is_whole && files.contains(&*format!("{own}{PART}"))
    };
    let is_file = |Stretch { info, is_first, is_whole, .. }: &Stretch| {
        // records of earlier versions have the digests of built-in texts
        let names = [begin_of(info), begin(info.digest.to_hex())];
        // built-in texts of one seed begin alike
        let is_alike = info.format != Format::Builtin || *is_first;
        is_alike && names.iter().any(|own| is_known(own, *is_first, *is_whole))
    };
    let held = held(origins, shards);
    shards.iter().any(is_file)
        || held.iter().any(|held| held.has(|text, is_whole| is_known(&begin(text), is_whole, is_whole)))
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
pub(super) struct TrainingData {
    /// Whether data of its own run are among them: the first checkpoint of a branch is that of the other run.
    pub(super) has_own: bool,
    /// The digests of whole sets.
    sets: Vec<String>,
    /// By what files are known again.
    files: Vec<String>,
    /// The files that a run has noted whose checkpoint says nothing of them, as those of earlier versions: a part of
    /// one may have been set aside.
    noted: Vec<String>,
    /// Where the files were, of a run that says no more of them.
    places: HashSet<PathBuf>,
}

impl TrainingData {
    /// Reads what the checkpoint of a model says, beside the record of its run.
    pub(super) fn of(source: &Source, record: Option<&RunRecord>) -> Self {
        let checkpoint = checkpoint::of_weights(source.weights());
        let state = checkpoint.and_then(|checkpoint| CheckpointState::read(checkpoint).ok());
        let has_own = state.as_ref().is_none_or(CheckpointState::has_trained);
        let TrainedOn { sets, files } = state.map(|state| state.trained_on()).unwrap_or_default();
        let says_nothing = files.is_empty() && has_own;
        let noted = record.filter(|_| says_nothing).map(|record| record.train_files.clone());
        let noted = noted.unwrap_or_default();
        let run = source.run().filter(|_| says_nothing && noted.is_empty());
        let recipe = run.and_then(|run| load(&run.join(dir::RECIPE), &Overrides::default()).ok());
        let train = recipe.map(|resolved| data::files(&resolved.recipe.data.train)).unwrap_or_default();
        let places = train.iter().filter_map(|path| path.canonicalize().ok()).collect();
        Self { has_own, sets, files, noted, places }
    }

    /// Whether something in the first `rows` rows of a set is among them. A set that `is_apart` has no file of which
    /// the rest is trained on.
    pub(super) fn has_some_of(&self, set: &Dataset, rows: u64, origins: &Origins, is_apart: bool) -> bool {
        let read = stretches(set, rows);
        let is_at_one = |shard: &Stretch| {
            let place = shard.info.path.as_ref().and_then(|path| path.canonicalize().ok());
            place.is_some_and(|place| self.places.contains(&place))
        };
        let noted = self.noted.iter().filter(|_| is_apart);
        self.sets.contains(&set.digest())
            || has_one_of(&read, origins, &self.files.iter().chain(noted).map(String::as_str).collect())
            || is_apart && !self.places.is_empty() && read.iter().any(is_at_one)
    }
}
