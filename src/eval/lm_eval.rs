//! What EleutherAI's lm-evaluation-harness (version 0.4) makes of an example before it scores it.

use super::documents::{Choice, HellaSwag};
use super::task::tokens;
use crate::data::Tokenizer;

/// HellaSwag with its activity before the context, the second part of the context in lower case but for its first
/// letter, and the marks of WikiHow taken out of all texts.
pub(super) fn cleaned(document: &HellaSwag) -> Result<Choice, String> {
    let Some([activity, ctx_a, ctx_b]) = &document.parts else {
        return Err("lm-eval's definition needs `activity_label`, `ctx_a` and `ctx_b` beside `ctx`".into());
    };
    let context = clean(&format!("{activity}: {ctx_a} {}", capitalized(ctx_b)));
    let endings = document.endings.iter().map(|ending| clean(ending)).collect();
    Ok(Choice { context, endings, label: document.label, delimiter: " ".into() })
}

/// The first character in upper case, all others in lower case.
fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    first + &characters.as_str().to_lowercase()
}

fn clean(text: &str) -> String {
    let text = text.trim().replace(" [title]", ". ");
    let (mut out, mut rest) = (String::new(), text.as_str());
    // what stands in brackets on one line
    while let Some(open) = rest.find('[') {
        let inside = &rest[open..];
        let Some(end) = inside.find([']', '\n']) else { break };
        let (kept, after) = (open + end + 1, &inside[end + 1..]);
        // no bracket closes before the end of this line
        let is_open = inside.as_bytes()[end] == b'\n';
        out += &rest[..if is_open { kept } else { open }];
        rest = after;
    }
    (out + rest).replace("  ", " ")
}

/// The tokens of a continuation: context and continuation are encoded together, and cut where the `before` tokens of
/// the context alone end. Spaces at the end of the context belong to the continuation.
pub(super) fn ending(
    tokenizer: &Tokenizer,
    context: &str,
    before: usize,
    continuation: &str,
) -> Result<Vec<u32>, String> {
    let mut whole = tokens(tokenizer, &format!("{context}{continuation}"))?;
    Ok(whole.split_off(before.min(whole.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cleaned_as_the_harness_does() {
        assert_eq!(
            clean(" Roof [header] How to [title] Begin. [step] Now  [substeps] go "),
            "Roof How to. Begin. Now  go"
        );
        assert_eq!(clean("no [end\n of] it [one]"), "no [end\n of] it ");
        assert_eq!(clean("a [b [c] d]"), "a d]");
        assert_eq!(capitalized("the Man IS"), "The man is");
        assert_eq!(capitalized(""), "");
        let document = HellaSwag {
            ctx: "A man sits. he".into(),
            parts: Some(["Roofing".into(), "A man sits.".into(), "he".into()]),
            endings: vec!["falls [title]".into(), "jumps".into()],
            label: 1,
        };
        let choice = cleaned(&document).expect("all parts");
        assert_eq!(choice.context, "Roofing: A man sits. He");
        assert_eq!(choice.endings, ["falls. ", "jumps"]);
    }

    #[test]
    fn spaces_before_the_ending_belong_to_it() {
        let bytes = Tokenizer::bytes();
        let ending = ending(bytes, "so  ", "so".len(), " it").expect("bytes");
        assert_eq!(bytes.decode(&ending), "   it");
    }
}
