//! What comparisons say of runs that shared a machine: for which part of what is compared, and with which others.

use crate::report_support::{Fake, compared, printed};
use crate::support::Lab;
use serde_json::{Value, json};

/// A session on one machine, from and to so many minutes after midnight.
fn session([from, to]: [u32; 2], from_step: u32) -> Value {
    let at = |minute: u32| format!("2026-01-01T{:02}:{:02}:00Z", minute / 60, minute % 60);
    json!({
        "from_step": from_step, "settings": {}, "host": "a", "device": "cpu", "started": at(from), "ended": at(to),
    })
}

/// A run of a step a minute that is evaluated at the third one.
fn write(lab: &Lab, id: &str, seed: u64, steps: usize, at_third: f64, sessions: &[Value]) {
    let fake = Fake {
        losses: vec![3.0; steps],
        val: vec![(0, 10.5), (3, at_third), (steps as u64, at_third - 0.5)],
        tokens_per_s: 256.0 / 60.0,
        extra: json!({ "sessions": sessions, "hash": id }),
        ..Fake::new(id, seed, 1e-3, 3.0)
    };
    fake.write(&lab.path("runs"));
}

#[test]
fn runs_of_the_same_directory_count_though_nobody_names_them() {
    let lab = Lab::new();
    write(&lab, "fake-1", 1, 4, 5.0, &[session([0, 60], 0)]);
    write(&lab, "fake-2", 2, 4, 5.0, &[session([100, 160], 0)]);
    write(&lab, "other-1", 3, 4, 5.0, &[session([0, 60], 0)]);
    let said = || {
        let args = ["compare", "runs/fake-1", "runs/fake-2", "--metrics", "tokens_per_s"];
        lab.run(args).expect(0).stdout.clone()
    };
    let note = "fake-1 trained at the same time as other runs on one machine for most of their time, and fake-2 did not";
    assert!(said().contains(note), "{}", said());
    // of one that was killed, nobody knows when, and of one without a machine nothing is said
    let mut open = session([0, 50], 0);
    open["ended"] = Value::Null;
    let mut nowhere = session([90, 300], 0);
    nowhere["host"] = Value::Null;
    write(&lab, "other-2", 4, 4, 5.0, &[open]);
    for log in ["train.csv", "val.csv"] {
        std::fs::remove_file(lab.path("runs/other-2").join(log)).expect("removed");
    }
    write(&lab, "other-3", 5, 4, 5.0, &[nowhere]);
    assert!(said().contains(note), "{}", said());
    // a copy is no other
    std::fs::rename(lab.path("runs/other-1"), lab.path("elsewhere")).expect("moved");
    assert!(!said().contains("at the same time"), "{}", said());
    write(&lab, "copy", 1, 4, 5.0, &[session([0, 60], 0)]);
    let record = lab.path("runs/copy/run.json");
    let text = std::fs::read_to_string(&record)
        .expect("a record")
        .replace("\"hash\":\"copy\"", "\"hash\":\"fake-1\"");
    std::fs::write(record, text).expect("a record");
    assert!(!said().contains("at the same time"), "{}", said());
}

#[test]
fn the_time_to_a_target_or_a_cut_is_that_in_which_runs_shared_their_machine() {
    let lab = Lab::new();
    write(&lab, "long", 1, 100, 3.9, &[session([0, 100], 0)]);
    write(&lab, "short", 2, 8, 9.0, &[session([0, 8], 0)]);
    write(&lab, "alone", 3, 100, 3.9, &[session([200, 300], 0)]);
    let by = ["--target", "val_loss=4", "--by", "seconds_to_val_loss=4"];
    let said = printed(&lab, &by);
    let note = "long trained at the same time as other runs on one machine for a tenth or more of their time to \
                val_loss <= 4, and alone did not: seconds may differ by that as well";
    assert!(said.contains(note), "{said}");
    let said = printed(&lab, &["--align", "time", "--at", "300", "--metrics", "val_loss"]);
    let note = "long and short trained at the same time as other runs on one machine for most of their time, and \
                alone did not";
    assert!(said.contains(note), "{said}");
    // and beside what it did later, it was not
    write(&lab, "short", 2, 8, 9.0, &[session([90, 98], 0)]);
    let said = printed(&lab, &by);
    assert!(!said.contains("to val_loss <= 4, and"), "{said}");
    // of a session of which no step is left, nothing is compared
    let mut lost = session([0, 100], 0);
    lost["ended"] = Value::Null;
    write(&lab, "long", 1, 100, 3.9, &[lost, session([110, 190], 0)]);
    write(&lab, "short", 2, 8, 9.0, &[session([120, 190], 0)]);
    let said = printed(&lab, &["--metrics", "tokens_per_s"]);
    let note = "long and short trained at the same time as other runs on one machine for most of their time";
    assert!(said.contains(note), "{said}");
}

#[test]
fn runs_that_all_shared_their_machine_may_have_done_so_for_unequal_parts() {
    let lab = Lab::new();
    write(&lab, "fake-1", 1, 4, 5.0, &[session([0, 100], 0)]);
    write(&lab, "fake-2", 2, 4, 5.0, &[session([0, 100], 0)]);
    write(&lab, "fake-3", 3, 4, 5.0, &[session([200, 300], 0)]);
    write(&lab, "fake-4", 4, 4, 5.0, &[session([200, 260], 0)]);
    let note = "on one machine at least 1.0 other runs trained at the same time as fake-1, fake-2 and fake-4 on average, \
                and at most 0.6 at that of fake-3";
    for metric in ["tokens_per_s", "elapsed_s"] {
        let said = printed(&lab, &["--metrics", metric]);
        assert!(said.contains(note), "{said}");
    }
    // a median feels no fifth
    write(&lab, "fake-4", 4, 4, 5.0, &[session([200, 280], 0)]);
    assert!(!printed(&lab, &["--metrics", "tokens_per_s"]).contains("at the same time"));
    assert!(printed(&lab, &["--metrics", "elapsed_s"]).contains("at the same time"));
}

#[test]
fn runs_that_a_mean_leaves_out_are_told_of_where_nothing_is_tested() {
    let lab = Lab::new();
    for (seed, status) in [(1, "finished"), (2, "finished"), (3, "diverged"), (4, "interrupted")] {
        Fake { status, ..Fake::new(&format!("fake-{seed}"), seed, 1e-3, 3.0) }.write(&lab.path("runs"));
    }
    let told = [
        "1 run that is not finished is left out of means and tests",
        "1 run that diverged is left out of means",
    ];
    let notes = compared(&lab, &[])["notes"].to_string();
    for sentence in told {
        assert!(notes.contains(sentence) && printed(&lab, &[]).contains(sentence), "{notes}");
    }
    // and where it does not, because it came as far
    let notes = compared(&lab, &["--align", "step", "--at", "2"])["notes"].to_string();
    assert!(
        notes.contains("1 run that diverged after the point of comparison counts in means and tests"),
        "{notes}"
    );
}
