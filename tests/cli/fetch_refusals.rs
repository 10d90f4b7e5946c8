//! `runner data fetch` where there is nothing to fetch, no way to it, or something else in its place.

use crate::fetch::{REPO, contents, entry, everything, fetch, fetching, hub, listed};
use crate::server_support::{Reply, Server};
use crate::support::{Lab, ended};

use std::fs;
use std::time::Duration;

/// Between two bytes of a server that is slow.
const TICK: Duration = Duration::from_millis(20);

#[test]
fn a_name_that_leads_out_of_the_directory_is_refused() {
    for path in [
        "../evil.bin",
        "/evil.bin",
        "a/../../evil.bin",
        ".fetch/evil.bin",
        "a//evil.bin",
        "a/./evil.bin",
        // what means something to this program, or has others run commands
        "a/.fetch/evil.bin",
        ".prepare/state.json",
        "a/.GIT/config",
        ".hg/hgrc",
        "a/git~1/config",
        ".git. /config",
        ".git::$INDEX_ALLOCATION/config",
        "_darcs/prefs/defaults",
        "a/HEAD",
    ] {
        let lab = Lab::new();
        let server = Server::start(move |_, _| listed(&[entry(path, b"x")]));
        fetch(&lab, &server, &[REPO, "--out", "in/got"]).expect(1).says(&["which leads elsewhere"]);
        assert!(!lab.path("in").exists() && !lab.path("evil.bin").exists());
    }
}

#[test]
fn files_that_are_there_with_other_contents_stay_as_they_are() {
    let server = hub(contents(9000), |file, asked, _| Reply::part(file, asked));
    for (mine, says) in [(b"mine".to_vec(), "4 bytes, not 9000"), (vec![1; 9000], "sha256:")] {
        let lab = Lab::new();
        lab.write("got/x.bin", &mine);
        fetch(&lab, &server, &[REPO, "--out", "got"]).expect(2).says(&["`got/x.bin` is there already", says]);
        assert_eq!(fs::read(lab.path("got/x.bin")).expect("read"), mine);
        assert_eq!(everything(&lab.path("got")), ["x.bin"]);
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_what_does() {
    let server = hub(contents(9000), |file, asked, _| Reply::part(file, asked));
    let lab = Lab::new();
    let pattern = format!("{REPO}/*.parquet");
    for (words, says) in [
        (&["fineweb-edu-10"][..], &["(`fineweb-edu-10b` is)", "--list"][..]),
        (&["nothing-like-it"], &["is no data set that is known by name: ", "hf://datasets/OWNER/REPO"]),
        (&["hf://datasets/owner"], &["names no repository"]),
        (&[&pattern], &["no file of ", "/datasets/owner/some-data matches `*.parquet`; it has `x.bin`"]),
        (&["hf://datasets/owner/none"], &["status 404", "check the name and the revision"]),
        (&["tinyshakespeare", "--shards", "2"], &["`tinyshakespeare` is one"]),
        (&["fineweb-10b", "--from", "http://127.0.0.1:1/x"], &["--from is for names of a single file"]),
        (&[], &["required"]),
    ] {
        fetch(&lab, &server, words).expect(2).says(says);
    }
    let mut command = fetching(&lab, &server, &[REPO]);
    command.env("SSL_CERT_FILE", lab.write("certificates", "none"));
    ended(command).expect(2).says(&["SSL_CERT_FILE names", "has no certificate in PEM"]);
    let mut command = fetching(&lab, &server, &[REPO]);
    command.env("SSL_CERT_FILE", "/dev/zero");
    ended(command).expect(2).says(&["SSL_CERT_FILE names `/dev/zero`, which could not be read"]);
    let mut command = fetching(&lab, &server, &[REPO]);
    command.env("HF_ENDPOINT", server.url("").replace("//", "//somebody:secret@"));
    let refused = ended(command);
    refused.expect(2).says(&["HF_ENDPOINT has a user or a password in it", "HF_TOKEN"]);
    assert!(!refused.stderr.contains("secret"));
    let secret = server.url("/x").replace("//", "//somebody:secret@");
    let refused = fetch(&lab, &server, &["tinyshakespeare", "--from", &secret]);
    refused.expect(2).says(&["--from has a user or a password in it", "save it as `datasets/"]);
    assert!(!refused.stderr.contains("secret"));
    let mut command = fetching(&lab, &server, &[REPO]);
    command.env("HF_TOKEN", "sec\nret");
    let refused = ended(command);
    refused.expect(2).says(&["HF_TOKEN has a line break"]);
    assert!(!refused.stderr.contains("ret\n"));
    assert!(!lab.path("datasets").exists());
}

#[test]
fn without_a_connection_the_message_says_what_to_do_by_hand() {
    let lab = Lab::new();
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port();
    let nowhere = format!("http://127.0.0.1:{port}");
    let start = |words: &[&str]| {
        let mut command = lab.command(["data", "fetch", "--retries", "0"].iter().chain(words));
        command.env("HF_ENDPOINT", &nowhere);
        ended(command)
    };
    start(&["fineweb-edu-10b"]).expect(1).says(&[
        "cannot be reached",
        "HTTPS_PROXY",
        &format!("download the files of {nowhere}/datasets/kjj0/finewebedu10B-gpt2 elsewhere"),
        "put them into `datasets/fineweb-edu`",
    ]);
    start(&["tinyshakespeare", "--from", &nowhere]).expect(1).says(&[
        "by hand, download https://raw.githubusercontent.com/",
        "save it as `datasets/tinyshakespeare.txt`",
    ]);
    assert!(!lab.path("datasets").exists());
}

#[test]
fn a_proxy_is_asked_for_the_way() {
    let (lab, server) = (Lab::new(), Server::start(|_, _| Reply::new(403, "")));
    let mut command = lab.command(["data", "fetch", REPO, "--retries", "0"]);
    command.env("HF_ENDPOINT", "https://hub.example").env("HTTPS_PROXY", server.url(""));
    ended(command).expect(1);
    assert_eq!(server.asked()[0].line, "CONNECT hub.example:443");
}

/// Without it, servers would be asked directly.
#[test]
fn a_proxy_that_cannot_be_used_is_an_error() {
    let (lab, server) = (Lab::new(), Server::start(|_, _| Reply::new(403, "")));
    for (variable, value) in [
        ("HTTPS_PROXY", "socks4://proxy.example:1080"),
        ("https_proxy", "https://user:secret@proxy.example"),
        ("HTTP_PROXY", "http://user:secret@proxy.example:port"),
        ("ALL_PROXY", "socks5://user:secret@proxy.example"),
        ("http_proxy", "ftp://proxy.example"),
        ("all_proxy", "http://"),
        ("HTTPS_PROXY", "http://proxy.example:99999"),
        ("HTTPS_PROXY", "not a proxy"),
    ] {
        let mut command = fetching(&lab, &server, &[REPO, "--retries", "0"]);
        command.env(variable, value);
        let refused = ended(command);
        refused.expect(2).says(&[&format!("{variable} names no proxy that can be used"), "http://HOST:PORT"]);
        assert!(!refused.stderr.contains("secret"), "{}", refused.stderr);
    }
    assert_eq!(server.asked().len(), 0, "nobody was asked");
    let mut command = fetching(&lab, &server, &[REPO, "--retries", "0"]);
    command.env("HTTPS_PROXY", "").env("HTTP_PROXY", " ").env("ALL_PROXY", "http://u:p@127.0.0.1:1");
    command.env("NO_PROXY", "127.0.0.1,localhost");
    ended(command).expect(2).says(&["403"]);
    assert_eq!(server.asked().len(), 1);
}

#[test]
fn a_server_that_does_not_speak_tls_is_an_error() {
    let (lab, server) = (Lab::new(), Server::start(|_, _| Reply::new(200, "[]")));
    let mut command = lab.command(["data", "fetch", REPO, "--retries", "0"]);
    command.env("HF_ENDPOINT", server.url("").replace("http://", "https://"));
    let failed = ended(command);
    failed.expect(1).says(&["https://127.0.0.1"]);
    assert!(!failed.stderr.contains("panicked"), "{}", failed.stderr);
}

#[test]
fn the_list_has_every_name_with_size_licence_and_origin() {
    let lab = Lab::new();
    let mut command = lab.command(["data", "fetch", "--list"]);
    command.env("HF_ENDPOINT", "http://mirror.example/");
    let list = ended(command);
    let list = &list.expect(0).stdout;
    for known in runner::data::fetch::CATALOGUE {
        assert!(
            list.contains(&format!("{}\n  {}\n  size     {}\n", known.name, known.about, known.size)),
            "{list}"
        );
        assert!(list.contains(known.licence) && list.contains(known.out));
    }
    assert!(list.contains("from     http://mirror.example/datasets/kjj0/finewebedu10B-gpt2\n"), "{list}");
}

#[test]
fn a_list_that_names_a_file_twice_or_leads_round_is_refused() {
    let lab = Lab::new();
    let server = Server::start(|asked, _| {
        let next = format!("<http://{}/page>; rel=\"next\"", asked.header("host").expect("a host"));
        listed(&[entry("x.bin", b"x")]).with("Link", next)
    });
    fetch(&lab, &server, &[REPO, "--out", "got"]).expect(1).says(&["it names `x.bin` twice"]);
    assert!(!lab.path("got").exists());
}

#[test]
fn a_link_among_the_files_is_not_followed() {
    let lab = Lab::new();
    std::fs::create_dir_all(lab.path("got")).expect("a directory");
    std::fs::create_dir(lab.path("elsewhere")).expect("a directory");
    std::os::unix::fs::symlink(lab.path("elsewhere"), lab.path("got/link")).expect("a link");
    let server = Server::start(|_, _| listed(&[entry("link/deep/x.bin", b"x")]));
    fetch(&lab, &server, &[REPO, "--out", "got"]).expect(1).says(&["which leads elsewhere"]);
    assert_eq!(everything(&lab.path("elsewhere")), [""; 0]);
}

#[test]
fn what_appears_while_a_file_is_fetched_is_not_written_over() {
    for is_link in [false, true] {
        let lab = Lab::new();
        let out = lab.path("got");
        std::fs::create_dir(lab.path("elsewhere")).expect("a directory");
        let (at, elsewhere) = (out.clone(), lab.path("elsewhere"));
        let name = if is_link { "sub/x.bin" } else { "x.bin" };
        let server = Server::start(move |asked, _| {
            if asked.path.starts_with("/api") {
                return listed(&[entry(name, b"theirs")]);
            }
            match is_link {
                true => std::os::unix::fs::symlink(&elsewhere, at.join("sub")).expect("a link"),
                false => fs::write(at.join("x.bin"), "mine").expect("written"),
            }
            Reply::part(b"theirs", asked)
        });
        let said = fetch(&lab, &server, &[REPO, "--out", "got"]);
        if is_link {
            said.expect(1).says(&["which leads elsewhere"]);
            assert_eq!(everything(&lab.path("elsewhere")), [""; 0]);
        } else {
            said.expect(2).says(&["`got/x.bin` is there already", "while the file was fetched"]);
            assert_eq!(fs::read(out.join("x.bin")).expect("read"), b"mine");
        }
    }
}

#[test]
fn what_could_not_be_compared_is_said() {
    let file = b"a file".as_slice();
    let of = |first: &str, second: &str| {
        let lab = Lab::new();
        let entries = [first, second].into_iter().zip(["a.bin", "b.bin"]).map(|(size, path)| {
            let size: serde_json::Value = serde_json::from_str(size).expect("JSON");
            serde_json::json!({ "type": "file", "path": path, "size": size })
        });
        let entries: Vec<_> = entries.collect();
        let server = Server::start(move |asked, _| match asked.path.starts_with("/api") {
            true => listed(&entries),
            false => Reply::part(file, asked),
        });
        let said = fetch(&lab, &server, &[REPO, "--out", "got"]);
        said.expect(0).stderr.clone()
    };
    assert!(of("6", "6").contains("of 2 the server gives no digest, but their sizes are right"));
    assert!(of("-5", "1e300").contains("of 2 the server gives no digest, nor a size in its list"));
    assert!(of("6", "null").contains("of 2 the server gives no digest, of 1 no size in its list either"));
}

#[test]
fn a_list_that_goes_on_for_ever_is_given_up() {
    let server = Server::start(|asked, before| {
        let next = format!("<http://{}/more{before}>; rel=\"next\"", asked.header("host").expect("a host"));
        Reply::new(200, "[]").with("Link", next).trickling(1).slowly(3 * TICK)
    });
    let lab = Lab::new();
    fetch(&lab, &server, &[REPO, "--timeout", "1"])
        .says(&["it was not whole after 10 s", "--timeout"])
        .expect(1);
}

#[test]
fn a_list_that_comes_byte_by_byte_is_given_up() {
    let server = Server::start(|_, _| Reply::new(200, " ".repeat(1 << 20)).trickling(1).slowly(TICK));
    let lab = Lab::new();
    fetch(&lab, &server, &[REPO, "--timeout", "1"])
        .says(&["it was not whole after 10 s", "--timeout"])
        .expect(1);
    assert!(!lab.path("datasets").exists());
}

#[test]
fn a_list_with_trailers_without_end_is_given_up() {
    let server = Server::start(|_, _| Reply::new(200, "[]").endless());
    let lab = Lab::new();
    fetch(&lab, &server, &[REPO, "--timeout", "1"]).says(&["it was not whole after 10 s"]).expect(1);
}

#[test]
fn a_redirect_without_end_is_given_up() {
    let server = Server::start(|_, _| Reply::new(302, "x").with("Location", "/elsewhere").endless());
    let lab = Lab::new();
    fetch(&lab, &server, &[REPO, "--timeout", "1", "--retries", "0"])
        .says(&["was given up after 1 try", "no byte of the answer came for 10 s"])
        .expect(1);
}

#[test]
fn a_list_of_pages_without_end_is_given_up() {
    let server = Server::start(|asked, _| {
        let host = asked.header("host").expect("a host");
        let next = format!("<http://{host}{}x>; rel=\"next\"", asked.path);
        Reply::new(200, "[]").trickling(1).slowly(TICK).with("Link", next)
    });
    let lab = Lab::new();
    fetch(&lab, &server, &[REPO, "--timeout", "1"]).says(&["it was not whole after 10 s"]).expect(1);
    assert!(!lab.path("datasets").exists());
}
