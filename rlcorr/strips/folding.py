"""JSON with what repeats in its lists written once: what moves with a slider differs from place to place in a digit.

A list of at least `LEAST` parts that are alike becomes one of

    {"~same": part, "count": n}              n equal parts
    {"~around": [a, b], "of": […]}           texts that begin with a and end with b
    {"~columns": {key: […]}, "count": n}     objects with the same keys: a list for each key
    {"~rows": [[…], …], "count": n}          lists of the same length: a list for each of their places

whose own parts are folded in turn. `app/components/js/strip_reading.js` unfolds the same.
"""

from typing import Any

LEAST = 8


def folded(node: Any) -> Any:
    """Keys must not begin with a tilde."""
    if isinstance(node, dict):
        return {key: folded(part) for key, part in node.items()}
    if not isinstance(node, list):
        return node
    return _alike(node) if len(node) >= LEAST else [folded(part) for part in node]


def unfolded(node: Any) -> Any:
    """What was folded."""
    if isinstance(node, list):
        return [unfolded(part) for part in node]
    if not isinstance(node, dict):
        return node
    if "~same" in node:
        return [unfolded(node["~same"]) for _ in range(node["count"])]
    if "~around" in node:
        start, end = node["~around"]
        return [f"{start}{middle}{end}" for middle in node["of"]]
    if "~columns" in node:
        columns = {key: unfolded(column) for key, column in node["~columns"].items()}
        return [{key: column[i] for key, column in columns.items()} for i in range(node["count"])]
    if "~rows" in node:
        rows = [unfolded(row) for row in node["~rows"]]
        return [[row[i] for row in rows] for i in range(node["count"])]
    return {key: unfolded(part) for key, part in node.items()}


def _alike(parts: list[Any]) -> Any:
    first, count = parts[0], len(parts)
    if any(type(part) is not type(first) for part in parts):
        return [folded(part) for part in parts]
    if all(repr(part) == repr(first) for part in parts):  # 1, 1.0 and True are equal, but not alike
        return {"~same": folded(first), "count": count}
    if isinstance(first, str):
        return _around(parts)
    if isinstance(first, dict) and all(list(part) == list(first) for part in parts):
        return {"~columns": {key: folded([part[key] for part in parts]) for key in first}, "count": count}
    if isinstance(first, list) and all(len(part) == len(first) for part in parts):
        return {"~rows": [folded(list(row)) for row in zip(*parts, strict=True)], "count": count}
    return [folded(part) for part in parts]


def _around(texts: list[str]) -> Any:
    start = _start(texts)
    shortest = min(map(len, texts)) - len(start)
    end = _start([text[::-1] for text in texts])[:shortest][::-1]
    if not start and not end:
        return texts
    return {"~around": [start, end], "of": [text[len(start) : len(text) - len(end)] for text in texts]}


def _start(texts: list[str]) -> str:
    """With which all begin."""
    first, last = min(texts), max(texts)
    return first[: next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]
