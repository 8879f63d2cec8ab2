"""Files of any size, read in parts, give the numbers of the whole. Errors name the file."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pair_files import FILES, OLD, PAIR, ROLLOUT, parquet

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, evaluate, metrics, preset
from rlcorr.errors import UsageError
from rlcorr.foreign import read_file, stream
from rlcorr.foreign.stream import check_columns, pair_batches, pair_files
from rlcorr.measuring.measure import measure_stream
from rlcorr.records import runs
from rlcorr.records.step_files import pad

LENGTHS = np.random.default_rng(0).integers(0, 40, 120)  # some are 0
CONFIGS = {
    name: preset(name)
    for name in (
        "disabled", "decoupled_token_is", "decoupled_seq_is_rs", "decoupled_geo_rs_token_tis", "slime_mis", "trl_opsm",
        "prime_rl_dppo", "areal_sequence_mask", "skyrl_outlier",
    )
} | {
    "normalised over sequences": CorrectionConfig(
        rollout_is="sequence",
        rollout_is_batch_normalize=True,
        rollout_rs=(RejectionRule.named("token_k1", lower=0.9, upper=1.2),),
    )
}  # fmt: skip


def lists(values: np.ndarray) -> list[list[float]]:
    return [row.tolist() for row in np.split(values, np.cumsum(LENGTHS)[:-1])]


def columns() -> dict[str, np.ndarray]:
    """Return the columns of 120 responses. Log-ratios have all sizes; two exceed the clamp."""
    rng, tokens = np.random.default_rng(1), int(LENGTHS.sum())
    rollout = -30 * rng.random(tokens) ** 3 - 8
    old = rollout + 0.1 * rng.standard_t(1.5, tokens).clip(-70, 70)
    return {
        "rollout_log_probs": rollout.astype(np.float32),
        "old_log_probs": old.astype(np.float32),
        "advantages": rng.standard_normal(tokens).astype(np.float32),
    }


def whole() -> TokenBatch:
    lengths = torch.tensor(LENGTHS)
    padded = {name: pad(torch.tensor(values).double(), lengths)[0] for name, values in columns().items()}
    return TokenBatch(pad(torch.ones(int(lengths.sum())), lengths)[1], **padded)


@pytest.fixture
def three_files(tmp_path: Path) -> list[Path]:
    """Write the rows to three files, in row groups of 7."""
    cells = {name: lists(values) for name, values in columns().items()}
    for number, rows in enumerate((slice(0, 50), slice(50, 51), slice(51, 120))):
        content = parquet(group_size=7, **{name: column[rows] for name, column in cells.items()})
        (tmp_path / f"{number}.parquet").write_bytes(content)
    return pair_files(str(tmp_path))


def numbers(files: list[Path], config: CorrectionConfig) -> dict[str, float]:
    check_columns(files, advantages=config.needs_advantages)
    return metrics(measure_stream(pair_batches(files, advantages=config.needs_advantages), config))


@pytest.mark.parametrize("sizes", [(1, 1, 1), (30, 500, 200), (1 << 18, 1 << 22, 1 << 18)])
@pytest.mark.parametrize("name", CONFIGS)
def test_parts_give_the_numbers_of_the_whole(
    name: str, sizes: tuple[int, int, int], three_files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for (module, size_name), size in zip(
        ((read_file, "PART"), (stream, "POOL_TOKENS"), (stream, "MAX_PADDED_TOKENS")), sizes, strict=True
    ):
        monkeypatch.setattr(module, size_name, size)
    expected = evaluate(whole(), CONFIGS[name])[1]
    assert numbers(three_files, CONFIGS[name]) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_hardly_a_place_is_padding() -> None:
    """Batch a million tokens in responses of 1 to 1,000 tokens. Unsorted, half of the batches would be padding."""
    lengths = torch.randint(1, 1000, (2000,), generator=torch.Generator().manual_seed(0))
    tokens = int(lengths.sum())
    given = stream.RaggedTokens(
        {"rollout_log_probs": -torch.rand(tokens), "old_log_probs": -torch.rand(tokens)}, lengths
    )
    made = list(stream.to_batches(given))
    assert sum(int(batch.response_mask.sum()) for batch in made) == tokens
    assert sum(batch.response_mask.numel() for batch in made) < 1.3 * tokens
    assert max(batch.response_mask.numel() for batch in made) <= stream.MAX_PADDED_TOKENS


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".parquet")])
def test_lists_of_every_kind(name: str, tmp_path: Path) -> None:
    """Read lists padded with a mask, of fixed length, and of 16, 32 and 64 bits."""
    (tmp_path / "x.parquet").write_bytes(FILES[name])
    tokens: dict[str, list[float]] = {"rollout_log_probs": [], "old_log_probs": []}
    for batch in pair_batches(pair_files(str(tmp_path)), advantages=False):
        for field, seen in tokens.items():
            seen += batch.tensors()[field][batch.response_mask].tolist()
    shortest_first = [1, 3, 0]
    assert tokens["rollout_log_probs"] == [x for row in shortest_first for x in ROLLOUT[row]]
    assert tokens["old_log_probs"] == [x for row in shortest_first for x in OLD[row]]


# --- which files ---


def test_a_run_a_folder_a_file_and_globs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LOCAL", tmp_path / "local")
    steps = tmp_path / "local" / "mine" / "steps"
    steps.mkdir(parents=True)
    files = [steps / f"step_00000{step}.parquet" for step in (1, 2)]
    for file in files:
        file.write_bytes(parquet(**PAIR))
    (steps / "step_000003.parquet.tmp").write_bytes(b"not whole yet")
    for place in ("mine", str(steps.parent), str(steps), f"{tmp_path}/**/*.parquet", f"{tmp_path}/local/*"):
        assert pair_files(place) == files, place
    assert pair_files(str(files[1])) == files[1:]


def test_where_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x.parquet").write_bytes(parquet(**PAIR))
    (tmp_path / "empty").mkdir()
    for place, said in (
        ("empty", "empty holds no Parquet file."),
        ("a", "its subfolders hold 1: give a glob such as"),
        ("*.parquet", "no file or folder matches"),
        ("nowhere", "is neither a file, a folder or a glob, nor one of the recorded runs: "),
    ):
        with pytest.raises(UsageError, match=said):
            pair_files(str(tmp_path / place))


# --- files that do not fit ---

OTHER = {"a": [[-1.0]], "old_log_probs": [[-1.0]]}
FLAT = {"rollout_log_probs": [-1.0], "old_log_probs": [-1.0]}
TEXTS = {"rollout_log_probs": ["-1"], "old_log_probs": ["-1"]}
UNEVEN = {"rollout_log_probs": [[-1.0, -2.0]], "old_log_probs": [[-1.0]]}
TWICE = PAIR | {"vllm_logprobs": PAIR["rollout_log_probs"]}
NAN, ABOVE = ({"rollout_log_probs": [[-1.0], [x]], "old_log_probs": [[-1.0], [-1.0]]} for x in (math.nan, 0.5))
PADDED: dict[str, Any] = {name: [[-1.0, 0.0, 0.0], [-1.0, -2.0, -1.0]] for name in PAIR}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (parquet(**PAIR)[:300], "cannot be read as Parquet"),
        (b"", "cannot be read as Parquet"),
        (parquet(**OTHER), "rollout_log_probs is missing"),
        (parquet(**FLAT), "one number per row; give a list per row"),
        (parquet(**TEXTS), "rollout_log_probs must hold a list of numbers per row; got texts such as"),
        (parquet(**UNEVEN), r"row 0 \(from 0\): old_log_probs has 1 values, rollout_log_probs 2"),
        (parquet(**TWICE), "are two names of rollout_log_probs"),
        (parquet(**NAN), r"row 1, token 0 \(from 0\): rollout_log_probs is NaN or null"),
        (
            parquet(**ABOVE),
            r"row 1, token 0 \(from 0\): rollout_log_probs must be natural logarithms of probabilities, ≤ 0; got 0.5",
        ),
        (parquet(**PADDED), "rows of equal length may be padded"),
        (parquet(rollout_log_probs=[[-1.0], None], old_log_probs=[[-1.0]] * 2), r"row 1 \(from 0\) has nothing"),
    ],
)
def test_the_file_that_does_not_fit_is_named(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "1.parquet").write_bytes(parquet(**PAIR))
    (tmp_path / "2.parquet").write_bytes(content)
    with pytest.raises(UsageError, match=rf"2\.parquet: .*{said}"):
        numbers(pair_files(str(tmp_path)), preset("disabled"))


def test_a_file_that_is_damaged_in_the_middle(tmp_path: Path) -> None:
    """Report a damaged page, although the footer is intact."""
    content = bytearray(parquet(pa.list_(pa.float32()), 1, **PAIR))
    content[4 : len(content) // 3] = bytes(len(content) // 3 - 4)
    (tmp_path / "x.parquet").write_bytes(content)
    with pytest.raises(UsageError, match=r"x\.parquet: cannot be read as Parquet"):
        numbers(pair_files(str(tmp_path)), preset("disabled"))


def test_the_row_of_a_wrong_number_in_a_later_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_file, "PART", 1)
    (tmp_path / "x.parquet").write_bytes(parquet(**NAN))
    with pytest.raises(UsageError, match=r"x\.parquet: after row 1: row 0, token 0 \(from 0\)"):
        numbers(pair_files(str(tmp_path)), preset("disabled"))


def test_a_rule_that_needs_advantages(tmp_path: Path) -> None:
    (tmp_path / "1.parquet").write_bytes(parquet(**PAIR, advantages=ROLLOUT))
    (tmp_path / "2.parquet").write_bytes(parquet(**PAIR))
    with pytest.raises(UsageError, match=r"2\.parquet: the preset needs the sign of the advantage, but there is no"):
        numbers(pair_files(str(tmp_path)), preset("trl_opsm"))
