//! `runner compare --plot`: pictures that other programs can read, and a page that a real browser runs.

use crate::browser;
use crate::report_support;
use crate::support;

use browser::browser;
use report_support::{Fake, prose, sweep};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use support::Lab;

fn lab() -> Lab {
    let lab = Lab::new();
    sweep(&lab.path("runs"));
    lab
}

fn plot(lab: &Lab, file: &str, args: &[&str]) -> Vec<u8> {
    lab.run([&["compare", "runs", "--plot", file][..], args].concat()).expect(0).says(&[file]);
    fs::read(lab.path(file)).expect("the file")
}

/// Panics unless every tag of an XML text is closed in order; the names of the elements, in order.
fn elements(text: &str) -> Vec<String> {
    let (mut names, mut open) = (Vec::new(), Vec::new());
    for tag in text.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a tag that ends");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "closed out of order");
            continue;
        }
        let name = tag.split([' ', '/', '\n']).next().expect("a name").to_owned();
        if !tag.ends_with('/') {
            open.push(name.clone());
        }
        names.push(name);
    }
    assert!(open.is_empty(), "left open: {open:?}");
    names
}

#[test]
fn a_picture_says_which_runs_its_means_leave_out() {
    let lab = Lab::new();
    for (i, status) in ["finished", "finished", "diverged", "diverged", "diverged"].iter().enumerate() {
        let (seed, lr) = (i as u64 + 1, if i < 3 { 1e-3 } else { 3e-3 });
        let speed = 1000.0 + i as f64;
        // two kinds of machines train the first recipe
        let extra = json!({"device": "cpu", "simd": (["avx2", "avx512"][i % 2])});
        let fake =
            Fake { status, tokens_per_s: speed, extra, ..Fake::new(&format!("fake-{i}"), seed, lr, 3.0) };
        fake.write(&lab.path("runs"));
    }
    let drawn = |name: &str, args: &[&str]| prose(&String::from_utf8(plot(&lab, name, args)).expect("UTF-8"));
    let losses = drawn("a.svg", &["--y", "loss"]);
    for label in ["1e-3 (n = 2 of 3)", "3e-3 (n = 2, none complete)"] {
        assert!(losses.contains(label), "{label}: {losses}");
    }
    assert!(!losses.contains("no mean"), "{losses}");
    let speeds = drawn("b.svg", &["--y", "tokens_per_s"]);
    assert!(
        speeds.contains("no mean of tokens_per_s where seeds were measured on machines that differ"),
        "{speeds}"
    );
    assert!(speeds.contains("tokens_per_s was measured on machines that differ"), "{speeds}");
    let over_time = drawn("c.svg", &["--y", "loss", "--x", "time"]);
    assert!(
        over_time.contains("no mean over time where the seconds of seeds were measured on machines"),
        "{over_time}"
    );
    assert!(over_time.contains("elapsed_s was measured on machines that differ"), "{over_time}");
}

/// A picture may be shown without the table, and a page has more curves than the table has columns.
#[test]
fn what_makes_drawn_curves_incomparable_stands_with_them() {
    let lab = Lab::new();
    for (seed, simd, lr) in [(1, "avx2", 1e-3), (2, "avx512", 2e-3)] {
        let extra =
            json!({"device": "cpu", "simd": simd, "emulated": seed == 1, "trains_on_validation": seed == 1});
        let fake = Fake { extra, ..Fake::new(&format!("fake-{seed}"), seed, lr, 3.0) };
        let run = fake.write(&lab.path("runs"));
        let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
        fs::write(run.join("recipe.toml"), format!("{recipe}\n[model]\ndropout = 0.{seed}\n"))
            .expect("written");
    }
    let drawn = |name: &str, y: &[&str]| {
        let bytes = plot(&lab, name, &[&["--metrics", "val_loss", "--y"], y].concat());
        prose(&String::from_utf8(bytes).expect("UTF-8"))
    };
    let machines = "was measured on machines that differ";
    let dropped = "loss is measured while activations are dropped";
    let seen = "are among the training data";
    let emulated = "was emulated by rounding";
    for (y, said, not_said) in [
        (&["tokens_per_s"][..], &[machines, emulated][..], &[dropped, seen][..]),
        (&["loss", "--x", "time"], &[machines, emulated, dropped], &[]),
        (&["val_loss"], &[seen], &[machines, dropped, emulated]),
    ] {
        let picture = drawn("a.svg", y);
        assert!(said.iter().all(|said| picture.contains(said)), "{y:?}: {picture}");
        assert!(!not_said.iter().any(|said| picture.contains(said)), "{y:?}: {picture}");
    }
    // a page offers all curves
    let page = drawn("a.html", &["val_loss"]);
    for said in ["on machines that differ", dropped, seen, emulated] {
        assert!(page.contains(said), "{said}");
    }
}

#[test]
fn the_window_that_a_plot_names_is_that_of_the_whole_curves() {
    let lab = Lab::new();
    let losses: Vec<f64> = (0..400).map(|step| 10.0 - f64::from(step) / 100.0).collect();
    let val = vec![(0, 10.0), (20, 9.0), (400, 6.0)];
    let run = Fake { losses, val, ..Fake::new("fake-1", 1, 1e-3, 3.0) };
    run.write(&lab.path("runs"));
    let drawn = |args: &[&str]| {
        lab.run([&["compare", "runs", "--plot", "a.svg", "--y", "loss"], args].concat()).expect(0);
        fs::read_to_string(lab.path("a.svg")).expect("drawn")
    };
    for target in [&[][..], &["--target", "val_loss=9"]] {
        let drawn = drawn(target);
        assert!(drawn.contains("lines averaged over 8 steps"), "{target:?}: {drawn}");
    }
    Fake { losses: vec![3.0; 100], ..Fake::new("fake-2", 1, 2e-3, 3.0) }.write(&lab.path("runs"));
    assert!(drawn(&["--target", "val_loss=9"]).contains("lines averaged over 2 to 8 steps"));
}

#[test]
fn a_svg_has_the_curves_the_legend_and_both_themes() {
    let lab = lab();
    let text = String::from_utf8(plot(&lab, "a.svg", &["--title", "a < b & c"])).expect("UTF-8");
    let names = elements(&text);
    assert_eq!(names[0], "svg");
    assert!(text.contains(">a &lt; b &amp; c</text>") && text.contains("prefers-color-scheme:dark"));
    for said in
        [">lr</text>", ">3e-3 (n = 3)</text>", ">1e-3 (n = 3)</text>", ">step</text>", "bands: ± standard"]
    {
        assert!(text.contains(said), "{said} is not in {text}");
    }
    // two lines, two bands, each with a validation point at both ends and in the legend
    let classes = |class: &str| text.matches(&format!("class=\"{class}\"")).count();
    assert_eq!((classes("s0"), classes("s1")), (2, 2), "a curve and a sample in the legend");
    assert_eq!(classes("s0f m"), 3, "two evaluations and a sample");
    assert_eq!(text.matches("fill-opacity").count(), 2);
    assert_eq!(plot(&lab, "b.svg", &["--title", "a < b & c"]), text.into_bytes(), "the same again");
    let dark = String::from_utf8(plot(&lab, "d.svg", &["--theme", "dark"])).expect("UTF-8");
    assert!(dark.contains(".b{fill:#0d1117}") && !dark.contains("@media"));
}

#[test]
fn panels_axes_and_logarithms_are_as_asked() {
    let lab = lab();
    let args = ["--y", "loss,lr,grad_norm,tokens_per_s", "--x", "time", "--log", "y", "--smooth", "2"];
    let text = String::from_utf8(plot(&lab, "a.svg", &args)).expect("UTF-8");
    for said in
        ["training time (s)", "learning rate, logarithmic", "tokens per second", "averaged over 2 steps"]
    {
        assert!(text.contains(said), "{said} is not in {text}");
    }
    assert!(text.contains(">0.001</text>") || text.contains(">1e-3</text>"), "{text}");
    let tokens = String::from_utf8(plot(&lab, "b.svg", &["--align", "tokens"])).expect("UTF-8");
    assert!(tokens.contains(">tokens</text>"));
    let wrong = lab.run(["compare", "runs", "--plot", "c.svg", "--y", "los"]);
    wrong.expect(2).says(&["`los` cannot be plotted", "grad_norm"]);
    assert!(!lab.path("c.svg").exists());
    lab.run(["compare", "runs", "--plot", "c.svg", "--size", "10x10"]).expect(2);
    lab.run(["compare", "runs", "--log", "x"]).expect(2).says(&["--plot"]);
}

#[test]
fn a_png_needs_no_font_and_has_the_size_asked_for() {
    let lab = lab();
    let bytes = plot(&lab, "a.png", &["--size", "400x200"]);
    assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
    let side = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(side(16), 800, "two pixels for each point");
    assert!(side(20) > 400);
    assert!(bytes.len() > 8000, "{} bytes are an empty picture", bytes.len());
}

#[test]
fn hundreds_of_runs_and_runs_without_a_row_are_drawn() {
    let lab = Lab::new();
    for i in 0..120 {
        Fake::new(&format!("fake-{i:03}"), 1, 1e-4 * f64::from(i + 1), 2.0 + f64::from(i) / 100.0)
            .write(&lab.path("runs"));
    }
    // a sweep over numbers: every line has a shade, and the legend names enough of them to read the others
    let text = String::from_utf8(plot(&lab, "a.svg", &[])).expect("UTF-8");
    assert!(!text.contains(" more</text>") && !text.contains("class=\"re\""), "{text}");
    let shades: HashSet<&str> =
        text.split("<path class=\"h").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(shades.len(), 120, "{text}");
    assert!(text.contains(">1e-4</text>") && text.contains(">0.012</text>"), "both ends: {text}");
    // without an order there are as many looks as colours and dashes give
    for i in 0..30 {
        let run = lab.path("runs").join(format!("fake-{i:03}"));
        let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
        fs::write(run.join("recipe.toml"), recipe + &format!("[novelty]\nkind = \"kind {i}\"\n"))
            .expect("a file");
    }
    let names = (0..30).map(|i| format!("fake-{i:03}"));
    let args: Vec<String> =
        ["compare", "--plot", "b.svg"].map(str::to_owned).into_iter().chain(names).collect();
    lab.run(&args).expect(0);
    let text = fs::read_to_string(lab.path("b.svg")).expect("drawn");
    assert!(text.contains(">2 more</text>"), "{text}");
    assert_eq!(text.matches("class=\"re\"").count(), 2 + 1);
    let empty = Lab::new();
    let run = Fake { losses: vec![], val: vec![], ..Fake::new("fake-1", 1, 1e-3, 0.0) };
    run.write(&empty.path("runs"));
    let text = String::from_utf8(plot(&empty, "a.svg", &[])).expect("UTF-8");
    assert!(text.contains("nothing to show"));
    plot(&empty, "a.png", &[]);
    plot(&empty, "a.html", &[]);
}

/// The texts of a picture that stand beside samples of lines, in order.
fn legend(text: &str) -> Vec<String> {
    let texts = text.split("<text class=\"fgf\"").skip(1).filter_map(|rest| rest.split_once('>'));
    let texts: Vec<String> = texts.filter_map(|(_, rest)| Some(rest.split_once('<')?.0.to_owned())).collect();
    // the panel's title and the axis come first
    texts[2..].to_vec()
}

#[test]
fn the_tables_of_a_page_have_the_columns_that_were_asked_for() {
    let lab = Lab::new();
    Fake::new("fake-1", 1, 1e-3, 3.0).write(&lab.path("runs"));
    let has_memory =
        |args: &[&str]| String::from_utf8_lossy(&plot(&lab, "a.html", args)).contains(">memory<");
    assert!(has_memory(&[]) && has_memory(&["--format", "csv"]));
    assert!(!has_memory(&["--metrics", "val_loss"]));
}

#[test]
fn a_legend_tells_lines_apart_in_few_words_in_every_kind_of_plot() {
    let lab = Lab::new();
    for (i, lr) in [1e-2, 1e-4, 1e-3].into_iter().enumerate() {
        Fake::new(&format!("fake-{i}"), 1, lr, 3.0 - i as f64 / 10.0).write(&lab.path("runs"));
    }
    let drawn = |args: &[&str]| String::from_utf8(plot(&lab, "a.svg", args)).expect("UTF-8");
    assert_eq!(legend(&drawn(&[])), ["1e-4", "1e-3", "0.01"], "by size, not by rank");
    assert!(drawn(&[]).contains("class=\"h0\"") && drawn(&[]).contains("class=\"h255\""));
    let page = String::from_utf8(plot(&lab, "a.html", &[])).expect("UTF-8");
    let labels: Vec<&str> =
        page.split("\"label\":\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(labels, ["lr 1e-4", "lr 1e-3", "lr 0.01"]);
    assert!(page.contains("\"ink\":\"h0\"") && page.contains("--h128:#"), "{page}");
    // several keys, one of them long, and no names of their own
    let rename = |i: u64, name: &str, data: &str| {
        let file = lab.path("runs").join(format!("fake-{i}/recipe.toml"));
        let text = fs::read_to_string(&file).expect("a recipe");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines[0] = format!("name = \"{name}\"");
        let at = lines.iter().position(|line| line.starts_with("train = ")).expect("a line");
        lines[at] = format!("train = [\"{data}\"]");
        fs::write(file, lines.join("\n")).expect("a file");
    };
    let data = |i: u64| format!("a/long/way/to/the/directory/in/which/the/data/are/train-{i}.bin");
    (0..3).for_each(|i| rename(i, "fake", &data(i)));
    assert_eq!(legend(&drawn(&[])), ["lr 1e-3", "lr 1e-4", "lr 0.01"], "what is enough, the best first");
    // one key, whose values differ at the end only
    for i in 0..3 {
        Fake::new(&format!("fake-{i}"), 1, 1e-3, 3.0).write(&lab.path("runs"));
        rename(i, "fake", &data(i));
    }
    let labels = legend(&drawn(&[]));
    assert_eq!(labels.iter().collect::<HashSet<_>>().len(), 3, "{labels:?}");
    assert!(labels.iter().all(|label| label.contains('…') && label.chars().count() <= 40), "{labels:?}");
    // names that tell
    for (i, name) in ["baseline", "more data", "more layers"].into_iter().enumerate() {
        Fake {
            precision: ["fp32", "bf16", "tf32"][i],
            ..Fake::new(&format!("fake-{i}"), 1, 1e-3, 3.0 + i as f64)
        }
        .write(&lab.path("runs"));
        rename(i as u64, name, &data(i as u64));
    }
    assert_eq!(legend(&drawn(&[])), ["baseline", "more data", "more layers"]);
}

/// What a browser has in the document after it ran the page's scripts.
fn dom(browser: &str, page: &Path, profile: &Path) -> String {
    let profile = format!("--user-data-dir={}", profile.display());
    let flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=1200,900",
        "--virtual-time-budget=5000",
        "--dump-dom",
    ];
    let output = Command::new(browser)
        .args(flags)
        .arg(profile)
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("the browser starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Clicks through the page as a reader would and writes down what came of it.
const CLICKS: &str = r##"<script>
addEventListener("load", () => setTimeout(() => {
  const canvas = document.getElementById("canvas"), log = {};
  const note = (name) => { log[name] = { ...canvas.dataset, tip: document.getElementById("tip").innerText, hidden: document.getElementById("tip").hidden }; };
  const box = canvas.getBoundingClientRect();
  const send = (type, x, y) => canvas.dispatchEvent(new PointerEvent(type, { clientX: box.left + x, clientY: box.top + y, pointerId: 1, bubbles: true }));
  const ink = () => { const d = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data; let n = 0; for (let i = 3; i < d.length; i += 4) if (d[i]) n++; return n; };
  note("start"); log.ink = ink();
  send("pointermove", 300, 200); note("hover");
  send("pointerleave", 0, 0);
  send("pointerdown", 200, 100); send("pointermove", 500, 102); send("pointerup", 500, 102); note("zoom");
  canvas.dispatchEvent(new MouseEvent("dblclick")); note("reset");
  const legend = [...document.querySelectorAll("#legend button")];
  log.legend = legend.map((b) => b.innerText);
  legend[0].click(); note("one hidden"); log.pressed = legend[0].getAttribute("aria-pressed");
  legend[0].click(); note("shown again");
  document.getElementById("none").click(); note("none"); document.getElementById("all").click();
  const choose = (id, value) => { const s = document.getElementById(id); s.value = value; s.dispatchEvent(new Event("change")); };
  choose("quantity", "tokens_per_s"); note("rate"); choose("quantity", "loss");
  choose("axis", "tokens"); note("tokens");
  document.getElementById("logy").click(); note("log");
  const first = () => document.querySelector("tbody td").innerText;
  log.before = first(); document.querySelector("thead button").click(); log.sorted = first();
  const done = document.createElement("pre"); done.id = "log"; done.textContent = JSON.stringify(log); document.body.append(done);
}, 300));
addEventListener("error", (event) => { const p = document.createElement("pre"); p.id = "failure"; p.textContent = event.message; document.body.append(p); });
</script>"##;

/// A page of seven runs, two of them with names that HTML could take for tags.
fn page(lab: &Lab) -> String {
    let odd = Fake { status: "diverged", ..Fake::new("fake-</script><b>", 9, 2e-3, 9.0) };
    // a slash cannot be in a name, the rest of a tag can
    Fake { id: odd.id.replace('/', ""), ..odd }.write(&lab.path("runs"));
    String::from_utf8(plot(lab, "page.html", &["--title", "a </script> b"])).expect("UTF-8")
}

#[test]
fn the_page_holds_its_data_and_loads_nothing() {
    let text = page(&lab());
    assert!(
        !text.contains("http://")
            || text.matches("http://").count() == text.matches("http://www.w3.org/").count()
    );
    assert!(!text.contains("https://") && !text.contains(" src=") && !text.contains("<link"));
    let data =
        text.split("id=\"data\">").nth(1).and_then(|rest| rest.split("</script>").next()).expect("data");
    let data: Value = serde_json::from_str(data).expect("JSON");
    assert_eq!(data["runs"].as_array().map(Vec::len), Some(7));
}

#[test]
#[ignore = "needs Chromium or Chrome"]
fn the_page_works_in_a_browser_without_a_network() {
    let lab = lab();
    let text = page(&lab);
    let clicked = lab.write("clicked.html", text.replace("</html>", &format!("{CLICKS}</html>")));
    let dom = dom(browser(), &clicked, &lab.path("profile"));
    assert!(!dom.contains("id=\"failure\""), "{dom}");
    let log = dom.split("<pre id=\"log\">").nth(1).and_then(|rest| rest.split("</pre>").next());
    let log = log
        .unwrap_or_else(|| panic!("the page said nothing: {dom}"))
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    let log: Value = serde_json::from_str(&log).expect("JSON");
    let range = |name: &str, axis: &str| -> (f64, f64) {
        let text = log[name][axis].as_str().unwrap_or_else(|| panic!("{name}: {log:#}"));
        let (low, high) = text.split_once(' ').expect("two ends");
        (low.parse().expect("a number"), high.parse().expect("a number"))
    };
    assert!(log["ink"].as_u64() > Some(3000), "{log:#}");
    assert_eq!(log["start"]["curves"], "7");
    assert!(
        log["hover"]["tip"].as_str().is_some_and(|tip| tip.contains("step") && tip.contains("lr 3e-3")),
        "{log:#}"
    );
    let (whole, zoomed) = (range("start", "x"), range("zoom", "x"));
    assert!(zoomed.0 > whole.0 && zoomed.1 < whole.1 && zoomed.0 < zoomed.1, "{log:#}");
    assert_eq!(range("reset", "x"), whole);
    assert_eq!((&log["one hidden"]["curves"], &log["pressed"]), (&"6".into(), &"false".into()));
    assert_eq!((&log["shown again"]["curves"], &log["none"]["curves"]), (&"7".into(), &"0".into()));
    assert!(range("rate", "y").1 >= 1000.0 && range("tokens", "x").1 > 1000.0 && range("log", "y").0 > 0.0);
    assert_eq!(log["legend"].as_array().map(Vec::len), Some(7));
    assert_ne!(log["before"], log["sorted"]);
}

/// Asks the page of how many steps its points are means: of losses, of learning rates, which are not smoothed, and of
/// evaluations.
const AVERAGED: &str = r##"<script>
addEventListener("load", () => setTimeout(() => {
  const said = () => document.getElementById("smoothed").textContent, quantity = document.getElementById("quantity");
  const log = [said()];
  quantity.value = "lr"; quantity.dispatchEvent(new Event("change")); log.push(said());
  quantity.value = "val_loss"; quantity.dispatchEvent(new Event("change")); log.push(said());
  document.body.append(`said: ${log.join(", ")};`);
}, 300));
</script>"##;

#[test]
#[ignore = "needs Chromium or Chrome"]
fn the_page_says_of_how_many_steps_a_point_of_a_long_log_is_a_mean() {
    let lab = Lab::new();
    let losses = (0..5000).map(|i| 5.0 - f64::from(i) * 1e-4).collect();
    Fake { losses, ..Fake::new("fake-long", 1, 1e-3, 4.5) }.write(&lab.path("runs"));
    for (smooth, losses) in [("1", 1), ("64", 64)] {
        let text = String::from_utf8(plot(&lab, "page.html", &["--smooth", smooth])).expect("UTF-8");
        let stride = text.split("\"stride\":").nth(1).and_then(|rest| rest.split([',', '}']).next());
        let stride: u32 = stride.and_then(|stride| stride.trim().parse().ok()).expect("a number");
        assert!(stride > 1, "{stride}");
        let asked = lab.write("asked.html", text.replace("</html>", &format!("{AVERAGED}</html>")));
        let dom = dom(browser(), &asked, &lab.path("profile"));
        let said = dom.split("said: ").nth(2).and_then(|rest| rest.split(';').next());
        let expected = format!("over {} steps, over {stride} steps, none", losses.max(stride));
        assert_eq!(said, Some(expected.as_str()));
    }
}

#[test]
fn a_mean_of_some_seeds_says_of_how_many_it_is() {
    let lab = Lab::new();
    let write = |group: u32| {
        for seed in 1..=3 {
            let val = if seed == 3 { vec![] } else { vec![(0, 9.0), (4, 3.5)] };
            let (id, lr) = (format!("fake-{group}{seed}"), f64::from(group) * 1e-3);
            Fake { val, ..Fake::new(&id, seed, lr, 3.0) }.write(&lab.path("runs"));
        }
    };
    let drawn = || prose(&String::from_utf8(plot(&lab, "a.svg", &["--y", "val_loss"])).expect("UTF-8"));
    write(1);
    assert!(drawn().contains("val_loss of fake-11 (n = 3) is that of 2 seeds"), "{}", drawn());
    // of many groups in one sentence
    (2..=10).for_each(write);
    let said = drawn();
    assert_eq!(said.matches("is that of 2 seeds").count(), 1, "{said}");
    assert!(said.contains(" more is that of 2 seeds each"), "{said}");
}
