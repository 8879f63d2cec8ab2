"""Score sketches of recorded steps as files: `sketch/step_000012.safetensors.gz`, next to `steps/`.

    scores (N, K) int8, units (N,) bfloat16
                                        one row per response token, in the order of the step's Parquet file
    next_log_probs, next_ref_log_probs, next_rollout_log_probs (P, V) float32, next_scores (P, V, K) float16
                                        every token of the vocabulary at P positions; unknown columns are missing
    kl_policy_rollout_scores, kl_rollout_policy_scores, kl_policy_ref_scores, kl_ref_policy_scores (P, K) int8
                                        or, for a large vocabulary, the gradients of KL divergences there, with _units
Some steps also have all likely answers to some other prompts, with one node per token:
    tree_prompts, tree_parents, tree_tokens, tree_{old, rollout, sampled}_log_probs float32, all (E,);
                                        sampled only if it differs from what the engine reports
    exact_advantages (N,) float16       one per token, answer by answer
    exact_scores (E, K) int8, exact_units (E,)
    exact_task_prompts (1,)             number of prompts of the training run, if it is finite
Steps with reference answers have the on-policy gradient, in M blocks:
    by_token_scores, by_sequence_scores (M, K) int8 with _units (M,), tokens, sequences (M,) float32
Those that were recorded before version 0.2 have it as by_token, by_sequence (M, K) float32.

A score is an integer between -15 and 15, times the unit of its row. Its rounding error is at most half a unit, 3.3 % of
the largest of the row's K numbers, and has mean 0. For normal numbers the squared error is 1/300 of the square, with
K = 128, for which the projection itself changes a squared length by about 1/8. Sums over the next token cancel to less
than that error, so their scores are float16. Gradients that are sums already are integers between -127 and 127. The
metadata of a file has the hashes of weights and directions.
"""

import gzip
import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.gradients.answers import AnswerTree
from rlcorr.gradients.sketch import ExactSketch, KLGradients, NextTokens, Reference, SampledSketch, Sketch
from rlcorr.losses.advantages import GROUPED, whiten
from rlcorr.records import runs
from rlcorr.records.disk import UNREADABLE, content_of, make_folder, write_whole
from rlcorr.types import TokenBatch

HASHES = ("weights_hash", "directions_hash")
SLOW = 5.0
"""Seconds from which on a part of a sketch is printed."""
DAMAGED = (SafetensorError, KeyError, TypeError, RuntimeError)
"""Exceptions that damaged tensors cause."""
LARGEST, LARGEST_SUM = 15, 127
"""The largest score, and the largest number of a sum, in units. gzip makes five and seven bits of such integers."""


def write_sketch(run: Path, step: int, sketch: SampledSketch, exact: ExactSketch | None = None) -> None:
    """Write the sketch of a step, and that of every likely answer to other prompts, if there is one.

    Its parts are then removed.
    """
    tensors = _in_units("", sketch.scores)
    if sketch.reference is not None:
        for name, values in vars(sketch.reference).items():
            tensors |= _in_units(f"{name}_", values, LARGEST_SUM) if name[:3] == "by_" else {name: values}
    if sketch.next_tokens is not None:
        tensors |= {f"next_{name}": value for name, value in vars(sketch.next_tokens).items() if value is not None}
        tensors["next_scores"] = sketch.next_tokens.scores.half()
    if sketch.kl_gradients is not None:
        for name, values in vars(sketch.kl_gradients).items():
            tensors |= {} if values is None else _in_units(f"kl_{name}_", values, LARGEST_SUM)
    if exact is not None:
        tensors |= _exact_tensors(exact)
    make_folder(run / "sketch")
    content = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    write_tensors(runs.sketch_path(run, step), content, {name: getattr(sketch, name) for name in HASHES})
    shutil.rmtree(unfinished(run, step), ignore_errors=True)


def unfinished(run: Path, step: int) -> Path:
    """Return the folder of the parts of a step's sketch that are done, until the whole sketch is written."""
    return run / "checkpoint" / f"sketch_{step:06d}"


def kept(folder: Path, key: str, name: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the part of a sketch with this name: from the folder, or else new, and then written into it.

    Args:
        key: hash of what the part is made from; a file with another one is replaced.
    """
    path = folder / f"{name}.safetensors.gz"
    with suppress(*UNREADABLE, SafetensorError):
        tensors, metadata = read_tensors(path)
        if metadata.get("key") == key:
            return tensors
    start, tensors = time.perf_counter(), make()
    make_folder(folder, parents=True)
    write_tensors(path, tensors, {"key": key})
    if (seconds := time.perf_counter() - start) > SLOW:
        print(f"{folder.name}: {name.replace('_', ' ')}, {seconds:.0f} s", flush=True)
    return tensors


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    write_whole(path, gzip.compress(save(tensors, metadata), mtime=0))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata. In a safetensors file these are JSON after eight bytes with their length."""
    content = content_of(path)
    tensors = load(content)
    end = 8 + int.from_bytes(content[:8], "little")
    return tensors, json.loads(content[8:end]).get("__metadata__", {})


def _exact_tensors(sketch: ExactSketch) -> dict[str, Tensor]:
    tree = {f"tree_{name}": x.float() if x.is_floating_point() else x.int() for name, x in vars(sketch.tree).items()}
    if torch.equal(sketch.tree.sampled_log_probs, sketch.tree.rollout_log_probs):
        del tree["tree_sampled_log_probs"]
    if sketch.task_prompts is not None:
        tree["exact_task_prompts"] = torch.tensor([sketch.task_prompts])
    return {**tree, "exact_advantages": sketch.advantages.half(), **_in_units("exact_", sketch.scores)}


def _in_units(prefix: str, scores: Tensor, largest: int = LARGEST) -> dict[str, Tensor]:
    """Return scores (N, K) as integers, with a unit for each row."""
    units = (scores.abs().amax(-1).clamp(min=1e-30) / largest).bfloat16()
    integers = (scores / units[:, None]).round().clamp(-largest, largest)  # a unit may be rounded down
    return {f"{prefix}scores": integers.to(torch.int8), f"{prefix}units": units}


def read_gradients(run: Path, step: int) -> tuple[TokenBatch, Sketch]:
    """Return the batch and the sketch on which the gradients of a step are measured.

    These are every likely answer to some prompts, if the step has them. Else they are its own answers as its update
    sees them. Raises as `read_sketch` does, and if the step cannot be read.
    """
    sketch, tensors = _read(run, step)
    with runs.reading(runs.sketch_path(run, step), *DAMAGED):
        if "exact_scores" in tensors:
            exact = _exact(sketch, tensors)
            return exact.answers.batch, exact
    return updated_batch(run, step), sketch


def _exact(sketch: SampledSketch, tensors: dict[str, Tensor]) -> ExactSketch:
    tree = {name.removeprefix("tree_"): values for name, values in tensors.items() if name[:5] == "tree_"}
    tree = {name: x if x.is_floating_point() else x.long() for name, x in tree.items()}
    tree.setdefault("sampled_log_probs", tree["rollout_log_probs"])
    task_prompts = tensors.get("exact_task_prompts")
    return ExactSketch(
        tree=AnswerTree(**tree),
        advantages=tensors["exact_advantages"].float(),
        scores=_scores("exact_", tensors),
        task_prompts=None if task_prompts is None else int(task_prompts),
        next_tokens=sketch.next_tokens,
        **{name: getattr(sketch, name) for name in HASHES},
    )


def _scores(prefix: str, tensors: dict[str, Tensor]) -> Tensor:
    """Return the scores (N, K) in float32. Raises `KeyError` if there are no units."""
    return tensors[f"{prefix}scores"].float() * tensors[f"{prefix}units"][:, None].float()


def read_sketch(run: Path, step: int) -> SampledSketch:
    """Read the sketch of the step's own answers.

    Raises `UsageError` if the step has none, with the option that records one, and `DamagedFile` if it cannot be read.
    """
    return _read(run, step)[0]


def _read(run: Path, step: int) -> tuple[SampledSketch, dict[str, Tensor]]:
    """Return the sketch of the step's own answers, and all tensors of its file."""
    path = runs.sketch_path(run, step)
    if not path.is_file():
        steps = ", ".join(map(str, runs.list_sketches(run))) or "none"
        raise UsageError(
            f"step {step} of {run.name} has no score sketch (steps that have one: {steps}). A training run records it "
            f"with --sketch.every {step}; log-probs alone do not give one."
        )
    with runs.reading(path, *DAMAGED):
        tensors, metadata = read_tensors(path)
        sketch = SampledSketch(
            scores=_scores("", tensors),
            reference=_reference(tensors),
            next_tokens=_next_tokens(tensors),
            kl_gradients=_kl_gradients(tensors),
            **{name: metadata[name] for name in HASHES},
        )
        return sketch, tensors


def _reference(tensors: dict[str, Tensor]) -> Reference | None:
    if "tokens" not in tensors:
        return None
    old = "by_token" in tensors
    by_token, by_sequence = (
        tensors[name] if old else _scores(f"{name}_", tensors) for name in ("by_token", "by_sequence")
    )
    return Reference(by_token, by_sequence, tensors["tokens"], tensors["sequences"])


def _next_tokens(tensors: dict[str, Tensor]) -> NextTokens | None:
    if "next_scores" not in tensors:
        return None
    return NextTokens(**{name.removeprefix("next_"): v.float() for name, v in tensors.items() if name[:5] == "next_"})


def _kl_gradients(tensors: dict[str, Tensor]) -> KLGradients | None:
    prefixes = [name.removesuffix("scores") for name in tensors if name[:3] == "kl_" and name.endswith("_scores")]
    return KLGradients(**{prefix[3:-1]: _scores(prefix, tensors) for prefix in prefixes}) if prefixes else None


def last_sketch(run: Path) -> int:
    """Return the last step that has a sketch, or else the last step: the error of its `read_sketch` says what to do."""
    steps = runs.list_sketches(run) or runs.list_steps(run)
    if not steps:
        raise UsageError(f"{run.name} has no recorded steps.")
    return steps[-1]


def updated_batch(run: Path, step: int) -> TokenBatch:
    """Return the recorded batch with the advantages that an update sees.

    If the run whitens them, they have mean 0 and variance 1 over all tokens. (The trainer itself whitens over the
    tokens that its own preset keeps.)
    """
    batch, advantage = runs.read_step(run, step).batch, runs.read_manifest(run).config.get("advantage", {})
    if not isinstance(advantage, dict):
        raise runs.DamagedFile(f"{run / 'manifest.json'}: advantage must be a table; got {advantage!r:.80}.")
    if batch.advantages is None or advantage.get("estimator") in GROUPED or not advantage.get("whiten", True):
        return batch
    return batch.replace(advantages=whiten(batch.advantages, batch.response_mask))
