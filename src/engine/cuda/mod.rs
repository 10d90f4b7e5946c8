//! The CUDA backend: cuBLASLt for matrix products, kernels in CUDA C++ for everything else.

pub mod device;
