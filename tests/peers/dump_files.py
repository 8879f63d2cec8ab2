"""Writes tests/support/golden/dumps with the systems' own code; the files are committed, this says how they were made.

    python tests/peers/dump_files.py NEMO_RL PRIME_RL PRIME_RL_TODAY SLIME

Each argument is a checkout: NeMo RL 7ea279ab, prime-rl 559b4477 and 004274ec, slime 624b824a. What these modules import
and the functions called here do not use (ray, wandb, …) is replaced by stand-ins. The numbers are the same everywhere:
two responses, of three tokens and of two.
"""

import ast
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch

OUT = Path(__file__).resolve().parent.parent / "support" / "golden" / "dumps"
ROLLOUT, OLD = [[-0.5, -1.0, -2.0], [-0.25, -0.75]], [[-0.75, -0.5, -2.5], [-0.125, -1.5]]
PROMPTS, RESPONSES = [[3, 4], [5]], [[6, 7, 8], [9, 10]]


def load(file: Path, *replaced: str, name: str = "") -> Any:
    """The module of a file under its name, which a pickle of its classes holds; with stand-ins for these imports."""
    name = name or file.stem
    for imported in replaced:
        sys.modules[imported] = MagicMock()
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def aligned(rows: list[list[float]], width: int = 6) -> torch.Tensor:
    """Response numbers over prompt and response, padded on the right."""
    full = [[0.0] * len(prompt) + row for prompt, row in zip(PROMPTS, rows, strict=True)]
    return torch.tensor([row + [0.0] * (width - len(row)) for row in full])


def nemo_rl(checkout: Path) -> None:
    """`log_data` as algorithms/grpo.py:3632 fills it with dynamic sampling, written by utils/logger.py:1071."""
    data = load(
        checkout / "nemo_rl/distributed/batched_data_dict.py",
        "nemo_rl", "nemo_rl.data", "nemo_rl.data.multimodal_utils", "nemo_rl.data.packing", "nemo_rl.distributed",
        "nemo_rl.distributed.collectives",
    )  # fmt: skip
    data.PackedTensor = type("PackedTensor", (), {})
    source = ast.parse((checkout / "nemo_rl/utils/logger.py").read_text())
    writer = next(
        node for node in ast.walk(source) if isinstance(node, ast.FunctionDef) and "dict_as_jsonl" in node.name
    )
    names: dict[str, Any] = {"BatchedDataDict": data.BatchedDataDict, "os": os, "json": json, "torch": torch, "np": np}
    exec("from typing import Any\n" + ast.unparse(writer), names)
    train = {
        "content": ["question one answer", "question two answer"],
        "rewards": [0.0, 1.0, 1.0, 0.0],  # of everything sampled; the second and the third were trained on
        "filtered_rewards": [1.0, 0.5],
        "input_lengths": [5, 3],
        "token_ids": [[3, 4, 6, 7, 8, 0], [5, 9, 10, 0, 0, 0]],
        "token_loss_mask": [[0, 0, 1, 1, 1, 0], [0, 1, 1, 0, 0, 0]],
        "sample_loss_mask": [1.0, 1.0],
        "advantages": aligned([[1.0] * 3, [-1.0] * 2]).tolist(),
        "generation_logprobs": aligned(ROLLOUT).tolist(),
        "prev_logprobs": aligned(OLD).tolist(),
    }
    folder = type("Logger", (), {"base_log_dir": str(OUT / "nemo_rl")})()
    names[writer.name](folder, data.BatchedDataDict(train), "train_data_step12.jsonl")


def token_export(checkout: Path) -> Any:
    """prime-rl's module that writes the tokens of a step."""
    stand_ins = ("prime_rl", "prime_rl.configs", "prime_rl.configs.trainer", "prime_rl.trainer", "prime_rl.trainer.rl",
                 "prime_rl.trainer.rl.loss")  # fmt: skip
    module = load(checkout / "src/prime_rl/trainer/rl/token_export.py", *stand_ins)
    module.DefaultLossConfig = type("DefaultLossConfig", (), {})
    module.compute_importance_ratio_and_mismatch_kl = lambda a, b: ((a - b), (a - b).exp(), (a - b).exp() - 1 - (a - b))
    return module


def prime_rl(checkout: Path) -> None:
    """Two ranks; on each a response that the RL loss trains and one that is distilled, with rl_weights 0."""
    module = token_export(checkout)
    for rank in (0, 1):
        trained = [1.0] * 5 if rank == 0 else [0.0] * 5
        batch = {
            "input_ids": torch.tensor([PROMPTS[0] + RESPONSES[0] + PROMPTS[1] + RESPONSES[1]]),
            "position_ids": torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]]),
            "loss_mask": torch.tensor([[False, False, True, True, True, False, True, True]]),
            "advantages": torch.tensor([[0.0, 0.0, 1.0, 1.0, 1.0, 0.0, -1.0, -1.0]]),
            "inference_logprobs": torch.tensor([[0.0, 0.0, *ROLLOUT[0], 0.0, *ROLLOUT[1]]]),
            "rl_weights": torch.tensor([[*trained, 0.0, 0.0, 0.0]]),
            "ce_weights": torch.tensor([[1.0 - x for x in trained] + [0.0, 1.0, 1.0]]),
            "env_names": ["math"] * 8,
        }
        output = {"logprobs": torch.tensor([[0.0, 0.0, *OLD[0], 0.0, *OLD[1]]]), "entropy": torch.full((1, 8), 0.1)}
        exporter = module.TokenExporter(OUT / "prime_rl", rank)
        exporter.export(3, 0, batch, output, [5, 3], object())
        exporter.mark_stable()


def prime_rl_today(checkout: Path) -> None:
    """A run of several, whose step 3 lies in two steps of the trainer. The RL loss trains the first response but its
    middle token, which is distilled, and nothing of the second."""
    module = token_export(checkout)
    exporter = module.TokenExporter(OUT / "prime_rl_today" / "shared", 0)
    rl_masks, ce_masks = [[True, False, True], [False, False]], [[False, True, False], [True, True]]
    for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        before = len(prompt)
        tokens = before + len(response)

        def channel(loss: str, mask: list[bool], value: float, before: int = before, n: int = tokens) -> dict[str, Any]:
            spread = torch.tensor([[False] * before + mask])
            return {"loss": loss, "mask": spread, "values": torch.full((1, n), value)}

        batch = {
            "run_id": "run_a",
            "run_step": 3,
            "input_ids": torch.tensor([prompt + response]),
            "position_ids": torch.arange(tokens)[None],
            "advantages": [channel("rl", rl_masks[row], 1.0 - row), channel("ce", ce_masks[row], 1.0)],
            "rewards": torch.full((1, tokens), 0.5 + row),
            "inference_logprobs": torch.tensor([[0.0] * before + ROLLOUT[row]]),
            "env_names": ["math"] * tokens,
        }
        output = {"logprobs": torch.tensor([[0.0] * before + OLD[row]]), "entropy": torch.full((1, tokens), 0.1)}
        exporter.export(7 + row, 0, batch, output, [tokens], object())
    exporter.mark_stable({"run_a"})


def slime(checkout: Path) -> None:
    """The second response's last token was taken out by loss_masks; `rewards` are the group's less their mean."""
    module = load(checkout / "slime/observability/train_data_utils.py")
    shard = {
        "tokens": [torch.tensor(p + r) for p, r in zip(PROMPTS, RESPONSES, strict=True)],
        "response_lengths": [3, 2],
        "total_lengths": [5, 3],
        "loss_masks": [torch.tensor([1, 1, 1], dtype=torch.int), torch.tensor([1, 0], dtype=torch.int)],
        "rewards": [0.5, -0.5],
        "raw_reward": [1.0, 0.0],
        "sample_indices": [0, 1],
        "partition": [0, 1],
        "micro_batch_indices": [[0, 1]],
        "rollout_log_probs": [torch.tensor(row) for row in ROLLOUT],
        "log_probs": [torch.tensor(row) for row in OLD],
        "advantages": [torch.full((3,), 0.5), torch.full((2,), -0.5)],
    }
    payload = module._build_dump_payload(
        [{"rank": 0, "data_parallel_rank": 0, "rollout_data": shard}], rollout_id=4, writer_rank=0
    )
    (OUT / "slime").mkdir(parents=True, exist_ok=True)
    torch.save(payload, OUT / "slime" / "4.pt")


def skyrl_batch(batches: Any) -> Any:
    """Responses at the end of `sequences`; the middle token of the first was what a tool answered; the third row pads
    the batch, as trainer.py:963 does. The advantages are in bfloat16, which numpy does not have."""
    batch = batches.TrainingInputBatch(
        {
            "sequences": torch.tensor([[3, 4, 6, 7, 8], [0, 0, 5, 9, 10]]),
            "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]),
            "response_mask": torch.tensor([[1, 1, 1], [0, 1, 1]]),
            "loss_mask": torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]),
            "rollout_logprobs": torch.tensor([ROLLOUT[0], [0.0, *ROLLOUT[1]]]),
            "action_log_probs": torch.tensor([OLD[0], [0.0, *OLD[1]]]),
            "base_action_log_probs": None,
            "values": None,
            "returns": torch.tensor([[1.0] * 3, [0.0, -1.0, -1.0]]),
            "advantages": torch.tensor([[1.0] * 3, [0.0, -1.0, -1.0]], dtype=torch.bfloat16),
        }
    )
    batch.metadata = {"avg_response_length": 2.5, "response_length": 3}
    return batches.pad_training_input_batch(batch, 1)


if __name__ == "__main__":
    for write, path in zip((nemo_rl, prime_rl, prime_rl_today, slime), sys.argv[1:], strict=True):
        write(Path(path))
