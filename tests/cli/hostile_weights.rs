//! Weights that would make a small file stand for a model of any size.

use crate::support;

use serde_json::json;
use std::io::Write;
use support::Lab;

/// A file of PyTorch whose tensors all begin at the first byte of one storage.
fn of_one_storage(n_layer: usize, n_embd: usize, vocab_size: usize, block_size: usize) -> Vec<u8> {
    let text = |text: &str| [&[b'X'][..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
    let number = |number: usize| [&[b'J'][..], &(number as i32).to_le_bytes()].concat();
    let numbers = |all: &[usize]| {
        let all: Vec<u8> = all.iter().flat_map(|&n| number(n)).collect();
        [&b"("[..], &all, b"t"].concat()
    };
    let stored = 4 * n_embd * n_embd.max(vocab_size);
    let tensor = |name: &str, shape: &[usize]| {
        let strides = if shape.len() == 2 { vec![shape[1], 1] } else { vec![1] };
        let storage = [
            &b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpu"[..],
            &number(stored),
            b"tQ",
        ];
        let call = [&b"ctorch._utils\n_rebuild_tensor_v2\n("[..], &storage.concat(), b"K\0"];
        let rest = [&numbers(shape)[..], &numbers(&strides), b"\x89ccollections\nOrderedDict\n)RtR"];
        [text(&format!("transformer.{name}")), call.concat(), rest.concat()].concat()
    };
    let c = n_embd;
    let mut tensors =
        [tensor("wte.weight", &[vocab_size, c]), tensor("wpe.weight", &[block_size, c])].concat();
    for layer in 0..n_layer {
        let shapes: [(&str, &[usize]); 6] = [
            ("ln_1.weight", &[c]),
            ("attn.c_attn.weight", &[3 * c, c]),
            ("attn.c_proj.weight", &[c, c]),
            ("ln_2.weight", &[c]),
            ("mlp.c_fc.weight", &[4 * c, c]),
            ("mlp.c_proj.weight", &[c, 4 * c]),
        ];
        tensors.extend(shapes.iter().flat_map(|(name, shape)| tensor(&format!("h.{layer}.{name}"), shape)));
    }
    tensors.extend(tensor("ln_f.weight", &[c]));
    let sizes = [
        ("n_layer", n_layer),
        ("n_head", 1),
        ("n_embd", c),
        ("block_size", block_size),
        ("vocab_size", vocab_size),
    ];
    let sizes: Vec<u8> = sizes.iter().flat_map(|(name, n)| [text(name), number(*n)].concat()).collect();
    let pickle = [
        &b"\x80\x02}("[..],
        &text("model"),
        b"}(",
        &tensors,
        b"u",
        &text("model_args"),
        b"}(",
        &sizes,
        b"uu.",
    ]
    .concat();
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let plain = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in [("a/data.pkl", pickle), ("a/data/0", vec![0; 4 * stored])] {
        zip.start_file(name, plain).expect("memory");
        zip.write_all(&bytes).expect("memory");
    }
    zip.finish().expect("memory").into_inner()
}

/// A small file must not stand for a model of any size.
#[test]
fn a_model_whose_tensors_share_their_bytes_is_refused() {
    let lab = Lab::new();
    lab.shard("rows.bin", &[7; 200]);
    lab.write("shared.pt", of_one_storage(3, 8, 40, 16));
    for args in [
        &["sample", "shared.pt", "--prompt", "!"][..],
        &["eval", "shared.pt", "--data", "rows.bin", "--tokens", "64"],
    ] {
        lab.run(args).expect(2).says(&["shared.pt", "share bytes of the file", "h.0."]);
    }
}

/// Nothing is taken for dimensions that a configuration states and the weights do not have.
#[test]
fn memory_is_taken_for_the_weights_and_not_for_their_configuration() {
    let lab = Lab::new();
    lab.shard("rows.bin", &[7; 200]);
    lab.write("large/model.safetensors", b"\x02\0\0\0\0\0\0\0{}");
    let sizes = json!({ "model_type": "gpt2", "n_layer": 1024, "n_head": 1, "n_embd": 256, "n_positions": 64, "vocab_size": 1024 });
    lab.write("large/config.json", sizes.to_string());
    for args in [
        &["sample", "large", "--prompt", "!"][..],
        &["eval", "large", "--data", "rows.bin", "--tokens", "64"],
    ] {
        let mut command = lab.launcher("sh");
        command.args(["-c", "ulimit -v 2500000; exec \"$RUNNER\" \"$@\"", "limited"]).args(args);
        command.env("RAYON_NUM_THREADS", "2");
        support::ended(command).expect(2).says(&["large", "wte.weight", "h.0."]);
    }
}
