"""The training loop: sample, score, correct, update, record; one step after the other.

The loop is the same for PPO, GRPO, RLOO and REINFORCE++. They differ in how `learner/score.py` computes advantages from
rewards, and in whether there is a critic.
"""

import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from rlcorr.config import UNCLIPPED, CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.measuring.gap_parts import part_metrics
from rlcorr.measuring.measure import measure
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.measuring.metrics import metrics
from rlcorr.records import runs
from rlcorr.records.held_out import HeldOutAnswer, rewind_answers
from rlcorr.records.run_folders import only_writer
from rlcorr.train.config.learning import OptimConfig
from rlcorr.train.config.packaged import has_fast_bfloat16
from rlcorr.train.config.training import TrainConfig
from rlcorr.train.learner.bad_numbers import BAD, finite, refuse_failing_rewards, refuse_streak, summary
from rlcorr.train.learner.policy import engine_weights
from rlcorr.train.learner.ranks import Ranks, full_state, full_tensor, gather, local_state, start_ranks, stop_ranks
from rlcorr.train.learner.score import corrected, score, score_sampled, whitened
from rlcorr.train.learner.update import update
from rlcorr.train.output.config_file import write_config
from rlcorr.train.output.follow import following
from rlcorr.train.output.run_writer import RunWriter, manifest_of
from rlcorr.train.output.stopwatch import Stopwatch
from rlcorr.train.rollout.batch_queue import BatchRequest
from rlcorr.train.rollout.collect import Collected, batch_of, greedy, greedy_accuracy, merge_ranks, scored
from rlcorr.train.rollout.start import resolve_engine
from rlcorr.train.rollout.sync_proof import prove_step
from rlcorr.train.session.checkpoint import Checkpoint, read_checkpoint, restore, save
from rlcorr.train.session.resume import refuse_other_inputs, resumed_manifest
from rlcorr.train.session.session import Session, prepare
from rlcorr.train.sketches.exact import exact_sketch
from rlcorr.train.sketches.sampled import sampled_sketch
from rlcorr.types import TokenBatch

FOLLOWED = 3
"""Number of held-out prompts whose greedy answers are recorded at every evaluation."""


def train(config: TrainConfig, *, resume: bool = False) -> Path:
    """Train, and return the directory of the recorded run.

    With `resume`, continue the run of that name after its last checkpoint; the numbers are the same as if it had never
    been interrupted. Wrong settings raise `UsageError` before the engine starts.
    """
    ranks, held = start_ranks(), ExitStack()
    try:
        if config.sketch.every and ranks.size > 1:
            raise UsageError("sketches are made by one process; leave --sketch.every out, or start without torchrun.")
        if config.rollout.score_sampled and ranks.size > 1:
            raise UsageError("--rollout.score-sampled needs one process; leave it out, or start without torchrun.")
        config = gather(ranks, replace(config, run=config.run or runs.free_name(config.run_prefix)))[0]
        path = runs.LOCAL / config.run
        announce(config, ranks)
        if ranks.main:
            held.enter_context(only_writer(path))
            if not resume:
                runs.new_directory(path)
        state = read_checkpoint(path, ranks.device) if resume else None
        if ranks.main:
            if state:
                refuse_other_inputs(path, config)
                runs.rewind(path, state.step)
                rewind_answers(path, state.step)
            write_config(path / "config.yaml", config)
        gather(ranks, None)  # a barrier: no rank writes before the directory exists
        run_steps(config, ranks, path, state)
        if ranks.main:
            print(f"recorded in {path}")
    finally:
        held.close()
        stop_ranks(ranks)
    return path


def announce(config: TrainConfig, ranks: Ranks) -> None:
    """Print what will happen: the engine, the mode, the correction, and a warning about faults that were asked for."""
    engine = resolve_engine(config.rollout)
    if not ranks.main:
        return
    if engine == "transformers" and config.rollout.engine == "auto":
        print("vLLM is not installed: the transformers engine samples, which is slower.")
    if config.optim.precision == "bfloat16" and not has_fast_bfloat16():
        print("This processor multiplies bfloat16 very slowly: --optim.precision float32 is faster here.")
    if config.rollout.stale_lm_head:
        print("WARNING: stale_lm_head is on: every sync leaves lm_head.weight out, so the engine keeps an old head.")
    size = f" × {ranks.size} ranks ({config.optim.sharding})" if ranks.size > 1 else ""
    print(f"{config.run}: {config.advantage.estimator}, {engine} on {ranks.device.type}{size}.")
    print(f"{mode_of(config.correction)} {config.correction.explain()}", flush=True)


def mode_of(correction: CorrectionConfig) -> str:
    """Return one sentence that says which policies enter which ratio."""
    plain = correction.loss_type in UNCLIPPED
    if not correction.bypass_mode:
        ratio = "no ratio" if plain else "π_θ/π_old"
        return f"Mode decoupled, three policies: the correction takes π_old/π_rollout, the loss {ratio}."
    if plain:
        return "Mode bypass with policy gradient, two policies: the correction takes π_θ/π_rollout, the loss no ratio."
    return f"Mode bypass with {correction.loss_type}, two policies: the correction and the loss take π_θ/π_rollout."


def run_steps(config: TrainConfig, ranks: Ranks, path: Path, state: Checkpoint | None) -> None:
    """Make all steps from the first one, or from the one after the checkpoint, to the last one."""
    done = state.step if state else 0
    # The oldest batch that a resumed run had requested is sampled again.
    first_step = state.requests[0].step if state and state.requests else done + 1
    session = prepare(config, ranks, path, first_step)
    if ranks.main:
        gap = session.probe
        print(f"probe: mean |Δ| {gap.abs_log_ratio:.1e}, k3 {gap.k3:.1e}, {gap.pattern}: {gap.sentence}", flush=True)
    engine = session.worker.engine.description
    manifest = manifest_of(config, engine, ranks, asdict(session.probe), session.model)
    if state:
        manifest = resumed_manifest(runs.read_manifest(path), manifest, state.step)
    try:
        with RunWriter(path, manifest, ranks.main) as writer, following(path, config, done, ranks.main) as show:
            accuracy, bad_steps, earlier_seconds = start_of(session, writer, path, state)
            begin = time.perf_counter() - earlier_seconds
            # A resumed run may have been killed after its last step, before the model was written.
            reached = state is not None and accuracy >= config.stop_at_accuracy
            for step in range(done + 1, 1 + (done if reached else config.steps)):
                row = finite(one_step(session, writer, step))
                bad_steps = bad_steps + 1 if any(row[name] for name in BAD) else 0
                row["elapsed"] = time.perf_counter() - begin
                if step % config.eval_every == 0 or step == config.steps:
                    row["accuracy"] = accuracy = held_out_accuracy(session, writer, step)
                writer.metrics(row)
                show(row, accuracy)
                stop = step == config.steps or accuracy >= config.stop_at_accuracy
                if config.checkpoint_every and (stop or step % config.checkpoint_every == 0):
                    save(session, path, step, accuracy, bad_steps)
                refuse_streak(config, bad_steps, row)
                if stop:
                    break
            if config.save_model:
                writer.model(session.policy.lm, full_state(session.learner.module), session.worker.tokenizer)
    finally:
        session.queue.close()
        session.worker.engine.close()


def start_of(session: Session, writer: RunWriter, path: Path, state: Checkpoint | None) -> tuple[float, int, float]:
    """Return the accuracy, the number of bad steps in a row and the seconds of the run so far."""
    if state:
        return restore(session, state)
    accuracy = held_out_accuracy(session, writer, 0)
    if session.config.checkpoint_every and session.config.sketch.made_at(1):
        save(session, path, 0, accuracy, 0)  # an interrupted sketch of the first step goes on, too
    return accuracy, 0, 0.0


def one_step(session: Session, writer: RunWriter, step: int) -> dict[str, Any]:
    """Make one training step, and return its row of metrics. A batch with bad numbers is not learned from."""
    config, watch = session.config, Stopwatch()
    with watch.part("request"):
        request_batches(session, step)
    with watch.part("wait"):
        request, rank_samples = session.queue.get()
    # Ranks that share an engine have the same samples, so that one of them is enough.
    collected = merge_ranks(gather(session.ranks, rank_samples)[:: config.rollout.tensor_parallel_size])
    refuse_failing_rewards(step, collected.rewards)
    unscored = [reward is None for reward in collected.rewards]
    batch = batch_of(collected, session.ranks.device)
    row = {"step": step, **summary(batch, unscored=unscored, truncated=collected.truncated)}
    if not any(row[name] for name in BAD):
        row |= learn(session, writer, scored(collected), watch, request)
    return row | watch.report(collected.seconds, asynchronous=config.rollout.asynchronous)


def learn(
    session: Session,
    writer: RunWriter,
    collected: Collected,
    watch: Stopwatch,
    request: BatchRequest,
) -> dict[str, Any]:
    """Score, correct and record samples without bad numbers, and update the policy; return the metrics."""
    config, learner, step = session.config, session.learner, request.step
    with watch.part("score"):
        batch = scored_batch(session, collected, request)
    with watch.part("correct"):
        batch, result, correction = corrected(batch, config, step)
        row = metrics(measure(batch, result, correction))
        if config.rollout.score_sampled:
            row |= part_metrics(batch)
        if config.rollout.router_replay or batch.routed_experts is None:  # else rounding may swap experts in a tie
            prove_step(row[f"{PREFIX}k3_kl"], config.rollout, config.optim.precision)
    sketched = config.sketch.made_at(step)
    if sketched:
        with watch.part("sketch"):
            sketch = sampled_sketch(session, batch, step, request.weights)
            exact = exact_sketch(session, request.weights) if config.sketch.exact_prompts else None
            writer.sketch(step, sketch, exact)
    with watch.part("update"):
        set_learning_rate(learner.optimizer, config.optim, step, config.steps)
        row |= update(learner, whitened(batch, result, config.advantage), result)
    if sketched or step % config.record_every == 0 or step == config.steps:
        with watch.part("record"):
            writer.step(step, collected, batch, session.worker)
    return row


def scored_batch(session: Session, collected: Collected, request: BatchRequest) -> TokenBatch:
    """Return the samples with the scores of the trainer's models, and of the sampling weights if asked for."""
    config, ranks = session.config, session.ranks
    batch = score(batch_of(collected, ranks.device), session.learner.module, session.reference, config, ranks)
    if not config.rollout.score_sampled:
        return batch
    if request.version == request.step - 1:  # the weights that sampled are those that are trained
        return batch.replace(sampled_log_probs=batch.old_log_probs)
    return score_sampled(batch, session.policy, request.weights, config, ranks)


def request_batches(session: Session, step: int) -> None:
    """Request all batches up to `staleness` steps ahead that are not requested yet, with the present weights.

    With in-flight weights the engine goes on beyond the last step, as it takes new weights with a request.
    """
    config, queue = session.config, session.queue
    ahead = config.rollout.staleness
    first = queue.requests[-1].step + 1 if queue.requests else step
    last = step + ahead if config.rollout.in_flight else min(step + ahead, config.steps)
    if first > last:
        return
    weights = engine_weights(local_state(session.learner.module), session.policy.lm)
    if config.rollout.asynchronous:
        # Gather here: collective calls from the engine's thread would mix with those of the trainer.
        weights = [(name, full_tensor(tensor)) for name, tensor in weights]
    if ahead:  # copies: the trainer changes its tensors before the engine or a checkpoint has read them
        # In the engine's format, to which it rounds them anyway, unless the trainer computes with them as well.
        unrounded = config.sketch.every or config.rollout.score_sampled
        dtype = torch.float32 if unrounded else getattr(torch, config.rollout.dtype)
        weights = [(name, tensor.to(dtype, copy=True)) for name, tensor in weights]
    for requested in range(first, last + 1):
        queue.put(BatchRequest(requested, step - 1, weights))


def held_out_accuracy(session: Session, writer: RunWriter, step: int) -> float:
    """Return the greedy accuracy of the trained weights on the held-out prompts, and record the first few answers.

    The prompts are split over the engines of all ranks.
    """
    ranks, config = session.ranks, session.config
    per_engine = config.rollout.tensor_parallel_size
    engines = max(ranks.size // per_engine, 1)
    prompts = session.held_out[ranks.rank // per_engine :: engines]
    weights = engine_weights(local_state(session.learner.module), session.policy.lm)

    def work() -> Collected:
        session.worker.engine.sync(weights)
        return greedy(session.worker, prompts)

    answers = session.queue.run_exclusive(work)
    writer.held_out(
        [
            HeldOutAnswer(step, *answer)
            for answer in zip(answers.prompts, answers.responses, answers.rewards, strict=True)
        ][:FOLLOWED]
    )
    counts = gather(ranks, (greedy_accuracy(answers) * len(prompts), len(prompts)))[::per_engine]
    return sum(right for right, _ in counts) / sum(asked for _, asked in counts)


def set_learning_rate(optimizer: torch.optim.Optimizer, optim: OptimConfig, step: int, steps: int) -> None:
    """Set the learning rate of a step: linear from the first value to the final one."""
    done = (step - 1) / max(steps - 1, 1)
    rate = optim.learning_rate + done * (optim.final_learning_rate - optim.learning_rate)
    for group in optimizer.param_groups:
        group["lr"] = rate
