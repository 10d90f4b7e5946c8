//! A run on disk: directory, lock, CSV log, checkpoints.
