"""`make bench ARGS=confusion`: planted causes on a real model, and what `triage` calls them, by the number of tokens.

The next-token distributions are those of SmolLM2 at the positions of recorded answers, over its 1,024 likeliest tokens
there. Tokens are drawn anew from the
planted engine's distribution; noise on the logits has the size that makes the k3 of bfloat16 (0.05), of an 8-bit cache
(0.25) or of e5m2 (0.5).
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rlcorr.analysis.triage import triage
from rlcorr.records import runs
from rlcorr.train.inputs.model_source import resolve_model
from rlcorr.train.inputs.tokenizer import load_tokenizer
from rlcorr.types import TokenBatch

RUN, STEP = "gpu_smol_bf16", 5
POSITIONS, VOCABULARY = 1200, 1024
SIZES = (100, 200, 300, 600, 1200)
DRAWS = int(os.environ.get("DRAWS", "100"))
NOISE = {"bf16": 0.05, "fp8": 0.25, "e5m2": 0.5}


@dataclass(frozen=True)
class Planted:
    """Log-probs of both sides over the vocabulary, each made of the same logits, (N, V)."""

    engine: Callable[[Tensor], Tensor]
    trainer: Callable[[Tensor, torch.Generator], Tensor]
    fault: Callable[[Tensor, Tensor], Tensor] = lambda old, mask: old
    """What happens to the trainer's log-probs of the drawn tokens, (B, T)."""


def noisy(name: str, factor: float = 1.0) -> Callable[[Tensor, torch.Generator], Tensor]:
    def trainer(logits: Tensor, random: torch.Generator) -> Tensor:
        return logits * factor + NOISE[name] * torch.randn(logits.shape, generator=random)

    return trainer


def hot(temperature: float) -> Callable[[Tensor], Tensor]:
    return lambda logits: logits / temperature


def cut(top_p: float) -> Callable[[Tensor], Tensor]:
    """Keep the likeliest tokens until their probability reaches `top_p`."""

    def engine(logits: Tensor) -> Tensor:
        values, order = logits.softmax(-1).sort(-1, descending=True)
        kept = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, values.cumsum(-1) - values < top_p)
        return logits.masked_fill(~kept, -torch.inf)

    return engine


def shifted(old: Tensor, mask: Tensor) -> Tensor:
    return old.roll(-1, 1) * mask


def half_shifted(old: Tensor, mask: Tensor) -> Tensor:
    half = torch.arange(len(old))[:, None] < len(old) // 2
    return torch.where(half, old.roll(-1, 1) * mask, old)


PLANTED = {
    "nothing": Planted(hot(1), noisy("bf16")),
    "8-bit cache": Planted(hot(1), noisy("fp8")),
    "e5m2 cache": Planted(hot(1), noisy("e5m2")),
    **{f"T {t:g}": Planted(hot(t), noisy("bf16")) for t in (0.7, 0.9, 1.1, 1.5)},
    "T 0.8, 8-bit cache": Planted(hot(0.8), noisy("fp8")),
    **{f"top-p {p:g}": Planted(cut(p), noisy("bf16")) for p in (0.8, 0.9, 0.95)},
    "top-p 0.9, 8-bit cache": Planted(cut(0.9), noisy("fp8")),
    "top-p 0.95, e5m2 cache": Planted(cut(0.95), noisy("e5m2")),
    "shift by one": Planted(hot(1), noisy("bf16"), shifted),
    "shift in half of the rows": Planted(hot(1), noisy("bf16"), half_shifted),
}


def base_logits() -> tuple[Tensor, Tensor, list[int]]:
    """Return logits and ids of the likeliest tokens at the positions of recorded answers, (N, V), and their lengths."""
    record, model = runs.read_step(runs.ROOT / RUN, STEP), resolve_model("smollm2")
    tokenizer, lm = load_tokenizer(model), AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    parts, names = list[Tensor](), list[Tensor]()
    ids = record.batch.tensors()["response_ids"]
    for row, prompt in enumerate(record.prompts):
        answer = ids[row][record.batch.response_mask[row]].tolist()
        before = tokenizer.encode(prompt, add_special_tokens=False)
        with torch.inference_mode():
            logits = lm(torch.tensor([before + answer])).logits[0, len(before) - 1 : -1]
        likeliest = logits.topk(VOCABULARY)
        parts.append(likeliest.values)
        names.append(likeliest.indices)
        if sum(map(len, parts)) >= POSITIONS:
            break
    return torch.cat(parts), torch.cat(names), [len(part) for part in parts]


def drawn(planted: Planted, logits: Tensor, names: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw a token at each position, and return its id and both log-probs, (N,) each."""
    engine, trainer = planted.engine(logits).log_softmax(-1), planted.trainer(logits, random).log_softmax(-1)
    chosen = torch.multinomial(engine.exp(), 1, generator=random)
    ids, on_engine, on_trainer = (table.gather(1, chosen)[:, 0] for table in (names, engine, trainer))
    return ids, on_engine, on_trainer


def batch_of(columns: Sequence[Tensor], lengths: Sequence[int], planted: Planted) -> TokenBatch:
    ids, engine, trainer = (
        torch.nn.utils.rnn.pad_sequence(list(column.split(list(lengths))), batch_first=True) for column in columns
    )
    mask = torch.arange(ids.shape[1]) < torch.tensor(list(lengths))[:, None]
    batch = TokenBatch(mask, engine, planted.fault(trainer, mask))
    return batch.replace(response_ids=ids)


def cut_to(lengths: Sequence[int], size: int) -> list[int]:
    """Return the lengths of the first answers, the last one cut, so that they have this number of tokens."""
    left, taken = size, list[int]()
    for length in lengths:
        if left:
            taken.append(min(length, left))
            left -= taken[-1]
    return taken


def main() -> None:
    torch.manual_seed(0)
    logits, names, lengths = base_logits()
    print(f"{len(logits):,} positions of {len(lengths)} answers; {DRAWS} draws\n")
    print("| planted | " + " | ".join(f"{size:,} tokens" for size in SIZES) + f" |\n{'|---' * (1 + len(SIZES))}|")
    for name, planted in PLANTED.items():
        verdicts: dict[int, Counter[str]] = {size: Counter() for size in SIZES}
        for draw in range(DRAWS):
            columns = drawn(planted, logits, names, torch.Generator().manual_seed(draw))
            for size in SIZES:
                part = [column[:size] for column in columns]
                verdicts[size][triage(batch_of(part, cut_to(lengths, size), planted))[0].pattern] += 1
        cells = [", ".join(f"{what} {count}" for what, count in verdicts[size].most_common()) for size in SIZES]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
