"""`python -m rlcorr report`: its text, its numbers, and the same from DuckDB."""

import json
import re
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hostile import MIB, in_another_process
from pair_files import PAIR, parquet
from processes import ROOT

from rlcorr.analysis.triage import triage
from rlcorr.command import report
from rlcorr.command.cli import main, run_verb
from rlcorr.foreign import to_record
from rlcorr.foreign.stream import pair_files
from rlcorr.measuring.metrics import describe
from rlcorr.presets import preset
from rlcorr.records.runs import list_steps, read_step

FLOATS = pa.list_(pa.float32())
RUN = ROOT / "runs" / "kv_fp8"


def numbers_of(*places: str, correction: str = "disabled") -> dict[str, float]:
    return report.measured_files([file for place in places for file in pair_files(place)], preset(correction))


def test_duckdb_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the query of rlcorr/foreign/README.md unchanged, in the folder that it assumes."""
    monkeypatch.chdir(ROOT)
    text = (ROOT / "rlcorr" / "foreign" / "README.md").read_text(encoding="utf-8")
    (query,) = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    (answer,) = duckdb.connect().execute(query).fetchall()
    numbers = numbers_of("runs/kv_fp8", correction="decoupled_geo_rs")
    assert answer[0] == pytest.approx(numbers["rollout_corr/k3_kl"], rel=1e-9, abs=0)
    assert answer[1] == numbers["rollout_corr/kept_fraction"]
    assert 0 < answer[1] < 1


def test_several_places_are_one_batch() -> None:
    tokens = [numbers_of(name)["rollout_corr/tokens"] for name in ("bf16", "kv_fp8")]
    assert numbers_of("bf16", "kv_fp8")["rollout_corr/tokens"] == sum(tokens)


def test_a_table_to_read(capsys: pytest.CaptureFixture[str]) -> None:
    """Check the order: files and preset first, then the diagnosis, then the most important numbers of all metrics."""
    assert run_verb(["report", str(RUN), "--preset", "decoupled_geo_rs"]) == 0
    printed = capsys.readouterr().out
    first, others, notes = printed.split("\n\n")[-3:]
    assert "2 files" in printed
    assert "Rule seq_mean_k1 keeps a sequence while 0.999" in printed
    assert re.search(r"^tokens +1,806  response tokens measured$", first, re.MULTILINE)
    assert re.search(r"^rollout_rs_seq_mean_k1_masked_fraction +0\.53\d+  seq_mean_k1: share of", first, re.MULTILINE)
    shown = [line.split()[0] for line in (first + "\n" + others).splitlines()]
    numbers = numbers_of(str(RUN), correction="decoupled_geo_rs")
    assert sorted(f"rollout_corr/{name}" for name in shown) == sorted(numbers)
    for key in numbers:
        describe(key)
    assert "Quantiles" in notes


def test_the_diagnosis_is_that_of_the_first_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Diagnose two steps, each a file and a part. The first has more k3. A stale head needs ids."""
    first, _ = (triage(read_step(RUN, step).batch)[0] for step in list_steps(RUN))
    whole = " ".join(report.diagnosis_lines(pair_files(str(RUN)), 1806))
    assert first.sentence in whole
    assert "The diagnosis is for" not in whole
    assert "stale tensor (" in " ".join(report.diagnosis_lines(pair_files("stale_head"), 1))
    monkeypatch.setattr(report, "DIAGNOSED_TOKENS", 1)
    assert run_verb(["report", str(RUN)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    tokens = int(read_step(RUN, 20).batch.response_mask.sum())
    assert f"The diagnosis is for the first {tokens} of 1,806 tokens. precision (1 part): {first.sentence}" in printed


def test_without_a_diagnosis_the_numbers_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Print metrics if rows of very different lengths make a batch too large for the diagnosis."""
    (tmp_path / "step_3.parquet").write_bytes(parquet(**PAIR))
    monkeypatch.setattr(to_record, "MAX_PADDED", 1)
    assert run_verb(["report", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "There is no diagnosis: " in printed
    assert re.search(r"^tokens +\d", printed, re.MULTILINE)


def test_bad_input_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "pairs.parquet").write_bytes(parquet(**PAIR))
    (tmp_path / "others.parquet").write_bytes(parquet(a=[1]))
    (tmp_path / "nothing.parquet").write_bytes(parquet(FLOATS, **{name: [[], []] for name in PAIR}))
    for words, said in (
        ([], "report needs something to read: a run, a folder of Parquet files, or a glob."),
        (["empty"], "empty holds no file that ends in .parquet."),
        (["no_such_place"], "is neither a file nor a folder, and as a glob it matches nothing."),
        (["pairs.parquet", "--preset", "decoupled_token_si"], "Did you mean 'decoupled_token_is'?"),
        (["pairs.parquet", "--preset", "trl_opsm"], "pairs.parquet: the preset needs the sign of the advantage"),
        (["others.parquet"], "others.parquet: found the columns 'a'; needed are rollout_log_probs"),
        (["nothing.parquet"], "no tokens in 1 file(s), the first of which is nothing.parquet."),
        (["text.txt"], "text.txt: cannot be read as Parquet"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["report", *words])
        error = capsys.readouterr().err
        assert ended.value.code == 2, words
        assert said in error, words
        assert error.count("\n") == 1, words


# --- memory ---

MEASURES = """
import json, sys
from pathlib import Path
from hostile import peak
from rlcorr.command.report import diagnosis_lines, measured_files
from rlcorr.presets import preset

def report(file):
    list(diagnosis_lines([file], 0))
    return measured_files([file], preset("disabled"))

report(Path(sys.argv[1]))
before = peak()
print(json.dumps(report(Path(sys.argv[2])) | {"grown": peak() - before}))
"""


def some_answers(seed: int) -> pa.RecordBatch:
    """Return a million tokens in answers of 1 to 1,000. Numbers of few levels make a small file."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(rng.integers(1, 1001, 2000))
    rollout = -rng.integers(50, 450, ends[-1]) / 100
    sides = rollout, np.minimum(rollout + rng.normal(0, 0.05, ends[-1]).round(2), 0)
    offsets = pa.array([0, *ends], pa.int32())
    columns = [pa.ListArray.from_arrays(offsets, pa.array(side, pa.float32())) for side in sides]
    return pa.RecordBatch.from_arrays(columns, list(PAIR))


@pytest.mark.slow
def test_ten_million_tokens_take_no_more_memory_than_one(tmp_path: Path) -> None:
    """Read a small file, and a file of ten times as many tokens in one row group; the sums are those of the pieces."""
    pieces = [some_answers(seed) for seed in range(2)]
    for name, batches in (("small", pieces[:1]), ("large", pieces * 5)):
        table = pa.Table.from_batches(batches)
        pq.write_table(table, tmp_path / name, row_group_size=len(table))
    numbers = json.loads(in_another_process(MEASURES, tmp_path / "small", tmp_path / "large"))
    rollout, old = (pa.Table.from_batches(pieces)[name].combine_chunks().flatten().to_numpy() for name in PAIR)
    d = old.astype(float) - rollout
    assert numbers["rollout_corr/tokens"] == 5 * len(d) > 9_500_000
    assert numbers["rollout_corr/k3_kl"] == pytest.approx((np.expm1(d) - d).mean(), rel=1e-9, abs=0)
    assert numbers["rollout_corr/is_ratio_mean"] == pytest.approx(1 + np.expm1(d).mean(), rel=1e-12)
    assert numbers["rollout_corr/abs_log_ratio_max"] == np.abs(d).max()
    assert numbers["grown"] < 200 * MIB
