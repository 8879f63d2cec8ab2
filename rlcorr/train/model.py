"""The trained model: a causal language model in float32 with a value head, and its scores of a batch."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging as transformers_logging

from rlcorr.train.tokenizer import BOS_ID, EOS_ID, PAD_ID
from rlcorr.types import TokenBatch


@dataclass(frozen=True)
class Scores:
    """Per response token, (B, T)."""

    log_probs: Tensor
    values: Tensor
    entropy: Tensor


class Policy(nn.Module):
    """A language model and a value head that reads the same last hidden states."""

    def __init__(self, lm: PreTrainedModel) -> None:
        super().__init__()
        self.lm = lm
        self.value_head = nn.Linear(lm.config.hidden_size, 1)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def forward(self, batch: TokenBatch, temperature: float) -> Scores:
        """Score the responses of a batch. This is the one place where logits and tokens are shifted by one."""
        assert batch.prompt_ids is not None
        assert batch.prompt_mask is not None
        assert batch.response_ids is not None
        ids = torch.cat([batch.prompt_ids, batch.response_ids], -1)
        attention = torch.cat([batch.prompt_mask, batch.response_mask], -1)
        positions = (attention.long().cumsum(-1) - 1).clamp(min=0)  # prompts are padded on the left
        hidden = self.lm.base_model(ids, attention_mask=attention, position_ids=positions, use_cache=False)[0]
        before = hidden[:, batch.prompt_ids.shape[1] - 1 : -1]  # the state at t − 1 predicts token t
        logits = output_head(self.lm)(before).float() / temperature
        log_p = logits.log_softmax(-1)
        return Scores(
            log_probs=log_p.gather(-1, batch.response_ids[..., None])[..., 0],
            values=self.value_head(before)[..., 0],
            entropy=-(log_p.exp() * log_p).sum(-1),
        )

    def engine_weights(self) -> list[tuple[str, Tensor]]:
        """Every tensor an engine needs. `lm_head.weight` is always among them: checkpoints leave a tied head out, but
        an engine may hold a copy of it, which would silently stay old."""
        weights = {name: tensor.detach() for name, tensor in self.lm.state_dict().items()}
        weights["lm_head.weight"] = output_head(self.lm).weight.detach()
        return list(weights.items())


def output_head(lm: PreTrainedModel) -> nn.Linear:
    head = lm.get_output_embeddings()
    assert isinstance(head, nn.Linear)
    return head


def load_lm(path: Path, device: torch.device) -> PreTrainedModel:
    """The model in float32, from a directory in Hugging Face format."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    lm = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True)
    return lm.to(device)  # pyright: ignore[reportArgumentType]


def new_lm(vocab_size: int) -> Qwen2ForCausalLM:
    """The small Qwen2 from scratch: 3 layers of width 192, tied embeddings, 1.3 M parameters."""
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )
    return Qwen2ForCausalLM(config)
