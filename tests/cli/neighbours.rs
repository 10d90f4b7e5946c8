//! Other users of the same machine, who may have made what a run finds: directories, links and files.

use crate::support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use support::{Ended, Lab, as_nobody, checkpoints, everything, tiny};

/// The number of a user who is nobody here.
const BOB: u32 = 12345;

/// The attribute of a file that has an access control list.
const ACL: &str = "system.posix_acl_access";

/// Does `setfacl -m u:12345:---` to what has the mode 755; false on a file system without lists.
fn keep_out(path: &Path) -> bool {
    let no_id = u32::MAX;
    let entries: [(u16, u16, u32); 5] =
        [(1, 7, no_id), (2, 0, BOB), (4, 5, no_id), (0x10, 5, no_id), (0x20, 5, no_id)];
    let entries = entries
        .iter()
        .flat_map(|(tag, may, id)| [&tag.to_le_bytes()[..], &may.to_le_bytes(), &id.to_le_bytes()].concat());
    let list: Vec<u8> = 2u32.to_le_bytes().into_iter().chain(entries).collect();
    rustix::fs::setxattr(path, ACL, &list, rustix::fs::XattrFlags::empty()).is_ok()
}

fn run(lab: &Lab, args: impl IntoIterator<Item = impl AsRef<std::ffi::OsStr>>) -> Ended {
    lab.run(args)
}

/// A run that was killed and has the checkpoints of steps 4 and 8.
fn killed(lab: &Lab, runs: &str) -> PathBuf {
    lab.crash(runs, &[], "csv.before_row:12")
}

/// Whether a link could be given to another user, which only root can.
fn given(path: &Path) -> bool {
    lchown(path, Some(BOB), None).is_ok()
}

#[test]
fn whose_a_run_is_that_another_user_has_made_is_said() {
    let lab = Lab::new();
    let path = lab.train(&[]);
    let again = || run(&lab, tiny("runs", &[])).expect(0).stderr.clone();
    assert!(!again().contains("another user"), "{}", again());
    // only root can give a directory away
    if chown(&path, Some(BOB), None).is_ok() {
        assert!(again().contains("belongs to another user (12345)"), "{}", again());
        let rest = run(&lab, tiny("runs", &["--dry-run"]));
        assert_ne!(rest.code, Some(101), "{}", rest.stderr);
    }
}

/// A namespace in which all other users have one number.
#[test]
fn in_a_container_a_link_of_another_user_is_not_taken_for_that_of_a_third_one() {
    let lab = Lab::new();
    let text = lab.write("theirs", "of the group alone\n".repeat(400));
    symlink(&text, lab.path("data/train-1.txt")).expect("a link");
    fs::set_permissions(&text, Permissions::from_mode(0o640)).expect("owned");
    if !given(&lab.path("data/train-1.txt")) || chown(&text, Some(BOB + 1), Some(0)).is_err() {
        return;
    }
    let apart = ["-U", "--map-current-user"];
    let mut command = lab.launcher("unshare");
    command.args(apart).arg("true");
    if !command.status().is_ok_and(|status| status.success()) {
        return;
    }
    let mut command = lab.launcher("unshare");
    let args = tiny("runs", &["data.train=data/train-*.txt", "data.tokenizer=bytes", "data.val=[]"]);
    command.args(apart).arg(lab.command(["list"]).get_program()).args(args);
    support::ended(command).expect(2).says(&["train-1.txt` is another user's link"]);
}

#[test]
fn a_directory_that_another_user_has_made_first_is_named_with_its_owner() {
    let lab = Lab::new();
    let dry = run(&lab, tiny("runs", &["seed=3"]).into_iter().chain(["--dry-run".to_owned()]));
    let path = dry.expect(0).stdout.trim().to_owned();
    let made = format!("mkdir -p {path} && chown {BOB} {path} && chmod 777 runs");
    for more in [&[][..], &["--fresh"], &["--dry-run"]] {
        let args = tiny("runs", &["seed=3"]).into_iter().chain(more.iter().map(|one| (*one).to_owned()));
        let Some(ended) = as_nobody(&lab, &made, args) else { return };
        ended.expect(2).says(&[&path, "belongs to user 12345, who made it first", "--runs-dir"]);
        assert_eq!(fs::read_dir(lab.path(&path)).expect("a directory").count(), 0, "{more:?}");
    }
}

#[test]
fn no_run_goes_on_behind_a_link_of_another_user_on_the_way_to_it() {
    let lab = Lab::new();
    let path = killed(&lab, "private");
    fs::create_dir(lab.path("shared")).expect("a directory");
    let theirs = lab.path("shared/theirs");
    symlink(lab.path("private"), &theirs).expect("a link");
    // the recipe names data beside the directory of runs
    symlink(lab.path("data"), lab.path("shared/data")).expect("a link");
    // only root can give a link away
    if given(&theirs) {
        let before = everything(&path);
        let id = path.file_name().and_then(|id| id.to_str()).expect("an id");
        let (whole, below) = (format!("shared/theirs/{id}"), format!("theirs/{id}"));
        for args in [&["--resume", &whole][..], &["--resume", &below, "--runs-dir", "shared"]] {
            for more in [&[][..], &["--dry-run"]] {
                let refused = run(&lab, args.iter().chain(more));
                refused.expect(1).says(&["theirs` is a link of another user: name what it leads to"]);
                assert!(everything(&path) == before, "{args:?} {more:?}");
            }
        }
    }
}

/// What is made of texts may be read by more people than the texts.
#[test]
fn no_text_is_taken_through_a_link_of_another_user_to_what_is_not_theirs() {
    let lab = Lab::new();
    lab.write("corpus/a.txt", "some text of which there is more than one piece\n".repeat(40));
    let private = lab.write("private.txt", "mine alone\n".repeat(40));
    let planted = lab.path("corpus/b.txt");
    symlink(&private, &planted).expect("a link");
    let prepare = |out: &str| run(&lab, ["data", "prepare", "corpus", "--tokenizer", "bytes", "--out", out]);
    let train =
        || run(&lab, tiny("runs", &["data.train=corpus/*.txt", "data.tokenizer=bytes", "data.val=[]"]));
    // one's own link is followed
    prepare("own").expect(0);
    train().expect(0);
    if given(&planted) {
        for refused in [prepare("theirs"), train()] {
            assert_ne!(refused.code, Some(0), "{}", refused.stderr);
            refused.says(&["corpus/b.txt` is another user's link to what is not theirs"]);
        }
        assert!(!lab.path("theirs").exists());
        // the user who has made the link can read that file anyway
        assert!(given(&private));
        prepare("theirs").expect(0);
    }
}

/// The way to what is named may be another user's as well.
#[test]
fn nothing_is_taken_through_a_link_of_another_user_to_what_is_not_open_to_all() {
    let lab = Lab::new();
    for dir in ["home", "exams", "shared", "shared/tasks"] {
        fs::create_dir(lab.path(dir)).expect("a directory");
    }
    lab.write("home/a.txt", "mine alone\n".repeat(400));
    lab.write(
        "exams/exam.jsonl",
        "{\"context\": \"so she\", \"endings\": [\" sang\", \" hid\"], \"label\": 0}\n",
    );
    lab.write("shared/own.txt", "so she sang, so he sang; ".repeat(200));
    let newest = lab.train_in("home/runs", &[]).join("checkpoints/step-00000012");
    assert!(newest.is_dir());
    let links = ["shared/texts", "shared/tasks/exam.jsonl", "shared/step"];
    for (target, link) in
        ["home", "exams/exam.jsonl"].map(|name| lab.path(name)).iter().chain([&newest]).zip(links)
    {
        symlink(target, lab.path(link)).expect("a link");
    }
    let bytes = ["data.tokenizer=bytes", "data.val=[]"];
    let ways: [(&str, Vec<String>); 8] = [
        ("texts", tiny("runs", &["data.train=shared/texts/*.txt", bytes[0], bytes[1]])),
        ("texts", tiny("runs", &["data.train=shared/texts/a.txt", bytes[0], bytes[1]])),
        ("texts", tiny("runs", &["data.train=shared/texts/a.txt", "data.tokenizer=char", bytes[1]])),
        (
            "texts",
            ["data", "prepare", "shared/texts", "--tokenizer", "bytes", "--out", "out"]
                .map(str::to_owned)
                .into(),
        ),
        (
            "exam.jsonl",
            tiny(
                "runs",
                &[
                    "eval.tasks=[\"shared/tasks/*.jsonl\"]",
                    "data.train=shared/own.txt",
                    "data.val=shared/own.txt",
                    bytes[0],
                ],
            ),
        ),
        ("step", tiny("runs", &["model.init_from=shared/step"])),
        ("step", ["sample", "shared/step", "--tokens", "2", "--prompt", "!"].map(str::to_owned).into()),
        ("step", ["eval", "shared/step", "--data", "data/val.bin"].map(str::to_owned).into()),
    ];
    let all = |expected: &dyn Fn(&str, &Ended)| {
        for (what, args) in &ways {
            let _ = fs::remove_dir_all(lab.path("out"));
            let trains = args[0].ends_with(".toml");
            let args = args.iter().map(String::as_str).chain(trains.then_some("--fresh"));
            expected(what, &run(&lab, args));
        }
    };
    let set = |mode| fs::set_permissions(lab.dir(), Permissions::from_mode(mode)).expect("owned");
    set(0o700);
    // one's own links are followed
    all(&|_, ended| {
        ended.expect(0);
    });
    if !links.iter().all(|link| given(&lab.path(link))) {
        return;
    }
    all(&|what, ended| {
        assert!(matches!(ended.code, Some(1 | 2)), "{what}: {}", ended.stderr);
        ended.says(&[what, "is another user's link to what is not open to all users: name what it leads to"]);
    });
    // where everybody may read, there is nothing to hide
    set(0o755);
    all(&|_, ended| {
        ended.expect(0);
    });
    // unless a list beside the mode keeps somebody out
    if keep_out(lab.dir()) {
        all(&|what, ended| {
            assert!(matches!(ended.code, Some(1 | 2)), "{what}: {}", ended.stderr);
            ended.says(&[what, "is another user's link to what is not open to all users"]);
        });
        rustix::fs::removexattr(lab.dir(), ACL).expect("owned");
    }
    // who may only enter a directory has to know the names of the files there
    let entered = |mode| {
        for dir in ["home", "exams", "shared/tasks"] {
            fs::set_permissions(lab.path(dir), Permissions::from_mode(mode)).expect("owned");
        }
    };
    entered(0o711);
    let listed: [(&[&str], i32); 7] = [
        (&["data", "prepare", "shared/texts/*.txt", "--tokenizer", "bytes", "--out", "out"], 2),
        (&["data", "prepare", "./shared/./texts/*.txt", "--tokenizer", "bytes", "--out", "out"], 2),
        (&["data", "prepare", "shared/texts", "--tokenizer", "bytes", "--out", "out"], 2),
        (&["data", "inspect", "shared/texts"], 2),
        (&["data", "inspect", "shared/texts/a.txt"], 0),
        (&["data", "prepare", "shared/texts/a.txt", "--tokenizer", "bytes", "--out", "out"], 0),
        (&["data", "prepare", "home", "--tokenizer", "bytes", "--out", "own"], 0),
    ];
    let is_closed = |ended: &Ended, what: &str| {
        let ended = ended.expect(2);
        ended.says(&[what, "is another user's link to what is not open to all users: name what it leads to"]);
    };
    for (args, code) in listed {
        let _ = fs::remove_dir_all(lab.path("out"));
        match (run(&lab, args), code) {
            (ended, 2) => is_closed(&ended, "shared/texts"),
            (ended, code) => drop(ended.expect(code)),
        }
    }
    is_closed(&run(&lab, ways[0].1.iter().map(String::as_str).chain(["--fresh"])), "shared/texts");
    symlink(lab.path("exams"), lab.path("shared/exams")).expect("a link");
    assert!(given(&lab.path("shared/exams")));
    let all_tasks = |pattern: &str| {
        let tasks = format!("eval.tasks=[\"{pattern}\"]");
        let files = ["data.train=shared/own.txt", "data.val=shared/own.txt"];
        run(&lab, tiny("runs", &[&tasks, files[0], files[1], bytes[0], "name=tasks"]))
    };
    is_closed(&all_tasks("shared/exams/*.jsonl"), "shared/exams");
    all_tasks("shared/exams/exam.jsonl").expect(0);
    entered(0o755);
    all_tasks("shared/exams/*.jsonl").expect(0);
    // nor is it enough that a third user lets this one read
    for (closed, mode) in [("home", 0o750), ("exams/exam.jsonl", 0o640)] {
        chown(lab.path(closed), Some(BOB + 1), None).expect("given away");
        fs::set_permissions(lab.path(closed), Permissions::from_mode(mode)).expect("closed");
    }
    all(&|what, ended| {
        assert!(matches!(ended.code, Some(1 | 2)), "{what}: {}", ended.stderr);
        ended.says(&[what, "is another user's link to what is not open to all users"]);
    });
}

/// Whoever names a directory of runs means what lies on the way to it.
#[test]
fn links_of_other_users_on_the_way_to_the_runs_are_followed() {
    let lab = Lab::new();
    fs::create_dir_all(lab.path("team/runs")).expect("a directory");
    fs::create_dir(lab.path("lead")).expect("a directory");
    fs::set_permissions(lab.path("team"), Permissions::from_mode(0o770)).expect("closed");
    symlink("../team/runs", lab.path("lead/runs")).expect("a link");
    if !given(&lab.path("lead/runs")) {
        return;
    }
    let run = lab.train_in("lead/runs", &[]);
    lab.run(tiny("lead/runs", &[])).expect(0).says(&["already finished"]);
    let listed = lab.run(["list", "--runs-dir", "lead/runs"]);
    assert!(listed.expect(0).stdout.contains("finished") && !listed.stderr.contains("warning"), "{listed:?}");
    let id = run.file_name().and_then(|id| id.to_str()).expect("an id").to_owned();
    for args in [&["compare", &id][..], &["sample", &id, "--tokens", "1", "--prompt", "!"], &["watch", &id]] {
        lab.run(args.iter().chain(&["--runs-dir", "lead/runs"])).expect(0);
    }
    lab.run(tiny("lead/runs", &[]).into_iter().chain(["--fresh".to_owned()])).expect(0);
}

#[test]
fn what_is_kept_of_texts_is_kept_from_other_users() {
    let lab = Lab::new();
    lab.write("a.txt", "some text of which there is more than one piece\n".repeat(40));
    run(&lab, tiny("runs", &["data.train=a.txt", "data.tokenizer=bytes", "data.val=[]"])).expect(0);
    let cache = fs::metadata(lab.path("runs/.cache")).expect("a cache");
    assert_eq!(cache.mode() & 0o777, 0o700);
}

#[test]
fn an_old_checkpoint_that_cannot_be_deleted_does_not_end_a_run() {
    let lab = Lab::new();
    let path = killed(&lab, "runs");
    let old = checkpoints(&path);
    let given = "chown -hR 65534 . && for old in runs/*/checkpoints/step-*; do mkdir \"$old/of-root\" && \
                 touch \"$old/of-root/file\"; done";
    let Some(ended) = as_nobody(&lab, given, tiny("runs", &["checkpoint.keep=1"])) else { return };
    ended.expect(0);
    let left: Vec<_> = fs::read_dir(path.join("checkpoints")).expect("a directory").collect();
    let is_left = |name: &str| name.starts_with(".tmp-step-00000008");
    assert!(
        left.iter().any(|entry| is_left(&entry.as_ref().expect("an entry").file_name().to_string_lossy()))
    );
    assert!(!checkpoints(&path).contains(&old[0]));
}

#[test]
fn a_download_is_believed_to_be_under_way_where_it_is_of_whose_files_these_are() {
    let lab = Lab::new();
    lab.write("datasets/a.txt", "some text of which there is more than one piece\n".repeat(40));
    let train =
        || run(&lab, tiny("runs", &["data.train=datasets/*.txt", "data.tokenizer=bytes", "data.val=[]"]));
    let prepare = || run(&lab, ["data", "prepare", "datasets", "--tokenizer", "bytes", "--out", "out"]);
    // what a file server keeps of what was deleted while it was open is no part of a download
    lab.write("datasets/.fetch/.nfs000000000012ab34", "");
    train().expect(0);
    lab.write("datasets/.fetch/lock", "");
    for ended in [train(), prepare()] {
        ended.expect(2).says(&["unfinished `runner data fetch`"]);
    }
    // only root can give a directory away
    if chown(lab.path("datasets/.fetch"), Some(BOB), None).is_ok() {
        for ended in [train(), prepare()] {
            ended.expect(0);
        }
        chown(lab.path("datasets/a.txt"), Some(BOB), None).expect("given away");
        train().expect(2).says(&["unfinished `runner data fetch`"]);
    }
}

#[test]
fn a_preparation_that_another_user_has_begun_is_not_gone_on_with_and_stops_no_others_data() {
    let lab = Lab::new();
    lab.write("a.txt", "some text of which there is more than one piece\n".repeat(400));
    let prepare =
        ["data", "prepare", "a.txt", "--tokenizer", "bytes", "--shard-tokens", "5000", "--out", "out"];
    let mut killed = lab.command(prepare);
    killed.env("RUNNER_FAULT", "prepare.after_state:4");
    assert_eq!(support::ended(killed).code, None, "aborted");
    let train = || run(&lab, tiny("runs", &["data.train=out/train-*.bin", "data.val=[]"]));
    train().expect(2).says(&["is a shard of an unfinished preparation"]);
    let before = everything(&lab.path("out"));
    // only root can give a directory away
    if chown(lab.path("out/.prepare"), Some(BOB), None).is_ok() {
        run(&lab, prepare).expect(2).says(&["out/.prepare` belongs to user 12345", "--out"]);
        assert!(everything(&lab.path("out")) == before);
        train().expect(0);
        // a link to what is one's own is no preparation either
        fs::rename(lab.path("out/.prepare"), lab.path("kept")).expect("renamed");
        chown(lab.path("kept"), Some(0), None).expect("taken back");
        symlink("../kept", lab.path("out/.prepare")).expect("a link");
        train().expect(0);
        fs::remove_file(lab.path("out/.prepare")).expect("removed");
        fs::rename(lab.path("kept"), lab.path("out/.prepare")).expect("renamed");
    }
    run(&lab, prepare).expect(0);
}

#[test]
fn what_another_user_puts_beside_shards_says_nothing_of_them() {
    let lab = Lab::new();
    lab.write("a.txt", "some text of which there is more than one piece\n".repeat(40));
    run(&lab, ["data", "prepare", "a.txt", "--tokenizer", "bytes", "--out", "out"]).expect(0);
    let card = fs::read_to_string(lab.path("out/dataset.json")).expect("a card");
    let card = lab.write("data/dataset.json", card.replace("train-000001.bin", "train.bin"));
    let tokenizer = || run(&lab, ["explain", "tiny.toml", "data.tokenizer"]).expect(0).stdout.clone();
    assert!(tokenizer().contains("bytes"), "{}", tokenizer());
    // only root can give a file away
    if chown(&card, Some(BOB), None).is_ok() {
        assert!(!tokenizer().contains("bytes"), "{}", tokenizer());
        let told = run(&lab, ["plan", "tiny.toml"]).expect(0).stderr.clone();
        let warning = "lies beside data/dataset.json, which another user has put there";
        assert!(told.contains(warning), "{told}");
        fs::write(&card, "{").expect("written");
        run(&lab, tiny("runs", &[])).expect(0);
    }
}

#[test]
fn whose_a_prepared_set_is_is_said() {
    let lab = Lab::new();
    lab.write("a.txt", "some text of which there is more than one piece\n".repeat(40));
    let prepare = || run(&lab, ["data", "prepare", "a.txt", "--tokenizer", "bytes", "--out", "out"]);
    assert!(!prepare().expect(0).stderr.contains("another user"));
    // only root can give a file away
    if chown(lab.path("out/dataset.json"), Some(BOB), None).is_ok() {
        prepare().expect(0).says(&["warning: out belongs to another user (12345)", "--out names"]);
    }
}

#[test]
fn a_branch_of_ones_own_comes_before_one_that_another_user_has_begun() {
    let lab = Lab::new();
    let trunk = lab.train_in("runs", &["checkpoint.keep=0"]);
    let name = trunk.file_name().and_then(|name| name.to_str()).expect("an id");
    let begun = |step: &str| {
        let from = format!("model.init_from={{run=\"runs/{name}\"{step},optimizer=false}}");
        ["seed=9".to_owned(), "schedule.max_steps=20".to_owned(), from]
    };
    let crash = |step| {
        let sets = begun(step);
        lab.crash("runs", &sets.each_ref().map(String::as_str), "csv.before_row:13")
    };
    let own = crash(",step=8");
    let later = crash(",step=12");
    assert_ne!(later, own);
    let sets = begun("");
    let goes_on = || {
        let args = tiny("runs", &sets.each_ref().map(String::as_str));
        lab.run_of(run(&lab, args.into_iter().chain(["--dry-run".to_owned()])).expect(0))
    };
    assert_eq!(goes_on(), later);
    // only root can give a directory away
    if chown(&later, Some(BOB), None).is_ok() {
        assert_eq!(goes_on(), own);
    }
}
