"""`python -m rlcorr report`: its text, its JSON, and the same numbers from DuckDB."""

import json
import math
import re
from pathlib import Path

import duckdb
import many_tokens
import numpy as np
import pyarrow as pa
import pytest
from pair_files import PAIR, parquet
from processes import ROOT

from rlcorr.analysis.triage import triage
from rlcorr.command import report
from rlcorr.command.cli import main, run_verb
from rlcorr.foreign import to_record
from rlcorr.measuring.metrics import describe
from rlcorr.records.runs import list_steps, read_step

FLOATS = pa.list_(pa.float32())
RUN = ROOT / "runs" / "kv_fp8"


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert run_verb(["report", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_duckdb_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the query of rlcorr/foreign/README.md unchanged, in the folder that it assumes."""
    monkeypatch.chdir(ROOT)
    text = (ROOT / "rlcorr" / "foreign" / "README.md").read_text(encoding="utf-8")
    query = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    assert len(query) == 1
    (answer,) = duckdb.connect().execute(query[0]).fetchall()
    metrics = document(capsys, "runs/kv_fp8", "--preset", "decoupled_geo_rs")["metrics"]
    assert answer[0] == pytest.approx(metrics["rollout_corr/k3_kl"], rel=1e-9, abs=0)
    assert answer[1] == metrics["rollout_corr/kept_fraction"]
    assert 0 < answer[1] < 1


def test_every_metric_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    said = document(capsys, str(RUN), "--preset", "skyrl_outlier")
    assert said["preset"] == "skyrl_outlier"
    assert said["files"] == [str(RUN / "steps" / f"step_0000{step}.parquet") for step in (20, 40)]
    tokens = [int(read_step(RUN, step).batch.response_mask.sum()) for step in list_steps(RUN)]
    assert said["metrics"]["rollout_corr/tokens"] == sum(tokens)
    for key in ("rollout_rs_seq_min_k1_masked_fraction", "rollout_rs_veto_seq_masked_fraction", "is_ratio_max"):
        assert f"rollout_corr/{key}" in said["metrics"]
    for key in said["metrics"]:
        describe(key)


def test_several_places_are_one_batch(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = [document(capsys, *names)["metrics"]["rollout_corr/tokens"] for names in (["bf16"], ["kv_fp8"])]
    assert document(capsys, "bf16", "kv_fp8")["metrics"]["rollout_corr/tokens"] == sum(tokens)


def test_a_table_to_read(capsys: pytest.CaptureFixture[str]) -> None:
    """Check the order: files and preset first, then the most important numbers."""
    assert run_verb(["report", str(RUN), "--preset", "decoupled_geo_rs"]) == 0
    printed = capsys.readouterr().out
    first, others, notes = printed.split("\n\n")[-3:]
    assert "2 files" in printed
    assert "Rule seq_mean_k1 keeps a sequence while 0.999" in printed
    assert re.search(r"^tokens +1,806  response tokens measured$", first, re.MULTILINE)
    assert re.search(r"^rollout_rs_seq_mean_k1_masked_fraction +0\.53\d+  seq_mean_k1: share of", first, re.MULTILINE)
    shown = [line.split()[0] for line in (first + "\n" + others).splitlines()]
    assert sorted(f"rollout_corr/{name}" for name in shown) == sorted(
        document(capsys, str(RUN), "--preset", "decoupled_geo_rs")["metrics"]
    )
    assert "Quantiles" in notes


def test_the_diagnosis_is_that_of_the_first_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Diagnose two steps, each a file and a part, with the ids that a stale head needs. The first has more k3."""
    first, _ = (triage(read_step(RUN, step).batch)[0] for step in list_steps(RUN))
    whole = document(capsys, str(RUN))["diagnosis"]
    assert [one["sentence"] for one in whole["verdicts"]] == [first.sentence]
    two = document(capsys, "long_stale_4")["diagnosis"]["verdicts"]
    assert [one["pattern"] for one in two] == ["undecided", "precision"]
    assert (whole["tokens"], whole["unpaired"], whole["why_not"]) == (1806, 0, None)
    assert document(capsys, "stale_head")["diagnosis"]["verdicts"][0]["pattern"] == "stale tensor"
    monkeypatch.setattr(report, "DIAGNOSED_TOKENS", 1)
    assert run_verb(["report", str(RUN)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    tokens = int(read_step(RUN, 20).batch.response_mask.sum())
    assert f"The diagnosis is for the first {tokens} of 1,806 tokens. precision (1 part): {first.sentence}" in printed


def test_without_a_diagnosis_the_numbers_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Print metrics if rows of very different lengths make a batch too large for the diagnosis.

    Rows of any step are read, even if the name of the file has another step."""
    (tmp_path / "step_3.parquet").write_bytes(parquet(**PAIR, step=[4] * len(PAIR["rollout_log_probs"])))
    assert document(capsys, str(tmp_path))["diagnosis"]["why_not"] is None
    monkeypatch.setattr(to_record, "MAX_PADDED", 1)
    assert run_verb(["report", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "There is no diagnosis: " in printed
    assert re.search(r"^tokens +\d", printed, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "report needs something to read: a run, a folder of Parquet files, or a glob."),
        (["empty"], "empty holds no file that ends in .parquet."),
        (["no_such_place"], "is neither a file nor a folder, and as a glob it matches nothing"),
        (["pairs.parquet", "--preset", "decoupled_token_si"], "Did you mean 'decoupled_token_is'?"),
        (["pairs.parquet", "--preset", "trl_opsm"], "pairs.parquet: the preset needs the sign of the advantage"),
        (["others.parquet"], "others.parquet: found the columns 'a'; needed are rollout_log_probs"),
        (["nothing.parquet"], "no tokens in 1 file(s), the first of which is nothing.parquet."),
        (["none.parquet"], "no tokens in 1 file(s), the first of which is none.parquet."),
        (["text.txt"], "text.txt: cannot be read as Parquet"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "pairs.parquet").write_bytes(parquet(**PAIR))
    (tmp_path / "others.parquet").write_bytes(parquet(a=[1]))
    (tmp_path / "nothing.parquet").write_bytes(parquet(FLOATS, **{name: [[], []] for name in PAIR}))
    (tmp_path / "none.parquet").write_bytes(parquet(FLOATS, **{name: [] for name in PAIR}))
    with pytest.raises(SystemExit) as ended:
        main(["report", *words])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert said in error
    assert error.count("\n") == 1


# --- sizes ---


@pytest.mark.slow
def test_a_hundred_million_tokens_in_a_gibibyte(tmp_path: Path) -> None:
    """Read files of three pieces of a million tokens, as a single row group and as one row group per piece."""
    pieces = [many_tokens.piece(seed, 1 << 20) for seed in range(3)]
    times = {"one.parquet": (20, 10, 20), "many.parquet": (10, 20, 20)}
    for name, counts in times.items():
        repeated = [given for given, count in zip(pieces, counts, strict=True) for _ in range(count)]
        many_tokens.write(tmp_path / name, repeated, one_row_group=name == "one.parquet")
    said = many_tokens.reported(str(tmp_path), "--preset", "decoupled_geo_rs")
    metrics = json.loads(said.document)["metrics"]
    tokens, k3, kept, excess = np.zeros((4, 3))
    for number, given in enumerate(pieces):
        d, starts = given.log_ratio, np.cumsum(given.lengths) - given.lengths
        tokens[number], k3[number], excess[number] = len(d), (np.expm1(d) - d).sum(), np.expm1(d).sum()
        inside = np.abs(np.add.reduceat(d, starts) / given.lengths + math.log(0.999 * 1.001) / 2)
        kept[number] = given.lengths[inside <= math.log(1.001 / 0.999) / 2].sum()
    all_times = np.sum(list(times.values()), 0)
    total = (tokens * all_times).sum()
    assert total > 100_000_000
    assert metrics["rollout_corr/tokens"] == total
    assert metrics["rollout_corr/sequences"] == sum(len(p.lengths) * n for p, n in zip(pieces, all_times, strict=True))
    assert metrics["rollout_corr/k3_kl"] == pytest.approx((k3 * all_times).sum() / total, rel=1e-9, abs=0)
    assert metrics["rollout_corr/is_ratio_mean"] == pytest.approx(1 + (excess * all_times).sum() / total, rel=1e-12)
    assert metrics["rollout_corr/kept_fraction"] == pytest.approx((kept * all_times).sum() / total, rel=1e-12)
    assert metrics["rollout_corr/abs_log_ratio_max"] == max(np.abs(given.log_ratio).max() for given in pieces)
    assert said.mebibytes <= 1024


@pytest.mark.slow
def test_a_thousand_files(tmp_path: Path) -> None:
    given = many_tokens.piece(0, 2000)
    for number in range(1000):
        many_tokens.write(tmp_path / f"{number}.parquet", [given])
    metrics = json.loads(many_tokens.reported(str(tmp_path)).document)["metrics"]
    d = given.log_ratio
    assert metrics["rollout_corr/tokens"] == 1000 * len(d)
    assert metrics["rollout_corr/k3_kl"] == pytest.approx((np.expm1(d) - d).mean(), rel=1e-9, abs=0)
