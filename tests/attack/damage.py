"""Damage at random places: what disks, networks and copies that were cut off make of a file."""

import gzip
from collections.abc import Callable, Mapping
from random import Random

Damage = Callable[[Random, bytes], bytes]


def cut_off(chance: Random, content: bytes) -> bytes:
    return content[: chance.randrange(len(content))]


def beheaded(chance: Random, content: bytes) -> bytes:
    return content[chance.randrange(1, len(content)) :]


def flipped_bits(chance: Random, content: bytes) -> bytes:
    damaged = bytearray(content)
    for _ in range(chance.choice([1, 1, 1, 2, 8, 64])):
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def other_bytes(chance: Random, content: bytes) -> bytes:
    """Replace a stretch by zeros, by ones, or by random bytes."""
    first = chance.randrange(len(content))
    length = min(chance.choice([1, 4, 8, 100, 5000]), len(content) - first)
    fill = chance.choice([bytes(length), b"\xff" * length, chance.randbytes(length)])
    return content[:first] + fill + content[first + length :]


def left_out(chance: Random, content: bytes) -> bytes:
    first = chance.randrange(len(content))
    return content[:first] + content[first + chance.choice([1, 3, 16, 300]) :]


def doubled(chance: Random, content: bytes) -> bytes:
    """Repeat a stretch, in place or at the end."""
    first = chance.randrange(len(content))
    part = content[first : first + chance.choice([1, 16, 300, len(content)])]
    return content[:first] + part * chance.randint(1, 3) + content[first:] if chance.random() < 0.5 else content + part


def larger_number(chance: Random, content: bytes) -> bytes:
    """Put a very large or negative number, as four or eight bytes, over something."""
    number = chance.choice([-1, -(2**31), 2**31 - 1, 2**62, -(2**63), 2**63 - 1, 3 * 10**9])
    width = 4 if -(2**31) <= number < 2**31 and chance.random() < 0.5 else 8
    first = chance.randrange(len(content))
    return content[:first] + number.to_bytes(width, "little", signed=True) + content[first + width :]


def packed(_: Random, content: bytes) -> bytes:
    return gzip.compress(content)


KINDS: dict[str, Damage] = {
    "cut off": cut_off, "beheaded": beheaded, "flipped bits": flipped_bits, "other bytes": other_bytes,
    "left out": left_out, "doubled": doubled, "a larger number": larger_number, "packed": packed,
}  # fmt: skip
WEIGHTS = (3, 1, 5, 3, 2, 2, 4, 1)
ENDINGS = (".jsonl", ".json", ".parquet", ".npz", ".safetensors", ".pt", ".pth", ".pkl", ".pickle", ".gz", ".csv", "")
STRANGE = (
    "step_99999999999999999999{}", "x" * 240 + "{}", "a\nb{}", "\u202e{}", "rank_-1_step_-5{}", "{{}}%s{}", ".{}",
    "global_step_9223372036854775808_rank_4294967296{}", "-x{}", "é" * 100 + "{}", "a b'\"$(x){}",
)  # fmt: skip


def damaged(chance: Random, sound: Mapping[str, bytes]) -> tuple[str, bytes, str]:
    """Return a name, a damaged content, and what was done to it."""
    name = chance.choice(sorted(sound))
    (kind,) = chance.choices([*KINDS], WEIGHTS)
    content = KINDS[kind](chance, sound[name])
    stem, _, ending = name.rpartition(".")
    ending = f".{ending}.gz" if kind == "packed" and chance.random() < 0.5 else f".{ending}"
    if chance.random() < 0.1:
        return f"{stem}{chance.choice(ENDINGS)}", content, f"{kind}, under another ending"
    if chance.random() < 0.1:
        return chance.choice(STRANGE).format(ending), content, f"{kind}, under a strange name"
    return f"{stem}{ending}", content, kind
