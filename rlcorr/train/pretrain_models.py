"""New models with random weights, for pretraining: three small ones, and one of half a billion parameters."""

from typing import Any

from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from rlcorr.train.inputs.tokenizer import BOS_ID, EOS_ID, PAD_ID

_SHARED: dict[str, Any] = {
    "num_hidden_layers": 3, "num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": 512,
    "tie_word_embeddings": True, "pad_token_id": PAD_ID, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID,
}  # fmt: skip
_FOUR_HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 4}


def new_lm(vocab_size: int) -> Qwen2ForCausalLM:
    """Return a small Qwen2: 3 layers of width 192, tied embeddings, 1.3 M parameters."""
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=vocab_size, hidden_size=192, intermediate_size=512, **_SHARED))


def new_narrow_lm(vocab_size: int) -> Qwen2ForCausalLM:
    """Return a narrower Qwen2: 3 layers of width 128 with 4 heads, tied embeddings, 0.64 M parameters."""
    config = Qwen2Config(vocab_size=vocab_size, hidden_size=128, intermediate_size=384, **_SHARED | _FOUR_HEADS)
    return Qwen2ForCausalLM(config)


def new_moe_lm(vocab_size: int) -> Qwen3MoeForCausalLM:
    """Return a small Qwen3-MoE: 3 layers of width 96, 8 experts of which a token uses 2, 0.6 M parameters."""
    config = Qwen3MoeConfig(
        vocab_size=vocab_size,
        hidden_size=96,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        norm_topk_prob=True,
        output_router_logits=False,  # no auxiliary loss
        **_SHARED,
    )
    return Qwen3MoeForCausalLM(config)


NEW_MODELS = {"qwen2": new_lm, "qwen2_narrow": new_narrow_lm, "qwen3_moe": new_moe_lm}
"""Architecture → function that makes a new model of it, given the size of the vocabulary."""
