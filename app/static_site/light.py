"""Figures with as many digits as a screen shows: the page has a thousand of them to send."""

import base64
from typing import Any

import numpy as np

DIGITS = 4


def light(node: Any) -> Any:
    """A figure, or a part of one, with rounded lists in place of the bytes of floats."""
    if isinstance(node, list):
        return [light(part) for part in node]
    if not isinstance(node, dict):
        return float(f"{node:.{DIGITS}g}") if isinstance(node, float) else node
    if "bdata" in node and node["dtype"] in ("f4", "f8") and "shape" not in node:
        values = np.frombuffer(base64.b64decode(node["bdata"]), f"<{node['dtype']}").tolist()
        return [None if value != value else float(f"{value:.{DIGITS}g}") for value in values]
    return {key: light(part) for key, part in node.items()}
