//! Output as a document shows it, against output as it is.

/// Lines that say something about the machine or the moment: only how they begin is compared.
const OF_THE_MACHINE: &[&str] = &["  free", "  peak", "predicted", "  processor", "  threads", "  memory"];

/// Whether digits must be those of the document up to the last, which were computed with AVX-512. Other kernels add
/// up in another order.
fn exact() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Fails unless the output is what is shown. A line `...` stands for any number of lines, also none.
pub(crate) fn matches(at: &str, shown: &str, printed: &str) {
    let (shown, printed): (Vec<&str>, Vec<&str>) = (shown.lines().collect(), printed.lines().collect());
    assert!(
        follows(&shown, &printed),
        "{at}: what is shown is not what is printed\n--- shown\n{}\n--- printed\n{}\n",
        shown.join("\n"),
        printed.join("\n")
    );
}

fn follows(shown: &[&str], printed: &[&str]) -> bool {
    match (shown.split_first(), printed.split_first()) {
        (None, None) => true,
        (Some((&"...", shown)), _) => (0..=printed.len()).any(|skipped| follows(shown, &printed[skipped..])),
        (Some((line, shown)), Some((actual, printed))) => same(line, actual) && follows(shown, printed),
        _ => false,
    }
}

/// Whether two lines say the same.
pub(crate) fn same(shown: &str, printed: &str) -> bool {
    if shown == printed {
        return true;
    }
    let start = OF_THE_MACHINE.iter().find(|start| shown.starts_with(**start));
    if let Some(start) = start {
        return printed.starts_with(start);
    }
    let (shown, printed): (Vec<&str>, Vec<&str>) =
        (shown.split_whitespace().collect(), printed.split_whitespace().collect());
    shown.len() == printed.len() && shown.iter().zip(&printed).all(|(a, b)| a == b || close(a, b))
}

/// Whether two words are numbers that rounding may have parted: errors near zero (`1.7e-9`) on every machine, others
/// only where the kernels are not those that the document was made with.
fn close(shown: &str, printed: &str) -> bool {
    let (Ok(a), Ok(b)) = (shown.parse::<f64>(), printed.parse::<f64>()) else { return false };
    let rounding = |text: &str| text.contains("e-") || text == "0.0e0";
    if rounding(shown) && rounding(printed) {
        return a < 1e-2 && b < 1e-2;
    }
    let tolerance = if exact() { 2e-5 } else { 2e-2 };
    shown.contains('.') && (a - b).abs() <= tolerance * a.abs()
}
