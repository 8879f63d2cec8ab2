"""Runs of strangers, and files that change while they are read: bounded memory, an end, no part for the whole."""

import gzip
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from app_runs import make_run
from attack_files import GROWTH, TIMES, Program
from attempts import Attack, one_sentence

from rlcorr.errors import UsageError
from rlcorr.foreign import read_file
from rlcorr.foreign.map_names import WANTED
from rlcorr.foreign.read_file import read_columns
from rlcorr.records import runs

STEP, MANIFEST = "steps/step_000000.parquet", "manifest.json"
CHANGED = 40
VERBS = (("verify", "{}"), ("report", "{}"), ("gradients", "{}"), ("threshold", "{}"), ("import", "{}", "--run=copy"))


def bomb(path: Path) -> None:
    """Write a step of a few kilobytes with 20 million tokens."""
    zeros, ends = pa.array(np.zeros(20_000_000, np.float32)), pa.array([0, 20_000_000], pa.int32())
    lists = pa.ListArray.from_arrays(ends, zeros)
    ids = pa.ListArray.from_arrays(ends, pa.array(np.zeros(20_000_000, np.int32)))
    one = {name: pa.array([0], pa.int32()) for name in ("group_id", "policy_version")}
    texts = {"prompt": pa.array([""]), "response": pa.array([""]), "reward": pa.array([0.0], pa.float32())}
    columns = one | texts | {"prompt_ids": ids, "response_ids": ids, "rollout_log_probs": lists, "old_log_probs": lists}
    pq.write_table(pa.table(columns), path, compression="zstd")


def long_texts(path: Path) -> None:
    """Give each of 200 rows a text of a megabyte, which the file has once."""
    table = pq.read_table(path).slice(0, 1)
    rows = pa.concat_tables([table] * 200)
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int32()), pa.array(["x" * 1_000_000]))
    pq.write_table(rows.set_column(rows.column_names.index("prompt"), "prompt", texts), path, compression="zstd")


def with_manifest(**changes: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = json.loads(path.read_text()) | changes
        content.pop("crc32", None)
        path.write_text(json.dumps(content))

    return change


def instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Put something else in the place of a file."""

    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


def packed_zeros(path: Path) -> None:
    path.write_bytes(gzip.compress(bytes(400 << 20)))


def text(content: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_text(content)

    return change


ODD: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a bomb": (STEP, bomb),
    "long texts": (STEP, long_texts),
    "a device": (STEP, instead(lambda path: path.symlink_to("/dev/zero"))),
    "a FIFO": (STEP, instead(os.mkfifo)),
    "a folder": (STEP, instead(Path.mkdir)),
    "a circle": (STEP, instead(lambda path: path.symlink_to(path))),
    "a manifest that is a FIFO": (MANIFEST, instead(os.mkfifo)),
    "files outside": (MANIFEST, with_manifest(files=dict.fromkeys(["/etc/passwd", "../x", "a\0b", "/dev/zero"], "0"))),
    "no files": (MANIFEST, with_manifest(files=["a"], config=7)),
    "a deep manifest": (MANIFEST, text('{"a":' * 100_000 + "1" + "}" * 100_000)),
    "metrics that are a FIFO": ("metrics.jsonl", instead(os.mkfifo)),
    "a metric of 4,000 digits": ("metrics.jsonl", text('{"step": 0, "reward": 1' + "0" * 4000 + "}\n")),
    "packed metrics": ("metrics.jsonl.gz", packed_zeros),
    "deep metrics": ("metrics.jsonl", text("[" * 100_000 + "\n")),
}  # fmt: skip
"""What is done to a run → the file and the function that does it."""


def attack(attack: Attack) -> None:
    """Read odd runs with every verb, and change files while they are read."""
    program = Program()
    for what, (name, change) in ODD.items():
        for number, _ in attack.attempts(1):
            attack.judge(number, what, problem_of(program, attack.folder, name, change))
    program.end()
    read_file.PART = 400  # small parts, between which files change
    for number, chance in attack.attempts(CHANGED):
        attack.judge(number, "a file that changes", problem_of_change(chance, attack.folder / "changes.parquet"))


def problem_of(program: Program, root: Path, name: str, change: Callable[[Path], None]) -> str | None:
    """Let every verb read a changed run next to a sound one, and return what is wrong."""
    run, sound = make_run(root, "odd", steps=1), make_run(root, "sound", steps=1)
    change(run / name)
    if name == STEP and (run / STEP).stat(follow_symlinks=False).st_size > 1000:  # a stranger hashes it, too
        runs.finish_run(run, runs.read_manifest(run))
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    problem = None
    for words in [[word.format(which) for word in verb] for which in (run, sound) for verb in VERBS]:
        done = program.run(*words)
        code = 0 if words[0] == "verify" and done["code"] == 1 else done["code"]  # it has found something
        wrong = one_sentence(code, done["error"])
        if done["growth"] > GROWTH + TIMES * size:
            wrong = f"{done['growth'] >> 20} MiB for a run of {size:,} bytes"
        if words[1] == str(sound) and words[0] != "gradients" and code != 0:
            wrong = wrong or f"a sound run is refused: {done['error']}"
        problem = problem or (f"{words[0]}: {wrong}" if wrong else None)
        shutil.rmtree(root / "local", ignore_errors=True)
    shutil.rmtree(run)
    shutil.rmtree(sound)
    return problem


def problem_of_change(chance: Random, path: Path) -> str | None:
    """Cut, rewrite or delete a file after some of its parts, and return whether a part of it passed for the whole."""
    rows = pa.table({name: [[-1.0] * 50] * 400 for name in ("rollout_log_probs", "old_log_probs")})
    content = io.BytesIO()
    pq.write_table(rows, content, row_group_size=chance.choice([20, 400]), use_dictionary=False)
    path.write_bytes(content.getvalue())
    changes = {
        "emptied": lambda: path.write_bytes(b""),
        "cut off": lambda: path.write_bytes(content.getvalue()[: chance.randrange(len(content.getvalue()))]),
        "added to": lambda: path.write_bytes(content.getvalue() + b"x"),
        "another": lambda: path.write_bytes(content.getvalue()[::-1]),
    }
    how, after, got = chance.choice([*changes]), chance.randrange(30), 0
    try:
        for number, part in enumerate(read_columns(path, ".parquet", WANTED, in_parts=True)):
            got += part.rows
            if number == after:
                changes[how]()
    except UsageError:
        return None
    except Exception as error:
        return f"Traceback: {how} after {after} parts: {error!r}"
    return f"{how} after {after} parts: {got} of 400 rows pass for the whole file"
