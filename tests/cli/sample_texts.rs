//! `runner sample` with several texts, its narrowing of draws and its ends; `runner bench --sample`.

use crate::support;

use serde_json::Value;
use support::Lab;

/// The checkpoint of a small model.
fn model(lab: &Lab) -> String {
    lab.shard("data/once.bin", &support::tokens(8 * 32 + 1, 5));
    let data = ["data.train=data/once.bin", "data.shuffle=false", "schedule.warmup_steps=2"];
    lab.train_in("donor", &data).display().to_string()
}

/// What a call says that must succeed.
fn say(lab: &Lab, model: &str, more: &[&str]) -> String {
    let ended = lab.run([&["sample", model, "--threads", "2"], more].concat());
    assert_eq!(ended.expect(0).stderr, "", "{more:?}");
    ended.stdout.clone()
}

fn json(lab: &Lab, model: &str, more: &[&str]) -> Vec<Value> {
    let said = say(lab, model, &[more, &["--format", "json"]].concat());
    serde_json::from_str(&said).unwrap_or_else(|problem| panic!("{problem}: {said}"))
}

/// More texts than are continued at once, prompts of unequal length, and texts that outgrow the context of 32 tokens.
#[test]
fn texts_are_the_same_alone_and_together() {
    let lab = Lab::new();
    let model = model(&lab);
    let common = ["--tokens", "40", "--temperature", "1.1"];
    // pairs of bytes that no token of GPT-2 has merged: the model knows single bytes only
    let prompts = ["!", "!#%!", "%&"];
    let several: Vec<&str> = prompts.iter().flat_map(|prompt| ["--prompt", prompt]).collect();
    let said = say(&lab, &model, &[&common[..], &several, &["--num-samples", "4", "--seed", "5"]].concat());
    let documents =
        json(&lab, &model, &[&common[..], &several, &["--num-samples", "4", "--seed", "5"]].concat());
    let mut want = String::new();
    for (i, prompt) in prompts.iter().enumerate() {
        for n in 0..4 {
            let seed = (5 + n).to_string();
            let alone = say(&lab, &model, &[&common[..], &["--prompt", prompt, "--seed", &seed]].concat());
            let document = &documents[4 * i + n];
            let (text, number) = (document["text"].as_str().expect("a text"), 4 * i + n + 1);
            assert_eq!(format!("{prompt}{text}\n"), alone);
            assert_eq!(
                (&document["prompt"], &document["seed"]),
                (&Value::from(*prompt), &Value::from(5 + n))
            );
            assert_eq!(
                (&document["model"], &document["finish"]),
                (&Value::from(&*model), &Value::from("length"))
            );
            assert_eq!(document["tokens"].as_array().expect("tokens").len(), 40);
            want += &format!("{}=== sample {number} ===\n{alone}", if number > 1 { "\n" } else { "" });
        }
    }
    assert_eq!(said, want);
    assert_eq!(documents.len(), 12);
    let texts: std::collections::BTreeSet<_> = documents.iter().map(|one| one["text"].to_string()).collect();
    assert!(texts.len() > 9, "{texts:?}");
}

#[test]
fn a_text_ends_before_a_stop_string() {
    let lab = Lab::new();
    let model = model(&lab);
    let common = ["--prompt", "!", "--tokens", "60", "--seed", "3"];
    let whole = say(&lab, &model, &common);
    let text = whole.strip_prefix('!').and_then(|text| text.strip_suffix('\n')).expect("the prompt, an end");
    // what two characters in the middle say first, and what is never said
    let (at, _) = text.char_indices().nth(10).expect("characters");
    let stop: String = text[at..].chars().take(2).collect();
    let first = text.find(&stop).expect("it is there");
    let said = say(&lab, &model, &[&common[..], &["--stop", "never said", "--stop", &stop]].concat());
    assert_eq!(said, format!("!{}\n", &text[..first]));
    let documents = json(&lab, &model, &[&common[..], &["--stop", &stop]].concat());
    assert_eq!((&documents[0]["finish"], &documents[0]["text"]), (&"stop".into(), &text[..first].into()));
    assert_eq!(say(&lab, &model, &[&common[..], &["--stop", "never said"]].concat()), whole);
}

#[test]
fn narrow_draws_are_the_most_likely_tokens() {
    let lab = Lab::new();
    let model = model(&lab);
    let common = ["--prompt", "!", "--tokens", "30"];
    let greedy = say(&lab, &model, &[&common[..], &["--temperature", "0"]].concat());
    for same in [&["--top-p", "1e-9"][..], &["--top-p", "1e-9", "--top-k", "0", "--seed", "9"]] {
        assert_eq!(say(&lab, &model, &[&common[..], same].concat()), greedy, "{same:?}");
    }
    let all = say(&lab, &model, &common);
    assert_eq!(say(&lab, &model, &[&common[..], &["--top-p", "1"]].concat()), all);
    assert_ne!(all, greedy);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let lab = Lab::new();
    let model = model(&lab);
    for (args, parts) in [
        (&["--top-p", "0"][..], &["--top-p 0", "above 0"][..]),
        (&["--top-p", "1.5"], &["--top-p 1.5", "at most 1"]),
        (&["--top-p=-0.5"], &["--top-p -0.5"]),
        (&["--top-p", "nan"], &["--top-p NaN"]),
        (&["--num-samples", "0"], &["--num-samples", "0"]),
        (&["--stop", ""], &["--stop \"\"", "before it begins"]),
        (&["--prompt", "!", "--prompt", "Lorem ipsum"], &["Lorem ipsum", "256"]),
        (&["--format", "csv"], &["--format", "csv"]),
    ] {
        let ended = lab.run([&["sample", &model], args].concat());
        ended.expect(2).says(parts);
        assert_eq!(ended.stdout, "", "{args:?}");
    }
}

#[test]
fn bench_measures_the_generation_of_text() {
    let lab = Lab::new();
    model(&lab);
    let bench = |more: &[&str]| lab.run([&["bench", "tiny.toml"], more].concat());
    let ended = bench(&["--sample=9", "--format", "json"]);
    let measured: Value = serde_json::from_str(&ended.expect(0).stdout).expect("JSON");
    let number = |name: &str| measured[name].as_f64().unwrap_or_else(|| panic!("{name}: {measured}"));
    assert_eq!(measured["tokens"], 9);
    assert!(number("tokens_per_s") > 0.0 && number("bandwidth_share") > 0.0);
    let product = number("bytes_per_token") * number("tokens_per_s") / number("bandwidth_bytes_per_s");
    assert!((product / number("bandwidth_share") - 1.0).abs() < 1e-9);
    // no more tokens than the context has room for
    let whole = bench(&["--sample"]);
    assert!(whole.expect(0).stdout.contains("MB per token"), "{}", whole.stdout);
    bench(&["--sample", "--set", "model.block_size=4"]).expect(2).says(&["--sample", "block_size is 4"]);
    bench(&["--sample", "--steps", "3"]).expect(2).says(&["--sample", "--steps"]);
    bench(&["--sample=0"]).expect(2).says(&["--sample"]);
}
