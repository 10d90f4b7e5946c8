//! Fake CUDA libraries, compiled from `tests/fake_cuda/` by the C compiler that Rust links with on Linux.

#![allow(dead_code, reason = "every test file uses its own part")]

use runner::cuda::Libraries;
use runner::cuda::search::{Search, SearchDir};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory of fake libraries.
pub(crate) struct Fakes(tempfile::TempDir);

impl Fakes {
    /// An empty directory; `None`, and a printed line, without a C compiler.
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    /// A working driver (compiled with these macros), compiler and matrix products.
    pub(crate) fn whole(driver: &[&str]) -> Self {
        let fakes = Self::new();
        fakes.driver(driver);
        fakes.nvrtc(&[]);
        fakes.cublaslt(&[]);
        fakes
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

    pub(crate) fn cublaslt(&self, macros: &[&str]) {
        self.compile("cublaslt.c", "libcublasLt.so.13", macros);
    }

    pub(crate) fn nccl(&self, macros: &[&str]) {
        self.compile("nccl.c", "libnccl.so.2", macros);
    }

    /// A profiler's library, and its path.
    pub(crate) fn nvtx(&self, macros: &[&str]) -> PathBuf {
        self.compile("nvtx.c", "libprofiler.so", macros);
        self.path().join("libprofiler.so")
    }

    /// Writes a file with this content.
    pub(crate) fn file(&self, name: &str, content: &[u8]) {
        std::fs::write(self.path().join(name), content).expect("a file");
    }

    /// Compiles a library, or copies it if it was compiled before. (A copy, so that each test has the
    /// library's state to itself.)
    fn compile(&self, source: &str, library: &str, macros: &[&str]) {
        let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fake_cuda");
        let mut hasher = blake3::Hasher::new();
        for file in ["fake.c", "cublaslt.c", "nccl.c", "nvtx.c", "stream.h"] {
            hasher.update(&std::fs::read(sources.join(file)).expect("a source"));
        }
        hasher.update(format!("{source} {macros:?}").as_bytes());
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.so", hasher.finalize().to_hex()));
        let own = self.path().join(library);
        if std::fs::copy(&kept, &own).is_ok() {
            return;
        }
        let mut command = Command::new("cc");
        command.args(["-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]);
        command.args(macros.iter().map(|name| format!("-D{name}")));
        command.arg(sources.join(source)).arg("-o").arg(&own).args(["-lm", "-pthread"]);
        let output =
            command.output().expect("the C compiler `cc`, with which Rust links as well, can be started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // whole or not at all, because other tests may look for it
        let whole = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a file");
        std::fs::copy(&own, whole.path()).expect("copied");
        whole.persist(kept).expect("a file");
    }

    /// The libraries that are found in this directory alone.
    pub(crate) fn libraries(&self) -> Libraries {
        let because = "the test".to_owned();
        Libraries::find(Search {
            places: vec![SearchDir { directory: Some(self.path().to_owned()), because }],
            of_others: Vec::new(),
        })
    }
}
