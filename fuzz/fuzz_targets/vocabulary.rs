//! What says which text tokens stand for, nanoGPT's `meta.pkl` and `dataset.json`: any bytes are a vocabulary that
//! decodes what it encodes, or refused.

#![no_main]

mod scratch;

use libfuzzer_sys::fuzz_target;
use runner::data::vocabulary::stated;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    let names = ["meta.pkl", "dataset.json"];
    let at = usize::from(kind) % 2;
    // only one of the two is there
    let _ = std::fs::remove_file(scratch::dir().join(names[1 - at]));
    scratch::write(names[at], bytes);
    let tokens = scratch::write("train-000001.bin", &[1, 0, 2, 0, 3, 0]);
    match stated(&[tokens.display().to_string()]) {
        Ok(Some(stated)) => {
            let ids = 0..stated.tokenizer.vocab_size().min(300) as u32;
            let text = stated.tokenizer.decode(&ids.clone().collect::<Vec<_>>());
            if let Some(characters) = stated.tokenizer.characters() {
                assert!(characters.text().starts_with(&text), "{text:?}");
                assert_eq!(stated.tokenizer.encode_ordinary(&text), ids.collect::<Vec<_>>());
            }
        }
        Ok(None) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
