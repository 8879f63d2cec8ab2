"""Score sketches of recorded steps as files: `sketch/step_000012.safetensors` beside `steps/`.

    scores (N, K) float16               one row per response token, in the order of the step's Parquet file
    by_token, by_sequence (M, K) float32, tokens, sequences (M,) float32    the reference, in blocks of responses
    next_log_probs, next_ref_log_probs, next_rollout_log_probs (P, V) float32, next_scores (P, V, K) float16
                                        every token that could follow at P places; what was not known is not there
And in steps that have them, all likely answers to some other prompts, a node per token:
    tree_prompts int16, tree_parents int32, tree_tokens int32, tree_{old, rollout, sampled}_log_probs float32, all (E,);
                                        sampled only where it is not what the engine reports
    exact_advantages (N,) float16       of every token, answer by answer
    exact_scores (E, K) int8, exact_units (E,) float32    a score is their product: off by at most half a unit, which is
                                        0.4 % of the largest of its K numbers

The manifest and the file both carry the hashes of the weights and of the directions; they must agree.
"""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from rlcorr.advantages import GROUPED, whiten
from rlcorr.errors import UsageError, first_line
from rlcorr.gradients.answers import AnswerTree
from rlcorr.gradients.sketch import ExactSketch, NextTokens, Reference, SampledSketch, Sketch
from rlcorr.records.runs import (
    DamagedFile,
    RunManifest,
    list_sketches,
    list_steps,
    read_manifest,
    read_step,
    sketch_path,
    write_whole,
)
from rlcorr.types import TokenBatch

HASHES = ("weights_hash", "directions_hash")
LARGEST_INT8 = 127
TREE_DTYPES = {"prompts": torch.int16, "parents": torch.int32, "tokens": torch.int32}


def write_sketch(run: Path, step: int, sketch: SampledSketch, exact: ExactSketch | None = None) -> None:
    """Scores in float16: a projection of standard normal directions is far from its limits."""
    tensors = {"scores": sketch.scores.half(), **vars(sketch.reference)}
    if sketch.next_tokens is not None:
        tensors |= {f"next_{name}": value for name, value in vars(sketch.next_tokens).items() if value is not None}
        tensors["next_scores"] = sketch.next_tokens.scores.half()
    if exact is not None:
        tensors |= _of_exact(exact)
    (run / "sketch").mkdir(exist_ok=True)
    content = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    write_whole(sketch_path(run, step), save(content, {name: getattr(sketch, name) for name in HASHES}))


def _of_exact(sketch: ExactSketch) -> dict[str, Tensor]:
    units = sketch.scores.abs().amax(-1).clamp(min=1e-30) / LARGEST_INT8
    tree = {
        f"tree_{name}": values.to(TREE_DTYPES.get(name, torch.float32)) for name, values in vars(sketch.tree).items()
    }
    if torch.equal(sketch.tree.sampled_log_probs, sketch.tree.rollout_log_probs):
        del tree["tree_sampled_log_probs"]
    return {
        **tree,
        "exact_advantages": sketch.advantages.half(),
        "exact_scores": (sketch.scores / units[:, None]).round().to(torch.int8),
        "exact_units": units,
    }


def read_gradients(run: Path, step: int) -> tuple[TokenBatch, Sketch]:
    """What gradients are measured on: every likely answer to some prompts where the step has them, else its own answers
    as its update sees them. Raises as `read_sketch`, and where the step itself cannot be read."""
    sketch, tensors = _read(run, step)
    exact = _exact(run, step, sketch, tensors)
    return (updated_batch(run, step), sketch) if exact is None else (exact.answers.batch, exact)


def read_exact(run: Path, step: int) -> ExactSketch | None:
    """None where the step has no answers but its own. Raises as `read_sketch`."""
    return _exact(run, step, *_read(run, step))


def _exact(run: Path, step: int, sketch: SampledSketch, tensors: dict[str, Tensor]) -> ExactSketch | None:
    if "exact_scores" not in tensors:
        return None
    tree = {name.removeprefix("tree_"): values for name, values in tensors.items() if name.startswith("tree_")}
    try:
        tree.setdefault("sampled_log_probs", tree["rollout_log_probs"])
        return ExactSketch(
            tree=AnswerTree(**tree),
            advantages=tensors["exact_advantages"].float(),
            scores=tensors["exact_scores"].float() * tensors["exact_units"][:, None],
            next_tokens=sketch.next_tokens,
            **{name: getattr(sketch, name) for name in HASHES},
        )
    except (KeyError, TypeError) as error:
        raise DamagedFile(f"{sketch_path(run, step)}: cannot be read ({first_line(error)}).") from error


def read_sketch(run: Path, step: int) -> SampledSketch:
    """Of the step's own answers. Raises `UsageError` where the step has none, with the command that records them, or
    where the hashes of manifest and file differ; `DamagedFile` where it cannot be read."""
    return _read(run, step)[0]


def _read(run: Path, step: int) -> tuple[SampledSketch, dict[str, Tensor]]:
    """The sketch of the step's own answers, and everything that is in its file."""
    path = sketch_path(run, step)
    if not path.is_file():
        sketched = ", ".join(map(str, list_sketches(run))) or "none"
        raise UsageError(
            f"step {step} of {run.name} has no score sketch (steps that have one: {sketched}). They are made while "
            f"training: python -m rlcorr train --config {run / 'config.yaml'} --run {run.name}_sketched "
            f"--sketch.every {step}"
        )
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 it is no dict
        reference = Reference(*(tensors[name] for name in ("by_token", "by_sequence", "tokens", "sequences")))
        following = {name.removeprefix("next_"): v.float() for name, v in tensors.items() if name.startswith("next_")}
        places = NextTokens(**following) if following else None
        sketch = SampledSketch(tensors["scores"].float(), reference, places, *(metadata[name] for name in HASHES))
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise DamagedFile(f"{path}: cannot be read ({first_line(error)}).") from error
    _compare(path, sketch, read_manifest(run), step)
    return sketch, tensors


def last_sketch(run: Path) -> int:
    """The last step that has a sketch; without any the last recorded one, whose `read_sketch` says what to do."""
    steps = list_sketches(run) or list_steps(run)
    if not steps:
        raise UsageError(f"{run.name} has no recorded steps.")
    return steps[-1]


def updated_batch(run: Path, step: int) -> TokenBatch:
    """The recorded batch with its advantages as an update sees them: where the run whitens them, of mean 0 and
    variance 1 over all tokens. (The trainer whitens over the tokens that its own preset keeps.)"""
    batch, advantage = read_step(run, step).batch, read_manifest(run).config.get("advantage", {})
    if batch.advantages is None or advantage.get("estimator") in GROUPED or not advantage.get("whiten"):
        return batch
    return batch.replace(advantages=whiten(batch.advantages, batch.response_mask))


def with_sketch(manifest: RunManifest, step: int, sketch: SampledSketch) -> RunManifest:
    """The manifest that knows this sketch."""
    hashes = {name: getattr(sketch, name) for name in HASHES}
    return replace(manifest, sketches={**manifest.sketches, str(step): hashes})


def sketches_until(run: Path, step: int) -> dict[str, dict[str, str]]:
    """The hashes that the manifest has of the sketches up to this step."""
    return {number: hashes for number, hashes in read_manifest(run).sketches.items() if int(number) <= step}


def _compare(path: Path, sketch: SampledSketch, manifest: RunManifest, step: int) -> None:
    hashes = manifest.sketches.get(str(step))
    if hashes is None:
        raise DamagedFile(f"{path}: the manifest knows no sketch of step {step}.")
    for name in HASHES:
        if getattr(sketch, name) != hashes.get(name):
            what = name.removesuffix("_hash")
            raise DamagedFile(
                f"{path}: of other {what} than the manifest says: {getattr(sketch, name)[:16]}… in the file, "
                f"{str(hashes.get(name))[:16]}… in the manifest."
            )
