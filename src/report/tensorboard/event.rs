//! Events as TensorBoard reads them: the messages `Event`, `Summary` and `TensorProto` of TensorFlow, and those of
//! TensorBoard's plugins for texts and hyperparameters. The numbers of fields are those of their definitions.

use super::tags::{FINAL, RECIPE, SAMPLES, TRAIN};
use super::wire::{Message, bytes_of, integer_of};
use crate::wording::{tame, tame_line};
use serde_json::Value as Json;

/// What an event is about; events of one kind come in the order of their steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// What a file begins with: its version, the start of a session, the hyperparameters, the recipe.
    Head,
    /// A row of `train.csv`.
    Train,
    /// A row of `val.csv`.
    Val,
    /// A generated text.
    Sample,
    /// The end of a run.
    End,
}

/// How many kinds there are.
pub(super) const KINDS: usize = 5;

const START_INFO: &str = "_hparams_/session_start_info";
const END_INFO: &str = "_hparams_/session_end_info";
/// `SessionLog.SessionStatus.START`.
const START: u64 = 1;
const DT_FLOAT: u64 = 1;
const DT_STRING: u64 = 7;
const DATA_CLASS_TENSOR: u64 = 2;
/// `Status.STATUS_SUCCESS` of the plugin for hyperparameters.
const SUCCESS: u64 = 1;

/// When and where in a run something happened.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct At {
    /// The step.
    pub(super) step: u64,
    /// Seconds since 1970.
    pub(super) wall_time: f64,
}

impl At {
    fn event(self) -> Message {
        let event = Message::default().double(1, self.wall_time);
        if self.step == 0 { event } else { event.integer(2, self.step) }
    }

    fn summary(self, value: Message) -> Vec<u8> {
        self.event().message(5, Message::default().message(1, value)).done()
    }
}

/// What every file begins with.
pub(super) fn version(at: At) -> Vec<u8> {
    at.event().bytes(3, "brain.Event:2").done()
}

/// Says that a session starts, which takes the steps from this one on: TensorBoard forgets what it has of them. It only
/// does so from the second start on, so every file begins with one at step 0.
pub(super) fn start(at: At) -> Vec<u8> {
    at.event().message(7, Message::default().integer(1, START)).done()
}

/// A row of numbers, one for each tag.
pub(super) fn scalars<'a>(at: At, values: impl IntoIterator<Item = (&'a str, f64)>) -> Vec<u8> {
    let summary = values.into_iter().fold(Message::default(), |summary, (tag, value)| {
        summary.message(1, Message::default().bytes(1, tag).float(2, value as f32))
    });
    at.event().message(5, summary).done()
}

/// A text that is shown as it is: TensorBoard takes texts for Markdown, in which an indented line is code.
pub(super) fn text(at: At, tag: &str, text: &str) -> Vec<u8> {
    let shown: String = tame(text).lines().map(|line| format!("    {line}\n")).collect();
    // a scalar: of a list, TensorBoard would make a table
    let tensor = Message::default().integer(1, DT_STRING).message(2, Message::default()).bytes(8, shown);
    at.summary(Message::default().bytes(1, tag).message(8, tensor).message(9, metadata("text", &[])))
}

/// The hyperparameters of a run, by name.
pub(super) fn hyperparameters(at: At, values: &[(String, Json)]) -> Vec<u8> {
    let info = values.iter().fold(Message::default(), |info, (name, value)| {
        // `google.protobuf.Value`
        let value = match value {
            Json::Null => return info,
            Json::Bool(value) => Message::default().integer(4, u64::from(*value)),
            Json::Number(value) => Message::default().double(2, value.as_f64().unwrap_or(f64::NAN)),
            Json::String(value) => Message::default().bytes(3, tame_line(value)),
            other => Message::default().bytes(3, tame_line(&other.to_string())),
        };
        info.message(1, Message::default().bytes(1, name).message(2, value))
    });
    let data = Message::default().message(3, info.double(5, at.wall_time));
    at.summary(plugin_data(START_INFO, data))
}

/// The end of a run that has finished, with its last validation loss.
pub(super) fn end(at: At, val_loss: Option<f64>) -> Vec<u8> {
    let info = Message::default().integer(1, SUCCESS).double(2, at.wall_time);
    let info = plugin_data(END_INFO, Message::default().message(4, info));
    let scalar = |value: f64| Message::default().bytes(1, FINAL).float(2, value as f32);
    let summary = Message::default().message(1, info);
    let summary = val_loss.into_iter().fold(summary, |summary, value| summary.message(1, scalar(value)));
    at.event().message(5, summary).done()
}

/// What the plugin for hyperparameters keeps in the metadata of an empty tensor.
fn plugin_data(tag: &str, data: Message) -> Message {
    let none = Message::default().message(2, Message::default());
    let tensor = Message::default().integer(1, DT_FLOAT).message(2, none);
    let metadata = metadata("hparams", &data.done());
    Message::default().bytes(1, tag).message(8, tensor).message(9, metadata)
}

fn metadata(plugin: &str, content: &[u8]) -> Message {
    let data = Message::default().bytes(1, plugin);
    let data = if content.is_empty() { data } else { data.bytes(2, content) };
    Message::default().message(1, data).integer(4, DATA_CLASS_TENSOR)
}

/// An event of a file, as far as it must be known to go on from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// An event about something, of a step.
    Event(Kind, u64),
    /// The steps from this one on are taken again.
    Restart(u64),
}

impl Seen {
    /// Of an event's bytes.
    pub(super) fn of(event: &[u8]) -> Self {
        let step = integer_of(event, 2);
        if step > 0 && bytes_of(event, 7).is_some_and(|log| integer_of(log, 1) == START) {
            return Self::Restart(step);
        }
        let value = bytes_of(event, 5).and_then(|summary| bytes_of(summary, 1));
        let tag = value.and_then(|value| bytes_of(value, 1)).unwrap_or_default();
        let kind = match std::str::from_utf8(tag).unwrap_or_default() {
            "" | START_INFO | RECIPE => Kind::Head,
            END_INFO => Kind::End,
            SAMPLES => Kind::Sample,
            tag if tag.starts_with(TRAIN) => Kind::Train,
            _ => Kind::Val,
        };
        Self::Event(kind, step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_known_again() {
        let at = At { step: 300, wall_time: 1.7e9 };
        let none: [(&str, f64); 0] = [];
        for (event, seen) in [
            (version(At { step: 0, ..at }), Seen::Event(Kind::Head, 0)),
            (hyperparameters(at, &[]), Seen::Event(Kind::Head, 300)),
            (text(at, RECIPE, "x"), Seen::Event(Kind::Head, 300)),
            (scalars(at, [("train/loss", 1.0)]), Seen::Event(Kind::Train, 300)),
            (scalars(at, [("val/loss", 1.0)]), Seen::Event(Kind::Val, 300)),
            (scalars(at, [("tasks/x_acc", 1.0)]), Seen::Event(Kind::Val, 300)),
            (text(at, SAMPLES, "x"), Seen::Event(Kind::Sample, 300)),
            (end(at, Some(3.0)), Seen::Event(Kind::End, 300)),
            (start(at), Seen::Restart(300)),
            (start(At { step: 0, ..at }), Seen::Event(Kind::Head, 0)),
            (scalars(at, none), Seen::Event(Kind::Head, 300)),
        ] {
            assert_eq!(Seen::of(&event), seen);
        }
    }

    #[test]
    fn a_text_is_code_and_its_control_characters_are_replaced() {
        let bytes = text(At { step: 0, wall_time: 0.0 }, SAMPLES, "a\n<b>\u{1b}[1m\n\n```");
        let shown = "    a\n    <b>\u{fffd}[1m\n    \n    ```\n";
        assert!(bytes.windows(shown.len()).any(|part| part == shown.as_bytes()), "{bytes:?}");
    }
}
