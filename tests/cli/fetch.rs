//! `runner data fetch` against a server on the loopback that fails in every way that servers do.

use crate::server_support;
use crate::support;

use serde_json::{Value, json};
use server_support::{Asked, Reply, Server};
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::{chown, lchown};
use std::path::Path;
use std::process::Command;
use support::{Ended, Lab, ended, shard, spawned, tokens, wait};

pub(crate) const REPO: &str = "hf://datasets/owner/some-data";
const LIST: &str = "/api/datasets/owner/some-data/tree/main?recursive=true";

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An entry of the hub's list of files, for a file in Git LFS.
pub(crate) fn entry(path: &str, contents: &[u8]) -> Value {
    let (size, oid) = (contents.len(), sha256(contents));
    json!({ "type": "file", "path": path, "size": size, "oid": "00", "lfs": { "oid": oid, "size": size } })
}

pub(crate) fn listed(entries: &[Value]) -> Reply {
    Reply::new(200, Value::from(entries).to_string()).with("Content-Type", "application/json")
}

/// A hub with one file, `x.bin`, whose downloads `answer` decides.
pub(crate) fn hub(
    file: Vec<u8>,
    answer: impl Fn(&[u8], &Asked, usize) -> Reply + Send + Sync + 'static,
) -> Server {
    Server::start(move |asked, before| match asked.path.as_str() {
        LIST => listed(&[entry("x.bin", &file)]),
        "/datasets/owner/some-data/resolve/main/x.bin" => answer(&file, asked, before),
        _ => Reply::new(404, "no such path"),
    })
}

pub(crate) fn fetching(lab: &Lab, server: &Server, words: &[&str]) -> Command {
    let mut command = lab.command(["data", "fetch"].iter().chain(words));
    command.env("HF_ENDPOINT", server.url(""));
    command
}

pub(crate) fn fetch(lab: &Lab, server: &Server, words: &[&str]) -> Ended {
    ended(fetching(lab, server, words))
}

/// Everything in a directory, hidden files too.
pub(crate) fn everything(dir: &Path) -> Vec<String> {
    support::everything(dir).into_keys().collect()
}

/// Some bytes that are no text.
pub(crate) fn contents(bytes: usize) -> Vec<u8> {
    shard(&tokens(bytes / 2 - 512, 5))
}

#[test]
fn files_of_the_hub_come_with_their_paths_over_pages_and_redirects_and_once() {
    let lab = Lab::new();
    let (a, b) = (contents(9000), contents(5000));
    let (readme, git) = (b"hello\n".to_vec(), "ce013625030ba8dba906f756967f9e9ca394464a");
    let [x, y, z] = [a.clone(), b.clone(), readme];
    let server = Server::start(move |asked, _| match asked.path.as_str() {
        LIST => {
            let next = format!("<http://{}/page2>; rel=\"next\"", asked.header("host").expect("a host"));
            let folder = json!({ "type": "directory", "path": "deep", "oid": "00", "size": 0 });
            listed(&[entry("deep/a.bin", &x), folder]).with("Link", next)
        }
        "/page2" => listed(&[
            entry("deep/b.bin", &y),
            json!({ "type": "file", "path": "hello", "size": z.len(), "oid": git }),
        ]),
        "/datasets/owner/some-data/resolve/main/deep/a.bin" => {
            Reply::new(302, "").with("Location", "/cdn/a?sig=1")
        }
        "/cdn/a?sig=1" => Reply::part(&x, asked),
        "/datasets/owner/some-data/resolve/main/deep/b.bin" => Reply::part(&y, asked),
        "/datasets/owner/some-data/resolve/main/hello" => Reply::part(&z, asked),
        _ => Reply::new(404, ""),
    });
    let mut command = fetching(&lab, &server, &[REPO, "--out", "got"]);
    command.env("HF_TOKEN", "hf_secret");
    let got = ended(command);
    assert_eq!(got.expect(0).stdout, "got\n");
    got.says(&["3 files to fetch into got", "got: 3 files"]);
    assert_eq!(everything(&lab.path("got")), ["deep/a.bin", "deep/b.bin", "hello"]);
    assert_eq!(fs::read(lab.path("got/deep/a.bin")).expect("read"), a);
    assert_eq!(fs::read(lab.path("got/deep/b.bin")).expect("read"), b);
    // the hub gets the token, and a server that it leads to does not
    for asked in server.asked() {
        let token = (!asked.path.starts_with("/cdn")).then_some("Bearer hf_secret");
        assert_eq!(asked.header("authorization"), token, "{}", asked.path);
    }
    // a second call asks for the list and nothing else
    let asked = server.asked().len();
    fetch(&lab, &server, &[REPO, "--out", "got"]).expect(0).says(&["got: 3 files", "all there before"]);
    assert_eq!(server.asked().len(), asked + 2);
    // another user's file may be right now and changed later; only root can give one away
    if lchown(lab.path("got/hello"), Some(12345), None).is_ok() {
        let said = ["warning: `got/hello` is not yours but user 12345's", "all there before"];
        fetch(&lab, &server, &[REPO, "--out", "got"]).expect(0).says(&said);
        // and so is a directory that nobody has named
        fs::create_dir(lab.path("datasets")).expect("a directory");
        lchown(lab.path("datasets"), Some(12345), None).expect("given away");
        let said = ["warning: `datasets` is not yours but user 12345's", "--out"];
        fetch(&lab, &server, &[&format!("{REPO}/**/a*")]).expect(0).says(&said);
        fs::remove_dir_all(lab.path("datasets")).expect("removed");
    }
    // a part of the files, into the usual place
    let got = fetch(&lab, &server, &[&format!("{REPO}/**/b*"), "--shards", "1"]);
    assert_eq!(got.expect(0).stdout, "datasets/some-data\n");
    assert_eq!(everything(&lab.path("datasets/some-data")), ["deep/b.bin"]);
}

/// In a directory of another user, that user can exchange what was checked.
#[test]
fn nothing_is_fetched_into_a_directory_that_another_user_has_put_there() {
    let lab = Lab::new();
    let file = contents(9000);
    let held = file.clone();
    let server = Server::start(move |asked, _| match asked.path.as_str() {
        LIST => listed(&[entry("deep/a.bin", &held)]),
        _ => Reply::part(&held, asked),
    });
    let own = lab.path("got");
    for theirs in [".fetch", "deep", ".prepare"] {
        fs::create_dir_all(own.join(theirs)).expect("a directory");
        // only root can give a directory away
        if chown(own.join(theirs), Some(12345), None).is_err() {
            return;
        }
        let refused = fetch(&lab, &server, &[REPO, "--out", "got"]);
        refused.expect(2).says(&[&format!("got/{theirs}` belongs to user 12345"), "--out"]);
        assert!(!own.join("deep/a.bin").exists());
        chown(own.join(theirs), Some(0), None).expect("taken back");
    }
    fs::remove_dir(own.join(".prepare")).expect("removed");
    fetch(&lab, &server, &[REPO, "--out", "got"]).expect(0);
    assert_eq!(fs::read(own.join("deep/a.bin")).expect("read"), file);
}

#[test]
fn files_of_equal_contents_are_files_of_their_own() {
    let lab = Lab::new();
    let file = contents(300_000);
    let held = file.clone();
    let names: Vec<String> = (0..6).map(|i| format!("{i}.bin")).collect();
    let entries: Vec<Value> = names.iter().map(|name| entry(name, &file)).collect();
    let server = Server::start(move |asked, _| match asked.path.as_str() {
        LIST => listed(&entries),
        _ => Reply::part(&held, asked),
    });
    fetch(&lab, &server, &[REPO, "--out", "got", "--jobs", "3"]).expect(0).says(&["got: 6 files"]);
    assert_eq!(everything(&lab.path("got")), names);
    assert!(names.iter().all(|name| fs::read(lab.path("got").join(name)).expect("read") == file));
}

#[test]
fn shards_of_a_known_name_get_the_names_that_recipes_look_for() {
    let lab = Lab::new();
    let files: Vec<(String, Vec<u8>)> = ["train_000002", "train_000001", "val_000000"]
        .iter()
        .zip(1..)
        .map(|(name, seed)| (format!("finewebedu_{name}.bin"), shard(&tokens(700, seed))))
        .collect();
    let held = files.clone();
    let server = Server::start(move |asked, _| {
        let resolved = |file: &&(String, Vec<u8>)| asked.path.ends_with(&format!("/resolve/main/{}", file.0));
        match held.iter().find(resolved) {
            Some((_, file)) => Reply::part(file, asked),
            None if asked.path.starts_with("/api/datasets/kjj0/finewebedu10B-gpt2/tree/main") => {
                listed(&held.iter().map(|(name, file)| entry(name, file)).collect::<Vec<_>>())
            }
            None => Reply::new(404, ""),
        }
    });
    let dir = lab.path("datasets/fineweb-edu");
    fetch(&lab, &server, &["fineweb-edu-10b", "--shards", "1"]).expect(0);
    assert_eq!(everything(&dir), ["train-000001.bin", "val-000000.bin"]);
    assert_eq!(fs::read(dir.join("train-000001.bin")).expect("read"), files[1].1);
    fetch(&lab, &server, &["fineweb-edu-10b"]).expect(0).says(&["3 files", "2 there before"]);
    assert_eq!(everything(&dir), ["train-000001.bin", "train-000002.bin", "val-000000.bin"]);
    // and the recipe's own patterns find them
    let sets = ["data.train=datasets/fineweb-edu/*train[-_]*", "data.val=datasets/fineweb-edu/*val[-_]*"];
    lab.train(&["schedule.max_steps=4", sets[0], sets[1]]);
}

#[test]
fn what_goes_wrong_once_is_tried_again_from_where_it_stood() {
    type Answer = fn(&[u8], &Asked, usize) -> Reply;
    let once: [(&str, Answer, Option<usize>); 8] = [
        ("500", |_, _, _| Reply::new(500, "oops"), None),
        ("503", |_, _, _| Reply::new(503, "later").with("Retry-After", "0"), None),
        ("429", |_, _, _| Reply::new(429, "slowly").with("Retry-After", "0"), None),
        ("cut before the first byte", |file, asked, _| Reply::part(file, asked).cut(0), None),
        ("cut in the middle", |file, asked, _| Reply::part(file, asked).cut(4000), Some(4000)),
        // at a byte within a token
        ("cut near the end", |file, asked, _| Reply::part(file, asked).cut(8001), Some(8001)),
        ("a trickle", |file, asked, _| Reply::part(file, asked).trickling(7), None),
        ("wrong contents", |file, _, _| Reply::new(200, vec![7; file.len()]), None),
    ];
    for (what, broken, resumes) in once {
        let (lab, file) = (Lab::new(), contents(9000));
        let right = file.clone();
        let server = hub(file, move |file, asked, before| match before {
            0 => broken(file, asked, before),
            _ => Reply::part(file, asked),
        });
        fetch(&lab, &server, &[REPO, "--out", "got"]).expect(0);
        assert_eq!(fs::read(lab.path("got/x.bin")).expect("read"), right, "{what}");
        assert_eq!(everything(&lab.path("got")), ["x.bin"], "{what}");
        let asked = server.asked_for("/datasets/owner/some-data/resolve/main/x.bin");
        assert_eq!(asked.len(), if what == "a trickle" { 1 } else { 2 }, "{what}");
        assert_eq!(asked.last().expect("a request").first(), resumes, "{what}");
    }
}

/// Where there is no digest, nothing at the end tells that two halves are of two versions.
#[test]
fn a_file_without_digest_that_changes_while_it_comes_is_fetched_anew() {
    let versions = [contents(9000), contents(9000).into_iter().map(|byte| !byte).collect()];
    let now = |before: usize| (before > 0) as usize;
    let times = ["Sat, 28 Nov 2026 00:00:00 GMT", "Sun, 29 Nov 2026 00:00:00 GMT"];
    // of each version, a tag and when it was changed
    let stated: [[[&str; 2]; 2]; 5] = [
        [["\"a\"", ""], ["\"b\"", ""]],
        // a weak tag is no condition, and one that is not there any more is no longer the same
        [["W/\"a\"", ""], ["W/\"b\"", ""]],
        [["\"a\"", ""], ["", ""]],
        [["", times[0]], ["", times[1]]],
        // servers may make one weak tag of files of one length
        [["W/\"a\"", times[0]], ["W/\"a\"", times[1]]],
    ];
    // some servers heed the condition, and others send what was asked for of what they have now
    for (stated, heeds) in stated.into_iter().flat_map(|stated| [(stated, true), (stated, false)]) {
        let [tag, time] = stated[0];
        let condition = Some(if tag.is_empty() { time } else { tag }).filter(|tag| !tag.starts_with("W/"));
        let heeds = heeds && condition.is_some();
        let lab = Lab::new();
        let of_hub = versions.clone();
        let server = Server::start(move |asked, before| match asked.path.as_str() {
            LIST => listed(&[json!({ "type": "file", "path": "x.bin", "size": 9000 })]),
            // a failure in between makes nothing forgotten
            _ if before == 1 => Reply::new(503, "").with("Retry-After", "0"),
            _ => {
                let (file, stated) = (&of_hub[now(before)], stated[now(before)]);
                let is_other = asked.header("if-range").is_some_and(|known| !stated.contains(&known));
                let reply = match heeds && is_other {
                    true => Reply::new(200, file.clone()),
                    false => Reply::part(file, asked),
                };
                let said = ["ETag", "Last-Modified"].into_iter().zip(stated);
                let said = said.filter(|(_, value)| !value.is_empty());
                let reply = said.fold(reply, |reply, (name, value)| reply.with(name, value));
                if before == 0 { reply.cut(4000) } else { reply }
            }
        });
        fetch(&lab, &server, &[REPO, "--out", "got"]).expect(0).says(&["no digest"]);
        assert_eq!(fs::read(lab.path("got/x.bin")).expect("read"), versions[1], "{stated:?} {heeds}");
        let asked = server.asked_for("/datasets/owner/some-data/resolve/main/x.bin");
        let firsts: Vec<_> = asked.iter().map(Asked::first).collect();
        assert_eq!(
            firsts,
            if heeds {
                [None, Some(4000), Some(4000)].to_vec()
            } else {
                [None, Some(4000), Some(4000), None].to_vec()
            }
        );
        assert!(asked[1..3].iter().all(|asked| asked.header("if-range") == condition), "{stated:?}");
    }
}

#[test]
fn a_connection_that_breaks_again_and_again_comes_to_an_end_as_long_as_it_moves() {
    let (lab, file) = (Lab::new(), contents(9000));
    let right = file.clone();
    let server = hub(file, |file, asked, _| Reply::part(file, asked).cut(1900));
    fetch(&lab, &server, &[REPO, "--out", "got", "--retries", "1"]).expect(0);
    assert_eq!(fs::read(lab.path("got/x.bin")).expect("read"), right);
    let asked = server.asked_for("/datasets/owner/some-data/resolve/main/x.bin");
    let firsts: Vec<_> = asked.iter().map(Asked::first).collect();
    assert_eq!(firsts, [None, Some(1900), Some(3800), Some(5700), Some(7600)]);
}

/// Bytes that had come before are none that came further.
#[test]
fn a_server_that_begins_anew_each_time_and_breaks_off_at_other_places_is_given_up() {
    let (lab, file) = (Lab::new(), contents(9000));
    let server = hub(file, |file, _, before| Reply::new(200, file).cut(4000 + 500 * (before % 3)));
    let ended = fetch(&lab, &server, &[REPO, "--out", "got", "--retries", "2"]);
    ended.expect(1).says(&["given up after 3 tries without a further byte"]);
    let asked = server.asked_for("/datasets/owner/some-data/resolve/main/x.bin");
    assert_eq!(asked.len(), 3 + 2, "twice it came further");
}

#[test]
fn a_server_without_ranges_and_one_that_is_silent_are_no_obstacle() {
    let (lab, file) = (Lab::new(), contents(9000));
    let right = file.clone();
    let gate = lab.write("gate", "");
    let silent = gate.clone();
    let server = hub(file, move |file, asked, before| match before {
        // nothing more comes, and the connection stays open
        0 => Reply::part(file, asked).cut(3000).held(silent.clone()),
        // the whole file, whatever was asked for
        1 => Reply::new(200, file).cut(6000),
        _ => Reply::new(200, file),
    });
    fetch(&lab, &server, &[REPO, "--out", "got", "--timeout", "1"]).expect(0);
    fs::remove_file(gate).expect("removed");
    assert_eq!(fs::read(lab.path("got/x.bin")).expect("read"), right);
    let asked = server.asked_for("/datasets/owner/some-data/resolve/main/x.bin");
    assert_eq!(asked.iter().map(Asked::first).collect::<Vec<_>>(), [None, Some(3000), Some(6000)]);
}

#[test]
fn what_comes_without_end_behind_a_file_is_not_waited_for() {
    let (lab, file) = (Lab::new(), contents(9000));
    let right = file.clone();
    let server = hub(file, |file, _, _| Reply::new(200, file).endless());
    fetch(&lab, &server, &[REPO, "--out", "got", "--timeout", "600"]).expect(0);
    assert_eq!(fs::read(lab.path("got/x.bin")).expect("read"), right);
}

#[test]
fn what_stays_wrong_is_an_error_and_leaves_nothing() {
    type Answer = fn(&[u8], &Asked, usize) -> Reply;
    let page = "<!DOCTYPE html><html><body>Please log in</body></html>";
    let answers: [(Answer, i32, &[&str]); 7] = [
        (|file, _, _| Reply::new(200, vec![7; file.len()]), 1, &["was downloaded twice", "sha256:"]),
        (|_, _, _| Reply::new(200, "short"), 1, &["has 5 bytes, but should have 9000"]),
        (
            |_, _, _| {
                Reply::new(200, "<!DOCTYPE html><html><body>Please log in</body></html>")
                    .with("Content-Type", "text/html")
            },
            1,
            &["answers with a web page"],
        ),
        (|_, _, _| Reply::new(404, ""), 2, &["status 404", "check the name"]),
        (|_, _, _| Reply::new(401, ""), 2, &["status 401", "HF_TOKEN"]),
        (|_, _, _| Reply::new(500, ""), 1, &["given up after 2 tries", "status 500"]),
        (
            |_, _, _| Reply::new(302, "").with("Location", "/datasets/owner/some-data/resolve/main/x.bin"),
            1,
            &["given up"],
        ),
    ];
    for (answer, code, says) in answers {
        let lab = Lab::new();
        let server = hub(contents(9000), answer);
        let failed = fetch(&lab, &server, &[REPO, "--out", "got", "--retries", "1"]);
        failed.expect(code).says(says).says(&["/resolve/main/x.bin"]);
        assert_eq!((failed.stdout.as_str(), lab.path("got").exists()), ("", false), "{says:?}");
    }
    // lists that are none
    for (reply, says) in [
        (Reply::new(200, page), "does not answer with a list of files: it is a web page"),
        (Reply::new(200, "{}"), "it is no list"),
        (Reply::new(200, "[{}]"), "an entry has no path"),
        // seven bytes that take hundreds in memory
        (Reply::new(200, format!("[{}0]", "{\"\":0},".repeat(1 << 17))), "there are more than 262144 values"),
    ] {
        let (lab, server) = (Lab::new(), Server::start(move |_, _| reply.clone()));
        fetch(&lab, &server, &[REPO, "--out", "got"]).expect(1).says(&[says, "HF_ENDPOINT"]);
        assert!(!lab.path("got").exists());
    }
}

#[test]
fn a_killed_process_leaves_no_file_and_the_next_one_goes_on() {
    let (lab, file) = (Lab::new(), contents(1 << 20));
    let right = file.clone();
    let gate = lab.write("gate", "");
    let held = gate.clone();
    let half = 600_001;
    let server = hub(file, move |file, asked, before| match before {
        0 => Reply::part(file, asked).cut(half).held(held.clone()),
        _ => Reply::part(file, asked),
    });
    let mut first = spawned(fetching(&lab, &server, &[REPO, "--out", "got"]));
    let is_half = |part: fs::DirEntry| part.metadata().is_ok_and(|meta| meta.len() == half as u64);
    let parts = || fs::read_dir(lab.path("got/.fetch")).into_iter().flatten().flatten();
    wait("half of the file", || parts().any(is_half));
    // meanwhile the directory is taken
    fetch(&lab, &server, &[REPO, "--out", "got"]).expect(3).says(&["another process fetches into `got`"]);
    assert!(first.kill(), "it was still waiting");
    first.end();
    fs::remove_file(gate).expect("removed");
    assert!(!lab.path("got/x.bin").exists());
    fetch(&lab, &server, &[REPO, "--out", "got"]).expect(0);
    assert_eq!(fs::read(lab.path("got/x.bin")).expect("read"), right);
    assert_eq!(everything(&lab.path("got")), ["x.bin"]);
    let asked = server.asked_for("/datasets/owner/some-data/resolve/main/x.bin");
    assert_eq!(asked.iter().map(Asked::first).collect::<Vec<_>>(), [None, Some(half)]);
}

#[test]
fn what_another_call_has_left_stays() {
    let (lab, file) = (Lab::new(), contents(1 << 20));
    let right = file.clone();
    let broken = hub(file, move |file, asked, before| match before {
        0 => Reply::part(file, asked).cut(600_001),
        1 => Reply::new(403, ""),
        _ => Reply::part(file, asked),
    });
    let other = Server::start(|asked, _| match asked.path.starts_with("/api") {
        true => listed(&[entry("y.bin", b"other data")]),
        false => Reply::part(b"other data", asked),
    });
    fetch(&lab, &broken, &[REPO, "--out", "got"]).expect(2);
    fetch(&lab, &other, &[REPO, "--out", "got"]).expect(0);
    let left = everything(&lab.path("got"));
    for end in [".part", ".files", "lock", "y.bin"] {
        assert!(left.len() == 4 && left.iter().any(|name| name.ends_with(end)), "{left:?}");
    }
    fetch(&lab, &broken, &[REPO, "--out", "got"]).expect(0);
    assert_eq!(everything(&lab.path("got")), ["x.bin", "y.bin"]);
    assert_eq!(fs::read(lab.path("got/x.bin")).expect("read"), right);
    let asked = broken.asked_for("/datasets/owner/some-data/resolve/main/x.bin");
    assert_eq!(asked.last().and_then(Asked::first), Some(600_001));
}

#[test]
fn a_full_disk_is_named_and_what_has_come_is_kept() {
    let (lab, file) = (Lab::new(), contents(1 << 20));
    let right = file.clone();
    let server = hub(file, |file, asked, _| Reply::part(file, asked));
    // no file may grow beyond 256 KiB
    let mut command = lab.launcher("sh");
    let script =
        "trap '' XFSZ; ulimit -f 512; exec \"$RUNNER\" data fetch hf://datasets/owner/some-data --out got";
    command.args(["-c", script]).env("HF_ENDPOINT", server.url(""));
    ended(command).expect(1).says(&["could not write `got/.fetch/sha256-", "free space"]);
    assert!(!lab.path("got/x.bin").exists());
    fetch(&lab, &server, &[REPO, "--out", "got"]).expect(0);
    assert_eq!(fs::read(lab.path("got/x.bin")).expect("read"), right);
    let asked = server.asked_for("/datasets/owner/some-data/resolve/main/x.bin");
    assert!(asked.len() == 2 && asked[1].first().is_some_and(|first| first > 0), "{asked:?}");
}

#[test]
fn a_name_of_one_file_is_fetched_from_where_one_says() {
    let lab = Lab::new();
    let text = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets/tinyshakespeare.txt"))
        .expect("shipped");
    let server = Server::start(move |asked, _| match asked.path.as_str() {
        "/text" => Reply::part(&text, asked),
        _ => Reply::new(200, "something else"),
    });
    let got = fetch(&lab, &server, &["tinyshakespeare", "--from", &server.url("/text")]);
    assert_eq!(got.expect(0).stdout, "datasets\n");
    assert_eq!(everything(&lab.path("datasets")), ["tinyshakespeare.txt"]);
    // another text is not taken for it, nor another file for the questions
    for name in ["tinyshakespeare", "hellaswag"] {
        let from = server.url("/other");
        let code = fetch(&lab, &server, &[name, "--out", "other", "--from", &from]).code;
        assert_eq!((code, lab.path("other").exists()), (Some(1), false), "{name}");
    }
}
