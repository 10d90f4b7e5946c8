//! Published models as layers of ordinary keys, above the defaults and below everything that a user writes.
//!
//! GPT-2: Radford et al., 2019, table 2 (124M to 1558M as in the released weights). GPT-3: Brown et al., 2020, table
//! 2.1, with the batch of "0.5M", "1M" and "2M" tokens taken as 2^19, 2^20 and 2^21 and "3.2M" as 1600 rows, so that a
//! context of 2048 divides it. The table gives the XL model 24 heads of 128 at a width of 2048; 16 heads
//! of 128 have that width. It gives the 13B model 40 heads of 128 at a width of 5140; they have 5120.

/// A named set of keys.
pub(super) struct Preset {
    pub(super) name: &'static str,
    pub(super) text: &'static str,
}

/// The names, in the order in which messages list them.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|preset| preset.name)
}

/// The preset with this name.
pub(super) fn find(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

macro_rules! gpt2 {
    ($name:literal, $layers:literal, $heads:literal, $width:literal) => {
        Preset {
            name: $name,
            text: concat!(
                "[model]\nblock_size = 1024\nvocab_size = 50257\nn_layer = ",
                $layers,
                "\nn_head = ",
                $heads,
                "\nn_embd = ",
                $width,
                "\n"
            ),
        }
    };
}

macro_rules! gpt3 {
    ($name:literal, $layers:literal, $heads:literal, $width:literal, $lr:literal, $tokens:literal) => {
        Preset {
            name: $name,
            text: concat!(
                "[model]\nblock_size = 2048\nvocab_size = 50257\nn_layer = ",
                $layers,
                "\nn_head = ",
                $heads,
                "\nn_embd = ",
                $width,
                "\n[optimizer]\nlr = ",
                $lr,
                "\n[batch]\ntotal_tokens = ",
                $tokens,
                "\n"
            ),
        }
    };
}

const PRESETS: &[Preset] = &[
    gpt2!("gpt2-124m", 12, 12, 768),
    gpt2!("gpt2-350m", 24, 16, 1024),
    gpt2!("gpt2-774m", 36, 20, 1280),
    gpt2!("gpt2-1558m", 48, 25, 1600),
    gpt3!("gpt3-small", 12, 12, 768, "6e-4", 524288),
    gpt3!("gpt3-medium", 24, 16, 1024, "3e-4", 524288),
    gpt3!("gpt3-large", 24, 16, 1536, "2.5e-4", 524288),
    gpt3!("gpt3-xl", 24, 16, 2048, "2e-4", 1048576),
    gpt3!("gpt3-2.7b", 32, 32, 2560, "1.6e-4", 1048576),
    gpt3!("gpt3-6.7b", 32, 32, 4096, "1.2e-4", 2097152),
    gpt3!("gpt3-13b", 40, 40, 5120, "1e-4", 2097152),
    gpt3!("gpt3-175b", 96, 96, 12288, "6e-5", 3276800),
];
