"""TRL 1.16's GRPOTrainer trains with `callbacks=[RecordPairs("mine")]`: what is recorded, and is the training the same?

    PYTHONPATH=.:tests/support:.venv/trl python tests/peers/trl_recorded.py

vLLM is not there. The sampler's log-probs are those of a second model, the first with weights rounded to bfloat16, and
come in where vLLM's would: TRL's own code pads them and hands them on. With steps_per_generation 2 it computes its own.
The tokens of a tool are in tests/support/golden/dumps/trl, which TRL's own code made.
"""

import copy
import importlib
import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from rlcorr.recorders.trl import RecordPairs
from rlcorr.records import runs
from rlcorr.records.verify import verify
from rlcorr.train.inputs.tasks import examples, get_task
from rlcorr.train.inputs.tokenizer import BOS, load_tokenizer

BENCH = Path(__file__).resolve().parent.parent / "bench"
sys.path.append(str(BENCH))


def sampled_by(trainer: Any) -> None:
    """Beside what the trainer generates, the log-probs of the rounded model."""
    generate, sampler = trainer._generate_single_turn, trainer.sampler

    def with_log_probs(prompt_ids: list[list[int]], *arguments: Any, **options: Any) -> Any:
        completion_ids, _, *rest = generate(prompt_ids, *arguments, **options)
        return (
            completion_ids,
            [log_probs(sampler, p, c) for p, c in zip(prompt_ids, completion_ids, strict=True)],
            *rest,
        )

    trainer._generate_single_turn = with_log_probs


@torch.no_grad()
def log_probs(model: Any, prompt: list[int], completion: list[int]) -> list[float]:
    logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None]).squeeze(-1).tolist()


def trained(output: str, callbacks: list[Any], seen: list[dict[str, Any]]) -> list[float]:
    """Some weights after four optimizer steps; `seen` takes what TRL made of each generation."""
    trl, datasets = importlib.import_module("trl"), importlib.import_module("datasets")
    warm_start = runs.ROOT / "warm_start" / "checkpoint"
    task = get_task("running_sum")
    prompts = [{"prompt": f"{BOS}{example.prompt}"} for example in itertools.islice(examples(task, 0), 16)]
    settings = {
        "output_dir": output, "num_generations": 4, "per_device_train_batch_size": 8, "steps_per_generation": 2,
        "gradient_accumulation_steps": 1, "max_steps": 4, "max_completion_length": 8, "seed": 0, "use_cpu": True,
        "bf16": False, "gradient_checkpointing": False, "report_to": "none", "save_strategy": "no",
        "logging_strategy": "no", "disable_tqdm": True, "dataloader_pin_memory": False, "learning_rate": 1e-3,
        "model_init_kwargs": {"dtype": "float32", "local_files_only": True},
    }  # fmt: skip
    trainer = trl.GRPOTrainer(
        model=str(warm_start),
        processing_class=load_tokenizer(warm_start),
        reward_funcs=lambda completions, **_: [float(len(set(text))) for text in completions],
        train_dataset=datasets.Dataset.from_list(prompts),
        args=trl.GRPOConfig(**settings),
        callbacks=callbacks,
    )
    trainer.sampler = copy.deepcopy(trainer.model).to(torch.bfloat16).float().eval()
    sampled_by(trainer)
    scored = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: seen.append(scored(inputs)) or seen[-1]
    trainer.train()
    return next(iter(trainer.model.parameters())).detach().flatten()[:50].tolist()


def check(output: Path) -> None:
    """A training without the callback and one with it. Ends the process where the two differ, or where the run has
    other numbers than TRL."""
    seen: list[dict[str, Any]] = []
    plain = trained(str(output), [], [])
    with_pairs = trained(str(output), [RecordPairs("mine", folder=output)], seen)
    report = verify(output / "mine")
    differences = []
    for step, inputs in enumerate(seen, 1):
        batch = runs.read_step(output / "mine", step).batch
        mask = inputs["completion_mask"].bool()
        for mine, theirs in (("rollout", "sampling"), ("old", "old")):
            recorded = getattr(batch, f"{mine}_log_probs")[batch.response_mask]
            differences.append(float((recorded - inputs[f"{theirs}_per_token_logps"][mask]).abs().max()))
    print(json.dumps({"steps": report.recorded_steps, "status": report.status, "problems": report.problems,
                      "largest difference": max(differences), "same training": plain == with_pairs}))  # fmt: skip
    if report.problems or report.recorded_steps != len(seen) or max(differences) or plain != with_pairs:
        sys.exit("TRL: what is recorded is not what it trained on, or the training is another.")


if __name__ == "__main__":
    sys.modules["vllm"] = None  # pyright: ignore[reportArgumentType]
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder))
