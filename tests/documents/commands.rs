//! What the documents show as commands and output, held against the program.
//!
//! Every fenced block is one of these, and is checked as such:
//!
//! - `console`: commands after `$ `, and what they print on stdout and stderr together. They are run in a directory
//!   with the shipped recipes and finished runs, where the commands of a document leave their files to each other.
//!   Training the quickstart takes minutes: it is only begun, and its end compared with the logs of a run on record.
//! - `sh`: commands without output. They are run with stand-ins in place of programs; a call of `runner` must parse,
//!   name recipes that exist and keys that they accept, and is carried out if it only looks at things. Other programs
//!   must name what exists.
//! - `toml`: a recipe or a part of one; with a name in its first line, `# my.toml`, the commands find it. One whose
//!   name begins with `wrong` is refused.
//! - `python`: paths of checkpoints in it belong to runs on record.
//! - `text`: neither commands nor output, and listed in `DRAWINGS`.

use crate::document_support;

use document_support::lab::Lab;
use document_support::{Block, DOCUMENTS, blocks, read, root, shell, shown};
use runner::data::Dataset;
use runner::recipe::{Overrides, load};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

/// What the quickstart's command stands for in a console: it is not run to its end.
const QUICKSTART: &str = "cargo run --release -- recipes/quickstart.toml";

/// Blocks of `text`, by the document and their beginning: a formula, which `tests/recipes/plan_scaling.rs` computes, and a
/// drawing.
const DRAWINGS: &[(&str, &str)] =
    &[("docs/scaling.md", "bytes on the wire"), ("ARCHITECTURE.md", "TOML files, environment, --set\n")];

/// Checks all blocks of a document; how many commands of consoles were run, and the calls of `sh` that were checked.
fn check(lab: &Lab, document: &str) -> (usize, Vec<Vec<String>>) {
    let text = read(document);
    let all = blocks(document, &text);
    for block in all.iter().filter(|block| block.language == "toml") {
        recipe(lab, document, block);
    }
    let (mut run, mut checked) = (0, Vec::new());
    for block in &all {
        match block.language.as_str() {
            "console" => run += console(lab, block),
            "sh" => checked.extend(shell::check(lab, &block.at, &block.text)),
            "toml" => {}
            "python" => checkpoint_paths(lab, block),
            "text"
                if DRAWINGS
                    .iter()
                    .any(|(page, start)| *page == document && block.text.starts_with(start)) => {}
            other => panic!("{}: nothing checks a block of `{other}`", block.at),
        }
    }
    let prose: String = text.split("```").step_by(2).collect();
    let unknown = shell::unknown_options(&prose);
    assert!(unknown.is_empty(), "{document}: there are no options {unknown:?}");
    (run, checked)
}

/// A recipe must load, a part of one with the keys that it lacks.
fn recipe(lab: &Lab, document: &str, block: &Block) {
    let name =
        block.text.lines().next().and_then(|line| line.strip_prefix("# ")).filter(|n| n.ends_with(".toml"));
    let beside = Path::new(document).parent().expect("a directory").join("block.toml");
    let text = with_trunk(lab, &block.text);
    let path = lab.write(name.unwrap_or(beside.to_str().expect("UTF-8")), &text);
    let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("{}: {error}", block.at));
    let mut set = Vec::new();
    if !table.contains_key("extends") {
        for (key, table_name, value) in [("train", "data", "builtin:lipsum"), ("max_steps", "schedule", "9")]
        {
            if table.get(table_name).and_then(|table| table.get(key)).is_none() {
                set.push(format!("{table_name}.{key}={value}"));
            }
        }
    }
    let loaded = load(&path, &Overrides { set, ..Overrides::default() });
    match (loaded, name.is_some_and(|name| name.starts_with("wrong"))) {
        (Ok(_), false) | (Err(_), true) => {}
        (Ok(_), true) => panic!("{}: nothing is wrong with it", block.at),
        (Err(problems), false) => panic!("{}: {problems}", block.at),
    }
}

/// A block in which the run that the documents call `trunk-01234567` is one that was trained, and its step one that it has.
fn with_trunk(lab: &Lab, text: &str) -> String {
    const TRUNK: &str = "trunk-01234567";
    if !text.contains(TRUNK) {
        return text.to_owned();
    }
    let sets = [
        "name=trunk",
        "model.n_layer=1",
        "model.n_head=1",
        "model.n_embd=8",
        "model.block_size=8",
        "data.train=builtin:lipsum:words=2000",
        "batch.total_tokens=8",
        "batch.micro_batch=1",
        "schedule.max_steps=2",
        "lints.allow=[]",
    ];
    lab.write("trunk.toml", "");
    let output = lab.runner().arg("trunk.toml").args(sets).output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let run = String::from_utf8(output.stdout).expect("UTF-8");
    let id = run.trim().rsplit('/').next().expect("a name");
    text.replace(TRUNK, id).replace("step = 3000", "step = 2")
}

/// Runs the commands of a console and compares what they print with what is shown below each.
fn console(lab: &Lab, block: &Block) -> usize {
    let mut commands: Vec<(&str, String)> = Vec::new();
    for line in block.text.lines() {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((command, String::new())),
            (None, Some((_, output))) => *output += &format!("{line}\n"),
            (None, None) => panic!("{}: output before a command", block.at),
        }
    }
    if let [(QUICKSTART, output)] = commands.as_slice() {
        quickstart(lab, &block.at, output);
        return 1;
    }
    let script: String = commands.iter().map(|(command, _)| format!("{command}\nprintf '\\036'\n")).collect();
    let output = lab.shell("bin", &format!("exec 2>&1\n{script}")).output().expect("a shell");
    let printed = String::from_utf8(output.stdout).expect("UTF-8");
    let parts: Vec<&str> = printed.split_terminator('\u{1e}').collect();
    assert_eq!(parts.len(), commands.len(), "{}: the shell gave up:\n{printed}", block.at);
    for ((command, output), printed) in commands.iter().zip(parts) {
        shown::matches(&format!("{}: {command}", block.at), output, printed);
    }
    commands.len()
}

/// What the quickstart prints: its beginning from the program, its end from the logs of the run on record.
fn quickstart(lab: &Lab, at: &str, output: &str) {
    let mut command = lab.runner();
    command.args(["recipes/quickstart.toml", "--runs-dir", "begun"]);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut printed = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut printed).expect("a line");
    for line in BufReader::new(child.stderr.take().expect("piped")).lines() {
        let line = line.expect("UTF-8");
        printed += &format!("{line}\n");
        if line.contains("validation loss") {
            break;
        }
    }
    child.kill().expect("a child of ours");
    child.wait().expect("a child of ours");
    let run = lab.run("quickstart");
    let file = |name: &str| std::fs::read_to_string(run.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let record: serde_json::Value = serde_json::from_str(&file("run.json")).expect("JSON");
    let (results, steps) = (&record["results"], record["total_steps"].as_u64().expect("a number"));
    let val_loss = results["final_val_loss"].as_f64().expect("a number");
    let entropy = results["val_unigram_entropy"].as_f64().expect("a number");
    let samples = file("samples.txt");
    let sample = samples.rsplit(" ===\n").next().and_then(|text| text.lines().next()).expect("a sample");
    printed = printed.replace("begun/", "runs/");
    printed += &format!(
        "step {steps}/{steps} validation loss {val_loss:.4}\nsample: {sample}\nvalidation loss {val_loss:.4} nats per \
         token; knowing only how often each token occurs would give {entropy:.4} on the whole set\n"
    );
    let first = file("val.csv").lines().nth(1).and_then(|row| row.rsplit(',').next()?.parse::<f64>().ok());
    let first = format!("step 0/{steps} validation loss {:.4}", first.expect("a number"));
    assert!(
        printed.lines().any(|line| shown::same(line, &first)),
        "the run on record began otherwise:\n{printed}"
    );
    shown::matches(at, output, &printed);
}

/// Paths of checkpoints must be those that the runs on record have left.
fn checkpoint_paths(lab: &Lab, block: &Block) {
    let paths: Vec<&str> = block.text.split('"').filter(|text| text.starts_with("runs/")).collect();
    assert!(!paths.is_empty(), "{}: nothing to check", block.at);
    for path in paths {
        let (run, checkpoint) = path.split_once("/checkpoints/").expect("a checkpoint");
        let record =
            std::fs::read(lab.path(run).join("run.json")).unwrap_or_else(|_| panic!("{}: {run}", block.at));
        let record: serde_json::Value = serde_json::from_slice(&record).expect("JSON");
        let steps = record["total_steps"].as_u64().expect("a number");
        assert_eq!(checkpoint, format!("step-{steps:08}"), "{}", block.at);
    }
}

#[test]
fn the_readme_shows_what_happens() {
    let lab = Lab::new();
    let (run, checked) = check(&lab, "README.md");
    assert!(run >= 3 && checked.len() >= 2, "{run} commands run, {checked:?} checked");
    let [drawn, committed] = [lab.path("lr.svg"), root().join("docs/sweep.svg")].map(std::fs::read_to_string);
    let same = drawn.expect("drawn by the sweep") == committed.expect("committed");
    assert!(same, "docs/sweep.svg is not what the sweep's command draws");
}

#[test]
fn the_guides_under_docs_show_what_happens() {
    let lab = Lab::new();
    let pages = DOCUMENTS.iter().filter(|page| page.starts_with("docs/"));
    let (mut run, mut checked) = (0, 0);
    for page in pages {
        let (commands, calls) = check(&lab, page);
        run += commands;
        checked += calls.len();
    }
    assert!(run >= 1 && checked >= 12, "{run} commands run, {checked} calls checked");
}

#[test]
fn the_guide_to_recipes_shows_what_happens() {
    let (run, _) = check(&Lab::new(), "recipes/README.md");
    assert!(run >= 4, "{run} commands run");
    let guide = read("recipes/README.md");
    for table in runner::recipe::keys::TABLES.iter().map(|table| table.name) {
        assert!(guide.contains(&format!("`{table}`")), "{table} is not in the guide");
    }
    let block =
        blocks("recipes/README.md", &guide).into_iter().find(|block| block.text.contains("predicted"));
    let block = block.expect("a plan").text;
    let numbers = |start: &str| -> (String, Vec<f64>) {
        let line = block.lines().find(|line| line.starts_with(start)).expect(start).to_owned();
        let numbers = line.split_whitespace().filter_map(|word| word.replace(',', "").parse().ok()).collect();
        (line, numbers)
    };
    let (line, predicted) = numbers("predicted");
    let [minutes, seconds, rate, percent] = predicted[..] else { panic!("{line}") };
    let (gflops, mflop_per_token) = (numbers("  peak").1[0], numbers("compute").1[0]);
    let of_peak = rate * mflop_per_token / gflops / 1e3 * 100.0;
    assert!((of_peak - percent).abs() < 1.0, "{line}: {of_peak} % of {gflops} GFLOP/s");
    // a small model reaches half to three quarters of the peak, see the README's speeds
    assert!((50.0..75.0).contains(&percent), "{line}: no quiet machine");
    let tokens = rate * (60.0 * minutes + seconds);
    assert!(
        (300_000.0..380_000.0).contains(&tokens),
        "{line}: 307,200 tokens and the evaluations, not {tokens}"
    );
}

#[test]
fn the_guide_to_sweeps_shows_what_happens() {
    let lab = Lab::new();
    let (_, calls) = check(&lab, "recipes/sweeps/README.md");
    // six runs by two stand-ins each, two scripts, three runs of a loop, a comparison and two lists
    assert_eq!(calls.len(), 20, "{calls:?}");
    let trained = calls.iter().filter(|call| call[0] == "runner" && call[1].ends_with(".toml"));
    let plans = trained.map(|call| {
        let words = call[1..].iter().take_while(|word| *word != "--runs-dir");
        let output =
            lab.runner().arg("plan").args(words).args(["--format", "json"]).output().expect("it runs");
        let plan: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(
            plan["lints"],
            serde_json::json!([]),
            "what a guide proposes should not look unwise: {call:?}"
        );
    });
    assert_eq!(plans.count(), 9);
}

#[test]
fn the_guide_to_runs_shows_what_happens() {
    let (run, _) = check(&Lab::new(), "runs/README.md");
    assert_eq!(run, 2);
}

#[test]
fn the_guide_to_data_shows_what_happens() {
    let lab = Lab::new();
    check(&lab, "datasets/README.md");
    // the shards keep the names that they came with, and the commands make the other files
    for recipe in ["gpt2-124m", "gpt3-small", "tinyshakespeare"] {
        let recipe =
            load(&lab.path(&format!("recipes/{recipe}.toml")), &Overrides::default()).expect("right");
        let data = &recipe.recipe.data;
        for specs in [&data.train[..], &data.val[..]] {
            let missing = Dataset::missing(specs);
            assert!(missing.is_empty(), "{missing:?}");
        }
        assert!(!data.val.is_empty() || data.val_fraction.is_some());
    }
}

#[test]
fn the_pages_for_contributors_show_commands_that_exist() {
    let lab = Lab::new();
    for page in ["ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"] {
        check(&lab, page);
    }
}

#[test]
fn no_document_is_left_out_and_none_names_a_run_that_is_not_on_record() {
    let mut there = BTreeSet::new();
    for dir in ["", "docs", "recipes", "recipes/sweeps", "recipes/ladder", "datasets", "runs"] {
        for entry in std::fs::read_dir(root().join(dir)).expect("a directory") {
            let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
            if name.ends_with(".md") {
                there.insert(Path::new(dir).join(name).to_str().expect("UTF-8").to_owned());
            }
        }
    }
    assert_eq!(there, DOCUMENTS.iter().map(|page| (*page).to_owned()).collect());
    let lab = Lab::new();
    let runs: BTreeSet<String> = std::fs::read_dir(lab.path("runs"))
        .expect("runs")
        .map(|run| run.expect("a run").file_name().into_string().expect("UTF-8"))
        .collect();
    for page in DOCUMENTS {
        // what a plan says of a run that is not begun is compared with what it prints
        let text: String = read(page).lines().filter(|line| !line.starts_with("directory ")).collect();
        for name in ["quickstart-", "small-"] {
            for after in text.split(name).skip(1) {
                let hash: String = after.chars().take_while(char::is_ascii_hexdigit).collect();
                assert!(
                    hash.len() != 8 || runs.contains(&format!("{name}{hash}")),
                    "{page}: no run {name}{hash}"
                );
            }
        }
    }
}

#[test]
fn runs_on_record_are_those_of_the_shipped_recipes() {
    let lab = Lab::new();
    let output = lab
        .shell("bin", "sh recipes/sweeps/lr.sh && runner recipes/quickstart.toml")
        .output()
        .expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    let mut printed: Vec<&str> = said
        .lines()
        .filter_map(|line| line.strip_suffix(": already finished; --fresh starts over"))
        .collect();
    printed.sort_unstable();
    let mut runs: Vec<String> = std::fs::read_dir(lab.path("runs"))
        .expect("runs")
        .map(|run| format!("runs/{}", run.expect("a run").file_name().to_string_lossy()))
        .filter(|run| run != "runs/README.md" && !run.starts_with("runs/."))
        .collect();
    runs.sort_unstable();
    assert_eq!(printed, runs, "{said}");
}
