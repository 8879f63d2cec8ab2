"""Malicious files of torch.save and pickles. No code in them is run, and false sizes take no memory."""

import io
import pickle
import struct
import sys
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile import MIB, Bomb, peak, rezipped, saved
from pair_files import npz, refused
from safetensors.torch import save

GOLDEN = Path(__file__).resolve().parent.parent / "support" / "golden" / "dumps"
SKYRL = (GOLDEN / "skyrl" / "global_step_7_training_input.pkl").read_bytes()


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    before = peak()
    yield
    assert peak() - before < 300 * MIB


PAIR = {"rollout_log_probs": torch.full((2, 3), -1.0), "old_log_probs": torch.full((2, 3), -1.0)}
MASKED = PAIR | {"response_mask": torch.ones(2, 3)}
# Unpickling this would call bytearray(3 * 10**9).
THREE_GB = b"\x80\x02c__builtin__\nbytearray\n\x8a\x05" + (3 * 10**9).to_bytes(5, "little") + b"\x85R."


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (saved(MASKED)[:200], "cannot be read as torch.save writes it"),
        (rezipped(saved(MASKED), zipfile.ZIP_DEFLATED), "its archive is compressed"),
        (rezipped(saved(MASKED), data_pkl=THREE_GB), "names '__builtin__.bytearray'"),
        (rezipped(saved(MASKED), data_pkl=b"\x80\x04\x8c\x02os\x8c\x06system\x93."), "names 'pickle.STACK_GLOBAL'"),
        (rezipped(saved(MASKED), data_pkl=b"\x80\x02}q"), "cannot be read as torch.save writes it"),
        (saved({"rollout_log_probs": torch.zeros(1).expand(1 << 20, 1 << 20)} | {"a": 1}), "numbers in rollout_log"),
        (saved({"samples": [{"rollout_log_probs": torch.zeros(1).expand(1 << 40)}]}), "numbers in rollout_log_probs"),
        (saved(MASKED | {"rollout_log_probs": torch.ones(2, 3, dtype=torch.complex64)}), "has dtype torch.complex64"),
        (saved([1.0, 2.0]), "holds float where a dict of tensors is read"),
        (saved(torch.zeros(2, 3)), "holds Tensor where a dict of tensors is read"),
        (
            saved({"samples": [{"rollout_log_probs": torch.zeros(2, 3)}]}),
            "has shape (2, 3); a tensor (T,)",
        ),
        (saved(PAIR), "rows of equal length may be padded"),
        (npz(a=np.zeros(2)), "its archive has no data.pkl"),
    ],
)
def test_a_file_of_torch_save(content: bytes, said: str) -> None:
    assert said in refused("x.pt", content)


def test_a_storage_that_claims_three_gigabytes() -> None:
    """Refuse a pickle that declares 3·10⁹ numbers in an archive of six."""
    six = saved(MASKED)
    with zipfile.ZipFile(io.BytesIO(six)) as archive:
        said = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
    claims = said.replace(b"X\x03\x00\x00\x00cpuq\x06K\x06t", b"X\x03\x00\x00\x00cpuq\x06J\x00\x2f\x68\x59t", 1)
    assert claims != said
    assert "record size (24 bytes) does not match expected size" in refused("x.pt", rezipped(six, data_pkl=claims))


def test_headers_that_claim_three_gigabytes() -> None:
    """Refuse each with a sentence, before the memory is allocated."""
    giga = 3_000_000_000
    tensors = save({"a": torch.zeros(1)})
    array = npz(a=np.zeros(2), rollout_log_probs=np.zeros((10000, 100)))
    parquet = b"PAR1" + struct.pack("<I", giga) + b"PAR1"
    assert "its header should have 3,000,000,000 bytes" in refused(
        "x.safetensors", struct.pack("<Q", giga) + tensors[8:]
    )
    wide = array.replace(b"(10000, 100)", b"(375000000,)")
    assert wide != array
    assert "375,000,000 numbers in rollout_log_probs" in refused("x.npz", wide)
    assert "3,000,000,000 bytes of footer" in refused("x.parquet", parquet)


# --- pickles that look like SkyRL's ---


def test_nothing_of_a_pickle_is_run(tmp_path: Path) -> None:
    """Put code in place of an array, and into the metadata, which is not read."""
    module = types.ModuleType("skyrl_train")
    module._rebuild_tensor_batch = _rebuild_tensor_batch  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules["skyrl_train"] = module
    content = pickle.dumps(
        Batch({"batch_dict": {"loss_mask": Bomb(tmp_path / "harm")}, "metadata": [Bomb(tmp_path / "x")]})
    )
    del sys.modules["skyrl_train"]
    assert "rollout_log_probs is missing" in refused("x.pkl", content)
    assert list(tmp_path.iterdir()) == []


def _rebuild_tensor_batch(*_: Any) -> None:
    raise AssertionError("must not be called")


_rebuild_tensor_batch.__module__ = "skyrl_train"


class Batch:
    """A batch that is pickled like SkyRL's."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        return _rebuild_tensor_batch, (dict, self.state)


UNFRAMED = SKYRL[:2] + SKYRL[11:]  # the frame says how many bytes follow


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (SKYRL[-40:], b"", "cannot be read as a pickle of arrays"),
        (b"\x8c\x07float32", b"\x8c\x07complex", "is not an array as SkyRL writes it: dtype 'complex'"),
        (b"\x8c\x07float32", b"\x8c\x07float16", "bytes; it has"),
        (b"K\x03K\x03\x86", b"K\xffK\xff\x86", "bytes; it has"),
        (SKYRL, UNFRAMED.replace(b"K\x03K\x03\x86", b"J\x00\x94\x35\x77K\x03\x86", 1), "6,000,000,000 numbers in"),
        (SKYRL[:2], SKYRL[:2] + b"Nr\xff\xff\xff\x7f0", "has the memo index 2,147,483,647"),
        (SKYRL[:2], SKYRL[:2] + b"N}b0", "runs the code in it"),
    ],
)
def test_a_pickle_that_was_tampered_with(before: bytes, after: bytes, said: str) -> None:
    assert before in SKYRL
    assert said in refused("x.pkl", SKYRL.replace(before, after))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (pickle.dumps({"a": 1}), "numpy.savez('pairs.npz', rollout_log_probs=…"),
        (pickle.dumps({"a": "verl.protocol"}), "DataProto.load_from_disk(FILE).batch"),
        (
            pickle.dumps({"a": "roll.distributed.scheduler.protocol"}),
            "ROLL's rollout_mock has the engine's log-probs only",
        ),
        (pickle.dumps({"a": "_rebuild_tensor_batch"}), "runs the code in it"),
    ],
)
def test_another_pickle(content: bytes, said: str) -> None:
    assert said in refused("x.pkl", content)
