"""Every mode with every loss trains, each advantage estimator and mismatch among them in turn, in two real steps."""

import copy
import functools
import itertools
import math
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from engines import forget_engines
from tiny import CPU, save_tiny_model, tiny_config
from transformers import PreTrainedModel

from rlcorr.config import UNCLIPPED, CorrectionConfig, LossConfig, LossType
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS, Preset
from rlcorr.records import runs
from rlcorr.rules import RejectionRule
from rlcorr.train.config.learning import AdvantageConfig, Estimator, OptimConfig
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.config.training import WARM_START
from rlcorr.train.inputs.tasks import TASKS
from rlcorr.train.learner.policy import load_lm
from rlcorr.train.loop import train
from rlcorr.train.rollout import start
from rlcorr.train.rollout.vllm_engine import VllmEngine
from rlcorr.train.session import session

pytestmark = pytest.mark.slow  # a real engine, and trainings

WIDE = (RejectionRule.named("token_k1", lower=0.01, upper=100.0),)
MODES: dict[str, dict[str, Any]] = {
    "decoupled": {"rollout_is": "token"},
    "bypass": {"bypass_mode": True},
    "bypass_pg": {"bypass_mode": True, "rollout_is": "sequence"},
}
LOSSES = get_args(LossType)
ESTIMATORS = get_args(Estimator)
WITH_AND_WITHOUT_CRITIC: list[Estimator] = ["gae", "grpo"]
MISMATCHES: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "temperature": {"temperature": 0.7},
    "raw": {"temperature": 0.7, "log_probs": "raw"},
    "top_p": {"top_p": 0.8},
    "top_k": {"top_k": 5},
    "stale": {"staleness": 2},
    "ahead": {"staleness": 1, "asynchronous": True},
    "stale_head": {"stale_lm_head": True},
}
VLLM_MISMATCHES: dict[str, dict[str, Any]] = MISMATCHES | {
    "float16": {"dtype": "float16"},
    "fp8": {"dtype": "bfloat16", "kv_cache_dtype": "fp8"},
    "fp8_e5m2": {"dtype": "bfloat16", "kv_cache_dtype": "fp8_e5m2"},
}
EXACT = ("float32", "temperature")
"""Without a mismatch: the trainer scores at the engine's temperature, so only summation order is left."""
ROUNDING = 1e-7
"""The k3 that summation order may reach in float32. Any mismatch of the table gives more."""


@dataclass(frozen=True)
class Cell:
    mode: str
    loss: LossType
    estimator: Estimator
    mismatch: str

    @property
    def name(self) -> str:
        return "-".join((self.mode, self.loss, self.estimator, self.mismatch))


def loss_fits(mode: str, loss: LossType) -> bool:
    """Decoupled, reinforce is called gpg; in bypass mode the losses without a ratio are the policy gradient."""
    return loss != "reinforce" if mode == "decoupled" else (loss in UNCLIPPED) == (mode == "bypass_pg")


PAIRS = [(mode, loss) for mode, loss in itertools.product(MODES, LOSSES) if loss_fits(mode, loss)]
# Four estimators and nine mismatches in turn: 33 runs have 33 of their 36 pairs.
CELLS = [
    Cell(*pair, ESTIMATORS[number % len(ESTIMATORS)], list(MISMATCHES)[number % len(MISMATCHES)])
    for number, pair in enumerate(PAIRS)
]
OBJECTIVES: list[tuple[str, LossType]] = [("decoupled", "ppo_clip"), ("bypass", "ppo_clip"), ("bypass_pg", "reinforce")]
# Each takes seconds, so fewer: every mismatch once, and among them the modes with and without a critic in turn.
VLLM_CELLS = [
    Cell(*OBJECTIVES[number % 3], WITH_AND_WITHOUT_CRITIC[number % 2], mismatch)
    for number, mismatch in enumerate(VLLM_MISMATCHES)
]


def test_the_cells_have_every_value() -> None:
    assert len(CELLS) == 33  # 16 losses decoupled, 15 in bypass mode, 2 as policy gradient
    assert len({(cell.estimator, cell.mismatch) for cell in CELLS}) == 33


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("grid"), layers=1, width=32)


@pytest.fixture(autouse=True)
def rewarding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model never answers right, and equal rewards move nothing: here every response has its own."""

    def lottery(_: object, response: str) -> float:
        return zlib.crc32(response.encode()) % 100 / 100

    monkeypatch.setitem(TASKS, "addition", replace(TASKS["addition"], reward=lottery, max_tokens=3))


@pytest.fixture
def loaded_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the same files for every cell takes longer than a step."""
    lm = _load_once(model)
    monkeypatch.setattr(session, "load_lm", lambda *_: copy.deepcopy(lm))
    monkeypatch.setattr(start, "load_lm", lambda *_: lm)  # which the engine copies itself


@functools.cache
def _load_once(model: Path) -> PreTrainedModel:
    return load_lm(model, CPU)


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_the_cell_trains(cell: Cell, model: Path, local_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = RolloutConfig(**{"engine": "transformers", "dtype": "float32", **MISMATCHES[cell.mismatch]})
    check_training(cell, rollout, model, monkeypatch)


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[tuple[str, ...], VllmEngine]]:
    """Those that are started. They stay to the end: to start and to end one takes 1.5 s of CPU, to train a cell 0.4."""
    forget_engines()
    started: dict[tuple[str, ...], VllmEngine] = {}
    yield started
    started.clear()
    forget_engines()


@pytest.fixture
def one_of_each_kind(engines: dict[tuple[str, ...], VllmEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    """A training takes the engine of its number formats that is there; its first sync brings its own weights."""

    def start_or_take(config: RolloutConfig, *rest: Any) -> VllmEngine:
        kind = (config.dtype, config.kv_cache_dtype, config.log_probs)
        if kind not in engines:
            engines[kind] = cast(VllmEngine, start.start_engine(config, *rest))
        engines[kind]._stale_lm_head = config.stale_lm_head
        return engines[kind]

    monkeypatch.setattr(session, "start_engine", start_or_take)


@pytest.mark.engine
@pytest.mark.usefixtures("one_of_each_kind")
@pytest.mark.skipif(sys.platform != "linux", reason="no vLLM build for this platform")
@pytest.mark.parametrize("cell", VLLM_CELLS, ids=lambda cell: cell.name)
def test_the_cell_trains_with_vllm(cell: Cell, local_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"dtype": "float32", "kv_cache_mib": 16, "max_model_len": 64, **VLLM_MISMATCHES[cell.mismatch]}
    rollout = RolloutConfig(engine="vllm", **changes)
    if cell.mismatch.startswith("fp8") and not start.has_caches_in_8_bits():
        with pytest.raises(UsageError, match="needs a GPU, or a CPU with AVX-512 or AMX"):
            check_training(cell, rollout, WARM_START, monkeypatch)
    else:
        check_training(cell, rollout, WARM_START, monkeypatch)


def check_training(cell: Cell, rollout: RolloutConfig, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two real steps: all numbers are finite, no update is skipped, the weights move, and the mismatch is there."""
    correction = CorrectionConfig(loss_type=cell.loss, rollout_rs=WIDE, **MODES[cell.mode])
    monkeypatch.setitem(PRESETS, "cell", Preset("test", correction, "", ""))
    config = tiny_config(
        model, preset="cell", rollout=rollout, advantage=AdvantageConfig(estimator=cell.estimator), loss=LossConfig(),
        optim=OptimConfig(learning_rate=1e-2, epochs=1), samples_per_prompt=4, eval_prompts=1, checkpoint_every=0,
        tensorboard=False,
    )  # fmt: skip
    run = train(config)
    rows = runs.read_metrics(run)
    assert [row["step"] for row in rows] == [1, 2]
    assert [name for row in rows for name, value in row.items() if not math.isfinite(value)] == []
    assert [name for row in rows for name, value in row.items() if name.startswith("bad/") and value] == []
    assert weights(run / "checkpoint") != weights(model)
    k3 = [row["rollout_corr/k3_kl"] for row in rows]
    if cell.mismatch in EXACT:
        assert max(k3) <= ROUNDING
    else:
        assert k3[-1] > ROUNDING  # staleness and a stale tensor show after the first update


def weights(model: Path) -> bytes:
    return (model / "model.safetensors").read_bytes()
