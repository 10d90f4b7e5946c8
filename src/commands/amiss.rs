//! What goes wrong in a session without ending it, and the words for it. People and programs get the same.

use crate::data::vocabulary::{Discrepancy, Discrepant};
use crate::session::Event;
use crate::session::inputs::relative;
use crate::train::Outcome;
use crate::wording::word;

/// What a warning says; `None` for an event that is none.
pub(super) fn warning(event: &Event) -> Option<String> {
    Some(match event {
        Event::CudaPassedOver(missing) => {
            format!("the CUDA device is not used: {missing}; {}", missing.help)
        }
        Event::TurnedAway(text) | Event::OtherRounding(text) => (*text).to_string(),
        Event::Discrepant(Discrepant { first, files, card, how }) => {
            let others = if *files > 1 { format!(" and {} more", files - 1) } else { String::new() };
            let [first, card] = [first, card].map(|path| relative(&path.display().to_string()));
            let beside = |what: &str| format!("{first}{others} lies beside {card}, which {what}");
            match how {
                Discrepancy::Unlisted => {
                    beside("does not list it, and is read as well: move it elsewhere if it is not meant")
                }
                Discrepancy::NotBelieved => beside(
                    "another user has put there, and is read as if that were not: copy both into a directory of \
                     your own if it is meant",
                ),
                Discrepancy::Replaced => format!(
                    "{first}{others} holds other tokens than {card} lists of it, and is read as it is: whether they \
                     are among other data is not known; prepare the set again if it is not meant"
                ),
                Discrepancy::Gone => format!(
                    "{first}{others} is not there, although {card} lists it: the data are less than the set has; \
                     bring it back, or name the files that are meant"
                ),
            }
        }
        Event::Damaged { checkpoint, reason } => {
            format!("{} cannot be used: {reason}", checkpoint.display())
        }
        Event::BestDamaged { checkpoint, reason } => format!(
            "{} is the checkpoint of the best evaluation and is not what was saved: {reason}; bring it back from a \
             copy: nothing takes its place until an evaluation is better",
            checkpoint.display()
        ),
        Event::BestCeased { checkpoint } => format!(
            "{} is the checkpoint of the best evaluation, and checkpoint.keep_best is false now: it is deleted as soon \
             as newer ones take its place",
            checkpoint.display()
        ),
        Event::OfAnother { run, user } => format!(
            "{} belongs to another user ({user}), and says what that user lets it say: --runs-dir names a directory of \
             your own, where the run is trained anew",
            run.display()
        ),
        Event::RunsOfAnother { path, user } => format!(
            "{} belongs to another user ({user}), who can say who may write in the runs there, and move them away: \
             --runs-dir names a directory of your own",
            path.display()
        ),
        Event::DataOfAnother { path, user } => format!(
            "{} belongs to another user ({user}), who can say what this recipe is trained on: start it in a directory \
             of your own, or name the data that you mean with --set",
            relative(&path.display().to_string())
        ),
        Event::NotScored { run, tasks } => {
            let (run, offered) = (run.display(), word(&run.display().to_string()));
            format!(
                "{run} has finished and was not scored on {}: `runner eval {offered} --all-checkpoints --save --tasks \
                 FILE` scores the checkpoints that it has kept",
                tasks.join(", ")
            )
        }
        Event::RecipeRestored { recipe } => format!(
            "{} was edited or damaged and was not this run's recipe any more: it is written again",
            recipe.display()
        ),
        Event::Rewritten { file } => format!(
            "{} was removed while the run trains: it is written again, nothing is lost",
            file.display()
        ),
        Event::NotExported(error) => format!(
            "{error}; TensorBoard's event file lags behind, the run loses nothing: `runner export RUN --tensorboard \
             DIR` makes a whole one from the logs"
        ),
        Event::Skipped { step, why } => format!("step {step} is skipped by the watchdog: {why}"),
        _ => return None,
    })
}

/// Whether something is wrong, or may be: what is said even if little is asked for.
pub(super) fn is_amiss(event: &Event) -> bool {
    match event {
        Event::AlreadyDiverged { .. } | Event::SetAside { .. } | Event::Failed(_) | Event::Hung(_) => true,
        Event::Ended(end) => !matches!(end.outcome, Ok(Outcome::Finished | Outcome::Reached(_))),
        event => warning(event).is_some(),
    }
}
