//! Recipes that leave the dimensions to what they begin from, once that is gone: the same command finds its run by what
//! the runs that began there have in their own recipes.

use crate::support;

use std::fs;
use std::path::Path;
use support::{Lab, ended, essence, everything};

fn id(run: &Path) -> String {
    run.file_name().and_then(|name| name.to_str()).expect("a name").to_owned()
}

/// A directory with a run in `trunks`, and the path of that run.
fn with_trunk() -> (Lab, String) {
    let lab = Lab::new();
    let trunk = format!("trunks/{}", id(&lab.train_in("trunks", &["checkpoint.keep=0"])));
    (lab, trunk)
}

/// Writes `branch.toml`: the tiny recipe without dimensions, and without what is in `left_out`.
fn write_branch(lab: &Lab, from: &str, left_out: &str) {
    let text = fs::read_to_string(lab.path("tiny.toml")).expect("a recipe");
    let (head, rest) = text.split_once("n_layer").expect("dimensions");
    let (_, tail) = rest.split_once("[data]").expect("data");
    let tail = tail.replace(left_out, "");
    lab.write("branch.toml", format!("{head}init_from = {from}\n[data]{tail}"));
}

/// The arguments that train it under a directory of runs.
fn args(runs: &str) -> [&str; 5] {
    ["branch.toml", "schedule.max_steps=20", "seed=9", "--runs-dir", runs]
}

#[test]
fn the_same_command_goes_on_where_the_recipe_leaves_the_dimensions_to_what_is_gone() {
    let (lab, trunk) = with_trunk();
    let (batch, nothing) = ("total_tokens = 256\n", "");
    for (way, (from, left_out, refusal)) in [
        // what is the position in the data is left to the other run as well, and the defaults fit each other
        (format!("{{ run = \"{trunk}\", step = 4 }}"), batch, "is not a run"),
        (format!("{{ run = \"{trunk}\", step = 4 }}"), nothing, "so the dimensions are the defaults"),
        // the newest step, 12
        (format!("{{ run = \"{trunk}\" }}"), nothing, "so the dimensions are the defaults"),
        (format!("{{ run = \"{trunk}@8\", optimizer = false }}"), nothing, "so the dimensions are"),
        (format!("\"{trunk}@4\""), nothing, "so the dimensions are the defaults"),
        (format!("\"{trunk}/checkpoints/step-00000004\""), nothing, "so the dimensions are the defaults"),
    ]
    .into_iter()
    .enumerate()
    {
        write_branch(&lab, &from, left_out);
        let [whole, finished, begun, new] =
            ["whole", "finished", "begun", "new"].map(|runs| format!("{runs}-{way}"));
        let trained = |runs: &str| lab.run_of(lab.run(args(runs)).expect(0));
        let uninterrupted = essence(&trained(&whole));
        let run = trained(&finished);
        let mut killed = lab.command(args(&begun));
        killed.env("RUNNER_FAULT", "csv.before_row:8");
        let killed = ended(killed);
        assert_eq!(killed.code, None, "{from}: {}", killed.stderr);
        let interrupted = lab.run_of(&killed);
        fs::rename(lab.path("trunks"), lab.path("aside")).expect("moved");

        let before = everything(&run);
        let again = lab.run(args(&finished));
        again.expect(0).says(&["already finished"]);
        assert_eq!(lab.run_of(&again), run, "{from}");
        let explained = lab.run(["explain", "branch.toml", "model.n_embd", "--runs-dir", &finished]);
        let states = format!("{finished}/{}/recipe.toml (model.init_from)", id(&run));
        assert!(explained.expect(0).stdout.contains(&states), "{}", explained.stdout);
        // what is to begin again needs what it begins from
        assert_ne!(lab.run(args(&finished).iter().chain(&["--fresh"])).code, Some(0), "{from}");
        assert!(everything(&run) == before, "{from}");

        let plan = lab.run(["plan"].iter().chain(&args(&begun)));
        let goes_on = "goes on from its checkpoint of step";
        assert!(plan.expect(0).stdout.contains(goes_on), "{from}: {}", plan.stdout);
        let dry = lab.run(args(&begun).iter().chain(&["--dry-run"]));
        dry.expect(0).says(&["would train", "step-0000"]);
        // several recipes are checked before the first is trained
        let both = lab.run(["tiny.toml"].iter().chain(&args(&begun)).chain(&["--dry-run"]));
        both.expect(0).says(&["would train", "step-0000"]);
        assert_eq!(trained(&begun), interrupted, "{from}");
        assert!(essence(&interrupted) == uninterrupted, "{from}");

        // nothing has begun from it here
        lab.run(args(&new)).expect(2).says(&["model.init_from", refusal]);
        assert_eq!(lab.runs(&new).len(), 0, "{from}");
        fs::rename(lab.path("aside"), lab.path("trunks")).expect("moved back");
    }
}

#[test]
fn runs_that_disagree_state_nothing_and_one_that_contradicts_the_recipe_does_not_count() {
    let (lab, trunk) = with_trunk();
    write_branch(&lab, &format!("{{ run = \"{trunk}\", step = 4, optimizer = false }}"), "");
    let call = |more: &[&str]| lab.run(args("runs").iter().chain(more));
    let whole = lab.run_of(call(&[]).expect(0));
    let short = lab.run_of(call(&["model.block_size=16"]).expect(0));
    assert_ne!(whole, short);
    fs::rename(lab.path("trunks"), lab.path("aside")).expect("moved");
    let open = call(&[]);
    open.expect(2).says(&["so the dimensions are the defaults", "goes on without it: runner --resume RUN"]);
    for (set, run) in [("model.block_size=16", &short), ("model.block_size=32", &whole)] {
        let again = call(&[set]);
        again.expect(0).says(&["already finished"]);
        assert_eq!(lab.run_of(&again), *run);
    }
    let named = format!("runs/{}", id(&whole));
    lab.run(["--resume", &named]).expect(0).says(&["already finished"]);
    // another recipe has all dimensions, and needs what it begins from
    let other = call(&["model.block_size=16", "seed=8"]);
    other.expect(2).says(&["is not a run", "runner --resume"]);
    // what no run has written states nothing
    fs::remove_dir_all(&short).expect("removed");
    let project = format!("[model]\ninit_from = \"../../{trunk}@4\"\nn_layer = 3\n");
    lab.write("runs/project/recipe.toml", project);
    lab.write("runs/broken/recipe.toml", "[");
    call(&[]).expect(0).says(&["already finished"]);
}
