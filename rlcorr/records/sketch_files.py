"""Score sketches of recorded steps as files: `sketch/step_000012.safetensors.gz` beside `steps/`.

    scores (N, K) int8, units (N,) bfloat16
                                        one row per response token, in the order of the step's Parquet file
    by_token, by_sequence (M, K) float32, tokens, sequences (M,) float32    the reference, in blocks of responses
    next_log_probs, next_ref_log_probs, next_rollout_log_probs (P, V) float32, next_scores (P, V, K) float16
                                        every token that could follow at P places; what was not known is not there
And in steps that have them, all likely answers to some other prompts, a node per token:
    tree_prompts, tree_parents, tree_tokens, tree_{old, rollout, sampled}_log_probs float32, all (E,);
                                        sampled only where it is not what the engine reports
    exact_advantages (N,) float16       of every token, answer by answer
    exact_scores (E, K) int8, exact_units (E,)
    exact_task_prompts (1,)             how many prompts the training has, where they are finitely many
Or A sampled answers to other prompts, of N tokens, one answer after the other:
    drawn_lengths (A,), drawn_old_log_probs, drawn_rollout_log_probs (N,) float32, drawn_advantages (N,) float16,
    drawn_scores (N, K') int8, drawn_units (N,)    along the first K' of the K directions

A score is a whole number between -15 and 15, times the unit of its row. It is off by at most half a unit, 3.3 % of the
largest of its K numbers, by as much upwards as downwards. Of normal numbers that is a three-hundredth of their square
(K = 128, where projecting leaves a squared length off by an eighth). Sums over the next token cancel to less than that,
so they keep float16. Integers are as narrow as their values allow.
The manifest and the file both carry the hashes of the weights and of the directions; they must agree.
"""

import gzip
import json
import zlib
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from rlcorr.errors import UsageError, first_line
from rlcorr.gradients.answers import AnswerTree
from rlcorr.gradients.sketch import DrawnAnswers, ExactSketch, NextTokens, Reference, SampledSketch, Sketch
from rlcorr.losses.advantages import GROUPED, whiten
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
from rlcorr.records.step_files import pad
from rlcorr.types import TokenBatch

_INCOMPLETE = (KeyError, TypeError, RuntimeError, ValueError)
"""What tensors raise that are missing, or whose sizes do not fit."""
HASHES = ("weights_hash", "directions_hash")
LARGEST = 15
"""Of a score in units: five bits, which is what gzip makes of such numbers."""
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)


def write_sketch(run: Path, step: int, sketch: SampledSketch, others: ExactSketch | DrawnAnswers | None = None) -> None:
    """With the answers that its gradients are measured on, where these are others than the step's own."""
    tensors = {**_in_units("", sketch.scores), **vars(sketch.reference)}
    if sketch.next_tokens is not None:
        tensors |= {f"next_{name}": value for name, value in vars(sketch.next_tokens).items() if value is not None}
        tensors["next_scores"] = sketch.next_tokens.scores.half()
    if isinstance(others, ExactSketch):
        tensors |= _of_exact(others)
    if isinstance(others, DrawnAnswers):
        tensors |= _of_drawn(others)
    (run / "sketch").mkdir(exist_ok=True)
    content = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    write_tensors(sketch_path(run, step), content, {name: getattr(sketch, name) for name in HASHES})


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    write_whole(path, gzip.compress(save(tensors, metadata), mtime=0))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """With the metadata, which a safetensors file has in JSON behind the eight bytes of its length."""
    content = gzip.decompress(path.read_bytes())
    tensors = load(content)
    end = 8 + int.from_bytes(content[:8], "little")
    return tensors, json.loads(content[8:end]).get("__metadata__", {})


def _of_exact(sketch: ExactSketch) -> dict[str, Tensor]:
    tree = {f"tree_{name}": _narrow(values) for name, values in vars(sketch.tree).items()}
    if torch.equal(sketch.tree.sampled_log_probs, sketch.tree.rollout_log_probs):
        del tree["tree_sampled_log_probs"]
    if sketch.task_prompts is not None:
        tree["exact_task_prompts"] = torch.tensor([sketch.task_prompts])
    return {**tree, "exact_advantages": sketch.advantages.half(), **_in_units("exact_", sketch.scores)}


def _of_drawn(answers: DrawnAnswers) -> dict[str, Tensor]:
    batch = answers.batch
    assert batch.old_log_probs is not None
    assert batch.advantages is not None
    return {
        "drawn_lengths": _narrow(batch.response_mask.sum(-1)),
        "drawn_old_log_probs": batch.old_log_probs[batch.response_mask].float(),
        "drawn_rollout_log_probs": batch.rollout_log_probs[batch.response_mask].float(),
        "drawn_advantages": batch.advantages[batch.response_mask].half(),
        **_in_units("drawn_", answers.scores),
    }


def _in_units(prefix: str, scores: Tensor) -> dict[str, Tensor]:
    """(N, K) as whole numbers, with a unit for each row."""
    units = (scores.abs().amax(-1).clamp(min=1e-30) / LARGEST).bfloat16()
    return {f"{prefix}scores": (scores / units[:, None]).round().to(torch.int8), f"{prefix}units": units}


def _narrow(values: Tensor) -> Tensor:
    """Integers in the first type that holds them all, anything else in float32."""
    if values.is_floating_point():
        return values.float()
    low, high = (int(bound) for bound in values.aminmax())
    return values.to(next(kind for kind in INTEGERS if torch.iinfo(kind).min <= low and high <= torch.iinfo(kind).max))


def read_gradients(run: Path, step: int) -> tuple[TokenBatch, Sketch]:
    """What gradients are measured on: every likely answer to some prompts, or the answers drawn for it, where the step
    has them; else its own answers as its update sees them. Raises as `read_sketch`, and where the step itself cannot
    be read."""
    sketch, tensors = _read(run, step)
    if "drawn_scores" in tensors:
        return _drawn(run, step, sketch, tensors)
    exact = _exact(run, step, sketch, tensors)
    return (updated_batch(run, step), sketch) if exact is None else (exact.answers.batch, exact)


def read_exact(run: Path, step: int) -> ExactSketch | None:
    """None where the step has no answers but its own. Raises as `read_sketch`."""
    return _exact(run, step, *_read(run, step))


def _exact(run: Path, step: int, sketch: SampledSketch, tensors: dict[str, Tensor]) -> ExactSketch | None:
    if "exact_scores" not in tensors:
        return None
    try:
        tree = {name.removeprefix("tree_"): _wide(values) for name, values in tensors.items() if name[:5] == "tree_"}
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
    except _INCOMPLETE as error:
        raise DamagedFile(f"{sketch_path(run, step)}: cannot be read ({first_line(error)}).") from error


def _drawn(run: Path, step: int, sketch: SampledSketch, tensors: dict[str, Tensor]) -> tuple[TokenBatch, SampledSketch]:
    """The drawn answers, and the step's sketch with their scores in place of its own."""
    try:
        lengths, scores = tensors["drawn_lengths"].long(), _scores("drawn_", tensors)
        columns = {
            name: pad(tensors[f"drawn_{name}"].float(), lengths)
            for name in ("old_log_probs", "rollout_log_probs", "advantages")
        }
        batch = TokenBatch(
            response_mask=columns["advantages"][1], **{name: padded for name, (padded, _) in columns.items()}
        )
        reference = sketch.reference.along_first(scores.shape[1])
        return batch, replace(sketch, scores=scores, reference=reference)
    except _INCOMPLETE as error:
        raise DamagedFile(f"{sketch_path(run, step)}: cannot be read ({first_line(error)}).") from error


def _scores(prefix: str, tensors: dict[str, Tensor]) -> Tensor:
    """As float32, (N, K). Raises `KeyError` without units."""
    return tensors[f"{prefix}scores"].float() * tensors[f"{prefix}units"][:, None].float()


def _wide(values: Tensor) -> Tensor:
    return values if values.is_floating_point() else values.long()


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
        tensors, metadata = read_tensors(path)
        reference = Reference(*(tensors[name] for name in ("by_token", "by_sequence", "tokens", "sequences")))
        sketch = SampledSketch(
            _scores("", tensors), reference, _next_tokens(tensors), *(metadata[name] for name in HASHES)
        )
    except (OSError, EOFError, zlib.error, SafetensorError, *_INCOMPLETE) as error:
        raise DamagedFile(f"{path}: cannot be read ({first_line(error)}).") from error
    _compare(path, sketch, read_manifest(run), step)
    return sketch, tensors


def _next_tokens(tensors: dict[str, Tensor]) -> NextTokens | None:
    if "next_scores" not in tensors:
        return None
    return NextTokens(**{name.removeprefix("next_"): v.float() for name, v in tensors.items() if name[:5] == "next_"})


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
