"""`make bench ARGS=long`: what a mismatch does to answers of 200 to 500 tokens, on the recorded runs of `sorting`.

For each run: the three kinds of weights and the usual bounds on the long answers, how the effective sample size (ESS)
of the products falls with the length, and what every preset that looks at whole answers keeps. First, what the model
that they start from can do: a minute of sampling; the rest are seconds.
"""

import itertools
import math
import statistics
from collections.abc import Iterator

import torch
from torch import Tensor

from rlcorr.config import CorrectionConfig
from rlcorr.correction import correct
from rlcorr.presets import PRESETS
from rlcorr.ratios import over_sequence, ratio
from rlcorr.records import runs
from rlcorr.rules import RejectionRule
from rlcorr.train.config.rollout import GREEDY, RolloutConfig, Sampling
from rlcorr.train.inputs.tasks import examples, get_task
from rlcorr.train.inputs.tokenizer import eos_ids, load_tokenizer
from rlcorr.train.learner.policy import load_lm
from rlcorr.train.rollout.collect import RolloutWorker, collect
from rlcorr.train.rollout.transformers_engine import TransformersEngine
from rlcorr.types import TokenBatch
from rlcorr.weights import LEVELS, Weights

RUNS = {"long_bf16": "bf16", "long_kv_fp8_e5m2": "kv_fp8_e5m2", "long_stale_4": "stale_4"}
"""Run → the one with the same mismatch and short answers."""
LONG = 350
"""Answers of so many tokens or more are long ones."""
HELD_OUT = 256
LENGTHS = (50, 100, 200, 400)
REPLICATES = 1000
LEVEL = torch.tensor([0.025, 0.975], dtype=torch.float64)
BOUNDS: dict[str, dict[str, tuple[float | None, float]]] = {
    "product in [0.5, 2]": {"seq_sum_k1": (0.5, 2.0)},
    "product up to 2": {"seq_sum_k1": (None, 2.0)},
    "geometric mean ±0.1 %": {"seq_mean_k1": (0.999, 1.001)},
    "geometric mean ±1 %": {"seq_mean_k1": (0.99, 1.01)},
    "mean k3 up to 0.01": {"seq_mean_k3": (None, 0.01)},
    "every token in [0.5, 2]": {"seq_min_k1": (0.5, math.inf), "seq_max_k1": (None, 2.0)},
}


def main() -> None:
    for line in start():
        print(line, flush=True)
    for name, short in RUNS.items():
        steps = batches(name)
        tables = (weighed(steps), bounded(steps), shrinking(steps, batches(short)), kept(steps))
        for line in itertools.chain(described(name, steps), *tables):
            print(line, flush=True)


def start() -> Iterator[str]:
    """Held-out prompts, answered by the warm start in float32."""
    model, task = runs.ROOT / "warm_start_long" / "checkpoint", get_task("sorting")
    tokenizer = load_tokenizer(model)
    stops = eos_ids(model, tokenizer)
    engine = TransformersEngine(RolloutConfig(dtype="float32"), load_lm(model, torch.device("cpu")), stops)
    worker = RolloutWorker(engine, tokenizer, task, stops)
    prompts = list(itertools.islice(examples(task, 0, held_out=True), HELD_OUT))
    for label, sampling in (("temperature 1", Sampling()), ("greedy", GREEDY)):
        collected = collect(worker, prompts, samples=1, sampling=sampling, version=0, seed=0)
        rewards = [reward for reward in collected.rewards if reward is not None]  # all: this task judges any answer
        lengths = [len(ids) for ids in collected.samples.response_ids]
        yield (
            f"warm start, {HELD_OUT} held-out prompts, {label}: mean reward {statistics.mean(rewards):.2f}, "
            f"{rewards.count(1.0) / HELD_OUT:.0%} of the answers complete; {min(lengths)} to {max(lengths)} tokens, "
            f"{statistics.mean(lengths):.0f} on average, {lengths.count(task.max_tokens) / HELD_OUT:.0%} at the limit"
        )


def batches(name: str) -> list[TokenBatch]:
    """The recorded steps of a run, log-probs in float64, so that differences are exact."""
    run = runs.find_run(name)
    recorded = [runs.read_step(run, step).batch for step in runs.list_steps(run)]
    names = ("old_log_probs", "rollout_log_probs")
    return [batch.replace(**{key: batch.tensors()[key].double() for key in names}) for batch in recorded]


def described(name: str, steps: list[TokenBatch]) -> Iterator[str]:
    lengths = torch.cat([batch.response_mask.sum(-1) for batch in steps])
    rewards = torch.cat([batch.tensors()["rewards"] for batch in steps])
    tokens = token_log_ratios(steps)
    yield (
        f"\n{name}: {len(lengths)} answers of {lengths.min()} to {lengths.max()} tokens, {lengths.double().mean():.0f} "
        f"on average, {int((lengths >= LONG).sum())} of {LONG} or more; mean reward {rewards.mean():.2f}; "
        f"token: KL {-tokens.mean():.1e}, standard deviation of log r {tokens.std():.3f}\n"
    )


def token_log_ratios(steps: list[TokenBatch]) -> Tensor:
    return torch.cat([log_ratios(batch)[batch.response_mask] for batch in steps])


def log_ratios(batch: TokenBatch) -> Tensor:
    return correct(batch, CorrectionConfig()).log_ratio


# --- weights and bounds on long answers ---


def weighed(steps: list[TokenBatch]) -> Iterator[str]:
    """Unbounded weights of each kind: one per answer, but of tokens one per token."""
    long = long_answers(steps)
    yield f"| weight, on answers of {LONG} tokens or more | mean | standard deviation | ESS | above 2 | below 0.5 |"
    yield "|---|---|---|---|---|---|"
    for level in LEVELS:
        logs = torch.cat([of_level(batch, level) for batch in long])
        w = ratio(logs)
        ess = float(w.mean().square() / w.square().mean())
        far = (logs > math.log(2)).double().mean(), (logs < -math.log(2)).double().mean()
        yield f"| {level} | {w.mean():.3f} | {w.std():.3f} | {ess:.2f} | {far[0]:.2%} | {far[1]:.2%} |"
    yield ""


def long_answers(steps: list[TokenBatch]) -> list[TokenBatch]:
    return [batch.rows(batch.response_mask.sum(-1) >= LONG) for batch in steps]


def of_level(batch: TokenBatch, level: str) -> Tensor:
    """Logarithms of the weights: of tokens all of them in a row, else one per answer."""
    logs = Weights(level).raw(log_ratios(batch), batch.response_mask)
    return logs[batch.response_mask] if LEVELS[level].per_token else logs[:, 0]


def bounded(steps: list[TokenBatch]) -> Iterator[str]:
    yield f"| bound, on answers of {LONG} tokens or more | answers outside |"
    yield "|---|---|"
    for label, bounds in BOUNDS.items():
        rules = (RejectionRule.named(name, lower=low, upper=high) for name, (low, high) in bounds.items())
        config = CorrectionConfig(rollout_rs=tuple(rules))
        keep = torch.cat([correct(batch, config).keep_mask.any(-1) for batch in long_answers(steps)])
        yield f"| {label} | {share(~keep)} |"
    yield ""


def share(flags: Tensor) -> str:
    """With its 95 % interval over the flags, from a normal approximation with two successes and failures added."""
    count, mean = len(flags), float(flags.double().mean())
    middle = (float(flags.sum()) + 2) / (count + 4)
    half = 1.96 * math.sqrt(middle * (1 - middle) / (count + 4))
    return f"{mean:.1%} [{max(middle - half, 0):.1%}, {min(middle + half, 1):.1%}]"


# --- effective sample size over the length ---


def shrinking(steps: list[TokenBatch], short: list[TokenBatch]) -> Iterator[str]:
    """Measured, and as it would be extrapolated: from the first 50 tokens, from the mean χ² of single tokens, and from
    that of the run with short answers. An answer that ends before T stays as it is: the engine drew its end too, so the
    products still average to 1. Extrapolated is to the tokens that there are on average."""
    chi_long, chi_short = (float((ratio(token_log_ratios(of)) - 1).square().mean()) for of in (steps, short))
    yield "| first T tokens | on average | mean product | ESS | from 50 tokens | from tokens | from short answers |"
    yield "|---|---|---|---|---|---|---|"
    first, first_tokens = effective(steps, LENGTHS[0]), tokens_until(steps, LENGTHS[0])
    for length in LENGTHS:
        products, tokens = prefix_products(steps, length), tokens_until(steps, length)
        error = float(products.std()) / math.sqrt(len(products))
        yield (
            f"| {length} | {tokens:.0f} | {products.mean():.3f} ± {error:.3f} | {in_words(effective(steps, length))} | "
            f"{in_words(first ** (tokens / first_tokens))} | {(1 + chi_long) ** -tokens:.3f} | "
            f"{(1 + chi_short) ** -tokens:.3f} |"
        )
    yield ""


def tokens_until(steps: list[TokenBatch], length: int) -> float:
    return float(torch.cat([batch.response_mask.sum(-1) for batch in steps]).clamp(max=length).double().mean())


def prefix_products(steps: list[TokenBatch], length: int) -> Tensor:
    sums = []
    for batch in steps:
        prefix = batch.response_mask & (batch.response_mask.cumsum(-1) <= length)
        sums.append(over_sequence(log_ratios(batch), prefix, "sum"))
    return ratio(torch.cat(sums))


def effective(steps: list[TokenBatch], length: int) -> Tensor:
    """(Σw)²/(n Σw²) of the answers, and then of bootstrap samples of them."""
    products = prefix_products(steps, length)
    drawn = torch.randint(len(products), (REPLICATES, len(products)), generator=torch.Generator().manual_seed(0))
    rows = torch.cat([products[None], products[drawn]])
    return rows.mean(-1).square() / rows.square().mean(-1)


def in_words(values: Tensor) -> str:
    low, high = torch.quantile(values[1:], LEVEL).tolist()
    return f"{values[0]:.2f} [{low:.2f}, {high:.2f}]"


# --- presets that look at whole answers ---


def kept(steps: list[TokenBatch]) -> Iterator[str]:
    """Presets with the same numbers share a line."""
    yield "| presets | answers kept | of the longer half | tokens kept | answers whose weight is capped |"
    yield "|---|---|---|---|---|"
    names: dict[tuple[str, ...], list[str]] = {}
    for name, preset in PRESETS.items():
        config = preset.config
        if config.rollout_is in ("sequence", "geometric") or any(r.level == "sequence" for r in config.rollout_rs):
            names.setdefault(outcome(steps, config), []).append(f"`{name}`")
    for numbers in sorted(names, key=lambda numbers: float(numbers[0].rstrip("%"))):
        yield f"| {', '.join(names[numbers])} | {' | '.join(numbers)} |"


def outcome(steps: list[TokenBatch], config: CorrectionConfig) -> tuple[str, ...]:
    """A weight of 0 is a rejection too."""
    trained = [result.keep_mask & (result.weights > 0) for result in (correct(batch, config) for batch in steps)]
    answers = torch.cat([keep.any(-1) for keep in trained])
    lengths = torch.cat([batch.response_mask.sum(-1) for batch in steps])
    tokens = torch.cat([keep.sum(-1) for keep in trained]).sum() / lengths.sum()
    longer = answers[lengths >= lengths.median()]
    shares = (f"{of.double().mean():.1%}" for of in (answers, longer, tokens))
    return (*shares, capped(steps, config))


def capped(steps: list[TokenBatch], config: CorrectionConfig) -> str:
    level = config.rollout_is
    if level is None or LEVELS[level].per_token or config.rollout_is_mode == "mask":
        return "–"
    logs = torch.cat([of_level(batch, level) for batch in steps])
    return f"{(logs > math.log(config.rollout_is_threshold)).double().mean():.1%}"
