"""The command that lesson 16 tells people to type, typed."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from engines import forget_engines

from rlcorr.command.cli import main
from rlcorr.ratios import k3, log_ratio
from rlcorr.records import runs
from rlcorr.records.sketch_files import read_sketch
from rlcorr.records.verify import verify
from rlcorr.train.config.training import WARM_START

pytestmark = [
    pytest.mark.slow,
    pytest.mark.engine,
    pytest.mark.skipif(sys.platform != "linux", reason="no vLLM build for this platform"),
]

LESSON = Path(__file__).resolve().parent.parent.parent / "lessons" / "16_record_your_own.py"


def options() -> list[str]:
    """Of the `make train` that the lesson shows, as a shell reads them."""
    text = LESSON.read_text(encoding="utf-8").replace("\\\n# ", "")
    (arguments,) = re.findall(r'^# make train ARGS="([^"]+)"$', text, flags=re.MULTILINE)
    return shlex.split(arguments)


def call(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 0


def test_the_lessons_command_records_a_run(local_runs: Path) -> None:
    """With fewer prompts per step than the lesson waits for."""
    forget_engines()
    call("train", "--model", str(WARM_START), *options(), "--prompts-per-step", "8", "--eval-prompts", "8")
    forget_engines()
    run = local_runs / "my_first"
    call("verify", str(run))
    report = verify(run)
    assert (report.status, report.problems, report.metric_rows) == ("complete", [], 20)
    assert runs.list_steps(run) == [10, 20]
    manifest = runs.read_manifest(run)
    assert (manifest.engine, manifest.probe["pattern"]) == ("vllm", "precision")
    batch = runs.read_step(run, 20).batch
    d = log_ratio(batch.tensors()["old_log_probs"], batch.rollout_log_probs, batch.response_mask)[batch.response_mask]
    assert 0 < float(k3(d).mean()) < 1e-3
    assert read_sketch(run, 20).scores.shape == (len(d), 16)
