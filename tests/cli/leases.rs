//! Leases on files of a run, which hold up those who open them: file servers give them back, and others need not.

#![cfg(target_os = "linux")]

use crate::support;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;
use std::time::Duration;
use support::Lab;

/// The command of `fcntl` that chooses the signal by which a lease is asked back: Linux's number.
const F_SETSIG: i32 = 10;

/// Takes a lease on a file, until it is closed.
fn leased(path: &Path) -> File {
    let file = File::open(path).expect("a file");
    // SAFETY: the file is open, and these commands take a number each; the signal is one that does nothing by itself.
    let (signal, lease) = unsafe {
        let fd = file.as_raw_fd();
        (libc::fcntl(fd, F_SETSIG, libc::SIGURG), libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK))
    };
    assert_eq!((signal, lease), (0, 0), "{}", std::io::Error::last_os_error());
    file
}

#[test]
fn a_run_whose_files_are_held_back_holds_up_no_report_of_the_others() {
    let lab = Lab::new();
    let (held, other) = (lab.train(&["seed=1"]), lab.train(&["seed=2"]));
    let id = |run: &Path| run.file_name().expect("a name").to_string_lossy().into_owned();
    let leases = ["recipe.toml", "run.json", "train.csv", "val.csv"].map(|name| leased(&held.join(name)));
    let said = lab.run(["list"]);
    said.says(&["run.json", "lease"]);
    assert!(said.stdout.contains(&id(&other)), "{}", said.stdout);
    let compared = lab.run(["compare", "runs"]);
    compared.says(&["lease"]);
    assert!(compared.stdout.contains(&id(&other)), "{}", compared.stdout);
    drop(leases);
    assert!(!lab.run(["compare", "runs"]).expect(0).stderr.contains("lease"));
    // as a file server would
    let lease = leased(&held.join("run.json"));
    let server = thread::spawn(move || {
        thread::sleep(Duration::from_millis(500));
        drop(lease);
    });
    assert!(!lab.run(["compare", "runs"]).expect(0).stderr.contains("lease"));
    server.join().expect("it gave the lease back");
}
