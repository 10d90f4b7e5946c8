//! What tokenizers promise, held against tiktoken-rs.

use super::*;
use proptest::prelude::*;
use std::sync::LazyLock;
use tiktoken_rs::CoreBPE;

/// What the directory of a model states, or GPT-2's.
fn of_model(model: &std::path::Path) -> Result<Tokenizer, String> {
    Tokenizer::stated_by_model(model).map(|stated| stated.unwrap_or_else(|| Tokenizer::gpt2().clone()))
}

/// The outside opinion.
static TIKTOKEN: LazyLock<CoreBPE> = LazyLock::new(|| tiktoken_rs::r50k_base().expect("a vocabulary"));

/// Text that is dense in the pattern's corner cases: contractions, all kinds of white space, digits,
/// other scripts.
fn awkward_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        3 => "[a-zA-Z]{1,6}",
        3 => "[ \t\n\r\u{b}\u{c}]{1,5}",
        2 => " {1,4}",
        2 => "\n{1,4}",
        1 => "[\u{a0}\u{85}\u{1680}\u{2003}\u{2028}\u{3000}\u{200b}\u{feff}\u{1c}]{1,3}",
        1 => "[0-9½Ⅳ٣]{1,4}",
        1 => "'(s|t|re|ve|ll|d|m|x|S)",
        1 => "[-.,;:!?'\"()<|>_]{1,3}",
        1 => "[éßдж漢字नि🦀👩\u{200d}🚀\u{301}]{1,4}",
    ];
    proptest::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn parts_encode_like_tiktoken_encodes_the_whole(text in awkward_text(), part in 0usize..40) {
        let tokenizer = Tokenizer::gpt2();
        let parts = tokenizer.split(&text, part);
        prop_assert_eq!(parts.concat(), text.clone());
        prop_assert!(text.is_empty() || parts.iter().all(|p| !p.is_empty()));
        let whole = TIKTOKEN.encode_ordinary(&text);
        prop_assert_eq!(tokenizer.encode_ordinary(&text), whole.clone());
        let parts = tokenizer.encode_parallel(&text, part).expect("encoded").concat();
        prop_assert_eq!(parts.into_iter().map(u32::from).collect::<Vec<_>>(), whole);
    }

    #[test]
    fn any_text_encodes_like_tiktoken(text in "\\PC{0,80}|[\\p{L}\\p{N}\\p{M}\\s']{0,60}") {
        prop_assert_eq!(Tokenizer::gpt2().encode_ordinary(&text), TIKTOKEN.encode_ordinary(&text));
    }

    #[test]
    fn characters_and_bytes_have_an_id_each(text in awkward_text(), part in 0usize..40) {
        let characters = Tokenizer::chars(Characters::of(&text.chars().chain(['x']).collect()).expect("a vocabulary"));
        for (tokenizer, count) in [(&characters, text.chars().count()), (Tokenizer::bytes(), text.len())] {
            let tokens = tokenizer.encode_ordinary(&text);
            prop_assert_eq!(tokens.len(), count);
            prop_assert!(tokens.iter().all(|&token| (token as usize) < tokenizer.vocab_size()));
            prop_assert_eq!(tokenizer.decode(&tokens), text.clone());
            let parts = tokenizer.encode_parallel(&text, part).expect("encoded").concat();
            prop_assert_eq!(parts.into_iter().map(u32::from).collect::<Vec<_>>(), tokens);
        }
    }

    #[test]
    fn decoding_gives_the_text_back(text in awkward_text()) {
        let tokenizer = Tokenizer::gpt2();
        prop_assert_eq!(tokenizer.decode(&tokenizer.encode_ordinary(&text)), text);
    }
}

/// The ids are those of OpenAI's encoder.
#[test]
fn known_encodings() {
    let tokenizer = Tokenizer::gpt2();
    assert_eq!(
        tokenizer.encode_ordinary("Hello, I'm a language model,"),
        [15496, 11, 314, 1101, 257, 3303, 2746, 11]
    );
    assert_eq!(tokenizer.encode_ordinary("First Citizen:\n\n"), [5962, 22307, 25, 628]);
    assert_eq!(tokenizer.encode_ordinary(""), Vec::<u32>::new());
}

#[test]
fn special_tokens_in_text_are_ordinary_text() {
    let tokens = Tokenizer::gpt2().encode_ordinary("a<|endoftext|>b");
    assert!(!tokens.contains(&END_OF_TEXT));
    assert_eq!(Tokenizer::gpt2().decode(&[END_OF_TEXT]), "<|endoftext|>");
}

#[test]
fn broken_utf8_and_unknown_ids_decode_to_replacements() {
    let tokenizer = Tokenizer::gpt2();
    let crab = tokenizer.encode_ordinary("🦀");
    assert!(crab.len() > 1);
    assert!(tokenizer.decode(&crab[..1]).contains('\u{fffd}'));
    assert_eq!(tokenizer.decode(&[15496, VOCAB_SIZE as u32, 11]), "Hello\u{fffd},");
}

/// The regex engine that tiktoken uses runs out of stack where text follows the spaces.
#[test]
fn millions_of_spaces_are_encoded() {
    let tokenizer = Tokenizer::gpt2();
    for (before, after) in [("a", "b"), ("", "\n b"), ("a", "")] {
        let text = format!("{before}{}{after}", " ".repeat(1_500_000));
        assert_eq!(tokenizer.decode(&tokenizer.encode_ordinary(&text)), text);
    }
}

#[test]
fn text_without_white_space_stays_whole() {
    assert_eq!(Tokenizer::gpt2().split("abcdefgh", 2), ["abcdefgh"]);
    assert_eq!(Tokenizer::gpt2().split("ab cd\n\n ef", 1), ["ab", " cd", "\n\n ef"]);
}

#[test]
fn megabytes_without_a_space_are_encoded() {
    let tokenizer = Tokenizer::gpt2();
    for unit in ["abcdefghij", "漢字仮名", "=-", "a"] {
        let text = unit.repeat(3_000_000 / unit.len());
        assert_eq!(tokenizer.decode(&tokenizer.encode_ordinary(&text)), text);
    }
}

#[test]
fn a_prompt_is_spelled_or_refused() {
    let characters = Tokenizer::chars(Characters::new(vec!['\n', 'a', 'b']).expect("a vocabulary"));
    assert_eq!(characters.prompt("ab", 3), Ok(vec![1, 2]));
    assert_eq!(characters.prompt("", 3), Ok(vec![0]), "the end of a line");
    let message = characters.prompt("abc", 3).expect_err("refused").to_string();
    assert_eq!(message, "the prompt \"abc\" has 'c', which is none of the 3 characters that the model knows");
    assert_eq!(characters.encode_ordinary("cabc"), [1, 2]);
    assert_eq!(Tokenizer::bytes().prompt("", 256), Ok(vec![10]));
    assert_eq!(Tokenizer::gpt2().prompt("", 50257), Ok(vec![END_OF_TEXT]));
    let message = Tokenizer::gpt2().prompt("Hello", 300).expect_err("refused").to_string();
    assert!(message.contains("has token 15496, which a vocabulary of 300 does not have"), "{message}");
}

/// A post-processor that puts a token before a text, or nothing.
fn template(adds: bool) -> serde_json::Value {
    let text = serde_json::json!({"Sequence": {"id": "A", "type_id": 0}});
    let token = serde_json::json!({"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}});
    let single = if adds { vec![token, text] } else { vec![text] };
    serde_json::json!({"type": "TemplateProcessing", "single": single})
}

/// Vocabularies that look like those of this program, whose tokenizer does something besides.
#[test]
fn characters_and_bytes_are_looked_up_and_nothing_else() {
    let dir = tempfile::tempdir().expect("a directory");
    let characters = Tokenizer::chars(Characters::new("abc".chars().collect()).expect("a vocabulary"));
    for tokenizer in [&characters, Tokenizer::bytes()] {
        let text = tokenizer.companions(tokenizer.vocab_size(), 64).swap_remove(0).1;
        let whole: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        for (name, value, what) in [
            ("normalizer", serde_json::json!({"type": "Lowercase"}), "it changes the text before"),
            ("post_processor", template(true), "it puts tokens around a text"),
            ("added_tokens", serde_json::json!([{"content": "abc"}]), "it has the further token \"abc\""),
            ("pre_tokenizer", serde_json::json!({"type": "ByteLevel"}), ""),
        ] {
            let mut changed = whole.clone();
            changed[name] = value;
            std::fs::write(dir.path().join("tokenizer.json"), changed.to_string()).expect("written");
            let problem = of_model(dir.path()).expect_err("refused");
            assert!(problem.contains("tokenizer.json` is of another") && problem.contains(what), "{problem}");
        }
    }
}

#[test]
fn what_a_checkpoint_says_is_read_back() {
    let dir = tempfile::tempdir().expect("a directory");
    assert_eq!(of_model(dir.path()).as_ref(), Ok(Tokenizer::gpt2()), "without a file");
    let characters =
        Tokenizer::chars(Characters::new("ba\n é漢\"\\".chars().collect()).expect("a vocabulary"));
    for tokenizer in [Tokenizer::gpt2(), Tokenizer::bytes(), &characters] {
        for (name, text) in tokenizer.companions(tokenizer.vocab_size(), 64) {
            serde_json::from_str::<serde_json::Value>(&text).expect("JSON");
            std::fs::write(dir.path().join(name), text).expect("written");
        }
        assert_eq!(of_model(dir.path()).as_ref(), Ok(tokenizer));
    }
    // as GPT-2's own file has it: no type, pairs of tokens, a space that is left to its default
    let text = Tokenizer::gpt2().companions(50257, 64).swap_remove(0).1;
    let gpt2: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let of = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut changed = gpt2.clone();
        change(&mut changed);
        std::fs::write(dir.path().join("tokenizer.json"), changed.to_string()).expect("written");
        of_model(dir.path())
    };
    let pair = |merge: &serde_json::Value| {
        let (left, right) = merge.as_str().and_then(|merge| merge.split_once(' ')).expect("two tokens");
        serde_json::json!([left, right])
    };
    let usual = of(&|it| {
        let _ = it["model"].as_object_mut().expect("a table").shift_remove("type");
        let _ = it["pre_tokenizer"].as_object_mut().expect("a table").shift_remove("use_regex");
        let pairs = it["model"]["merges"].as_array().expect("a list").iter().map(pair).collect();
        it["model"]["merges"] = serde_json::Value::Array(pairs);
    });
    assert_eq!(usual.as_ref(), Ok(Tokenizer::gpt2()));
    type Change<'a> = &'a dyn Fn(&mut serde_json::Value);
    let others: [(Change, &str); 10] = [
        (&|it| it["model"]["vocab"]["the"] = 3.into(), "the token 1169 of GPT-2, `the`, is 3 in it"),
        (&|it| it["model"]["vocab"]["zzzzzz"] = 50257.into(), "its vocabulary has 50258 tokens"),
        (&|it| it["model"]["merges"][0] = "a b".into(), "its merge 1 is `a b` and not `Ġ t`"),
        (&|it| it["model"]["merges"] = serde_json::json!(["Ġ t"]), "its merge 2 is missing"),
        (&|it| it["model"]["type"] = "Unigram".into(), "it is of the type \"Unigram\""),
        (&|it| it["pre_tokenizer"]["add_prefix_space"] = true.into(), "cuts text in another way"),
        (&|it| it["pre_tokenizer"] = serde_json::json!({"type": "Whitespace"}), "cuts text in another way"),
        (&|it| it["normalizer"] = serde_json::json!({"type": "NFC"}), "`normalizer`"),
        (&|it| it["post_processor"] = template(true), "it puts tokens around a text"),
        (&|it| it["post_processor"] = serde_json::json!({"type": "BertProcessing"}), "`post_processor`"),
    ];
    // as transformers writes it for GPT-2
    let usual = of(&|it| it["post_processor"] = template(false));
    assert_eq!(usual.as_ref(), Ok(Tokenizer::gpt2()));
    for (change, what) in others {
        let refused = of(change).expect_err(what);
        assert!(
            refused.contains("tokenizer.json` is of another tokenizer") && refused.contains(what),
            "{refused}"
        );
    }
    std::fs::remove_file(dir.path().join("tokenizer.json")).expect("removed");
    let spelled = |name: &str, text: String| std::fs::write(dir.path().join(name), text).expect("written");
    let merges: Vec<_> = gpt2["model"]["merges"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|merge| merge.as_str())
        .collect();
    spelled("vocab.json", gpt2["model"]["vocab"].to_string());
    spelled("merges.txt", format!("#version: 0.2\n{}\n", merges.join("\n")));
    assert_eq!(of_model(dir.path()).as_ref(), Ok(Tokenizer::gpt2()));
    spelled("merges.txt", format!("#version: 0.2\n{}\n", merges[1..].join("\n")));
    assert!(of_model(dir.path()).expect_err("refused").contains("merges.txt` is of another"));
    spelled("vocab.json", "{\"a\": 0}".into());
    assert!(of_model(dir.path()).expect_err("refused").contains("vocab.json` is of another"));
    for name in ["vocab.json", "merges.txt"] {
        std::fs::remove_file(dir.path().join(name)).expect("removed");
    }
    spelled("tokenizer_config.json", r#"{"tokenizer_class": "GPT2Tokenizer"}"#.into());
    assert_eq!(of_model(dir.path()).as_ref(), Ok(Tokenizer::gpt2()), "a class and no vocabulary");
    spelled("tokenizer_config.json", r#"{"tokenizer_class": "BertTokenizer"}"#.into());
    let problem = of_model(dir.path()).expect_err("refused");
    assert!(problem.contains("its `tokenizer_class` is \"BertTokenizer\""), "{problem}");
    spelled("spiece.model", "\n".into());
    let problem = of_model(dir.path()).expect_err("refused");
    assert!(problem.contains("spiece.model` is of another tokenizer"), "{problem}");
    let odd = r#"{"pre_tokenizer": null, "model": {"type": "BPE", "vocab": {"ab": 0}, "merges": []}}"#;
    std::fs::write(dir.path().join("tokenizer.json"), odd).expect("written");
    let problem = of_model(dir.path()).expect_err("refused");
    assert!(problem.ends_with("tokenizer.json`: it does not number single characters"), "{problem}");
}
