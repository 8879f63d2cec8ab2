"""The training loop: sample, score, correct, update, record; one step after the other.

The loop is the same for PPO, GRPO, RLOO and REINFORCE++: they differ in how `learner/score.py` makes advantages of
rewards, and in whether there is a critic.
"""

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from rlcorr.config import UNCLIPPED, CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.gradients.sketch import DrawnAnswers, ExactSketch
from rlcorr.measuring.measure import measure
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.measuring.metrics import metrics
from rlcorr.records import runs
from rlcorr.records.held_out import HeldOutAnswer, rewind_answers
from rlcorr.records.sketch_files import sketches_until
from rlcorr.train.config.learning import OptimConfig
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.learner.bad_numbers import BAD, finite, refuse_streak, summary
from rlcorr.train.learner.policy import engine_weights
from rlcorr.train.learner.ranks import Ranks, full_state, gather, start_ranks, state_here, stop_ranks, whole
from rlcorr.train.learner.score import ALL_ROWS, corrected, score, whitened
from rlcorr.train.learner.update import update
from rlcorr.train.output.config_file import write_config
from rlcorr.train.output.follow import Follow, check_installed
from rlcorr.train.output.recorder import Recorder, manifest_of
from rlcorr.train.output.stopwatch import Stopwatch
from rlcorr.train.rollout.batch_queue import BatchRequest
from rlcorr.train.rollout.collect import Collected, batch_of, greedy, greedy_accuracy, joined, learned_rows, scored
from rlcorr.train.rollout.start import resolve_engine
from rlcorr.train.rollout.sync_proof import prove_step
from rlcorr.train.session.checkpoint import Checkpoint, read_checkpoint, restore, save
from rlcorr.train.session.session import Session, prepare
from rlcorr.train.sketches.drawn_answers import drawn_answers
from rlcorr.train.sketches.exact import exact_sketch
from rlcorr.train.sketches.sampled import sampled_sketch

FOLLOWED = 3
"""Held-out prompts whose greedy answers are recorded at every evaluation."""


def train(config: TrainConfig, *, resume: bool = False) -> Path:
    """Train, and return the directory of the recorded run. Wrong settings are refused before the engine starts.

    With `resume` the run of that name goes on after its last checkpoint, on the very same trajectory.
    """
    ranks = start_ranks()
    try:
        if config.sketch.every and ranks.size > 1:
            raise UsageError("sketches are made by one process; leave --sketch.every out, or start without torchrun.")
        config = gather(ranks, replace(config, run=config.run or runs.free_name(config.run_prefix)))[0]
        path = runs.LOCAL / config.run
        announce(config, ranks)
        state = read_checkpoint(path, ranks.device) if resume else None
        if ranks.main:
            if state:
                runs.rewind(path, state.step)
                rewind_answers(path, state.step)
            else:
                runs.new_directory(path)
            write_config(path / "config.yaml", config)
        gather(ranks, None)  # nobody writes before the directory is there
        run_steps(config, ranks, path, state)
        if ranks.main:
            print(f"recorded in {path}")
    finally:
        stop_ranks(ranks)
    return path


def announce(config: TrainConfig, ranks: Ranks) -> None:
    """Say what will happen: the engine, the mode, the correction, and faults that were asked for."""
    engine = resolve_engine(config.rollout)
    if not ranks.main:
        return
    check_installed(config)
    if engine == "transformers" and config.rollout.engine == "auto":
        print("no vLLM on this platform: the transformers engine samples, more slowly.")
    if config.rollout.stale_lm_head:
        print("WARNING: stale_lm_head is on: every sync leaves lm_head.weight out, so the engine keeps an old head.")
    size = f" × {ranks.size} ranks ({config.optim.sharding})" if ranks.size > 1 else ""
    print(f"{config.run}: {config.advantage.estimator}, {engine} on {ranks.device.type}{size}.")
    print(f"{mode_of(config.correction)} {config.correction.explain()}", flush=True)


def mode_of(correction: CorrectionConfig) -> str:
    """Which policies enter which ratio, in one sentence."""
    plain = correction.loss_type in UNCLIPPED
    if not correction.bypass_mode:
        ratio = "no ratio" if plain else "π_θ/π_old"
        return f"Mode decoupled, three policies: the correction takes π_old/π_rollout, the loss {ratio}."
    if plain:
        return "Mode bypass with policy gradient, two policies: the correction takes π_θ/π_rollout, the loss no ratio."
    return f"Mode bypass with {correction.loss_type}, two policies: the correction and the loss take π_θ/π_rollout."


def run_steps(config: TrainConfig, ranks: Ranks, path: Path, state: Checkpoint | None) -> None:
    """From the first step, or the one after the checkpoint, to the last."""
    done = state.step if state else 0
    session = prepare(config, ranks, path, first_step=_first_request(state, done + 1))
    if ranks.main:
        probe = session.probe
        print(
            f"probe: mean |Δ| {probe.abs_log_ratio:.1e}, k3 {probe.k3:.1e}, {probe.pattern}: {probe.sentence}",
            flush=True,
        )
    manifest = manifest_of(config, session.worker.engine.description, ranks, asdict(session.probe))
    if state:
        manifest = replace(manifest, sketches=sketches_until(path, done))
    try:
        with Recorder(path, manifest, ranks.main) as recorder, Follow(path, config, done, ranks.main) as follow:
            start = restore(session, state) if state else (held_out_accuracy(session, recorder, 0), 0, 0.0)
            accuracy, bad_steps, before = start
            begin = time.perf_counter() - before
            reached = state is not None and accuracy >= config.stop_at_accuracy  # killed before the model was written
            for step in range(done + 1, 1 + (done if reached else config.steps)):
                row = finite(one_step(session, recorder, step))
                bad_steps = bad_steps + 1 if any(row[name] for name in BAD) else 0
                row["elapsed"] = time.perf_counter() - begin
                if step % config.eval_every == 0 or step == config.steps:
                    row["accuracy"] = accuracy = held_out_accuracy(session, recorder, step)
                recorder.metrics(row)
                follow.row(row, accuracy)
                stop = step == config.steps or accuracy >= config.stop_at_accuracy
                if config.checkpoint_every and (stop or step % config.checkpoint_every == 0):
                    save(session, path, step, accuracy, bad_steps)
                refuse_streak(config, bad_steps, row)
                if stop:
                    break
            if config.save_model:
                recorder.model(session.policy.lm, full_state(session.learner.module), session.worker.tokenizer)
    finally:
        session.queue.close()
        session.worker.engine.close()


def _first_request(state: Checkpoint | None, otherwise: int) -> int:
    """The first step whose batch has to be sampled: of a resumed run, that of the oldest request it had waiting."""
    return state.requests[0].step if state and state.requests else otherwise


def one_step(session: Session, recorder: Recorder, step: int) -> dict[str, Any]:
    """One training step; returns its row of metrics. Bad numbers skip what they would have spoiled."""
    config, watch = session.config, Stopwatch()
    with watch.part("request"):
        request_batches(session, step)
    with watch.part("wait"):
        request, mine = session.queue.get()
    collected = joined(gather(session.ranks, mine)[:: config.rollout.tensor_parallel_size])
    unscored = [reward is None for reward in collected.rewards]
    batch, mask = batch_of(collected, session.ranks.device), config.mask_truncated
    row = {"step": step, **summary(batch, unscored=unscored, truncated=collected.truncated, mask=mask)}
    if not any(row[name] for name in BAD):
        row |= learn(session, recorder, scored(collected), watch, request)
    return row | watch.report(collected.seconds, asynchronous=config.rollout.asynchronous)


def learn(
    session: Session,
    recorder: Recorder,
    collected: Collected,
    watch: Stopwatch,
    request: BatchRequest,
) -> dict[str, Any]:
    """Score, correct, update and record samples of good numbers.

    With `mask_truncated` all are recorded and count in their groups; the correction, its metrics and the update see
    only those that ended by themselves.
    """
    config, learner, step = session.config, session.learner, request.step
    with watch.part("score"):
        batch = batch_of(collected, session.ranks.device)
        batch = score(batch, learner.module, session.reference, config, session.ranks)
    with watch.part("correct"):
        rows = learned_rows(collected, batch.response_mask.device) if config.mask_truncated else ALL_ROWS
        batch, result, correction = corrected(batch, config, step, rows)
        part = batch.rows(rows)
        report = metrics(measure(part, result, correction))
        if config.rollout.router_replay or batch.routed_experts is None:  # else a tie may swap experts
            prove_step(report[f"{PREFIX}k3_kl"], config.rollout, config.optim.precision)
    sketched = config.sketch.made_at(step)
    if sketched:
        with watch.part("sketch"):
            sketch = sampled_sketch(session, batch, step, request.weights)
            recorder.sketch(step, sketch, other_answers(session, request))
    with watch.part("update"):
        set_learning_rate(learner.optimizer, config.optim, step, config.steps)
        report |= update(learner, whitened(part, result, config.advantage), result)
    if sketched or step % config.record_every == 0 or step == config.steps:
        with watch.part("record"):
            recorder.step(step, collected, batch, session.worker)
    return report


def other_answers(session: Session, request: BatchRequest) -> ExactSketch | DrawnAnswers | None:
    """What gradients are measured on instead of the step's own answers, where the run asks for it."""
    sketch = session.config.sketch
    if sketch.exact_prompts:
        return exact_sketch(session, request.weights)
    return drawn_answers(session, request) if sketch.answers else None


def request_batches(session: Session, step: int) -> None:
    """Request the batches up to `staleness` steps ahead that are not requested yet, from the present weights."""
    config, queue = session.config, session.queue
    ahead = config.rollout.staleness
    first = queue.requests[-1].step + 1 if queue.requests else step
    last = min(step + ahead, config.steps)
    if first > last:
        return
    weights = engine_weights(state_here(session.learner.module), session.policy.lm)
    if config.rollout.asynchronous:  # gathered now: in its thread that would cross what the trainer gathers
        weights = [(name, whole(tensor)) for name, tensor in weights]
    if ahead:  # the trainer goes on with these tensors before the engine, or a checkpoint, has read them
        dtype = waiting_dtype(config)
        weights = [(name, tensor.to(dtype, copy=True)) for name, tensor in weights]
    for requested in range(first, last + 1):
        queue.put(BatchRequest(requested, step - 1, weights))


def waiting_dtype(config: TrainConfig) -> torch.dtype:
    """Return the number format of weights that wait to sample: the engine's, which it rounds them to anyway; float32 if
    a sketch is made of them."""
    return torch.float32 if config.sketch.every else getattr(torch, config.rollout.dtype)


def held_out_accuracy(session: Session, recorder: Recorder, step: int) -> float:
    """Return the greedy accuracy of the trained weights on the held-out prompts, and record the first few answers.
    Ranks share the prompts."""
    ranks, config = session.ranks, session.config
    per_engine = config.rollout.tensor_parallel_size
    engines = max(ranks.size // per_engine, 1)
    mine = session.held_out[ranks.rank // per_engine :: engines]
    weights = engine_weights(state_here(session.learner.module), session.policy.lm)

    def work() -> Collected:
        session.worker.engine.sync(weights)
        return greedy(session.worker, mine)

    answers = session.queue.when_idle(work)
    recorder.held_out(
        [
            HeldOutAnswer(step, *answer)
            for answer in zip(answers.prompts, answers.responses, answers.rewards, strict=True)
        ][:FOLLOWED]
    )
    counts = gather(ranks, (greedy_accuracy(answers) * len(mine), len(mine)))[::per_engine]
    return sum(right for right, _ in counts) / sum(asked for _, asked in counts)


def set_learning_rate(optimizer: torch.optim.Optimizer, optim: OptimConfig, step: int, steps: int) -> None:
    """A linear rise over the warm-up, then linear from the first value to the last one's."""
    done = (step - 1) / max(steps - 1, 1)
    rate = optim.learning_rate + done * (optim.final_learning_rate - optim.learning_rate)
    for group in optimizer.param_groups:
        group["lr"] = rate * min(step / (optim.warmup_steps + 1), 1.0)
