//! `train.csv` and `val.csv`: any bytes are rows or an error; what is cut back has no row that was to go, and cutting it
//! again changes nothing.

#![no_main]

use libfuzzer_sys::fuzz_target;
use runner::run::{TrainRow, ValRow, log, records};
use std::path::Path;

fuzz_target!(|data: &[u8]| {
    let path = Path::new("train.csv");
    let Some((&step, bytes)) = data.split_first() else { return };
    let first_step_to_drop = u64::from(step);
    if let Ok(rows) = records::parse::<TrainRow>(path, bytes.to_vec()) {
        rows.for_each(drop);
    }
    if let Ok(rows) = records::parse::<ValRow>(path, bytes.to_vec()) {
        rows.for_each(drop);
    }
    if let Ok((kept, left)) = log::cut(path, bytes, first_step_to_drop) {
        let (again, same) = log::cut(path, &left, first_step_to_drop).expect("what is left can be cut");
        assert!(again == kept || again.elapsed_s.is_nan() && kept.elapsed_s.is_nan(), "{kept:?} {again:?}");
        assert_eq!(same, left);
        assert!(kept.last_step.is_none_or(|step| step < first_step_to_drop));
    }
});
