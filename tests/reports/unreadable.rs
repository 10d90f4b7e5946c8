//! Reports over runs of which one has files that cannot be read: it hides none of the others, and nothing waits.

use crate::report_support::Fake;
use crate::support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use support::{Ended, Lab, as_nobody, wait};

/// What may lie in the place of a file.
const STRANGE: [&str; 4] = ["a directory", "a pipe", "zeros without end", "a link to itself"];

/// Puts something else in the place of a file.
fn replace(path: &Path, by: &str) {
    let _ = fs::remove_file(path);
    let _ = fs::remove_dir(path);
    match by {
        "a directory" => fs::create_dir(path).expect("a directory"),
        "zeros without end" => symlink("/dev/zero", path).expect("a link"),
        "a link to itself" => symlink(path, path).expect("a link"),
        _ => {
            let made = std::process::Command::new("mkfifo").arg(path).status();
            assert!(made.expect("mkfifo is there").success());
        }
    }
}

/// Runs a command that must neither wait nor fail.
fn run(lab: &Lab, args: &[&str]) -> Ended {
    run_to(lab, 0, args)
}

/// Runs a command that must end with this code.
fn run_to(lab: &Lab, code: i32, args: &[&str]) -> Ended {
    let mut live = lab.start(args);
    wait("the end of a command that has nothing to wait for", || live.is_over());
    let ended = live.end();
    ended.expect(code);
    ended
}

/// Two runs: a sound one, and one of another seed.
fn two(lab: &Lab) -> [String; 2] {
    ["seed=1", "seed=2"].map(|seed| {
        let run = lab.train(&["schedule.max_steps=3", "schedule.warmup_steps=0", "eval.every=2", seed]);
        run.file_name().expect("a name").to_string_lossy().into_owned()
    })
}

/// A file that claims a terabyte, or what a log may have at most, takes no room on a disk, and none in memory.
#[test]
fn a_file_that_claims_a_terabyte_hides_no_other_run() {
    let lab = Lab::new();
    let [sound, strange] = two(&lab);
    let path = lab.path("runs").join(&strange);
    let files = ["train.csv", "val.csv", "run.json", "recipe.toml", "samples.txt", "eval.csv"];
    let claims = files.map(|file| (file, 1 << 40)).into_iter().chain(files.map(|file| (file, (4 << 30) - 1)));
    for (file, length) in claims {
        let path = path.join(file);
        let before = fs::read(&path).ok();
        fs::File::options()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|file| file.set_len(length))
            .expect("sparse");
        for args in [
            &["list"][..],
            &["compare", "runs"],
            &["compare", "runs", "--plot", "x.html"],
            &["watch", "runs"],
            &["export", "runs", "--tensorboard", "events"],
        ] {
            let mut command = lab.launcher("sh");
            command.args(["-c", "ulimit -v 4000000; exec \"$RUNNER\" \"$@\"", "limited"]);
            let ended = support::ended({
                command.args(args).env("RAYON_NUM_THREADS", "2");
                command
            });
            assert!(matches!(ended.code, Some(0..=2)), "{file} {args:?}: {:?} {}", ended.code, ended.stderr);
            if args[0] == "list" {
                assert!(ended.stdout.contains(&sound) && ended.stdout.contains(&strange), "{}", ended.stdout);
            }
        }
        match before {
            Some(bytes) => fs::write(&path, bytes).expect("written"),
            None => fs::remove_file(&path).expect("removed"),
        }
    }
}

#[test]
fn a_log_that_cannot_be_read_hides_no_other_run() {
    let lab = Lab::new();
    let [sound, strange] = two(&lab);
    for log in ["train.csv", "val.csv"] {
        let path = lab.path("runs").join(&strange).join(log);
        let text = fs::read(&path).expect("a log");
        for by in STRANGE {
            replace(&path, by);
            let list = run(&lab, &["list"]);
            assert!(list.stdout.contains(&sound) && list.stdout.contains(&strange), "{by}: {}", list.stdout);
            list.says(&["warning: could not read", &format!("{strange}/{log}")]);
            for args in [
                &["compare", "runs"][..],
                &["compare", "runs", "--align", "step"],
                &["compare", "runs", "--plot", "x.svg", "--plot", "x.html"],
                &["compare", "runs", "--by", "val_loss", "--metrics", "loss"],
                &["export", "runs", "--tensorboard", "tb"],
            ] {
                // what is not exported must not pass for it
                let compared = run_to(&lab, i32::from(args[0] == "export"), args);
                assert!(compared.stdout.contains(&sound), "{by}: {args:?}: {}", compared.stdout);
                compared.says(&["could not read", &format!("{strange}/{log}")]);
            }
            // the mean of two seeds is that of the one that can be read
            let drawn = fs::read_to_string(lab.path("x.svg")).expect("a plot");
            assert!(drawn.matches("<path class=\"").count() > 0, "{by}: {drawn}");
            let watched = run_to(&lab, 1, &["watch", &sound, &strange]);
            for id in [&sound, &strange] {
                assert!(watched.stdout.contains(&format!("{id}: finished")), "{by}: {}", watched.stdout);
            }
            assert!(watched.stdout.contains("could not read"), "{by}: {}", watched.stdout);
        }
        fs::remove_file(&path).expect("removed");
        fs::write(&path, text).expect("put back");
    }
    assert!(!run(&lab, &["list"]).stderr.contains("warning"));
}

#[test]
fn a_record_that_cannot_be_read_is_named_and_a_lock_that_cannot_be_asked_leaves_the_record_its_word() {
    let lab = Lab::new();
    let [sound, strange] = two(&lab);
    let at = lab.path("runs").join(&strange);
    for by in STRANGE {
        replace(&at.join("lock"), by);
        let list = run(&lab, &["list", "--format", "csv"]);
        assert_eq!(list.stdout.matches(",finished,").count(), 2, "{by}: {}", list.stdout);
        assert_eq!(run(&lab, &["watch", &sound, &strange]).stdout.matches(": finished").count(), 2, "{by}");
    }
    // of a run that may be trained it is said
    let record = fs::read_to_string(at.join("run.json")).expect("a record");
    let running = record.replace("\"status\": \"finished\"", "\"status\": \"running\"");
    fs::write(at.join("run.json"), running).expect("written");
    let list = run(&lab, &["list"]);
    assert!(list.stdout.contains("running"), "{}", list.stdout);
    list.says(&["warning: could not open", &format!("{strange}/lock")]);
    // and nothing waits for an end of it that would never show
    for by in STRANGE {
        replace(&at.join("lock"), by);
        let watched = run_to(&lab, 1, &["watch", &sound, &strange]).stdout;
        assert!(watched.contains(&format!("{sound}: finished")), "{by}: {watched}");
        assert!(watched.contains(&format!("{strange}: running")), "{by}: {watched}");
        assert!(watched.contains(&format!("could not open `runs/{strange}/lock`")), "{by}: {watched}");
    }
    for by in STRANGE {
        replace(&at.join("run.json"), by);
        let list = run(&lab, &["list"]);
        assert!(list.stdout.contains(&sound) && list.stdout.contains("unknown"), "{by}: {}", list.stdout);
        list.says(&["could not read", &format!("{strange}/run.json")]);
        assert!(run(&lab, &["compare", "runs"]).stdout.contains(&sound), "{by}");
        run_to(&lab, 1, &["export", "runs", "--tensorboard", "tb"]).says(&["could not read", "run.json"]);
        let watched = run_to(&lab, 1, &["watch", &sound, &strange]);
        assert!(watched.stdout.contains(&format!("{sound}: finished")), "{by}: {}", watched.stdout);
        assert!(watched.stdout.contains("could not read"), "{by}: {}", watched.stdout);
    }
}

#[test]
fn a_run_whose_record_cannot_be_read_has_not_failed_and_is_not_removed_as_such() {
    let lab = Lab::new();
    let [_, strange] = two(&lab);
    let record = lab.path("runs").join(&strange).join("run.json");
    let text = fs::read_to_string(&record).expect("a record");
    // as a newer version writes it
    fs::write(&record, text.replace("\"format_version\": 1", "\"format_version\": 2")).expect("written");
    let ways: [&[&str]; 2] = [&["--remove", "--yes"], &["--format", "json"]];
    for way in ways {
        let ended = lab.run([&["list", "--status", "failed,interrupted"], way].concat());
        assert!(!ended.expect(0).stdout.contains(&strange), "{}", ended.stdout);
    }
    assert_eq!(lab.runs("runs").len(), 2);
    let listed = lab.run(["list", "--status", "unknown"]);
    assert!(listed.expect(0).stdout.contains(&strange), "{}", listed.stdout);
    // who asks for it is told why
    lab.run(["list", &strange, "--remove"]).expect(2).says(&["run.json", "newer build"]);
}

/// Runs a command as a user to whom a directory of mode 000 is closed: root is none.
fn without_power(lab: &Lab, args: &[&str]) -> Ended {
    as_nobody(lab, "true", args).unwrap_or_else(|| lab.run(args))
}

/// As where several people keep their runs in one directory, and one of them keeps his to himself.
#[test]
fn a_run_that_may_not_be_looked_into_is_named_and_hides_no_other() {
    let lab = Lab::new();
    let [sound, closed] = two(&lab);
    is_named_and_hides_none(&lab, &sound, &closed);
    // the name of a copy need not be that of a run
    fs::rename(lab.path("runs").join(&closed), lab.path("runs/a-copy")).expect("renamed");
    is_named_and_hides_none(&lab, &sound, "a-copy");
}

fn is_named_and_hides_none(lab: &Lab, sound: &str, closed: &str) {
    let path = lab.path("runs").join(closed);
    let at = format!("runs/{closed}");
    let set = |mode: u32| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("owned");
    set(0o000);
    let ways: [&[&str]; 6] = [
        &["list"],
        &["list", &format!("runs/{sound}"), &at],
        &["list", "runs/*"],
        &["compare", "runs"],
        &["compare", &format!("runs/{sound}"), &at],
        &["compare", "runs/*", "--format", "csv"],
    ];
    let ended = ways.map(|args| (args, without_power(lab, args)));
    let watched = without_power(lab, &["watch", sound, closed]);
    let sampled = without_power(lab, &["sample", &at]);
    set(0o755);
    for (args, ended) in ended {
        assert!(ended.expect(0).stdout.contains(sound), "{args:?}: {}", ended.stdout);
        ended.says(&["could not read", closed, "Permission denied"]);
        // of what nobody knows nothing differs
        assert!(!ended.stdout.contains("none"), "{args:?}: {}", ended.stdout);
    }
    assert!(watched.expect(1).stdout.contains(&format!("{sound}: finished")), "{}", watched.stdout);
    sampled.expect(1).says(&[closed, "Permission denied"]);
}

/// As where somebody keeps a directory of runs to himself: there is no telling what is in it.
#[test]
fn a_directory_of_runs_that_is_closed_is_no_run_and_neither_is_what_is_named_below() {
    let lab = Lab::new();
    let [run, _] = two(&lab).map(|id| format!("runs/{id}"));
    let whole = lab.path("runs").display().to_string();
    let set =
        |mode: u32| fs::set_permissions(lab.path("runs"), fs::Permissions::from_mode(mode)).expect("owned");
    set(0o000);
    let ways: [&[&str]; 6] = [
        &["list"],
        &["list", "nonsense"],
        &["compare", "runs"],
        &["compare", "nonsense", "other"],
        &["watch", "nonsense"],
        &["export", "nonsense", "--tensorboard", "tb"],
    ];
    let ended = ways.map(|args| (args, "runs", without_power(&lab, args)));
    // by other names, and what is named in it
    let other =
        [["compare", "./runs"], ["compare", &whole], ["list", &run], ["watch", &run], ["sample", &run]];
    let others = other.map(|args| (args, without_power(&lab, &args)));
    set(0o755);
    let others = others.iter().map(|(args, ended)| (&args[..], args[1], ended));
    for (args, named, ended) in ended.iter().map(|(args, named, ended)| (*args, *named, ended)).chain(others)
    {
        assert_eq!(ended.code, Some(1), "{args:?}: {}{}", ended.stdout, ended.stderr);
        ended.says(&["could not read", &format!("`{named}`"), "Permission denied"]);
    }
}

#[test]
fn a_log_that_cannot_be_read_is_not_said_to_have_been_changed() {
    let lab = Lab::new();
    let [sound, _] = two(&lab);
    let log = lab.path("runs").join(&sound).join("train.csv");
    let set = |mode: u32| fs::set_permissions(&log, fs::Permissions::from_mode(mode)).expect("owned");
    set(0o000);
    let listed = without_power(&lab, &["list"]);
    set(0o644);
    listed.expect(0).says(&["could not read", "train.csv"]);
    assert!(!listed.stdout.contains("was changed"), "{}", listed.stdout);
}

/// As a shell finds it by `runs/*`.
#[test]
fn a_link_that_leads_nowhere_is_named_and_hides_no_run() {
    let lab = Lab::new();
    let [one, other] = two(&lab).map(|id| format!("runs/{id}"));
    for target in ["nowhere", "lost"] {
        std::os::unix::fs::symlink(target, lab.path("runs/lost")).expect("a link");
        for command in [&["list"][..], &["compare"], &["watch"], &["export", "--tensorboard", "tb"]] {
            let ended = lab.run([command, &[&one, "runs/lost", &other]].concat());
            ended.expect(0).says(&["`runs/lost` is a link that leads to nothing; left out"]);
        }
        // with nothing else it is a mistake
        assert_ne!(lab.run(["compare", "runs/lost"]).code, Some(0));
        fs::remove_file(lab.path("runs/lost")).expect("removed");
    }
}

#[test]
fn a_recipe_of_more_keys_than_any_has_is_not_compared() {
    let lab = Lab::new();
    let runs = lab.path("runs");
    Fake::new("fake-1", 1, 1e-3, 3.0).write(&runs);
    let keys =
        |letter: char, keys: usize| (0..keys).map(|i| format!("[{letter}{i}.b]\n")).collect::<String>();
    // as many of one's own as it takes for a table that nobody can read
    for (id, letter, number) in [("fake-2", 'a', 15_000), ("fake-3", 'b', 100), ("fake-4", 'c', 100)] {
        let run = Fake::new(id, 2, 1e-3, 3.0).write(&runs);
        fs::write(run.join("recipe.toml"), keys(letter, number)).expect("written");
    }
    for command in ["list", "compare"] {
        let ended = lab.run([command, "runs"]);
        ended.expect(0).says(&["fake-2/recipe.toml` cannot be read: it has 15000 keys"]);
        assert!(
            ended.stdout.contains("136 further keys of recipes that this version does not know"),
            "{command}"
        );
        assert!(ended.stdout.len() < 100_000, "{command}: {}", ended.stdout.len());
    }
}
