//! Functions of a library that is only there at run time, looked up all at once.
//!
//! The crate `cudarc` has declarations of NVIDIA's interfaces, made from the headers, but finds libraries by name alone,
//! panics where a library or a symbol is missing, and takes a status that it does not know for a value of an enum, which
//! is undefined. So its types are used, its loader is not: a [`table!`] holds the functions of the very file that was
//! found, a missing one is an error, and a status stays a number. The compiler holds each declaration against cudarc's.

use libloading::Library;

/// A symbol that a library lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it has no function `{0}`")]
pub(super) struct MissingFunction(pub(super) &'static str);

/// Defines a struct of function pointers and its `load`. The first list is held against the declarations in `sys`; the
/// second has those that differ from them, as `name = "symbol"`, with the reason beside each.
macro_rules! table {
    (
        $(#[$meta:meta])*
        struct $name:ident: $status:ty;
        $(fn $function:ident($($arg:ty),* $(,)?);)*
        own {
            $($(#[$why:meta])* fn $own:ident($($own_arg:ty),* $(,)?) -> $own_result:ty = $symbol:literal;)*
        }
    ) => {
        $(#[$meta])*
        #[expect(non_snake_case, reason = "the functions keep the names under which they are documented")]
        pub(super) struct $name {
            $(pub(super) $function: unsafe extern "C" fn($($arg),*) -> u32,)*
            $($(#[$why])* pub(super) $own: unsafe extern "C" fn($($own_arg),*) -> $own_result,)*
        }

        impl $name {
            /// Looks every function up. The library must stay loaded for as long as the table is used.
            pub(super) fn load(
                library: &libloading::Library,
            ) -> Result<Self, $crate::cuda::table::MissingFunction> {
                // SAFETY: a library with this name and these symbols is NVIDIA's, whose functions have these signatures;
                // the constants below hold them against the declarations made from the headers.
                unsafe {
                    Ok(Self {
                        $($function: $crate::cuda::table::symbol(library, stringify!($function))?,)*
                        $($own: $crate::cuda::table::symbol(library, $symbol)?,)*
                    })
                }
            }
        }

        $(const _: unsafe fn($($arg),*) -> $status = sys::$function;)*
    };
}
pub(super) use table;

/// A function by its name.
///
/// # Safety
///
/// The symbol must be a function of type `F`, which is a function pointer.
pub(super) unsafe fn symbol<F: Copy>(library: &Library, name: &'static str) -> Result<F, MissingFunction> {
    // SAFETY: the caller vouches for the type.
    unsafe { library.get::<F>(name.as_bytes()) }.map(|symbol| *symbol).map_err(|_| MissingFunction(name))
}
