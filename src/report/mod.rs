//! Reading runs back: which was better, is the difference real, and what differed?
//!
//! Everything is computed from the plain files of the run directories, without a lock, while they are being written.
//! Texts, tables and pictures are made here; printing them is the commands' business.

mod around;
mod asked;
pub mod axis;
pub mod basis;
mod bounds;
pub mod braille;
pub mod chosen;
pub mod compare;
pub mod differences;
pub mod document;
pub mod equal;
pub mod export;
pub mod fit;
mod fold;
pub mod follow;
pub mod footing;
pub mod gather;
pub mod groups;
pub mod left;
pub mod legend;
pub mod live;
pub mod measures;
pub mod metrics;
pub mod notes;
pub mod numbers;
pub mod own;
pub mod page;
pub mod parts;
mod planned;
pub mod plot;
mod replicas;
pub mod results;
pub mod runs;
mod runs_table;
pub mod scan;
mod search;
pub mod sentences;
pub mod shorten;
mod sooner;
pub mod spans;
pub mod stats;
mod tail;
pub mod target;
pub mod tensorboard;
