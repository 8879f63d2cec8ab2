"""JSON without repetition in its lists: what a page shows at neighbouring slider values differs in a digit or two.

A list of at least `LEAST` parts of the same kind becomes one of

    {"~same": part, "count": n}              n equal parts
    {"~around": [a, b], "of": […]}           texts that begin with a and end with b
    {"~columns": {key: […]}, "count": n}     objects with the same keys: a list for each key
    {"~rows": [[…], …], "count": n}          lists of the same length: a list for each position

and the parts of these are compressed in turn. `app/components/js/strips.js` expands them.
"""

from os.path import commonprefix
from typing import Any

LEAST = 8


def compress(node: Any) -> Any:
    """Compress JSON. Its keys must not begin with a tilde."""
    if isinstance(node, dict):
        return {key: compress(part) for key, part in node.items()}
    if not isinstance(node, list):
        return node
    return _compress_list(node) if len(node) >= LEAST else [compress(part) for part in node]


def expand(node: Any) -> Any:
    """Return the JSON that was compressed."""
    if isinstance(node, list):
        return [expand(part) for part in node]
    if not isinstance(node, dict):
        return node
    if "~same" in node:
        return [expand(node["~same"]) for _ in range(node["count"])]
    if "~around" in node:
        start, end = node["~around"]
        return [f"{start}{middle}{end}" for middle in node["of"]]
    if "~columns" in node:
        columns = {key: expand(column) for key, column in node["~columns"].items()}
        return [{key: column[i] for key, column in columns.items()} for i in range(node["count"])]
    if "~rows" in node:
        rows = [expand(row) for row in node["~rows"]]
        return [[row[i] for row in rows] for i in range(node["count"])]
    return {key: expand(part) for key, part in node.items()}


def _compress_list(parts: list[Any]) -> Any:
    first, count = parts[0], len(parts)
    if any(type(part) is not type(first) for part in parts):
        return [compress(part) for part in parts]
    if all(repr(part) == repr(first) for part in parts):  # 1, 1.0 and True are equal in Python and differ in JSON
        return {"~same": compress(first), "count": count}
    if isinstance(first, str):
        return _around(parts)
    if isinstance(first, dict) and all(list(part) == list(first) for part in parts):
        return {"~columns": {key: compress([part[key] for part in parts]) for key in first}, "count": count}
    if isinstance(first, list) and all(len(part) == len(first) for part in parts):
        return {"~rows": [compress(list(row)) for row in zip(*parts, strict=True)], "count": count}
    return [compress(part) for part in parts]


def _around(texts: list[str]) -> Any:
    start = commonprefix(texts)  # noqa: RUF071  (of any texts, which is what is wanted)
    shortest = min(map(len, texts)) - len(start)
    end = commonprefix([text[::-1] for text in texts])[:shortest][::-1]  # noqa: RUF071
    if not start and not end:
        return texts
    return {"~around": [start, end], "of": [text[len(start) : len(text) - len(end)] for text in texts]}
