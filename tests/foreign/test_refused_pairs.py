"""Undamaged files with wrong numbers. The message names the row and what is allowed."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from pair_files import FILES, PAIR, arrays, jsonl, npz, read_pairs, refused

OK = [-1.0, -2.0]


def pair(rollout: list[Any], old: list[Any] | None = None, **more: Any) -> bytes:
    """Return JSON Lines of these rows; `more` holds further columns."""
    columns = {"rollout_log_probs": rollout, "old_log_probs": rollout if old is None else old, **more}
    return jsonl([{name: x[row] for name, x in columns.items()} for row in range(len(rollout))])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (pair([OK, [None, -1]]), "row 1, token 0 (from 0): rollout_log_probs is NaN or null"),
        (pair([[math.nan, -1, math.nan, math.nan]], [[-1] * 4]), "row 0, token 0 (from 0), and at 2 more"),
        (
            pair([OK], [[-1, math.inf]]),
            "row 0, token 1 (from 0): old_log_probs must be natural logarithms of probabilities, ≤ 0; got inf",
        ),
        (pair([[-1, -math.inf]]), "row 0, token 1 (from 0): rollout_log_probs and old_log_probs are both −inf"),
        (pair([[0.011, -1]]), "≤ 0; got 0.011"),  # up to 0.01 is rounding, as everywhere
        (pair([OK, OK], [OK, [-1]]), "old_log_probs has 1 values, rollout_log_probs 2: give both for the same tokens"),
        (pair([OK], step=[-1]), "step must be a number ≥ 0 per row"),
        (pair([OK], step=["last"]), "step must hold one number per row; got texts such as 'last'"),
        (pair([OK], step=[1e12]), "step must hold whole numbers of at most 32 bits"),
        (pair([[True, False]]), "rollout_log_probs has dtype torch.bool; floating-point numbers are needed"),
        (pair([["-1", "-2"]]), "rollout_log_probs must hold a list of numbers per row; got texts such as"),
        (pair([-1.0, -2.0]), "rollout_log_probs has one number per row; give a list per row"),
        (pair([OK, -1.0]), "rollout_log_probs must hold the same kind of value in all rows"),
        (pair([OK], response_mask=[[1, 2]]), "row 0, token 1 (from 0): response_mask is neither 0 nor 1"),
        (pair([OK], response_mask=[[0, 0]]), "holds no tokens"),
        (pair([[], []]), "holds no tokens"),
        (pair([OK], lengths=[3]), "row 0 (from 0): its length must be from 0 to 2, the number of its log-probs; got 3"),
        (pair([[-1, 0, 0], [-1, -2, -3]]), "rows of equal length may be padded"),
        (pair([[-1, None, None], [-1, -2, -3]]), "rows of equal length may be padded"),
        (pair([[-1] * 4000] + [[-1]] * 5000), "20,004,000 places (5001 rows as wide as the longest, 4000); at most"),
        (pair([[-1] * 4100] + [[-1]] * 1100), "4,514,100 places (1101 rows as wide as the longest, 4100); at most 4,1"),
    ],
)
def test_wrong_numbers(content: bytes, said: str) -> None:
    assert said in refused("x.jsonl", content)


FLAT = {"rollout_log_probs": np.full(4, -1.0), "old_log_probs": np.full(4, -1.0)}


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (arrays() | {"response_mask": np.array([[0.5] * 3] * 4)}, "row 0, token 0 (from 0), and at 11 more"),
        ({k: x for k, x in arrays().items() if k in PAIR}, "rows of equal length may be padded"),
        (arrays() | {"rollout_log_probs": -np.ones((4, 3), "i4")}, "rollout_log_probs has dtype torch.int64"),
        (arrays() | {"old_log_probs": np.array(["a"] * 4)}, "old_log_probs must hold a list of numbers per row"),
        (arrays() | {"old_log_probs": np.zeros((3, 3))}, "old_log_probs has 3 rows, rollout_log_probs has 4"),
        (arrays() | {"old_log_probs": np.zeros((4, 2))}, "row 0 (from 0): old_log_probs has 2 values"),
        (FLAT, "an array (N,) of all tokens together with lengths (B,)"),
        (FLAT | {"lengths": np.array([1, 2])}, "lengths must be ≥ 0 and sum to the 4 tokens"),
        (FLAT | {"lengths": np.array([5, -1])}, "lengths must be ≥ 0"),
        (FLAT | {"lengths": np.array([2.5, 1.5])}, "lengths must hold whole numbers"),
        (FLAT | {"lengths": np.array([4]), "old_log_probs": np.zeros(3)}, "has 3 numbers for 4 tokens in 1 rows"),
        ({name: np.zeros((0, 3)) for name in PAIR} | {"response_mask": np.zeros((0, 3))}, "holds no tokens"),
        ({name: np.float32(-1) for name in PAIR}, "rollout_log_probs must hold a list of numbers per row"),
        (FLAT | {"lengths": np.array(4)}, "lengths must hold one number per row"),
        (arrays() | {"step": np.array(1.5)}, "step must hold whole numbers of at most 32 bits; got 1.5"),
    ],
)  # fmt: skip
def test_wrong_arrays(members: dict[str, Any], said: str) -> None:
    assert said in refused("x.npz", npz(**members))


def test_what_is_no_error() -> None:
    """Accept zeros that a mask says are real, rounding up to 0.01, and −inf on one side."""
    record = read_pairs("x.jsonl", pair([[-1, 0, 0], [-1, -2, -3]], response_mask=[[1] * 3] * 2))
    assert record.batch.rollout_log_probs.tolist() == [[-1, 0, 0], [-1, -2, -3]]
    assert read_pairs("x.jsonl", pair([[0.009, -1]])).batch.rollout_log_probs[0, 0] == torch.tensor(0.009)
    record = read_pairs("x.jsonl", pair([OK], [[-math.inf, -1]]))
    assert record.batch.tensors()["old_log_probs"].tolist() == [[-math.inf, -1]]


# --- names and kinds ---


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../etc/passwd.csv", "'passwd.csv': files that end in .parquet, .jsonl"),
        ("C:\\Windows\\x.csv", "'x.csv': "),
        ("<img src=x onerror=alert(1)>.csv", "'<img src=x onerror=alert(1)>.csv'"),  # the app escapes what it shows
        ("a\x00b\n\x1b[31m\u202e.csv", r"'a\x00b\n\x1b[31m\u202e.csv'"),
        ("x" * 5000 + ".csv", "xxx.csv': "),
        ("", "'': files that end in"),
        ("no suffix", "this one ends in ''"),
    ],
)
def test_a_name_is_only_shown(name: str, shown: str) -> None:
    assert shown in refused(name, FILES["lists.jsonl"])


def test_only_the_suffix_counts() -> None:
    for name in ("../../X.JSONL", "a\x00.jsonl", "/dev/null/x.jsonl", "x.parquet.jsonl"):
        assert read_pairs(name, FILES["lists.jsonl"]).batch.response_mask.sum() == 6
        assert refused(name, b"").endswith("is empty.")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.jsonl", FILES["padded.npz"], "the document is not JSON"),
        ("x.parquet", FILES["padded.safetensors"], "cannot be read as Parquet"),
        ("x.safetensors", FILES["lists.parquet"], "cannot be read as .safetensors"),
        ("x.pt", FILES["padded.npz"], "cannot be read as torch.save writes it"),
        ("x.json", b"rollout_log_probs,old_log_probs\n-1,-1\n", "the document is not JSON"),
    ],
)
def test_a_file_under_another_suffix(name: str, content: bytes, said: str) -> None:
    assert said in refused(name, content)
