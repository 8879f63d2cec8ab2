from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from step_records import record

from rlcorr.figures.mismatch import token_labels
from rlcorr.records import runs
from rlcorr.records.token_texts import END, pieces, text_kind
from rlcorr.train.inputs.tokenizer import character_tokenizer
from rlcorr.train.output.run_writer import token_texts

TOKENS = [["47", " + ", "\n"], [" =", END]]
"""Return a record of two responses, with three tokens and two."""


def test_the_texts_of_tokens_are_read_as_written(tmp_path: Path) -> None:
    written = replace(record(1, (3, 2)), tokens=TOKENS)
    assert text_kind(written) == "texts"
    runs.write_step(tmp_path, written)
    read = runs.read_step(tmp_path, 1)
    assert read.tokens == TOKENS
    assert pieces(read) == [["47", " + ", "↵"], [" =", END]]
    ids = read.batch.tensors()["response_ids"].tolist()
    assert token_labels(read)[ids[1][0]] == "' ='"


def test_texts_of_another_number_of_tokens_are_a_damaged_file(tmp_path: Path) -> None:
    runs.write_step(tmp_path, replace(record(1, (3, 2)), tokens=TOKENS))
    path = runs.step_path(tmp_path, 1)
    table = pq.read_table(path)
    column = table.column_names.index("response_token_texts")
    fewer = pa.array([["47"], [" =", END]], pa.list_(pa.string()))
    pq.write_table(table.set_column(column, "response_token_texts", fewer), path)
    with pytest.raises(runs.DamagedFile, match="response_token_texts and response_ids have lists of different lengths"):
        runs.read_step(tmp_path, 1)


def test_each_token_has_a_text_of_its_own() -> None:
    tokenizer = character_tokenizer("0123456789+=")
    ids = [*tokenizer.encode("1+2=3", add_special_tokens=False), 2]
    assert token_texts(tokenizer, ids, eos_ids=[2]) == [*"1+2=3", END]
