"""`python -m rlcorr attribute`: how much of the gap each setting makes on a person's own model and prompts."""

import itertools
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from rlcorr.command.printing import print_lines
from rlcorr.train.config.rollout import RolloutConfig


@dataclass(frozen=True)
class Attribute:
    """Measure on your own model how much of the gap each setting makes: one is changed at a time.

    The model answers a few prompts. Engine and trainer compute in float32, except for what a row of the table names.
    """

    model: Annotated[str, tyro.conf.Positional]
    """Directory, GGUF file or hub id of the model, or smollm2."""
    data: Annotated[Path | None, tyro.conf.Positional] = None
    """File of prompts, one object with "prompt" per line; without it, prompts of --task."""
    task: str = "sum_questions"
    """Built-in task whose prompts are asked."""
    prompts: int = 32
    """Number of different prompts."""
    samples: int = 4
    """Answers to each prompt."""
    max_tokens: int = 64
    """Largest length of an answer."""
    engine: RolloutConfig = field(default_factory=RolloutConfig)
    """Further settings of the engine, such as --engine.engine or --engine.kv-cache-mib."""


def run_attribute(request: Attribute) -> int:
    """Print the table while its settings are measured, and return the exit code."""
    import torch

    from rlcorr.train.attribution import Request, attribute, prompts_of
    from rlcorr.train.inputs import smollm2
    from rlcorr.train.inputs.jsonl_task import read_examples
    from rlcorr.train.inputs.model_source import resolve_model
    from rlcorr.train.inputs.tasks import examples, get_task
    from rlcorr.train.inputs.tokenizer import encode, eos_ids, load_tokenizer

    if request.data is None:
        task = get_task(request.task)
        asked, instruction = list(itertools.islice(examples(task, 0), request.prompts)), task.instruction
    else:
        asked, instruction = read_examples(request.data, needs_answer=False)[: request.prompts], ""
    model = resolve_model(request.model)
    tokenizer = load_tokenizer(model)
    system = smollm2.SYSTEM if request.model == smollm2.NAME else ""
    ids = [encode(tokenizer, example.prompt, instruction, system) for example in asked]
    with tempfile.TemporaryDirectory() as folder:
        asked_of_model = Request(
            model, prompts_of(ids, request.prompts), request.samples, request.max_tokens, eos_ids(model, tokenizer),
            request.engine, Path(folder) / "engine.log",
        )  # fmt: skip
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        print_lines(table(attribute(asked_of_model, device)))
    return 0


def table(causes: Iterable[Any]) -> Iterator[str]:
    """Yield the lines of a Markdown table of `attribution.Cause`, each as soon as its setting is measured."""
    yield "| changed | tokens | k3 [95 % interval] | mean abs. d | 99 % of abs. d | outside 0.9 to 1.1 | mean ratio |"
    yield "|---|---|---|---|---|---|---|"
    for cause in causes:
        if cause.k3 is None:
            yield f"| {cause.name} | not measured: {cause.why_not} | | | | | |"
            continue
        interval = f"{cause.k3.value:.2g} [{cause.k3.low:.2g}, {cause.k3.high:.2g}]"
        sizes = f"{cause.abs_log_ratio:.3g} | {cause.p99:.3g} | {cause.outside:.1%} | {cause.mean_ratio:.4f}"
        yield f"| {cause.name} | {cause.tokens:,} | {interval} | {sizes} |"
