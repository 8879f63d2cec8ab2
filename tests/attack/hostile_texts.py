"""JSON and JSON Lines with values that no writer of log-probs means, or far too many of them."""

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from hostile import MIB, Bomb

PAIR = ("rollout_log_probs", "old_log_probs")
KEYS = (
    *PAIR, "response_mask", "lengths", "offsets", "step", "advantages", "reward", "group_id", "losses", "samples",
    "policy_version", "prompt", "response", "prompt_ids", "response_ids", "token_ids", "messages", "loss_masks",
    "unpaired_tokens", "a\0b", "k" * 300, "\ud800", "", "__proto__",
)  # fmt: skip
NUMBERS = (
    "-1", "-0.0", "0.01", "5", "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "-9223372036854775808", "1e-400",
    "18446744073709551615", "1" + "0" * 400, "1" + "0" * 5000, "null", "true", '"-1"', '"\\ud800"', "[]", "{}",
)  # fmt: skip


def value(chance: Random) -> str:
    """Return the text of a list of numbers, or of something else."""
    kind = chance.random()
    if kind < 0.5:
        return f"[{', '.join(chance.choice(NUMBERS) for _ in range(chance.randint(0, 3)))}]"
    if kind < 0.6:
        return f"[[{chance.choice(NUMBERS)}], [-1, -2]]"
    if kind < 0.7:
        depth = chance.choice([2, 50, 900, 5000, 100_000])
        return "[" * depth + "]" * depth
    return chance.choice(NUMBERS)


def row(chance: Random) -> str:
    """Return the text of an object: often a sound pair, a few other keys, and sometimes one of them twice."""
    parts = {name: "[-1, -2]" if chance.random() < 0.7 else value(chance) for name in PAIR}
    parts |= {key: value(chance) for key in chance.sample(KEYS, chance.randint(0, 3))}
    texts = [f"{json.dumps(key)}: {text}" for key, text in parts.items()]
    if chance.random() < 0.15:
        texts.append(chance.choice(texts))
    return "{" + ", ".join(texts) + "}"


def rows(chance: Random) -> bytes:
    return "\n".join(row(chance) for _ in range(chance.choice([1, 1, 2, 5]))).encode(errors="surrogatepass")


def document(chance: Random) -> bytes:
    text = ", ".join(row(chance) for _ in range(chance.choice([1, 2])))
    whole = chance.choice(["[{}]", '{{"samples": [{}]}}', '{{"samples": [{}], "step": -1}}', "[[{}]]", '{{"a": {}}}'])
    return whole.format(text).encode(errors="surrogatepass")


def many(chance: Random) -> bytes:
    """Return very many keys, brackets, rows, tokens or spaces."""
    makers: list[Callable[[], bytes]] = [
        lambda: b"\n".join(json.dumps({f"key{n}_{m}": 1 for m in range(5000)}).encode() for n in range(30)),
        lambda: b"[" + b"[]," * 1_100_000 + b"[]]",
        lambda: b"{}\n" * 300_000,
        lambda: b'{"old_log_probs": [' + b"-1," * 4_200_000 + b"-1]}",
        lambda: b"[" + b" " * (33 * MIB) + b"]",
        lambda: b'{"old_log_probs": [-1], "rollout_log_probs": [-1], "prompt": "' + b"x" * (8 * MIB) + b'"}',
        lambda: b'{"rollout_log_probs": [-1], "old_log_probs": [-1]}\n' * 100_000,
    ]
    return chance.choice(makers)()


def odd_bytes(chance: Random, harm: Path) -> bytes:
    """Return another encoding, a byte order mark, zeros between lines, a packed file or a pickle."""
    text = rows(chance)
    makers: list[Callable[[], Any]] = [
        lambda: text.decode(errors="replace").encode("utf-16"), lambda: b"\xef\xbb\xbf" * 3 + text,
        lambda: text.replace(b"\n", b"\0\n"), lambda: gzip.compress(text), lambda: gzip.compress(bytes(10**8)),
        lambda: pickle.dumps(Bomb(harm), chance.randrange(6)), lambda: text + b"\xff" * 50, lambda: b" \n\t" * 50,
    ]  # fmt: skip
    return chance.choice(makers)()


def hostile_text(chance: Random, harm: Path) -> tuple[str, bytes, str]:
    """Return a name, a content, and what is hostile in it. Code in it would make the file `harm`."""
    kind = chance.choices(["rows", "document", "many", "odd bytes"], (5, 3, 1, 2))[0]
    ending = chance.choice([".jsonl", ".json"])
    if kind == "odd bytes":
        return f"x{ending}", odd_bytes(chance, harm), kind
    return f"x{ending}", {"rows": rows, "document": document, "many": many}[kind](chance), kind
