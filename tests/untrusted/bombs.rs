//! Small files that would fill a memory: each is the worst that somebody has thought of for its reader.

use crate::readers::{self, Reader};
use flate2::Compression;
use flate2::write::GzEncoder;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::io::Write;

/// Bytes of most of the files.
const SIZE: usize = 8 << 20;

/// Files that every reader is given.
pub(crate) fn plain() -> Vec<Vec<u8>> {
    vec![
        Vec::new(),
        vec![0; 1],
        vec![0; SIZE],
        vec![b' '; SIZE],
        vec![b','; SIZE],
        vec![0xff; SIZE / 8],
        b"[".repeat(100_000),
        b"{\"a\":".repeat(100_000),
        text("[", "0,", "0]"),
        text("\"", "a", "\""),
        repeated(b"\x80\x02", b"(", b""),
        b"a = [".repeat(20_000),
    ]
}

/// A beginning, so many equal pieces, an end.
fn text(begin: &str, piece: &str, end: &str) -> Vec<u8> {
    [begin, &piece.repeat(SIZE / piece.len()), end].concat().into_bytes()
}

/// Files with the readers that they are for. The first byte of some says what their names are.
pub(crate) fn all() -> Vec<(&'static str, Reader, Vec<u8>)> {
    let with = |kind: u8, bytes: Vec<u8>| [&[kind][..], &bytes].concat();
    let pickled = |kind: u8, bytes: Vec<u8>| with(kind, bytes);
    vec![
        ("JSON of zeros", readers::config, text("{\"n_layer\": [", "0,", "0]}")),
        ("JSON of empty lists", readers::state, text("{\"format_version\": 1, \"a\": [", "[],", "0]}")),
        ("JSON of empty objects", readers::run, text("{\"format_version\": 1, \"a\": [", "{},", "0]}")),
        (
            "an index of one name",
            readers::config,
            text("{\"weight_map\": {", "\"a\":\"b\",", "\"a\":\"b\"}}"),
        ),
        (
            "a card of zeros",
            readers::vocabulary,
            with(1, text("{\"version\": 1, \"options\": [", "0,", "0]}")),
        ),
        (
            "a card of nameless shards",
            readers::vocabulary,
            with(1, text("{\"version\": 1, \"train\": {\"tokens\": 1, \"files\": [", "\"\",", "\"\"]}}")),
        ),
        (
            "a vocabulary with merges",
            readers::tokenizer,
            text("{\"model\": {\"type\": \"BPE\", \"merges\": [", "[],", "0]}}"),
        ),
        ("a recipe of nested tables", readers::recipe, nested_tables()),
        ("a run with a recipe of nested tables", readers::run, nested_tables()),
        ("a table of columns", readers::run, text("step,", "a,", "a\n1\n")),
        ("a log of wide rows", readers::run, text("step,loss\n0,1\n", ",", "\n")),
        ("a log of wide rows and a quote", readers::run, text("step,loss\n0,\"1\"\n", ",", "\n")),
        (
            "a log of short rows",
            readers::run,
            text("step,loss,val_loss,a\n", "1,20,20,1234\n", "2,20,20,1234\n"),
        ),
        ("a log whose header ends nowhere", readers::run, text("\"\n\",", ",", "\"\n\"\n1\n")),
        ("a log of empty rows", readers::log, with(9, text("step,loss\n", "1\n", "1\n"))),
        ("a log of quotes", readers::run, text("step,loss\n", "\",", "\n")),
        ("a field that is a list", readers::corpus, with(8, text("{\"text\": [", "0,", "0]}\n"))),
        ("a line without its field", readers::corpus, with(8, text("{\"a\": [", "0,", "0]}\n"))),
        ("a packed line", readers::corpus, with(4, packed(b"{\"text\": \"", b'a', 256 << 20))),
        ("a packed text", readers::corpus, with(10, packed(b"", b'a', 256 << 20))),
        // 64 is GPT-2's tokenizer, and 74 and 65 have the names of 4 and 2
        ("a long packed line beside others", readers::corpus, with(74, packed_lines(1, 150))),
        ("many packed lines that cannot be cut", readers::corpus, with(74, packed_lines(40, 22))),
        ("a page of nothing in a larger file", readers::corpus, with(65, packed_page(4 << 20))),
        ("a footer of nothing", readers::corpus, with(2, footer_of_nothing())),
        ("a page of nothing", readers::corpus, with(2, packed_page(0))),
        (
            "a header of shapes",
            readers::safetensors,
            header("{\"a\":{\"dtype\":\"F32\",\"shape\":[", "0,", "0]}}"),
        ),
        ("a header of words", readers::safetensors, header("{\"__metadata__\":{\"a\":[", "0,", "0]}}")),
        (
            "a header of one tensor",
            readers::safetensors,
            header(
                "{",
                "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,0]},",
                "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,0]}}",
            ),
        ),
        ("storages of one long name", readers::safetensors, archive(&storages())),
        ("arguments of one long name", readers::safetensors, archive(&arguments())),
        ("an archive that remembers", readers::safetensors, archive(&repeated(b"\x80\x04N", b"\x94", b"."))),
        ("objects", readers::vocabulary, pickled(0, repeated(b"\x80\x02", b"N", b"."))),
        ("marks", readers::vocabulary, pickled(0, repeated(b"\x80\x02", b"(", b"."))),
        ("references", readers::vocabulary, pickled(0, repeated(b"\x80\x02]q\0(", b"h\0", b"e."))),
        ("dictionaries", readers::vocabulary, pickled(0, repeated(b"\x80\x02", b"}N)\x88s", b"."))),
        ("llm.c's endings of a long context", readers::task, endings()),
        ("endings of a long context", readers::task, choice("word ".repeat(20_000), 50_000)),
        ("many long contexts", readers::task, examples(&"a ".repeat(1000), " ", 60)),
        ("many short endings", readers::task, examples("a", " ", 200)),
        ("a long delimiter of many endings", readers::task, examples("a", &"b ".repeat(500), 500)),
        // a token has 64 of these, and each ending brings all of them
        ("a rule of many endings", readers::task, rule()),
        ("one example of many endings", readers::task, endings_of_one(40_000)),
        ("brackets that never close", readers::task, brackets(1 << 20)),
        ("many examples of short lines", readers::task, text("", "{\"text\":\"a b\"}\n", "")),
    ]
}

/// The longest recipe that is read, of inline tables in tables: each `a.` of it becomes one.
fn nested_tables() -> Vec<u8> {
    let piece = format!("{{{}a=1}},", "a.".repeat(60));
    let count = ((256 << 10) - 20) / piece.len();
    format!("data.train=[{}]", piece.repeat(count)).into_bytes()
}

/// Examples with so many endings each.
fn examples(context: &str, delimiter: &str, endings: usize) -> Vec<u8> {
    let endings: Vec<String> = (0..endings).map(|ending| format!("\"{ending}\"")).collect();
    let endings = endings.join(",");
    let line = format!(
        "{{\"context\":\"{context}\",\"delimiter\":\"{delimiter}\",\"endings\":[{endings}],\"label\":0}}\n"
    );
    line.repeat(SIZE / line.len()).into_bytes()
}

fn repeated(begin: &[u8], piece: &[u8], end: &[u8]) -> Vec<u8> {
    [begin, &piece.repeat(SIZE / piece.len()), end].concat()
}

/// A byte, repeated, under gzip.
fn packed(begin: &[u8], byte: u8, count: usize) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::fast());
    out.write_all(begin).expect("memory");
    let block = vec![byte; 1 << 20];
    (0..count >> 20).for_each(|_| out.write_all(&block).expect("memory"));
    out.finish().expect("memory")
}

/// JSON lines under gzip: four megabytes that do not pack, then so many lines of so many megabytes of one letter, which
/// no tokenizer of words can cut.
fn packed_lines(lines: usize, mib: usize) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::fast());
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for _ in 0..4 {
        let words = (0..1 << 20).map(|_| random.gen_range(b' '..=b'_')).filter(|c| !b"\"\\".contains(c));
        let words: Vec<u8> = words.collect();
        out.write_all(&[b"{\"text\": \"", &words[..], b"\"}\n"].concat()).expect("memory");
    }
    let block = vec![b'a'; 1 << 20];
    for _ in 0..lines {
        out.write_all(b"{\"text\": \"").expect("memory");
        (0..mib).for_each(|_| out.write_all(&block).expect("memory"));
        out.write_all(b"\"}\n").expect("memory");
    }
    out.finish().expect("memory")
}

/// The header of a safetensors file, without tensors behind it.
fn header(begin: &str, piece: &str, end: &str) -> Vec<u8> {
    let text = text(begin, piece, end);
    [&(text.len() as u64).to_le_bytes()[..], &text].concat()
}

/// An archive as PyTorch makes it, with this pickle.
fn archive(pickle: &[u8]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    zip.start_file("a/data.pkl", stored).expect("memory");
    zip.write_all(pickle).expect("memory");
    zip.finish().expect("memory").into_inner()
}

/// A storage with a name of four megabytes, made again and again from what is remembered.
fn storages() -> Vec<u8> {
    let mut out = b"\x80\x02(X\x07\0\0\0storagectorch\nFloatStorage\nX".to_vec();
    out.extend((4u32 << 20).to_le_bytes());
    out.resize(out.len() + (4 << 20), b'a');
    out.extend(b"NK\x01tq\0");
    out.extend(b"h\0Q".repeat(500_000));
    out.push(b'.');
    out
}

/// Weights with two million arguments of a model, all of one name.
fn arguments() -> Vec<u8> {
    let mut out = b"\x80\x02}q\0(X\x05\0\0\0model}X\x0a\0\0\0model_args}(X\x50\0\0\0".to_vec();
    out.extend([b'\n'; 80]);
    out.extend(b"q\x01K\x01q\x02");
    out.extend(b"h\x01h\x02".repeat(2_000_000));
    out.extend(b"uu.");
    out
}

/// An example with a delimiter of a quarter of a megabyte that has few tokens, and endings that repeat it.
fn rule() -> Vec<u8> {
    let endings: Vec<String> = (0..1000).map(|ending| format!("\"{ending}\"")).collect();
    let (rule, endings) = ("-".repeat(250_000), endings.join(","));
    format!("{{\"context\":\"a\",\"delimiter\":\"{rule}\",\"endings\":[{endings}],\"label\":0}}\n")
        .into_bytes()
}

/// llm.c's file of an example with 60,000 tokens and as many endings.
fn endings() -> Vec<u8> {
    let mut words = vec![u16::MAX, 0, 0, 1, 60_000, 60_000];
    words.resize(words.len() + 60_000, 7);
    (0..60_000).for_each(|_| words.extend([1, 7]));
    let mut out: Vec<u8> = [20_240_522i32, 1, 1, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    out.resize(1024, 0);
    out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    out
}

fn choice(context: String, endings: usize) -> Vec<u8> {
    let endings = vec!["\"b\""; endings].join(",");
    format!("{{\"context\": \"{context}\", \"endings\": [{endings}], \"label\": 1}}\n").into_bytes()
}

/// An example with so many endings of a token.
fn endings_of_one(endings: usize) -> Vec<u8> {
    let endings = ["\"b\",\"c\""].repeat(endings / 2).join(",");
    format!("{{\"context\": \"a\", \"endings\": [{endings}], \"label\": 1}}\n").into_bytes()
}

/// A line of HellaSwag whose texts begin so many of WikiHow's marks and end none.
fn brackets(count: usize) -> Vec<u8> {
    let open = "[".repeat(count / 2);
    let line = serde_json::json!({
        "activity_label": "a", "ctx_a": open, "ctx_b": "b", "ctx": "a", "endings": [open, "b", "c", "d"], "label": 1,
    });
    format!("{line}\n").into_bytes()
}

/// A Parquet file whose schema is a list of four million structures of one byte each.
fn footer_of_nothing() -> Vec<u8> {
    let count = 4u32 << 20;
    let mut footer = vec![0x29, 0xfc];
    footer.extend([0x80 | (count & 0x7f) as u8, 0x80 | (count >> 7 & 0x7f) as u8]);
    footer.extend([0x80 | (count >> 14 & 0x7f) as u8, (count >> 21) as u8]);
    footer.resize(footer.len() + count as usize + 1, 0);
    parquet(&[], &footer)
}

fn parquet(pages: &[u8], footer: &[u8]) -> Vec<u8> {
    [b"PAR1", pages, footer, &(footer.len() as u32).to_le_bytes(), b"PAR1"].concat()
}

/// A Parquet file with a page of 256 MiB of zeros, which gzip makes small, and so many bytes that nothing refers to.
fn packed_page(unused: usize) -> Vec<u8> {
    let number = |value: u64| {
        let mut value = value << 1;
        let mut out = Vec::new();
        while value > 0x7f {
            out.push(0x80 | (value & 0x7f) as u8);
            value >>= 7;
        }
        out.push(value as u8);
        out
    };
    let body = packed(b"", 0, 256 << 20);
    let rows = 64 << 20;
    // kind 0, sizes, and of a data page the count and the encoding
    let header = [
        &[0x15, 0, 0x15][..],
        &number(256 << 20),
        &[0x15],
        &number(body.len() as u64),
        &[0x2c, 0x15],
        &number(rows),
        &[0x15, 0, 0, 0],
    ];
    // a root and a required column of texts; one group, whose column is under gzip and begins behind the magic number
    let footer = [
        &b"\x29\x2c\x48\x01r\x15\x02\x00\x15\x0c\x25\x00\x18\x04text\x00\x29\x1c\x19\x1c\x3c\x45\x04\x15"[..],
        &number(rows),
        b"\x46\x08\x00\x00\x00\x00",
    ];
    parquet(&[&header.concat()[..], &body, &vec![7; unused]].concat(), &footer.concat())
}
