//! GPT-2 as data: its dimensions, the flat layout of its parameters, and its initial weights.

pub mod dims;
pub mod init;
pub mod layout;

pub use dims::Dims;
pub use layout::{Block, ParamLayout, Tensor};
