"""A model whose weights do not fit is never trained, sampled or measured: its gaps would be random numbers."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import CPU, tiny_config
from torch import Tensor
from transformers import Qwen2ForCausalLM

from rlcorr.errors import UsageError
from rlcorr.train.attribution import Request, attribute
from rlcorr.train.config.rollout import RolloutConfig
from rlcorr.train.inputs.model_source import resolve_model
from rlcorr.train.learner.policy import load_lm
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.rollout.start import start_engine
from rlcorr.train.session.session import prepare

Weights = dict[str, Tensor]
BIAS, NORM, EMBEDDING = "model.layers.0.self_attn.q_proj.bias", "model.norm.weight", "model.embed_tokens.weight"


def changed(sound: Path, folder: Path, change: Callable[[Weights], Weights]) -> Path:
    """A copy of a model whose weights are changed."""
    shutil.copytree(sound, folder)
    save_file(change(load_file(sound / "model.safetensors")), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def without(*words: str) -> Callable[[Weights], Weights]:
    return lambda weights: {name: x for name, x in weights.items() if not any(word in name for word in words)}


FAULTS: dict[str, tuple[Callable[[Weights], Weights], str]] = {
    "one bias": (without(BIAS), rf"(missing: {BIAS})"),
    "a layer": (without(".layers.1."), "missing: model.layers.1.input_layernorm.weight, model.layers.1.mlp.down_proj"),
    "only the embedding": (lambda w: {EMBEDDING: w[EMBEDDING]}, "mlp.gate_proj.weight and 22 more)"),
    "a value head": (lambda w: w | {"v_head.weight": torch.ones(1, 64)}, "(left over: v_head.weight)"),
    "another shape": (lambda w: w | {NORM: torch.ones(3)}, f"(of another shape: {NORM} (3,) instead of (64,))"),
    "an untied head": (lambda w: w | {"lm_head.weight": w[EMBEDDING] + 1}, "(left over: lm_head.weight, which config"),
    "an adapter": (
        lambda w: w | {"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": torch.ones(2, 64)},
        "(left over: base_model.model.model.layers.0.mlp.up_proj.lora_A.weight)",
    ),
    "a wrapper": (
        lambda w: {f"module.{name}": x for name, x in w.items()},
        "left over: module.model.embed_tokens.weight, module.model.layers.0.input_layernorm.weight",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_weights_that_do_not_fit_are_refused_with_their_names(fault: str, tiny_model: Path, tmp_path: Path) -> None:
    change, said = FAULTS[fault]
    model = resolve_model(str(changed(tiny_model, tmp_path / "model", change)))
    with pytest.raises(UsageError, match=f"^the weights in .* do not fit the Qwen2ForCausalLM.*{re.escape(said)}"):
        load_lm(model, CPU)


DOORS = {
    "trainer": lambda model, folder: prepare(tiny_config(model, task="addition"), ALONE, folder, 0),
    "engine": lambda model, folder: start_engine(RolloutConfig(engine="transformers"), model, ALONE, [2], folder),
    "attribute": lambda model, folder: list(
        attribute(Request(model, [[3, 4]], 2, 4, [2], RolloutConfig(engine="transformers"), folder / "log"), CPU)
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_a_missing_bias(door: str, tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"\(missing: {BIAS}\)"):
        DOORS[door](changed(tiny_model, tmp_path / "model", without(BIAS)), tmp_path)


def test_a_file_that_was_cut_is_one_sentence(tiny_model: Path, tmp_path: Path) -> None:
    model = changed(tiny_model, tmp_path / "model", dict)
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UsageError, match=r"cannot be read: .*\.$"):
        load_lm(resolve_model(str(model)), CPU)


def test_quantised_weights_are_refused(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the package that multiplies them is missing, as that of GPTQ here, or installed."""
    model = changed(tiny_model, tmp_path / "model", lambda weights: weights)
    sentence = r"are quantised.*, so they have no gradient to train with or to sketch: start from the original model"
    with monkeypatch.context() as patch:
        patch.setattr(Qwen2ForCausalLM, "is_quantized", True, raising=False)
        with pytest.raises(UsageError, match=sentence):
            load_lm(model, CPU)
    config = json.loads((model / "config.json").read_text()) | {
        "quantization_config": {"quant_method": "gptq", "bits": 4}
    }
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=sentence):
        load_lm(model, CPU)


def test_pickled_weights_of_another_model_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    model = changed(tiny_model, tmp_path / "model", dict)
    (model / "model.safetensors").unlink()
    torch.save({"x": torch.ones(2)}, model / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"and 24 more; left over: x\)"):
        load_lm(model, CPU)


def changed_json(name: str, **changes: object) -> Callable[[Path], object]:
    return lambda model: (model / name).write_text(json.dumps(json.loads((model / name).read_text()) | changes))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a config that is no JSON": (lambda model: (model / "config.json").write_text("{"), "cannot be read"),
    "an unknown kind": (changed_json("config.json", model_type="new"), "cannot be read: The checkpoint you are trying"),
    "a text for a number": (changed_json("config.json", num_hidden_layers="two"), "cannot be read: Validation error"),
    "code": (
        changed_json("config.json", model_type="new", auto_map={"AutoModelForCausalLM": "code.Model"}),
        "cannot be read: ",
    ),
    "no weights": (lambda model: (model / "model.safetensors").unlink(), "cannot be read: Error no file named"),
    "no number": (
        lambda model: save_file(
            load_file(model / "model.safetensors") | {NORM: torch.full((64,), math.nan)},
            model / "model.safetensors",
            metadata={"format": "pt"},
        ),
        "are not all finite numbers",
    ),
    "a cut tokenizer": (lambda model: (model / "tokenizer.json").write_text('{"version"'), "the tokenizer in .* can"),
    "an empty template": (lambda model: (model / "chat_template.jinja").write_text(""), "makes no token of a prompt"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_is_refused_in_one_sentence(
    damage: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that no code of a model is run either, and that nobody is asked whether it may."""
    change, said = DAMAGES[damage]
    model = shutil.copytree(tiny_model, tmp_path / "model")
    monkeypatch.setattr("sys.stdin", None)
    change(model)
    with pytest.raises(UsageError, match=said):
        prepare(tiny_config(model), ALONE, tmp_path, 1)
