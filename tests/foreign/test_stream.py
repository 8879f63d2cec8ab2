"""Files of any size, read in parts, give the numbers of the whole. Errors name the file."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pair_files import FILES, OLD, PAIR, ROLLOUT, parquet

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, evaluate, metrics, preset
from rlcorr.errors import UsageError
from rlcorr.foreign import read_file, stream
from rlcorr.foreign.columns import Lists
from rlcorr.foreign.stream import pair_batches, pair_files
from rlcorr.measuring.measure import measure_stream
from rlcorr.records import runs
from rlcorr.records.step_files import pad

LENGTHS = np.random.default_rng(0).integers(0, 40, 120)  # some are 0
CONFIGS = {name: preset(name) for name in ("decoupled_geo_rs_token_tis", "slime_mis", "trl_opsm", "skyrl_outlier")} | {
    "normalised over sequences": CorrectionConfig(
        rollout_is="sequence",
        rollout_is_batch_normalize=True,
        rollout_rs=(RejectionRule.named("token_k1", lower=0.9, upper=1.2),),
    )
}


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
    ends = np.cumsum(LENGTHS)[:-1]
    cells = {name: [row.tolist() for row in np.split(values, ends)] for name, values in columns().items()}
    for number, rows in enumerate((slice(0, 50), slice(50, 51), slice(51, 120))):
        content = parquet(group_size=7, **{name: column[rows] for name, column in cells.items()})
        (tmp_path / f"{number}.parquet").write_bytes(content)
    return pair_files(str(tmp_path))


def numbers(files: list[Path], config: CorrectionConfig) -> dict[str, float]:
    return metrics(measure_stream(pair_batches(files, advantages=config.needs_advantages), config))


@pytest.mark.parametrize(("part", "padded"), [(300, 200), (1 << 18, 1 << 18)])
def test_parts_give_the_numbers_of_the_whole(
    part: int, padded: int, three_files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_file, "PART", part)
    monkeypatch.setattr(stream, "MAX_PADDED_TOKENS", padded)
    for name, config in CONFIGS.items():
        expected = evaluate(whole(), config)[1]
        assert numbers(three_files, config) == pytest.approx(expected, rel=1e-9, abs=1e-9), name


def test_hardly_a_place_is_padding() -> None:
    """Batch a million tokens in responses of 1 to 1,000 tokens. Unsorted, half of the batches would be padding."""
    lengths = torch.randint(1, 1000, (2000,), generator=torch.Generator().manual_seed(0))
    tokens = int(lengths.sum())
    side = Lists(-torch.rand(tokens), lengths)
    made = list(stream.to_batches({"rollout_log_probs": side, "old_log_probs": side}))
    assert sum(int(batch.response_mask.sum()) for batch in made) == tokens
    assert sum(batch.response_mask.numel() for batch in made) < 1.3 * tokens
    assert max(batch.response_mask.numel() for batch in made) <= stream.MAX_PADDED_TOKENS


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".parquet")])
def test_lists_of_every_kind(name: str, tmp_path: Path) -> None:
    """Read lists padded with a mask, of fixed length, and of 16, 32 and 64 bits."""
    (tmp_path / "x.parquet").write_bytes(FILES[name])
    (batch,) = pair_batches(pair_files(str(tmp_path)), advantages=False)
    for field, rows in (("rollout_log_probs", ROLLOUT), ("old_log_probs", OLD)):
        assert batch.tensors()[field][batch.response_mask].tolist() == [x for row in (1, 3, 0) for x in rows[row]]


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
    with pytest.raises(UsageError, match="nowhere is neither a file nor a folder"):
        pair_files("nowhere")


# --- files that do not fit ---

NAN = {"rollout_log_probs": [[-1.0], [math.nan]], "old_log_probs": [[-1.0], [-1.0]]}
DAMAGED = bytearray(parquet(group_size=1, **PAIR))
DAMAGED[4 : len(DAMAGED) // 3] = bytes(len(DAMAGED) // 3 - 4)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (parquet(**PAIR)[:300], "cannot be read as Parquet"),
        (bytes(DAMAGED), "cannot be read as Parquet"),  # its footer is whole
        (parquet(a=[[-1.0]], old_log_probs=[[-1.0]]), "rollout_log_probs is missing"),
        (
            parquet(**NAN, advantages=[[1.0]] * 2),
            r"after row 1: row 0, token 0 \(from 0\): rollout_log_probs is NaN or null",
        ),
        (parquet(**PAIR), "the preset needs the sign of the advantage, but there is no column advantages"),
    ],
)
def test_the_file_that_does_not_fit_is_named(
    content: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_file, "PART", 1)
    (tmp_path / "1.parquet").write_bytes(parquet(**PAIR, advantages=ROLLOUT))
    (tmp_path / "2.parquet").write_bytes(content)
    with pytest.raises(UsageError, match=rf"2\.parquet: .*{said}"):
        numbers(pair_files(str(tmp_path)), preset("trl_opsm"))


def test_advantages_are_checked_only_if_they_are_needed(tmp_path: Path) -> None:
    pair: dict[str, Any] = {"rollout_log_probs": [[-1.0, -2.0]], "old_log_probs": [[-1.0, -2.0]]}
    for values, said in (([[1.0]], "advantages has 1 values"), (["a"], "texts such as 'a'")):
        (tmp_path / "x.parquet").write_bytes(parquet(**pair, advantages=values))
        (batch,) = pair_batches([tmp_path / "x.parquet"], advantages=False)
        assert int(batch.response_mask.sum()) == 2
        with pytest.raises(UsageError, match=said):
            list(pair_batches([tmp_path / "x.parquet"], advantages=True))
