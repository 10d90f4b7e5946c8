//! The kernels as machine code: compiled or from the cache, and loaded.

use crate::cuda::compile::Program;
use crate::cuda::{Context, DeviceInfo, Libraries, Module};
use crate::engine::EngineError;
use std::path::Path;
use std::rc::Rc;

/// Compiles and loads the kernels. If the driver refuses cached code, it is compiled again, once.
pub(super) fn load(
    libraries: &Libraries,
    context: &Rc<Context>,
    info: &DeviceInfo,
    program: &Program,
    cache: Option<&Path>,
) -> Result<Rc<Module>, EngineError> {
    let compiler = libraries.compiler().map_err(|missing| EngineError::Unsupported(missing.to_string()))?;
    let arch = compiler.target(info.compute_capability)?;
    let kept = compiler.compile_cached(program, &arch, cache)?;
    let module = match Module::new(context, &kept.image) {
        Err(_) if cache.is_some() => {
            Module::new(context, &compiler.compile_anew(program, &arch, cache)?.image)?
        }
        loaded => loaded?,
    };
    Ok(Rc::new(module))
}
