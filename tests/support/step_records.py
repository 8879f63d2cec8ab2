"""Recorded steps with every column filled, and a run made of them."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rlcorr import TokenBatch
from rlcorr.records import runs
from rlcorr.records.runs import RunManifest
from rlcorr.records.step_files import StepRecord

# Numbers that a detour through text or a wider type would change: subnormal, largest, neighbours of 1, −0, −inf.
AWKWARD = [-1e-45, -3.4028235e38, -0.99999994, -1.0000001, -0.0, -math.inf]


def record(step: int, lengths: tuple[int, ...] = (3, 0, 6, 1)) -> StepRecord:
    """One response per length, the empty one included; every token column filled."""
    rows, width = len(lengths), max(lengths)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    generator = torch.Generator().manual_seed(step)

    def numbers() -> torch.Tensor:
        return torch.where(mask, -torch.rand(rows, width, generator=generator) * 9, 0)

    rollout = numbers()
    if width:
        rollout[lengths.index(width), : len(AWKWARD)] = torch.tensor(AWKWARD[:width])
    prompts = torch.arange(rows * 2).reshape(rows, 2) + 10 * step
    prompt_mask = torch.tensor([[b % 2 == 0, True] for b in range(rows)])
    batch = TokenBatch(
        response_mask=mask,
        rollout_log_probs=rollout,
        old_log_probs=numbers(),
        ref_log_probs=numbers(),
        advantages=numbers(),
        values=numbers(),
        response_ids=torch.where(mask, torch.arange(rows * width).reshape(rows, width), 0).int(),
        prompt_ids=torch.where(prompt_mask, prompts, 0).int(),
        prompt_mask=prompt_mask,
        rewards=torch.rand(rows, generator=generator),
        group_ids=torch.arange(rows).int() // 2,
        policy_versions=torch.full((rows,), step - 1).int(),
    )
    return StepRecord(step, batch, [f"prompt {b} – π" for b in range(rows)], ["é" * n for n in lengths])


STEPS = range(1, 4)  # of make_run


def make_run(run: Path) -> None:
    """A complete run of three steps."""
    manifest = RunManifest(slug=run.name, story="a story", task="sort", seed=7, config={"lr": 0.1})
    runs.start_run(run, manifest)
    for step in STEPS:
        runs.write_step(run, record(step))
        runs.append_metrics(run, {"step": step, "reward": step / 2})
    runs.finish_run(run, replace(manifest, status="complete"))


def rewrite_manifest(run: Path, **changes: Any) -> None:
    """Change the manifest as somebody does by hand, who deletes the checksum."""
    path = run / "manifest.json"
    content = json.loads(path.read_text())
    content.pop("crc32", None)
    path.write_text(json.dumps(content | changes))
