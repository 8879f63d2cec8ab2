"""The command that lesson 14 tells people to type is one that the trainer accepts."""

import re
import shlex
from pathlib import Path

from rlcorr.command.train import train_config

LESSON = Path(__file__).resolve().parent.parent.parent / "lessons" / "14_record_your_own.py"


def test_the_lessons_command_records_a_run_with_a_sketch() -> None:
    text = LESSON.read_text(encoding="utf-8").replace("\\\n# ", "")
    (arguments,) = re.findall(r'^# make train ARGS="([^"]+)"$', text, flags=re.MULTILINE)
    config = train_config(shlex.split(arguments), "make train")
    assert (config.run, config.steps, config.record_every) == ("my_first", 20, 10)
    assert config.sketch.every == 20
