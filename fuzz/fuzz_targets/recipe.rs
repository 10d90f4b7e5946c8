//! Recipes: any text is either a recipe or refused with a message, which can be shown; a recipe that was read can be
//! written and is then the same.

#![no_main]

mod scratch;

use libfuzzer_sys::fuzz_target;
use runner::recipe::{DataDigests, Overrides, identity, load, to_toml};

fuzz_target!(|data: &[u8]| {
    let path = scratch::write("r.toml", data);
    let none = Overrides::default();
    match load(&path, &none) {
        Ok(resolved) => {
            let digests = DataDigests { train: "t".into(), val: "v".into(), init_from: None };
            let text = to_toml(&resolved.recipe, scratch::dir());
            let again = load(&scratch::write("again.toml", text.as_bytes()), &none).expect(&text);
            assert_eq!(identity(&again.recipe, &digests), identity(&resolved.recipe, &digests));
            assert_eq!(again.recipe, resolved.recipe, "{text}");
        }
        Err(diagnostics) => assert!(!diagnostics.render(false).is_empty()),
    }
    // the same text as the value of a flag
    if let Ok(text) = std::str::from_utf8(data)
        && let Some((value, _)) = text.split_once('\n')
    {
        let base = scratch::write("base.toml", b"data.train = \"t\"\nschedule.max_steps = 1\n");
        let set = Overrides { set: vec![value.to_owned()], ..Overrides::default() };
        if let Err(diagnostics) = load(&base, &set) {
            assert!(!diagnostics.render(false).is_empty());
        }
    }
});
