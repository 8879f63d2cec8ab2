"""The command that lesson 16 tells people to type, typed."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from processes import rlcorr

from rlcorr.ratios import k3, log_ratio
from rlcorr.records import runs
from rlcorr.records.sketch_files import read_sketch
from rlcorr.records.verify import verify
from rlcorr.train.config.training import WARM_START

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="no vLLM build for this platform")]

LESSON = Path(__file__).resolve().parent.parent.parent / "lessons" / "16_record_your_own.py"


def options() -> list[str]:
    """Of the `make train` that the lesson shows, as a shell reads them."""
    text = LESSON.read_text(encoding="utf-8").replace("\\\n# ", "")
    (arguments,) = re.findall(r'^# make train ARGS="([^"]+)"$', text, flags=re.MULTILINE)
    return shlex.split(arguments)


def test_the_lessons_command_records_a_run(tmp_path: Path) -> None:
    done = rlcorr("train", "--model", str(WARM_START), *options(), runs_folder=tmp_path, timeout=540)
    assert done.returncode == 0, done.stderr[-2000:]
    assert rlcorr("verify", "my_first", runs_folder=tmp_path).returncode == 0

    run = tmp_path / "local" / "my_first"
    report = verify(run)
    assert (report.status, report.problems, report.metric_rows) == ("complete", [], 20)
    assert runs.list_steps(run) == [10, 20]
    manifest = runs.read_manifest(run)
    assert (manifest.engine, manifest.probe["pattern"]) == ("vllm", "precision")
    batch = runs.read_step(run, 20).batch
    d = log_ratio(batch.tensors()["old_log_probs"], batch.rollout_log_probs, batch.response_mask)[batch.response_mask]
    assert 0 < float(k3(d).mean()) < 1e-3
    assert read_sketch(run, 20).scores.shape == (len(d), 16)
