//! What can go wrong in the emulator.

use std::path::PathBuf;

/// A failure to build or to run kernels on the host.
#[derive(Debug, thiserror::Error)]
pub enum EmulatorError {
    /// The cache could not be used.
    #[error("{}: {error}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// There is no C++ compiler.
    #[error("could not start the C++ compiler `{compiler}`: {error}; install one, or name it in CXX")]
    Compiler {
        /// The compiler's program.
        compiler: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// The compiler refused the sources.
    #[error("`{compiler}` could not compile the kernels:\n{log}")]
    Sources {
        /// The compiler's program.
        compiler: String,
        /// The compiler's messages.
        log: String,
    },
    /// The compiled kernels could not be loaded.
    #[error("{}: {error}", path.display())]
    Library {
        /// The library.
        path: PathBuf,
        /// The loader's error.
        error: libloading::Error,
    },
    /// A kernel could not be started, or did what a kernel must not do.
    #[error("kernel `{kernel}`, {reason}")]
    Launch {
        /// The kernel's name.
        kernel: &'static str,
        /// Block, thread and reason.
        reason: String,
    },
}
