//! The reference engine: GPT-2 in plain `dfdx` tensors and autograd.
