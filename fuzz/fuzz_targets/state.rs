//! `state.json` and `run.json`: any bytes are read or refused; what was read is written as what reads the same. A state's
//! checksum is put right first, or nothing would get past it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use runner::run::{CheckpointState, RunRecord};
use serde_json::Value;
use std::path::Path;

fuzz_target!(|data: &[u8]| {
    let state = CheckpointState::from_json(Path::new("state.json"), data);
    assert!(state.map_or_else(|error| !error.to_string().is_empty(), |_| true));
    if let Ok(Value::Object(mut fields)) = serde_json::from_slice(data) {
        fields.shift_remove("checksum");
        let checksum =
            blake3::hash(Value::Object(fields.clone()).to_string().as_bytes()).to_hex().to_string();
        fields.insert("checksum".to_owned(), checksum.into());
        let text = Value::Object(fields).to_string();
        if let Ok(state) = CheckpointState::from_json(Path::new("state.json"), text.as_bytes()) {
            let again = CheckpointState::from_json(Path::new("state.json"), state.to_json().as_bytes());
            // NaN, which JSON cannot hold, is never read
            assert_eq!(again.expect("its own spelling"), state);
        }
    }
    if let Ok(record) = RunRecord::from_json(Path::new("run.json"), data) {
        let text = serde_json::to_vec(&record).expect("plain data");
        assert_eq!(RunRecord::from_json(Path::new("run.json"), &text).expect("its own spelling"), record);
    }
});
