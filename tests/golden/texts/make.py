"""Parquet files as pyarrow writes them, for the tests of `runner data prepare`. Needs pyarrow.

Each has 500 rows in groups of 200: `id`, `tags` (a list of texts) and `text`. The names say what differs: the codec,
whether the column may lack a value (`required`), the version of the pages (`version2`), and what is refused: another
encoding (`delta`), another codec (`lz4`), a row without text (`null`).

    python tests/golden/texts/make.py
"""

import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parent


def text(row):
    return [
        f"Document {row}, with a few words.\n",
        "the same text again and again",
        "",
        f"漢字 {row} é 🦀",
        "long " * (row % 40),
    ][row % 5]


def table(nullable=True, missing=None):
    rows = range(500)
    texts = [None if row == missing else text(row) for row in rows]
    schema = pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("text", pa.string(), nullable=nullable),
        ]
    )
    tags = [["a", "b"][: row % 3] for row in rows]
    return pa.table([list(rows), tags, texts], schema=schema)


def write(name, data=None, **options):
    options = {"compression": "snappy", "row_group_size": 200, "store_schema": False} | options
    pq.write_table(data or table(), HERE / f"{name}.parquet", **options)


write("snappy")
write("zstd", compression="zstd")
write("gzip", compression="gzip", write_page_checksum=True)
write("plain", compression="none", use_dictionary=False, data_page_size=2000, write_batch_size=50)
write("required", table(nullable=False))
write("version2", data_page_version="2.0")
write("delta", use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})
write("lz4", compression="lz4")
write("null", table(missing=2))
