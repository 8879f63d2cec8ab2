"""Your own data: a file of log-prob pairs as a recorded step, so that every view and every tool works on it.

Parquet and JSON Lines hold a response per row, .npz and .safetensors arrays (B, T) with a mask, or all tokens in one
array (N,) with lengths or offsets. What is needed are rollout_log_probs and old_log_probs; `names` has how other
systems call them. Files come from strangers: no pickle is read, sizes are looked at before data.
"""

import math
from collections.abc import Callable, Set
from dataclasses import replace
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.diagnostics import evaluate
from rlcorr.errors import UsageError
from rlcorr.foreign.arrays import npz_columns, safetensors_columns
from rlcorr.foreign.columns import MAX_BYTES, Columns, at_most
from rlcorr.foreign.json_rows import json_columns
from rlcorr.foreign.names import OF_A_RECORDED_STEP, WANTED, ours
from rlcorr.foreign.parquet import to_columns
from rlcorr.foreign.pickles import pickle_columns, refusal
from rlcorr.foreign.step import to_record
from rlcorr.foreign.torch_files import torch_columns
from rlcorr.records import runs
from rlcorr.records.runs import RunManifest
from rlcorr.records.step_files import StepRecord
from rlcorr.types import TokenBatch

ENABLES = {
    "advantages": "rules for one sign of the advantage, losses, and with a score sketch what happens to the gradient",
    "rewards": "the reward beside a response",
    "prompts": "the prompt beside a response",
    "responses": "the text of a response",
    "response_ids": "which token stands where",
    "group_ids": "advantages within the group of a prompt",
    "policy_versions": "how old the weights were that sampled a response",
    "ref_log_probs": "KL terms against a reference policy",
    "values": "the critic's loss",
    "sketch": "bias and noise of the gradient; only a training with --sketch.every records it",
}
"""What could be there beside the pair, and what it is for."""

UNKNOWN = -1
"""An id, group or version that the file does not say; an unknown reward is NaN."""

Reader = Callable[[bytes, Set[str]], tuple[Columns, list[str]]]
_READERS: dict[str, Reader] = {
    ".parquet": to_columns, ".jsonl": json_columns, ".json": json_columns, ".npz": npz_columns,
    ".safetensors": safetensors_columns, ".pt": torch_columns, ".pth": torch_columns, ".pkl": pickle_columns,
    ".pickle": pickle_columns,
}  # fmt: skip
ENDINGS = tuple(_READERS)
_CONTENT = {
    ".jsonl": ".json", ".npz": "an archive", ".pt": "an archive", ".pth": "an archive", ".pkl": "a pickle",
    ".pickle": "a pickle",
}  # fmt: skip
"""Suffix → what the content must look like, where that is not the suffix."""
_PICKLES = (".ckpt", ".bin", ".joblib")


def read_pairs(name: str, content: bytes) -> StepRecord:
    """The step that a file holds, log-probs in float32. `name` is used for its suffix and in messages, never as a path.

    Real tokens are those that the mask, lengths or offsets say; the others are taken out, so that every response starts
    in column 0 and has no holes: nothing that is computed depends on the place of a token. A log-prob may be up to 0.01
    (rounding, as `TokenBatch.check_values` says) and down to −inf, as in recorded steps (a ratio is then e^±20), but
    not −inf on both sides; NaN on a real token is refused. What the file does not say is None, or an empty text. Raises
    `UsageError` for everything else.
    """
    try:
        columns, names = _reader(name, content)(content, WANTED)
        return to_record(ours(columns, names), may_be_padded=not set(names) >= OF_A_RECORDED_STEP)
    except UsageError as error:
        raise UsageError(f"{_shown(name)}: {error}") from error


def missing(record: StepRecord) -> dict[str, str]:
    """What is not there and what it would enable: a part of `ENABLES`, always with the sketch, which no step holds."""
    present = {name for name, tensor in record.batch.tensors().items() if not _is_unknown(tensor)}
    present |= {name for name in ("prompts", "responses") if any(getattr(record, name))}
    return {name: use for name, use in ENABLES.items() if name not in present}


def recordable(record: StepRecord) -> StepRecord:
    """The record with what `runs.write_step` needs and the file did not say: `UNKNOWN`, NaN, and empty prompts."""
    batch = record.batch
    rows, no_prompt = len(batch.response_mask), (len(batch.response_mask), 0)
    filled = {
        "rewards": torch.full((rows,), torch.nan),
        "group_ids": torch.full((rows,), UNKNOWN, dtype=torch.int32),
        "policy_versions": torch.full((rows,), UNKNOWN, dtype=torch.int32),
        "prompt_ids": torch.zeros(no_prompt, dtype=torch.int32),
        "prompt_mask": torch.zeros(no_prompt, dtype=torch.bool),
        "response_ids": torch.where(batch.response_mask, UNKNOWN, 0).int(),
    }
    return replace(record, batch=TokenBatch(**(filled | batch.tensors())))


def _is_unknown(tensor: Tensor) -> bool:
    """All NaN, or all −1 and padding."""
    if tensor.is_floating_point():
        return bool(tensor.isnan().all())
    return tensor.numel() > 0 and bool((tensor <= 0).all()) and bool((tensor == UNKNOWN).any())


def import_file(file: Path, run: Path) -> StepRecord:
    """Make a run of a file, and return what was read. Raises `UsageError`."""
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
    record = read_pairs(file.name, content)
    write_run(run, record, f"Imported from {file.name}.")
    return record


def write_run(run: Path, record: StepRecord, story: str) -> None:
    """A complete run of this one step, with its metrics before any correction. Raises `UsageError` if one is there."""
    config = CorrectionConfig()
    row = evaluate(record.batch, config)[1]
    if record.batch.rewards is not None:
        row["reward"] = float(record.batch.rewards.mean())
    manifest = RunManifest(slug=run.name, story=story, engine="unknown")
    runs.start_run(run, manifest)
    runs.write_step(run, recordable(record))
    runs.append_metrics(run, {"step": record.step} | {key: x for key, x in row.items() if math.isfinite(x)})
    runs.finish_run(run, replace(manifest, status="complete"))


# --- which kind of file ---


def _reader(name: str, content: bytes) -> Reader:
    """By the suffix; what the content starts with must agree."""
    suffix = PurePosixPath(name).suffix.lower()
    kind = _kind(content)
    expected = _CONTENT.get(suffix, suffix)
    if suffix in _PICKLES or (kind == "a pickle" and expected != kind):
        raise refusal(content)
    if suffix not in _READERS:
        raise UsageError(f"files that end in {', '.join(_READERS)} are read; this one ends in {suffix!r:.20}.")
    at_most(MAX_BYTES, len(content), "bytes")
    if not content.strip(b" \t\r\n\0"):
        raise UsageError("is empty.")
    if expected not in (kind, "a pickle"):  # the oldest kind of pickle starts with any byte
        raise UsageError(f"ends in {suffix}, but its content looks like {kind}.")
    return _READERS[suffix]


def _kind(content: bytes) -> str:
    if content[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        return "a pickle"
    if content[:4] == b"PAR1":
        return ".parquet"
    if content[:2] == b"PK":
        return "an archive"
    if content[8:9] == b"{" and content[:1] != b"{" and b"\0" in content[:8]:
        return ".safetensors"
    return ".json" if content.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[") else "something else"


def _shown(name: str) -> str:
    """The last part of a name, with what cannot be printed escaped."""
    return repr(PurePosixPath(name.replace("\\", "/")).name[-80:])
