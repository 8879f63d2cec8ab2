"""Files of a run, written while it trains: manifest, metrics, recorded steps, held-out answers, sketches and model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from rlcorr.errors import UsageError
from rlcorr.gradients.sketch import ExactSketch, SampledSketch
from rlcorr.records import runs
from rlcorr.records.held_out import FILE, HeldOutAnswer, append_answers
from rlcorr.records.runs import RunManifest
from rlcorr.records.sketch_files import write_sketch
from rlcorr.records.step_files import StepRecord
from rlcorr.records.token_texts import END, text_kind
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.learner.ranks import Ranks
from rlcorr.train.output import provenance
from rlcorr.train.rollout.collect import Collected, RolloutWorker
from rlcorr.types import TokenBatch

ALGORITHMS = {"gae": "PPO", "grpo": "GRPO", "rloo": "RLOO", "reinforce_pp": "REINFORCE++"}


def manifest_of(
    config: TrainConfig, engine: dict[str, Any], ranks: Ranks, probe: dict[str, Any], model: Path
) -> RunManifest:
    """Return the manifest of a run that starts from the weights in `model`, which only the main rank hashes."""
    return RunManifest(
        slug=config.run,
        story=f"{ALGORITHMS[config.advantage.estimator]} on {config.task}: {engine['name']} samples in "
        f"{_number_format(config)}, the trainer computes in {config.optim.precision}.",
        task=config.task,
        model=config.as_dict()["model"],
        seed=config.seed,
        trainer_dtype=config.optim.precision,
        engine=engine["name"],
        engine_settings=engine,
        versions=provenance.versions(),
        hardware=provenance.hardware(ranks.device) + (f", {ranks.size} ranks" if ranks.size > 1 else ""),
        git_commit=provenance.git_commit(),
        environment=provenance.environment(),
        weights_sha256=provenance.weights_sha256(model) if ranks.main else {},
        inputs_sha256=provenance.inputs_sha256(config) if ranks.main else {},
        started=provenance.now(),
        config=config.as_dict(),
        probe=probe,
    )


def _number_format(config: TrainConfig) -> str:
    rollout = config.rollout
    weights = [f"weights {name}" for name in (rollout.quantization, rollout.weights) if name != "none"]
    cache = [] if rollout.kv_cache_dtype == "auto" else [f"KV cache {rollout.kv_cache_dtype}"]
    return ", ".join([rollout.dtype, *weights, *cache])


class RunWriter:
    """Writer of one run, used in a `with` block. Leaving the block finishes the manifest, also after an error.

    Only the main rank writes. Every method raises `UsageError` if somebody else, such as a reward function, has changed
    a file of the run; its manifest then says that it was interrupted.
    """

    def __init__(self, path: Path, manifest: RunManifest, main: bool = True) -> None:
        self.path = path
        self._manifest = manifest
        self._main = main
        self._stamps: dict[Path, tuple[int, int]] = {}
        """File → its size and time when it was written last."""

    def __enter__(self) -> "RunWriter":
        if self._main:
            runs.write_manifest(self.path, self._manifest)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._main:
            changed = [path for path, stamp in self._stamps.items() if stamp != _stamp(path)]
            status = "interrupted" if kind is not None or changed else "complete"
            runs.finish_run(self.path, replace(self._manifest, status=status, ended=provenance.now()))
            if kind is None:
                for path in changed:
                    raise _foreign(path)

    def _write(self, path: Path, write: Callable[[], object]) -> None:
        """Write a file of the run, and remember how it was left."""
        if self._stamps.get(path, stamp := _stamp(path)) != stamp:
            raise _foreign(path)
        write()
        self._stamps[path] = _stamp(path)

    def metrics(self, row: dict[str, Any]) -> None:
        if self._main:
            self._write(self.path / "metrics.jsonl", lambda: runs.append_metrics(self.path, row))

    def step(self, step: int, collected: Collected, batch: TokenBatch, worker: RolloutWorker) -> None:
        if self._main:
            record = StepRecord(step, batch, collected.prompts, collected.responses)
            if text_kind(record) != "characters":
                ids = collected.samples.response_ids
                record = replace(record, tokens=[token_texts(worker.tokenizer, row, worker.eos_ids) for row in ids])
            self._write(runs.step_path(self.path, step), lambda: runs.write_step(self.path, record))

    def held_out(self, answers: Sequence[HeldOutAnswer]) -> None:
        if self._main:
            self._write(self.path / FILE, lambda: append_answers(self.path, answers))

    def sketch(self, step: int, sketch: SampledSketch, exact: ExactSketch | None) -> None:
        if self._main:
            self._write(runs.sketch_path(self.path, step), lambda: write_sketch(self.path, step, sketch, exact))

    def model(self, lm: PreTrainedModel, state: Mapping[str, Tensor], tokenizer: PreTrainedTokenizerFast) -> None:
        """Write the trained model in Hugging Face format, so that another run can start from it."""
        if self._main:
            weights = {name.removeprefix("lm."): tensor for name, tensor in state.items() if name.startswith("lm.")}
            lm.save_pretrained(self.path / "checkpoint", state_dict=weights)
            tokenizer.save_pretrained(self.path / "checkpoint")


def _stamp(path: Path) -> tuple[int, int]:
    """Return the size and the time of a file; zeros if there is none."""
    status = path.stat() if path.exists() else None
    return (status.st_size, status.st_mtime_ns) if status else (0, 0)


def _foreign(path: Path) -> UsageError:
    return UsageError(
        f"{path} was changed by something else than the training run, such as its reward function; a run has one "
        "writer."
    )


def token_texts(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int], eos_ids: Sequence[int]) -> list[str]:
    """Return the text of each token by itself, and `END` for a token that ends a response.

    Bytes that are not a whole character become U+FFFD.
    """
    return [END if token in eos_ids else str(tokenizer.decode([token])) for token in ids]
