//! The functions of a library that is opened at run time, all looked up at once.
//!
//! The crate `cudarc` has declarations of NVIDIA's interfaces, generated from the headers. But it finds
//! libraries by name alone, panics if a library or a symbol is missing, and reads a status into an enum,
//! which is undefined behaviour for an unknown status. So its types are used and its loader is not: a
//! [`table!`] holds the functions of exactly the file that was found, a missing function is an error, and a
//! status stays a number. The compiler checks each declaration against cudarc's.

use libloading::Library;

/// A function that a library lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it has no function `{0}`")]
pub(super) struct MissingFunction(pub(super) &'static str);

/// Defines a struct of function pointers and its `load`. The functions of the first list are checked against
/// the declarations in `sys`; the second list has those that differ from them, as `name = "symbol"`, each
/// with the reason.
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
            /// Looks up every function. The library must stay loaded while the table is used.
            pub(super) fn load(
                library: &libloading::Library,
            ) -> Result<Self, $crate::cuda::table::MissingFunction> {
                // SAFETY: a library with this name and these symbols is NVIDIA's, and its functions have
                // these signatures; the constants below check them against the declarations generated from
                // the headers.
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

/// Looks up a function by its name.
///
/// # Safety
///
/// The symbol must be a function of type `F`, which is a function pointer.
pub(super) unsafe fn symbol<F: Copy>(library: &Library, name: &'static str) -> Result<F, MissingFunction> {
    // SAFETY: the caller guarantees the type.
    unsafe { library.get::<F>(name.as_bytes()) }.map(|symbol| *symbol).map_err(|_| MissingFunction(name))
}
