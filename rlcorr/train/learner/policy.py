"""The trained model: a causal language model with float32 weights, its critic if it needs one, and its scores."""

import copy
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from rlcorr.errors import UsageError, first_line
from rlcorr.train.config.learning import Precision
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.learner.router_replay import replayed
from rlcorr.train.learner.token_log_probs import token_log_probs
from rlcorr.types import TokenBatch

transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()  # one bar for the run is enough

DAMAGED = (ValueError, LookupError, RuntimeError, AttributeError, TypeError, StrictDataclassError)
"""What transformers raises for a damaged or unknown config.json, or for code that would have to be run."""


class Scores(NamedTuple):
    """Scores per response token, (B, T). A tuple, so that wrappers of the model such as DDP find the tensors in it."""

    log_probs: Tensor
    entropy: Tensor
    values: Tensor | None
    top_log_probs: Tensor | None = None  # (B, T, K) of `batch.top_ids`


class Policy(nn.Module):
    """A language model, with a critic if the estimator is GAE: a value head on the same hidden states.

    Weights, softmax and values are float32; `precision` is the number format of the matrix products.
    """

    def __init__(self, lm: PreTrainedModel, critic: bool = True, precision: Precision = "float32") -> None:
        super().__init__()
        self.lm = lm
        self.precision: Precision = precision
        self.value_head = nn.Linear(lm.config.hidden_size, 1) if critic else None
        if self.value_head is not None:
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)

    def forward(self, batch: TokenBatch, temperature: float, *, replay: bool = False, support: bool = False) -> Scores:
        """Score the responses of a batch, and the tokens in `batch.top_ids` if it has them.

        With `replay`, a mixture of experts uses the experts in `batch.routed_experts`. With `support`, log-probs are
        those among the tokens in `batch.top_ids` that the sampler could draw.
        """
        assert batch.response_ids is not None
        ids = batch.response_ids
        if batch.top_ids is not None:
            ids = torch.cat([ids[..., None], batch.top_ids.clamp(min=0)], -1)
        with self._products():
            hidden = response_states(self.lm, batch, replay)
            log_probs, entropy = token_log_probs(output_head(self.lm), hidden, ids, temperature)
        values = None if self.value_head is None else self.value_head(hidden.to(self.value_head.weight))[..., 0]
        if batch.top_ids is None:
            return Scores(log_probs, entropy, values)
        log_probs, top = log_probs[..., 0], log_probs[..., 1:]
        if support:
            assert batch.rollout_top_log_probs is not None
            drawable = batch.rollout_top_log_probs > -torch.inf
            total = torch.where(drawable, top, -torch.inf).logsumexp(-1)
            log_probs, top = log_probs - total, torch.where(drawable, top - total[..., None], -torch.inf)
        return Scores(log_probs, entropy, values, top)

    def checkpoint_layers(self) -> None:
        """Keep only the input of each layer for the backward pass, which computes the layer again."""
        self.lm.gradient_checkpointing_enable({"use_reentrant": False})
        for module in self.lm.modules():
            if isinstance(module, GradientCheckpointingLayer):
                # transformers checkpoints layers in training mode only. The modules inside stay in evaluation mode,
                # without dropout.
                module.training = True

    def in_float32(self) -> "Policy":
        """Return a policy with the same tensors whose matrix products are in float32."""
        other = copy.copy(self)
        other.precision = "float32"
        return other

    def _products(self) -> torch.autocast:
        """Return the context that rounds the matrix products to `precision`.

        It keeps no rounded copies: each weight is used once per pass, so that a copy would only take memory.
        """
        rounds = self.precision != "float32"
        dtype = getattr(torch, self.precision) if rounds else None
        return torch.autocast(self.lm.device.type, dtype, enabled=rounds, cache_enabled=False)


def response_states(lm: PreTrainedModel, batch: TokenBatch, replay: bool) -> Tensor:
    """Return the hidden states that predict the response tokens, (B, T, H)."""
    assert batch.prompt_ids is not None
    assert batch.prompt_mask is not None
    assert batch.response_ids is not None
    ids = torch.cat([batch.prompt_ids, batch.response_ids], -1)
    attention = torch.cat([batch.prompt_mask, batch.response_mask], -1)
    positions = (attention.long().cumsum(-1) - 1).clamp(min=0)  # prompts are padded on the left
    with replayed(lm, batch.routed_experts if replay else None, attention):
        states = lm.base_model(ids, attention_mask=attention, position_ids=positions, use_cache=False)[0]
    return states[:, batch.prompt_ids.shape[1] - 1 : -1]  # the state at t − 1 predicts token t


def forward_options(rollout: RolloutConfig) -> dict[str, Any]:
    """Return the options with which every forward pass of a run scores a batch."""
    return {
        "temperature": rollout.scored_temperature, "replay": rollout.router_replay, "support": rollout.support_replay
    }  # fmt: skip


def engine_weights(state: Mapping[str, Tensor], lm: PreTrainedModel) -> list[tuple[str, Tensor]]:
    """Return every tensor that an engine needs, from a policy's state.

    `lm_head.weight` is always included. Checkpoints leave a tied head out, but an engine may have a copy of it, which
    would stay old without any sign.
    """
    weights = {name.removeprefix("lm."): tensor.detach() for name, tensor in state.items() if name.startswith("lm.")}
    if lm.config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    return list(weights.items())


def output_head(lm: PreTrainedModel) -> nn.Linear:
    head = lm.get_output_embeddings()
    assert isinstance(head, nn.Linear)
    return head


def load_lm(path: Path, device: torch.device) -> PreTrainedModel:
    """Load a model in float32 from a directory in Hugging Face format.

    Raises `UsageError` if its weights are not exactly those of the model that config.json describes, because
    transformers fills gaps with random numbers and leaves out what it does not know. A tied head may be missing.
    """
    try:
        result: Any = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=torch.float32,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            trust_remote_code=False,  # without this line it asks on a terminal whether it may run code
        )
    except ImportError as error:  # of a package that multiplies quantised weights
        raise UsageError(_QUANTISED.format(path=path, why=f" ({first_line(error).rstrip('.')})")) from error
    except (OSError, SafetensorError, *DAMAGED) as error:  # no weights, a file that was cut, an unknown kind of model
        raise UsageError(f"the weights in {path} cannot be read: {first_line(error).rstrip('.')}.") from error
    lm, loaded = result
    if getattr(lm, "is_quantized", False):  # transformers sets it on quantised models, and on no others
        raise UsageError(_QUANTISED.format(path=path, why=""))
    _require_fit(path, lm, loaded)
    if wrong := [name for name, weight in lm.named_parameters() if not bool(weight.isfinite().all())]:
        raise UsageError(f"the weights in {path} are not all finite numbers ({first_names(wrong)}).")
    return lm.to(device)


_QUANTISED = (
    "the weights in {path} are quantised{why}, so they have no gradient to train with or to sketch: start from the "
    "original model, or dequantise it."
)


def _require_fit(path: Path, lm: PreTrainedModel, loaded: Mapping[str, Any]) -> None:
    """Raise `UsageError` for weights that are missing, left over, or of another shape."""
    shapes = [f"{name} {tuple(shape)} instead of {tuple(fit)}" for name, shape, fit in loaded["mismatched_keys"]]
    faults = {"missing": loaded["missing_keys"], "left over": loaded["unexpected_keys"], "of another shape": shapes}
    said = [f"{what}: {first_names(names)}" for what, names in faults.items() if names]
    embedding = lm.get_input_embeddings()
    if not said and lm.config.tie_word_embeddings and output_head(lm).weight is not embedding.weight:
        said = ["left over: lm_head.weight, which config.json (tie_word_embeddings) takes from the embedding"]
    if said:
        raise UsageError(
            f"the weights in {path} do not fit the {type(lm).__name__} of its config.json ({'; '.join(said)}), and "
            "transformers fills gaps with random numbers: save the model itself with save_pretrained, not a wrapper of "
            "DDP or torch.compile, and a PEFT model after merge_and_unload()."
        )


def first_names(names: Collection[str]) -> str:
    """Return the first three names, and how many there are beyond them."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(sorted(names)[:3]) + more
