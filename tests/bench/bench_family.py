"""`MODELS="smollm2 FILE.gguf" make bench ARGS=family`: the gaps of models without training, and what `triage` says.

Each model answers the same questions with a vLLM engine in several number formats, with weights rounded at the sync,
with a cut and with another temperature; a trainer in float32 scores the answers. `triage` is asked with all measured
gaps and without those of this project, in which the model may be. Intervals (95 %) are over prompts.
"""

import itertools
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from bench_diagnosis import forget_sizes
from bench_smol import KEPT, grouped, interval, mean_of, outside_band, scored
from gap_families import families_of

from rlcorr.analysis import published
from rlcorr.analysis.triage import triage
from rlcorr.ratios import k3
from rlcorr.train.config.rollout import RolloutConfig, Sampling
from rlcorr.train.inputs.model_source import resolve_model
from rlcorr.train.inputs.tasks import examples, get_task
from rlcorr.train.inputs.tokenizer import encode, eos_ids, load_tokenizer
from rlcorr.train.learner.policy import Policy, engine_weights, load_lm
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.rollout.engine import RolloutEngine, to_batch
from rlcorr.train.rollout.start import has_caches_in_8_bits, start_engine
from rlcorr.types import TokenBatch

PROMPTS, SAMPLES = int(os.environ.get("PROMPTS", "64")), 4
CACHES: dict[str, RolloutConfig] = {
    "cache in e4m3": RolloutConfig(kv_cache_dtype="fp8"),
    "cache in e5m2": RolloutConfig(kv_cache_dtype="fp8_e5m2"),
}
SETTINGS: dict[str, RolloutConfig] = {
    "float32": RolloutConfig(dtype="float32"),
    "bfloat16": RolloutConfig(),
    "weights in int8": RolloutConfig(weights="int8"),
    "weights in e4m3": RolloutConfig(weights="fp8_e4m3"),
    "weights in int4": RolloutConfig(weights="int4"),
    **(CACHES if has_caches_in_8_bits() else {}),
    "bfloat16, top-p 0.9": RolloutConfig(top_p=0.9),
    "bfloat16, T 0.8": RolloutConfig(temperature=0.8),
}
"""Planted cause → the engine. The trainer scores at temperature 1, over all tokens."""
LEFT_OPEN = {"bfloat16": "16 bits", "bfloat16, top-p 0.9": "top-p mass", "bfloat16, T 0.8": "temperature"}
"""Planted cause → the kind of causes, or the pattern, that is right; else fewer bits, and nothing for float32."""


def main() -> None:
    print("| model | planted | tokens | mean abs. d | k3 | outside 0.9 to 1.1 | triage | without our rows | judged |")
    print("|---|---|---|---|---|---|---|---|---|")
    for model in os.environ.get("MODELS", "smollm2").split():
        rows_of(model)


def rows_of(model: str) -> None:
    for name, batch in batches(resolve_model(model)):
        d, mask = grouped(batch)
        cells = [interval(statistic(d, mask)) for statistic in (mean_of(abs), mean_of(k3), mean_of(outside_band))]
        patterns = said(batch)
        with patch.object(published, "gaps", lambda: tuple(gap for gap in GAPS if not gap.ours)):
            forget_sizes()
            others = said(batch)
        forget_sizes()
        judged = {verdict(name, looks, float(k3(d[mask]).mean())) for looks in (patterns, others)}
        row = [name, f"{int(mask.sum()):,}", *cells, ", ".join(patterns), ", ".join(others), " / ".join(sorted(judged))]
        print(f"| {Path(model).stem} | {' | '.join(row)} |", flush=True)


GAPS = published.gaps()


def batches(model: Path) -> Iterator[tuple[str, TokenBatch]]:
    """Yield the answers of each engine, with the log-probs of a trainer in float32."""
    tokenizer, task = load_tokenizer(model), get_task("sum_questions")
    policy = Policy(load_lm(model, ALONE.device), False)
    drawn = itertools.islice(examples(task, 0), PROMPTS)
    prompts = [encode(tokenizer, example.prompt, task.instruction) for example in drawn]
    rows = [ids for ids in prompts for _ in range(SAMPLES)]
    weights = engine_weights(policy.state_dict(), policy.lm)
    with tempfile.TemporaryDirectory() as folder:
        engines: dict[RolloutConfig, RolloutEngine] = {}  # shared by settings that only sample otherwise, for memory
        for name, config in SETTINGS.items():
            plain = replace(config, temperature=1.0, top_p=1.0)
            if plain not in engines:
                log = Path(folder) / f"{len(KEPT)}.log"
                engines[plain] = start_engine(plain, model, ALONE, eos_ids(model, tokenizer), log)
                KEPT.append(engines[plain])
                engines[plain].sync(weights)  # rounds them
            engine = engines[plain]
            sampling = Sampling(config.temperature, config.top_p)
            samples = engine.generate(prompts, n=SAMPLES, max_tokens=task.max_tokens, sampling=sampling, seed=0)
            batch = to_batch(rows, samples, ALONE.device)
            yield name, batch.replace(old_log_probs=scored(policy, batch, "float32", 8))


def said(batch: TokenBatch) -> list[str]:
    return [symptom.pattern for symptom in triage(batch)]


def verdict(planted: str, patterns: list[str], gap: float) -> str:
    """Return whether the planted cause is named (right), left open (undecided), or neither (wrong)."""
    expected = LEFT_OPEN.get(planted, "fewer bits")
    if planted == "float32":
        return "right" if patterns == ["clean"] else "wrong"
    if expected in patterns or (expected == "16 bits" and patterns == ["precision"]):
        return "right"
    return (
        "undecided"
        if expected in families_of(gap) and set(patterns) <= {"undecided", "precision", "beyond rounding"}
        else "wrong"
    )
