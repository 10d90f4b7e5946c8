//! What this machine makes of a plan.

use super::{Remark, Subject};
use crate::plan::gib;
use crate::recipe::Precision;

/// A precision that the device does not have.
pub(super) fn precision(subject: &Subject) -> Remark {
    let name = match subject.recipe.compute.precision {
        Precision::Fp32 => return None,
        Precision::Tf32 => "tf32",
        Precision::Bf16 => "bf16",
        Precision::Fp16 => "fp16",
    };
    subject.plan.emulated.then(|| {
        (
            "compute.precision",
            format!(
                "{name} is emulated by rounding on {}: its numerics at no more than fp32's speed",
                subject.plan.device
            ),
            "use compute.precision = \"fp32\" unless the numerics are what is studied".to_owned(),
        )
    })
}

/// A run that takes nearly all memory that is free.
pub(super) fn memory(subject: &Subject) -> Remark {
    let (needed, free) = (subject.plan.bytes.total, subject.hardware.free());
    let limit = free / 10 * 9;
    // more than all of it is refused, not remarked upon
    (needed > limit && needed <= free).then(|| {
        let help = match subject.plan.largest_micro_batch(limit) {
            Some(rows) => format!("batch.micro_batch = {rows} stays below 90 %"),
            None => "choose a smaller model or block_size: not even a micro_batch of 1 stays below 90 %"
                .to_owned(),
        };
        (
            "batch.micro_batch",
            format!("the run needs {} of the {} that are free", gib(needed), gib(free)),
            help,
        )
    })
}

/// Days after which a run is worth a remark.
const MONTH: f64 = 30.0;

/// A run that will not end within a month.
pub(super) fn time(subject: &Subject) -> Remark {
    const DAY: f64 = 24.0 * 3600.0;
    let (days, tokens_per_s) = subject.prediction.map(|p| (p.total_s / DAY, p.tokens_per_s))?;
    let without = match subject.plan.ranks.world_size {
        1 => "",
        _ => " and without the time in which ranks exchange gradients",
    };
    (days > MONTH).then(|| {
        let within = subject.plan.own_tokens() as f64 * MONTH / days;
        (
            subject.recipe.schedule.length_key(),
            format!("the run is predicted to take {days:.0} days, at {tokens_per_s:.1} tokens per second{without}"),
            format!(
                "take a smaller model or fewer steps ({within:.1e} tokens take a month), or a faster machine; runner \
                 bench measures the real speed"
            ),
        )
    })
}
