"""Groups of a model's tensors by their names: by kind, and by layer."""

import re
from collections.abc import Iterable

LAYER = re.compile(r"layers\.(\d+)\.")
BLOCKS = 6
"""Largest number of blocks into which the layers are divided."""


def kinds(names: Iterable[str]) -> dict[str, list[str]]:
    """Group tensors by kind over all layers: norms, biases, and each kind of matrix."""
    groups: dict[str, list[str]] = {}
    for name in names:
        module, _, tensor = name.rpartition(".")
        kind = "biases" if tensor == "bias" else "norms" if "norm" in module else module.rpartition(".")[2]
        groups.setdefault(tensor if kind.isdigit() or kind == "experts" else kind, []).append(name)
    return groups


def layers_of(names: Iterable[str]) -> set[str]:
    """Return the numbers of the layers that these tensors belong to."""
    return {layer[1] for name in names if (layer := LAYER.search(name))}


def blocks(names: Iterable[str]) -> dict[str, list[str]]:
    """Group tensors by layer, a few layers per block, and tensors outside the layers by kind."""
    numbered = {name: LAYER.search(name) for name in names}
    count = 1 + max((int(layer[1]) for layer in numbered.values() if layer), default=0)
    size = -(-count // BLOCKS)
    groups: dict[str, list[str]] = {}
    for name, layer in numbered.items():
        label = name.rpartition(".")[0].rpartition(".")[2]
        if layer:
            first = int(layer[1]) // size * size
            last = min(first + size, count) - 1
            label = f"layer {first}" if first == last else f"layers {first} to {last}"
        groups.setdefault(label, []).append(name)
    return groups


def one_by_one(groups: dict[str, list[str]], suspects: list[str]) -> dict[str, list[str]]:
    """Split the suspects among the groups into their layers, and keep the other groups."""
    finer: dict[str, list[str]] = {}
    for label, names in groups.items():
        for name in names:
            layer = LAYER.search(name)
            finer.setdefault(f"layer {layer[1]}" if layer and label in suspects else label, []).append(name)
    return finer
