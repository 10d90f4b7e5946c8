//! Fake CUDA libraries, compiled where there is a C compiler (`tests/fake_cuda/`).

#![allow(dead_code, reason = "every test file uses its own part")]

use runner::cuda::Libraries;
use runner::cuda::search::{Place, Search};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A directory of libraries.
pub(crate) struct Fakes(tempfile::TempDir);

impl Fakes {
    /// An empty one; `None`, and a line that says so, where there is no C compiler.
    #[expect(clippy::print_stdout, reason = "whoever reads a test's output is to know what was not tested")]
    pub(crate) fn new() -> Option<Self> {
        let version =
            Command::new("cc").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !version.is_ok_and(|status| status.success()) {
            println!("skipped: there is no C compiler to make the fake libraries with");
            return None;
        }
        Some(Self(tempfile::tempdir().expect("a temporary directory")))
    }

    /// Driver, compiler and matrix products that work, the driver with these macros.
    pub(crate) fn whole(driver: &[&str]) -> Option<Self> {
        let fakes = Self::new()?;
        fakes.driver(driver);
        fakes.nvrtc(&[]);
        fakes.cublaslt();
        Some(fakes)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn driver(&self, macros: &[&str]) {
        self.compile("fake.c", "libcuda.so.1", &[&["DRIVER"], macros].concat());
    }

    pub(crate) fn nvrtc(&self, macros: &[&str]) {
        self.compile("fake.c", "libnvrtc.so.13", &[&["NVRTC"], macros].concat());
    }

    pub(crate) fn cublaslt(&self) {
        self.compile("cublaslt.c", "libcublasLt.so.13", &[]);
    }

    /// A file of any content.
    pub(crate) fn file(&self, name: &str, content: &[u8]) {
        std::fs::write(self.path().join(name), content).expect("a file");
    }

    fn compile(&self, source: &str, library: &str, macros: &[&str]) {
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fake_cuda").join(source);
        let mut command = Command::new("cc");
        command.args(["-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]);
        command.args(macros.iter().map(|name| format!("-D{name}")));
        command.arg(source).arg("-o").arg(self.path().join(library)).arg("-lm");
        let output = command.output().expect("the compiler runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// What is found when only this directory is looked at.
    pub(crate) fn libraries(&self) -> Libraries {
        let because = "the test".to_owned();
        Libraries::find(Search { places: vec![Place { directory: Some(self.path().to_owned()), because }] })
    }
}
