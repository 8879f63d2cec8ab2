"""Score sketches of recorded steps as files: `sketch/step_000012.safetensors` beside `steps/`.

    scores (N, K) float16               one row per response token, in the order of the step's Parquet file
    by_token, by_sequence (M, K) float32, tokens, sequences (M,) float32    the reference, in blocks of responses
    next_log_probs, next_ref_log_probs, next_rollout_log_probs (P, V) float32, next_scores (P, V, K) float16
                                        every token that could follow at P places; what was not known is not there

The manifest and the file both carry the hashes of the weights and of the directions; they must agree.
"""

from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from rlcorr.advantages import GROUPED, whiten
from rlcorr.errors import UsageError, first_line
from rlcorr.gradients.sketch import NextTokens, Reference, Sketch
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


def write_sketch(run: Path, step: int, sketch: Sketch) -> None:
    """Scores in float16: a projection of standard normal directions is far from its limits."""
    reference = sketch.reference
    tensors = {
        "scores": sketch.scores.half(), "by_token": reference.by_token, "by_sequence": reference.by_sequence,
        "tokens": reference.tokens, "sequences": reference.sequences,
    }  # fmt: skip
    if sketch.next_tokens is not None:
        tensors |= {f"next_{name}": value for name, value in vars(sketch.next_tokens).items() if value is not None}
        tensors["next_scores"] = sketch.next_tokens.scores.half()
    (run / "sketch").mkdir(exist_ok=True)
    content = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    write_whole(sketch_path(run, step), save(content, {name: getattr(sketch, name) for name in HASHES}))


def read_sketch(run: Path, step: int) -> Sketch:
    """Raises `UsageError` where the step has none, with the command that records them, or where the hashes of manifest
    and file differ; `DamagedFile` where it cannot be read."""
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
            tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 it is no dict
        reference = Reference(*(tensors[name] for name in ("by_token", "by_sequence", "tokens", "sequences")))
        following = {name.removeprefix("next_"): value for name, value in tensors.items() if name.startswith("next_")}
        places = NextTokens(**following) if following else None
        sketch = Sketch(tensors["scores"], reference, places, *(metadata[name] for name in HASHES))
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise DamagedFile(f"{path}: cannot be read ({first_line(error)}).") from error
    _compare(path, sketch, read_manifest(run), step)
    return sketch


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


def with_sketch(manifest: RunManifest, step: int, sketch: Sketch) -> RunManifest:
    """The manifest that knows this sketch."""
    hashes = {name: getattr(sketch, name) for name in HASHES}
    return replace(manifest, sketches={**manifest.sketches, str(step): hashes})


def sketches_until(run: Path, step: int) -> dict[str, dict[str, str]]:
    """The hashes that the manifest has of the sketches up to this step."""
    return {number: hashes for number, hashes in read_manifest(run).sketches.items() if int(number) <= step}


def _compare(path: Path, sketch: Sketch, manifest: RunManifest, step: int) -> None:
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
