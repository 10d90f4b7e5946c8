//! What the manual pages say besides the definitions of arguments.

/// A command line and what it does.
pub type Example = (&'static str, &'static str);

/// Examples by the words of the command.
pub const EXAMPLES: &[(&str, &[Example])] = &[
    (
        "runner",
        &[
            ("runner quickstart.toml", "train a recipe, go on with its run, or find it finished"),
            (
                "runner gpt2-124m.toml optimizer.lr=3e-4 seed=2",
                "the same with two values changed: another run",
            ),
            (
                "runner builtin:quickstart --dry-run",
                "say what would be done with a recipe that the program carries",
            ),
            ("runner --resume quickstart-da8aeaa3 compute.threads=4", "go on with a run from its own recipe"),
        ],
    ),
    (
        "runner init",
        &[
            ("runner init", "write quickstart.toml"),
            ("runner init gpt2-124m --out mine.toml", "write the recipe of GPT-2 124M under another name"),
        ],
    ),
    ("runner recipes", &[("runner recipes", "list what init writes and what recipes may extend")]),
    (
        "runner plan",
        &[
            ("runner plan gpt2-124m.toml", "parameters, operations, bytes, predicted time, lints"),
            ("runner plan gpt2-124m.toml --roofline h100", "a step on a GPU, kernel by kernel, as a model"),
        ],
    ),
    (
        "runner explain",
        &[
            ("runner explain gpt2-124m.toml", "every value, and the file and line that set it"),
            ("runner explain gpt2-124m.toml optimizer.lr", "every layer that sets one key"),
        ],
    ),
    ("runner verify", &[("runner verify quickstart.toml", "hold the engine against the reference")]),
    (
        "runner bench",
        &[
            ("runner bench quickstart.toml", "tokens per second, and where the time of a step goes"),
            ("runner bench gpt2-124m.toml --sample", "the speed of generating text"),
        ],
    ),
    (
        "runner doctor",
        &[
            ("runner doctor", "the processor, the CUDA libraries and devices, and what is missing"),
            ("runner doctor --selftest", "try all that training on a device needs"),
        ],
    ),
    (
        "runner compare",
        &[
            ("runner compare runs", "all runs side by side"),
            ("runner compare runs --metrics val_loss --plot losses.svg", "one measure, and its curves"),
            (
                "runner compare a-01234567 b-89abcdef --assert-equal",
                "end with 1 unless both have the same numbers",
            ),
        ],
    ),
    (
        "runner list",
        &[
            ("runner list --sort val_loss", "all runs, the best one first"),
            ("runner list --status interrupted --format json", "those that wait for the same command again"),
        ],
    ),
    (
        "runner watch",
        &[
            ("runner watch runs --y val_loss", "follow all runs, those that begin later too"),
            ("runner watch runs --serve", "the same in a browser, at the address that is printed"),
        ],
    ),
    (
        "runner export",
        &[("runner export runs --tensorboard board --follow", "event files, while runs train")],
    ),
    (
        "runner sample",
        &[("runner sample quickstart-da8aeaa3 --prompt 'Lorem ipsum' --tokens 50", "continue a text")],
    ),
    (
        "runner eval",
        &[("runner eval quickstart-da8aeaa3 --data builtin:lipsum:seed=3", "the loss on other data")],
    ),
    ("runner data", &[("runner data fetch --list", "the data sets that have a name")]),
    (
        "runner data fetch",
        &[
            ("runner data fetch tinyshakespeare", "download one, and check it"),
            ("runner data fetch fineweb-edu-10b --shards 4", "the first shards of a large one"),
        ],
    ),
    (
        "runner data prepare",
        &[("runner data prepare 'pages/*.jsonl' --out datasets/pages", "make shards of tokens from text")],
    ),
    ("runner data inspect", &[("runner data inspect datasets/pages", "what data files hold")]),
    (
        "runner schema",
        &[
            ("runner schema", "the JSON Schema that editors complete a recipe by"),
            ("runner schema keys", "every key, with its values, default and meaning"),
        ],
    ),
    (
        "runner completions",
        &[("runner completions bash", "a line `source <(runner completions bash)` in ~/.bashrc reads it")],
    ),
    ("runner man", &[("runner man share/man/man1", "write the manual pages")]),
];

/// Files and directories, and what they are.
pub const FILES: &[(&str, &str)] = &[
    ("runs/NAME-HASH/", "a run: recipe.toml, run.json, train.csv, val.csv, samples.txt and checkpoints/"),
    ("runs/NAME-HASH/checkpoints/step-N/", "a checkpoint, which Hugging Face's GPT2LMHeadModel loads"),
    ("datasets/", "where data are fetched to, and where the recipes of the program look for them"),
    ("~/.cache/runner/", "what was measured on this machine: peak rates, predicted times, compiled kernels"),
    ("~/.cache/runner/ranks.secret", "the secret by which your ranks know each other, made on first use"),
];

/// Environment variables, and what they do.
pub const ENVIRONMENT: &[(&str, &str)] = &[
    ("RUNNER_TABLE__KEY", "sets a key of the recipe, as RUNNER_MODEL__N_LAYER=6 sets model.n_layer"),
    ("RUNNER_SIMD", "avx512, avx2 or baseline: the vector instructions of the CPU kernels"),
    ("HF_ENDPOINT, HF_TOKEN, HTTPS_PROXY, SSL_CERT_FILE", "where and how `runner data fetch` downloads"),
    ("RUNNER_CUDA_LIBS", "directories in which CUDA's libraries are looked for first"),
    ("RUNNER_SECRET_FILE, RUNNER_SECRET", "the secret by which ranks on several machines know each other"),
    ("RUNNER_JOIN_TIMEOUT_S", "how many seconds ranks wait for each other at the start; 600 if not set"),
    ("XDG_CACHE_HOME", "where runner/ keeps what it found out about this machine, instead of ~/.cache"),
];

/// Exit codes, and what they mean.
pub const EXIT_CODES: &[(u8, &str)] = &[
    (0, "finished, or finished before"),
    (1, "the program or the disk failed, or a verification did not hold"),
    (2, "the command line, the recipe or what it names is wrong; nothing was trained"),
    (3, "a live process is training this run, or fetching or preparing data into this directory"),
    (4, "diverged: the loss, a gradient or a weight is not finite, or the watchdog stopped the run"),
    (129, "interrupted by SIGHUP, after a checkpoint if the run trained"),
    (130, "interrupted by SIGINT, after a checkpoint if the run trained and no second signal came"),
    (143, "interrupted by SIGTERM, after a checkpoint if the run trained and no second signal came"),
];
