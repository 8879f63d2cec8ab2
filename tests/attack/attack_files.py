"""Damaged and hostile files of every format, through `import` and `report`, in a process that may not grow."""

import json
import select
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

from attempts import Attack, one_sentence
from damage import damaged
from hostile import MIB
from hostile_files import HOSTILE, content_of
from sound_files import sound_files

DAMAGED, DAMAGED_HOSTILE = 900, 300
GROWTH, TIMES = 300 * MIB, 20
"""Bytes that one command may take, and more in proportion to the file."""
PATIENCE = 60.0
"""Seconds of one command."""


class Program:
    """A process that runs one command after the other, and is started again after a crash."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._patience = patience

    def run(self, *words: str) -> dict[str, Any]:
        """Return the exit code, what was printed, and the growth in bytes; or why the process ended."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(words) + "\n")
        process.stdin.flush()
        line = process.stdout.readline() if select.select([process.stdout], [], [], self._patience)[0] else ""
        if line:
            return json.loads(line)
        code = process.poll()
        self.end()
        return {"code": None, "error": "" if code is None else f"Traceback: the process ended with {code}", "growth": 0}

    def _start(self) -> subprocess.Popen[str]:
        worker = str(Path(__file__).with_name("file_worker.py"))
        self._process = subprocess.Popen(
            [sys.executable, worker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return self._process

    def end(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None


def attack(attack: Attack) -> None:
    """Import and report sound files, damaged ones and hostile ones."""
    program, sound, harm = Program(), sound_files(), attack.folder / "harm"
    for (number, _), (name, content) in zip(attack.attempts(len(sound)), sound.items(), strict=False):
        attack.judge(number, name, problem_of(program, attack.folder, name, content, sound=True))
    for number, chance in attack.attempts(DAMAGED):
        name, content, how = damaged(chance, sound)
        attack.judge(number, f"{name!r}, {how}", problem_of(program, attack.folder, name, content))
    hostile = {f"{what}{ending}": (ending, case) for ending, cases in HOSTILE.items() for what, case in cases.items()}
    for number, chance in attack.attempts(DAMAGED_HOSTILE):
        what = chance.choice([*hostile])
        ending, case = hostile[what]
        name, content, how = damaged(chance, {f"x{ending}": content_of(case, harm)})
        attack.judge(number, f"{name!r}, {what}, {how}", problem_of(program, attack.folder, name, content))
    for number, chance in attack.attempts(20):
        words = run_name(chance)
        attack.judge(number, f"a run named {words!r:.60}", problem_of_name(program, attack.folder, words, sound))
    program.end()


def problem_of(program: Program, folder: Path, name: str, content: bytes, *, sound: bool = False) -> str | None:
    """Import and report a file, and return what is wrong."""
    path, local = folder / "files" / name, folder / "local"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    try:
        for words in (("import", str(path), "--run", "r"), ("report", str(path))):
            done = program.run(*words)
            problem = one_sentence(done["code"], done["error"]) or done.get("problem")
            if done["growth"] > GROWTH + TIMES * len(content):
                problem = problem or f"{done['growth'] / MIB:.0f} MiB for a file of {len(content):,} bytes"
            if sound and words[0] == "import" and done["code"] != 0:
                problem = problem or f"a sound file is refused: {done['error']}"
            if local.is_dir() and any(local.iterdir()):
                problem = problem or f"left behind: {[p.name for p in local.iterdir()]}"
            if (folder / "harm").exists():
                problem = "code in the file was run"
            if problem:
                return f"{words[0]}: {problem}"
        return None
    finally:
        path.unlink()


def problem_of_name(program: Program, folder: Path, run: str, sound: dict[str, bytes]) -> str | None:
    """Import a sound file under a hostile name of a run, and return what is wrong."""
    path = folder / "x.jsonl"
    path.write_bytes(sound["lists.jsonl"])
    done = program.run("import", str(path), f"--run={run}")
    outside = sorted({p.name for p in folder.parent.iterdir()} - {"runs", "results"})
    return one_sentence(done["code"], done["error"]) or done.get("problem") or (str(outside) if outside else None)


def run_name(chance: Random) -> str:
    """Return a name that is too long, has folders, cannot be printed or looks like an option."""
    parts = ["a", "..", "/", "\0", "\n", "é", "x" * 300, "-", "--", ".", " ", "\u202e", "\\", "%s", "{}", "*", "~"]
    return "".join(chance.choice(parts) for _ in range(chance.randint(1, 4)))
