//! Names and texts from elsewhere on the terminal: nothing in them can act on it.

use crate::support;

use serde_json::{Value, json};
use std::fs;
use support::{Ended, Lab, tiny};

/// Escape, bell, carriage return, the one-byte introducer of control sequences, a right-to-left override.
const NASTY: &str = "x\u{1b}[31mX\u{7}\r\u{9b}Y\u{202e}Z";

/// Checks that a command said something of this, and that what it said is harmless.
fn check(ended: &Ended, code: i32, parts: &[&str]) {
    ended.expect(code).says(parts);
    for text in [&ended.stderr, &ended.stdout] {
        let harmful = |c: char| c.is_control() && !matches!(c, '\n' | '\t') || c == '\u{202e}';
        assert!(!text.contains(harmful), "{text:?}");
    }
}

#[test]
fn names_of_files_are_shown_and_do_nothing() {
    let lab = Lab::new();
    let init = format!("model.init_from=\"{NASTY}.safetensors\"").replace(NASTY, &escaped(NASTY));
    check(&lab.run(tiny("runs", &[&init])), 2, &["[31mX"]);
    lab.write(&format!("{NASTY}.safetensors"), "no weights");
    check(&lab.run(tiny("runs", &[&init])), 2, &["[31mX", "no safetensors"]);
    check(&lab.run([format!("{NASTY}.toml")]), 2, &["cannot read recipe", "[31mX"]);
    lab.write("recip\u{1b}e.toml", "");
    check(&lab.run(["recipe.toml"]), 2, &["cannot read recipe", "did you mean", "recip"]);
    check(&lab.run(["list", "--runs-dir", NASTY]), 0, &["no such runs"]);
    check(&lab.run(["compare", NASTY]), 2, &["[31mX"]);
    check(&lab.run(["data", "inspect", NASTY]), 2, &["[31mX"]);
    lab.write("odd.toml", format!("{NASTY} = 1\nname = \"a\u{9b}b\u{202e}\"\n"));
    check(&lab.run(["odd.toml"]), 2, &["odd.toml"]);
    // where the directory itself is named so, stdout has its bytes
    let mut args = tiny(NASTY, &["schedule.max_steps=3", "schedule.warmup_steps=0"]);
    args.push("--named".to_owned());
    let ended = lab.run(args);
    assert!(ended.stdout.starts_with(NASTY), "{:?}", ended.stdout);
    check(&Ended { stdout: String::new(), ..ended }, 0, &["finished in"]);
}

#[test]
fn a_generated_text_keeps_its_lines_and_none_passes_for_a_message() {
    let lab = Lab::new();
    let prompt = r#"sample.prompt="a\nerror: b\r\n\u001b""#;
    let ended =
        lab.run(tiny("runs", &["data.tokenizer=bytes", "sample.every=12", "sample.tokens=40", prompt]));
    check(&ended, 0, &["\nsample: a\n  error: b"]);
    let is_message = |line: &str| line.starts_with("error: ");
    assert!(!ended.stderr.lines().any(is_message), "{}", ended.stderr);
}

/// A line feed in a name must not begin a line that passes for one of the program's.
#[test]
fn names_of_two_lines_stay_on_one() {
    const FORGED: &str = "error: forged";
    let lab = Lab::new();
    let nasty = format!("x\n{FORGED}\t1");
    let spelled = escaped(&nasty);
    let short = ["schedule.max_steps=3", "schedule.warmup_steps=0"];
    let on_one = |ended: &Ended, code: i32| {
        ended.expect(code).says(&["x\u{fffd}error: forged\u{fffd}1"]);
        assert!(!ended.stderr.lines().any(|line| line.starts_with(FORGED)), "{:?}", ended.stderr);
    };
    on_one(&lab.run(["data", "inspect", &nasty]), 2);
    on_one(&lab.run(["compare", &nasty]), 2);
    on_one(&lab.run(["--resume", &nasty]), 2);
    on_one(&lab.run([format!("{nasty}.toml")]), 2);
    on_one(&lab.run(["list", "--runs-dir", &nasty]), 0);
    on_one(&lab.run(tiny("runs", &[&format!("model.init_from=\"{spelled}\"")])), 2);
    on_one(&lab.run(tiny("runs", &[&format!("data.train=\"{spelled}\"")])), 2);
    lab.write("k.toml", format!("\"{spelled}\" = 1\n"));
    // as it is spelled in the recipe
    lab.run(["k.toml"]).expect(2).says(&[r"unknown key `x\nerror: forged\t1`"]);
    lab.write("k.jsonl", format!("{{\"{spelled}\": 1}}\n"));
    on_one(&lab.run(["data", "prepare", "k.jsonl", "--out", "out"]), 2);
    let run = lab.train(&short);
    let path = run.join("run.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).expect("a record")).expect("JSON");
    record["status"] = "diverged".into();
    record["error"] = nasty.clone().into();
    fs::write(&path, record.to_string()).expect("written");
    on_one(&lab.run(tiny("runs", &short)), 4);
    let ended = lab.run(["compare", "runs"]);
    assert!(!ended.stdout.lines().any(|line| line.starts_with(FORGED)), "{:?}", ended.stdout);
    fs::rename(&run, lab.path("runs").join(&nasty)).expect("renamed");
    fs::write(lab.path("runs").join(&nasty).join("val.csv"), "step,tokens,val_loss\nx,y,z\n")
        .expect("written");
    on_one(&lab.run(["export", "runs", "--tensorboard", "tb"]), 0);
    for args in [&["list"][..], &["compare", "runs"], &["watch", "runs"]] {
        let ended = lab.run(args);
        let lines =
            [&ended.stdout, &ended.stderr].map(|text| text.lines().any(|line| line.starts_with(FORGED)));
        assert_eq!(lines, [false; 2], "{args:?}: {ended:?}");
    }
}

/// The parser of the command line repeats what it does not know.
#[test]
fn arguments_are_shown_and_do_nothing() {
    let lab = Lab::new();
    for args in [&["recipes", NASTY][..], &["schema", NASTY], &["compare", "--align", NASTY]] {
        check(&lab.run(args), 2, &["error: ", "[31mX"]);
    }
    let ended = lab.run(["recipes", "x\nerror: forged"]);
    check(&ended, 2, &["error: unexpected argument 'x\u{fffd}error: forged' found"]);
    // one that is all of a colour's code leaves the others whole
    let mut command = lab.command(["recipes", "\x1b"]);
    command.env("CLICOLOR_FORCE", "1");
    let said = support::ended(command).expect(2).stderr.clone();
    assert!(said.contains("Usage:") && !said.contains("\u{fffd}["), "{said:?}");
    // a name in a directory of runs that a shell finds, on a terminal, where the tips have colours
    let name = "--\x1b]0;wild\x07\x1b[8m\nerror: forged";
    for args in
        [&["compare", name][..], &["list", name], &[name], &["data", "inspect", name], &["data", name]]
    {
        for forced in ["1", "0"] {
            let mut command = lab.command(args);
            command.env("CLICOLOR_FORCE", forced);
            let said = support::ended(command).expect(2).stderr.clone();
            let is_colour = |code: &str| {
                code.split_once('m')
                    .is_some_and(|(code, _)| ["0", "1", "4", "31", "32", "33"].contains(&code))
            };
            assert!(said.split("\x1b[").skip(1).all(is_colour), "{said:?}");
            assert!(!said.contains("\x1b]") && !said.contains('\x07'), "{said:?}");
            assert!(!said.lines().any(|line| line.starts_with("error: forged")), "{said:?}");
            assert!(said.contains("--\u{fffd}]0;wild\u{fffd}"), "{said:?}");
        }
    }
}

/// A text as TOML and JSON spell it in a string.
fn escaped(text: &str) -> String {
    let spelled = json!(text).to_string();
    spelled[1..spelled.len() - 1].to_owned()
}

#[test]
fn names_inside_weights_are_shown_and_do_nothing() {
    let lab = Lab::new();
    let file = |header: Value| {
        let header = header.to_string();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.bytes());
        bytes.extend([0; 4]);
        bytes
    };
    let tensor = |dtype: &str| json!({ "dtype": dtype, "shape": [1], "data_offsets": [0, 4] });
    lab.write("w/model.safetensors", file(json!({ NASTY: tensor("F32") })));
    check(&lab.run(tiny("runs", &["model.init_from=w"])), 2, &["[31mX", "not part of the model"]);
    lab.write("w/model.safetensors", file(json!({ "wte.weight": tensor(NASTY) })));
    check(&lab.run(tiny("runs", &["model.init_from=w"])), 2, &["model.safetensors"]);
    lab.write("i/model.safetensors.index.json", json!({ "weight_map": { "a": NASTY } }).to_string());
    check(&lab.run(tiny("runs", &["model.init_from=i"])), 2, &["[31mX"]);
    lab.write("c/config.json", json!({ "model_type": NASTY }).to_string());
    lab.write("c/model.safetensors", file(json!({ "wte.weight": tensor("F32") })));
    check(&lab.run(tiny("runs", &["model.init_from=c"])), 2, &["model_type"]);
}

#[test]
fn what_a_run_says_of_itself_is_shown_and_does_nothing() {
    let lab = Lab::new();
    let short = ["schedule.max_steps=3", "schedule.warmup_steps=0"];
    let run = lab.train(&short);
    lab.train(&[short[0], short[1], "seed=2"]);
    let path = run.join("run.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).expect("a record")).expect("JSON");
    for key in ["device", "host", "name", "error"] {
        record[key] = format!("<b>{key}{NASTY}").into();
    }
    fs::write(&path, record.to_string()).expect("written");
    for format in ["table", "markdown"] {
        check(&lab.run(["list", "--format", format]), 0, &[]);
        let compared = lab.run(["compare", "runs", "--format", format]);
        check(&compared, 0, &[]);
        assert!(compared.stdout.contains("[31mX"), "{}", compared.stdout);
        assert_eq!(compared.stdout.contains("<b>"), format == "table", "Markdown is no markup");
    }
    check(&lab.run(["compare", "runs", "--plot", "x.html"]), 0, &["x.html"]);
    let page = fs::read_to_string(lab.path("x.html")).expect("a page");
    assert!(
        page.contains("[31mX") && !page.contains("<b>") && !page.contains(['\u{1b}', '\u{9b}', '\u{202e}'])
    );
    record["status"] = "diverged".into();
    fs::write(&path, record.to_string()).expect("written");
    check(&lab.run(tiny("runs", &short)), 4, &["[31mX"]);
    let renamed = lab.path("runs").join(NASTY);
    fs::rename(&run, &renamed).expect("renamed");
    for args in [&["list"][..], &["compare", "runs"], &["watch", "runs"]] {
        check(&lab.run(args), 0, &[]);
    }
}

#[test]
fn events_spell_what_a_terminal_would_obey() {
    let lab = Lab::new();
    let init = format!("model.init_from=\"{NASTY}.safetensors\"").replace(NASTY, &escaped(NASTY));
    let mut args = tiny("runs", &[&init]);
    args.extend(["--log-format", "json"].map(str::to_owned));
    let ended = lab.run(args);
    check(&ended, 2, &["[31mX", "\\u009b", "\\u202e"]);
    let spelled = |line: &str| serde_json::from_str::<Value>(line).expect("JSON").to_string();
    assert!(ended.stderr.lines().any(|line| spelled(line).contains('\u{9b}')), "{}", ended.stderr);
}

#[test]
fn a_message_has_an_end() {
    let lab = Lab::new();
    lab.write("long.jsonl", format!("{{\"{}\": 1}}\n", "x".repeat(1 << 20)));
    let ended = lab.run(["data", "prepare", "long.jsonl", "--out", "out"]);
    check(&ended, 2, &["it has no field `text`: choose one of xxxx"]);
    assert!(ended.stderr.len() < 20_000, "{} bytes", ended.stderr.len());
    let long = format!("{{'descr': '<u2', 'shape': ({}x)}}", "1, ".repeat(1 << 18));
    let mut bytes = b"\x93NUMPY\x02\0".to_vec();
    bytes.extend((long.len() as u32).to_le_bytes());
    bytes.extend(long.bytes());
    lab.write("long.npy", bytes);
    let ended = lab.run(tiny("runs", &["data.train=long.npy"]));
    check(&ended, 2, &["long.npy"]);
    assert!(ended.stderr.len() < 50_000, "{} bytes", ended.stderr.len());
}

/// A spreadsheet runs what begins with an equals sign.
#[test]
fn a_name_in_csv_is_no_formula() {
    let lab = Lab::new();
    let short = ["schedule.max_steps=3", "schedule.warmup_steps=0"];
    let run = lab.train(&short);
    lab.train(&[short[0], short[1], "seed=2"]);
    fs::rename(&run, lab.path("runs").join("=1+1|a")).expect("renamed");
    for args in [&["list", "--format", "csv"][..], &["compare", "runs", "--format", "csv"]] {
        let ended = lab.run(args);
        check(&Ended { stdout: ended.stdout.replace("\r\n", "\n"), ..ended }, 0, &[]);
        let ended = lab.run(args);
        assert!(ended.stdout.contains("\n'=1+1|a,"), "{}", ended.stdout);
    }
    let ended = lab.run(["compare", "runs", "--format", "markdown"]);
    assert!(ended.stdout.contains("=1+1\\|a"), "{}", ended.stdout);
}

/// In the sentences beside a table as in its cells.
#[test]
fn a_name_in_markdown_is_no_markup() {
    let lab = Lab::new();
    let name = "<img src=x>*b*.bin";
    lab.shard(&name.replace('*', "_"), &support::tokens(2000, 1));
    let data = format!("data.train={}", json!([name]));
    let short = [data.as_str(), "schedule.max_steps=3", "schedule.warmup_steps=0"];
    let run = lab.train(&short);
    lab.train(&[short[0], short[1], short[2], "seed=2"]);
    let run = run.to_str().expect("UTF-8");
    let data = name.replace('*', "_");
    for args in [
        &["compare", "runs", "--format", "markdown"][..],
        &["list", "--format", "markdown"],
        &["eval", run, "--data", &data, "--tokens", "64", "--format", "markdown"],
    ] {
        let ended = lab.run(args);
        ended.expect(0);
        let text = &ended.stdout;
        assert!(!text.contains("<img") && !text.contains("*b*"), "{args:?}: {text}");
        assert!(args[0] == "list" || text.contains("&lt;img"), "{args:?}: {text}");
    }
}

#[test]
fn what_a_lock_says_is_shown_in_part_and_does_nothing() {
    let lab = Lab::new();
    let (mut live, gate) = lab.held(lab.command(tiny("runs", &[])), "csv.before_row:3");
    gate.reached();
    let lock = lab.only_run("runs").join("lock");
    fs::write(&lock, format!("{NASTY}\nerror: all is lost\n")).expect("written");
    let locked = lab.run(tiny("runs", &[]));
    check(&locked, 3, &["is being written by x", "[31mX"]);
    assert!(!locked.stderr.contains("all is lost"), "{}", locked.stderr);
    fs::write(&lock, "w".repeat(1 << 20)).expect("written");
    let locked = lab.run(tiny("runs", &[]));
    check(&locked, 3, &["is being written by wwww"]);
    assert!(locked.stderr.len() < 2000, "{} bytes", locked.stderr.len());
    live.kill();
    drop(gate);
}
