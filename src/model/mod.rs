//! GPT-2 as data: its dimensions and the flat layout of its parameters.

pub mod dims;
pub mod init;
pub mod layout;

pub use dims::Dims;
pub use layout::{Block, ParamLayout, Tensor};
