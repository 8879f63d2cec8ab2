"""Models in GGUF files: small ones of each architecture, written with the package of llama.cpp and read back."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import quantize
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, PreTrainedConfig, Qwen2Config

from rlcorr.errors import UsageError
from rlcorr.train.inputs.model_source import check_model, resolve_model
from rlcorr.train.inputs.tokenizer import encode, load_tokenizer
from rlcorr.train.learner.policy import load_lm

SIZES: Any = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES, rms_norm_eps=1e-6),
    "qwen2": Qwen2Config(**SIZES),
    "gemma3": Gemma3TextConfig(**{**SIZES, "head_dim": 256}, sliding_window=16, pad_token_id=0),
}
TOKENS = ["<pad>", "<s>", "</s>", *(chr(i) for i in range(ord("!"), ord("!") + 61))]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLCORR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def model_of(architecture: str) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[architecture], dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.normal_(1, 0.3)  # a fresh model has ones and zeros, which would hide a swap
    return model.to(torch.bfloat16).eval()


def write_gguf(path: Path, architecture: str, model: Any, *, quantised: bool = False, without: str = "") -> Path:
    """Write a model as llama.cpp's converter does: queries and keys of a Llama are interleaved, Gemma's norms have
    their 1 added."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(SIZES["max_position_embeddings"])
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_head_count_kv(SIZES["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(SIZES["vocab_size"])
    if architecture == "gemma3":
        writer.add_key_length(model.config.head_dim)
        writer.add_value_length(model.config.head_dim)
        writer.add_sliding_window(16)
        writer.add_rope_freq_base(1_000_000.0)
    else:
        writer.add_rope_dimension_count(SIZES["head_dim"])
        writer.add_rope_freq_base(10_000.0)
    writer.add_tokenizer_model("llama" if architecture == "gemma3" else "gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * 61)
    writer.add_token_scores([0.0] * 64)
    writer.add_token_merges([])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    arch = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(arch, SIZES["num_hidden_layers"])
    for name, tensor in model.state_dict().items():
        tied = name == "lm_head.weight" and model.config.tie_word_embeddings
        if tied or (without and without in name):
            continue
        x = tensor.float().numpy()
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = SIZES["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            x = x.reshape(heads, 2, -1, x.shape[-1]).swapaxes(1, 2).reshape(x.shape)
        if architecture == "gemma3" and "norm" in name:
            x = x + 1
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None, name
        if quantised and x.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(target, quantize(x, kind), raw_dtype=kind)
        else:
            writer.add_tensor(target, np.ascontiguousarray(x))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    return path


@pytest.mark.parametrize("architecture", CONFIGS)
def test_a_model_becomes_what_it_was(tmp_path: Path, architecture: str) -> None:
    written = model_of(architecture)
    model = resolve_model(str(write_gguf(tmp_path / "mine.gguf", architecture, written)))
    read = load_lm(model, torch.device("cpu"))
    weights = read.state_dict()
    for name, tensor in written.state_dict().items():
        assert torch.equal(weights[name], tensor.to(weights[name].dtype)), name
    ids = torch.arange(3, 43)[None]  # longer than Gemma's window
    with torch.no_grad():
        assert torch.equal(read.bfloat16()(ids).logits, written(ids).logits)
    tokenizer = load_tokenizer(model)
    bos, *text = encode(tokenizer, "1+2=")
    assert bos == 1
    assert tokenizer.decode(text) == "1+2="


def test_blocks_of_8_bits_are_multiplied_by_their_scale(tmp_path: Path) -> None:
    """Q8_0 rounds to 127 steps up to the largest number of a block of 32: at most half a step is lost, and half a step
    of bfloat16."""
    written = model_of("qwen2")
    model = resolve_model(str(write_gguf(tmp_path / "mine.gguf", "qwen2", written, quantised=True)))
    was = written.state_dict()["model.layers.1.mlp.down_proj.weight"].float()
    now = load_lm(model, torch.device("cpu")).state_dict()["model.layers.1.mlp.down_proj.weight"].float()
    most = was.abs().unflatten(-1, (-1, 32)).amax(-1, keepdim=True)
    error = (now - was).abs().unflatten(-1, (-1, 32))
    assert error.max() > 0
    assert (error <= most / 127 * 0.51 + most * 2**-8).all()


def test_a_file_is_converted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_gguf(tmp_path / "mine.gguf", "qwen2", model_of("qwen2"))
    first = resolve_model(str(file))
    assert "mine.gguf: dequantising" in capsys.readouterr().out
    assert resolve_model(str(file)) == first
    assert capsys.readouterr().out == ""
    write_gguf(file, "llama", model_of("llama"))
    assert resolve_model(str(file)) != first, "another file of the same name"


def test_files_that_cannot_be_used(tmp_path: Path, cache: Path) -> None:
    other = write_gguf(tmp_path / "other.gguf", "qwen2", model_of("qwen2"))
    whole = other.read_bytes()
    write_gguf(tmp_path / "hollow.gguf", "llama", model_of("llama"), without="model.norm")
    small_heads: Any = AutoModelForCausalLM.from_config(Gemma3TextConfig(**SIZES, sliding_window=16, pad_token_id=0))
    write_gguf(tmp_path / "large.gguf", "gemma3", small_heads)
    (tmp_path / "text.gguf").write_bytes(b"PK\3\4")
    (tmp_path / "names.gguf").write_bytes(whole[:300])
    (tmp_path / "weights.gguf").write_bytes(whole[: len(whole) * 2 // 3])
    (tmp_path / "phi.gguf").write_bytes(whole.replace(b"qwen2", b"phi-3"))
    for name, sentence in {
        "text": "is no GGUF file: it does not begin with GGUF",
        "names": "is cut off or damaged",
        "weights": "is cut off or damaged",
        "phi": "architecture 'phi-3'; expected one of llama, qwen2, gemma3",
        "hollow": "lacks 1 of the model's tensors: model.norm",
        "large": "has no heads of 256 numbers",
    }.items():
        with pytest.raises(UsageError, match=sentence):
            resolve_model(str(tmp_path / f"{name}.gguf"))
    assert not list(cache.rglob("config.json"))
    with pytest.raises(UsageError, match="is no GGUF file"):
        check_model(str(tmp_path / "text.gguf"))
