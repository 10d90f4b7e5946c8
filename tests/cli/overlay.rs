//! Runs in a layer below an overlay, as in the image of a container: what lies there can be deleted and not renamed.

use crate::support;

use std::fs;
use std::process::Command;
use support::{Lab, checkpoints, essence, tiny, without};

/// A mount that ends with the test.
struct Mount(std::path::PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn mounted(args: &[&str], at: std::path::PathBuf) -> Option<Mount> {
    fs::create_dir_all(&at).expect("a directory");
    let mount = Command::new("mount").args(args).arg(&at).output();
    mount.is_ok_and(|output| output.status.success()).then_some(Mount(at))
}

#[test]
fn a_run_in_a_layer_below_goes_on_and_is_discarded_and_removed() {
    let lab = Lab::new();
    let keep = ["checkpoint.every=4", "checkpoint.keep=2"];
    let whole = essence(&lab.train_in("whole", &keep));
    let run = lab.crash("below/runs", &keep, "csv.before_row:12");
    let id = run.file_name().and_then(|id| id.to_str()).expect("an id").to_owned();
    // only root may mount, and layers need a file system that can be one
    let Some(_layers) = mounted(&["-t", "tmpfs", "none"], lab.path("layers")) else { return };
    for layer in ["upper", "work"] {
        fs::create_dir(lab.path("layers").join(layer)).expect("a directory");
    }
    let [below, upper, work] =
        ["below/runs", "layers/upper", "layers/work"].map(|name| lab.path(name).display().to_string());
    let layers = format!("lowerdir={below},upperdir={upper},workdir={work}");
    let Some(_over) = mounted(&["-t", "overlay", "none", "-o", &layers], lab.path("over")) else { return };
    let run = lab.path("over").join(&id);
    let newest = run.join("checkpoints").join(checkpoints(&run).pop().expect("a checkpoint"));
    // one that is damaged is set aside
    fs::write(newest.join("config.json"), "{").expect("written");
    lab.run(tiny("over", &keep)).expect(0).says(&["cannot be used"]);
    assert!(without(essence(&run), "damaged-") == whole);
    lab.run(tiny("over", &keep).into_iter().chain(["--fresh".to_owned()])).expect(0);
    assert!(without(essence(&run), "damaged-") == whole);
    lab.run(["list", &id, "--runs-dir", "over", "--remove", "--yes"]).expect(0);
    assert!(!run.exists());
}
