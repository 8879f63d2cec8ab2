"""Answers whose text encodes to other ids than the file has are counted, with their gap."""

import math
from pathlib import Path
from typing import Any

import pytest
from pair_files import jsonl, read_pairs
from tokenizers import Tokenizer, decoders, models

from rlcorr.command.cli import run_verb
from rlcorr.errors import UsageError
from rlcorr.foreign.retokenised import reencode
from rlcorr.records import runs
from rlcorr.train.inputs.tokenizer import load_tokenizer

A, B, AB, END = range(4)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """Save a tokenizer that always merges "a" and "b"; the ids of both alone decode to the same text."""
    made = Tokenizer(models.BPE(vocab={"a": A, "b": B, "ab": AB}, merges=[("a", "b")]))
    made.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    made.add_special_tokens(["<end>"])
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def row(ids: list[int], text: str, d: float) -> dict[str, Any]:
    return {
        "rollout_log_probs": [-1.0] * len(ids), "old_log_probs": [-1.0 + d] * len(ids), "response_ids": ids,
        "response": text,
    }  # fmt: skip


ROWS = [
    row([A, B, END], "ab", -1.0),  # sampled apart
    row([AB, END], "ab", 0.01),
    row([B, A, END], "ba<end>", 0.01),  # a text with its special token
    row([A, A], "aaa", 0.01),  # another text than that of the ids
]


def test_ids_that_the_text_does_not_give_back(tokenizer: Path) -> None:
    comparable, differing = reencode(read_pairs("a.jsonl", jsonl(ROWS)), load_tokenizer(tokenizer).backend_tokenizer)
    assert comparable.tolist() == [True, True, True, False]
    assert differing.tolist() == [True, False, False, False]


def test_import_counts_them_and_says_how_large_their_gap_is(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """k3 of d = −1 is e⁻¹ = 0.37, and that of d = 0.01 is 5e-5."""
    monkeypatch.setattr(runs, "LOCAL", tmp_path / "local")
    (tmp_path / "a.jsonl").write_bytes(jsonl(ROWS))
    words = ["import", str(tmp_path / "a.jsonl"), "--run"]
    assert run_verb([*words, "mine", "--tokenizer", str(tokenizer)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "re-tokenised: the text of 1 of 3 answers (33 %) encodes to other ids than were recorded." in printed
    assert "1 more answers are left out, because their ids decode to another text." in printed
    assert f"k3 is {math.exp(-1):.2g} on them and 5e-5 on the others." in printed
    assert "Pass the engine's token ids on instead of the text." in printed
    assert run_verb([*words, "other"]) == 0
    assert "with --tokenizer MODEL, import counts the answers whose text encodes to other ids" in " ".join(
        capsys.readouterr().out.split()
    )
    with pytest.raises(UsageError, match="no tokenizer at"):
        run_verb([*words, "third", "--tokenizer", str(tmp_path / "nothing")])
