"""`import verl` with the plugin found by its entry point, RLCORR_VERL unset and set: who corrects, what is recorded?"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from verl_peer import PEERS

from rlcorr.records.runs import list_steps, read_step
from rlcorr.records.verify import verify

SAYS = """
import sys, types
ray = types.ModuleType("ray"); ray.ObjectRef = object; sys.modules["ray"] = ray
import verl
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch as add
import torch
from verl.protocol import DataProto
from verl.trainer.config.algorithm import RolloutCorrectionConfig
old, rollout = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -3.0]])
mask = torch.ones(1, 2, dtype=torch.long)
config = RolloutCorrectionConfig(
    rollout_is="token", rollout_is_threshold=2.0, rollout_rs="token_k1", rollout_rs_threshold="0.5_3.0"
)
for step in (3, 4):
    tensors = {"old_log_probs": old, "rollout_log_probs": rollout, "response_mask": mask}
    batch = DataProto.from_dict(tensors=tensors, meta_info={"global_steps": step})
    batch, report = add(batch, config)
weights, kept = (batch.batch[name].tolist() for name in ("rollout_is_weights", "response_mask"))
print(add.__module__, weights, kept, round(report["rollout_corr/kl"], 3))
"""


def said(value: str | None, runs: str) -> str:
    """What verl says with this value of RLCORR_VERL; the entry point comes from a folder made for it. What it records
    goes to the folder `runs`."""
    with tempfile.TemporaryDirectory() as folder:
        info = Path(folder) / "rlcorr_plugin-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rlcorr-plugin\nVersion: 0\n")
        (info / "entry_points.txt").write_text("[verl.plugins]\nrlcorr = rlcorr.recorders.verl\n")
        paths = [folder, str(PEERS), *sys.path]
        ours = ("RLCORR_VERL", "VERL_USE_EXTERNAL_PLUGINS")
        kept = {name: text for name, text in os.environ.items() if name not in ours}
        env = kept | {"PYTHONPATH": os.pathsep.join(paths), "RLCORR_RUNS": runs, "RLCORR_RUN": "mine"}
        env |= {} if value is None else {"RLCORR_VERL": value}
        run = subprocess.run([sys.executable, "-c", SAYS], env=env, capture_output=True, text=True, check=True)
        told = [line for line in run.stderr.splitlines() if line.startswith("rlcorr:")]
        return "; ".join([run.stdout.strip().splitlines()[-1], *told])


def main() -> None:
    """verl's correction rejects the second token, and writes so over its mask: the run has the pairs from before."""
    # Ratios 1 and e², capped at 2; 1/r of the second is below 0.5; the KL is mean(log π_rollout − log π_old) = −1.
    numbers = " [[1.0, 2.0]] [[1, 0]] -1.0"
    wanted = "verl.trainer.ppo.rollout_corr_helper" + numbers
    with tempfile.TemporaryDirectory() as folder:
        assert said(None, folder) == wanted
        assert said("helper", folder) == "rlcorr.recorders.verl_helper" + numbers
        run = Path(folder) / "local" / "mine"
        assert not run.exists()
        assert said("record", folder) == wanted
        report = verify(run)
        assert (report.status, report.problems) == ("complete", []), report
        assert list_steps(run) == [3, 4]
        batch = read_step(run, 4).batch
        assert batch.old_log_probs is not None
        pairs = (batch.response_mask, batch.old_log_probs, batch.rollout_log_probs)
        assert [x.tolist() for x in pairs] == [[[True, True]], [[-1, -1]], [[-1, -3]]], pairs
    print("the plugin: inert without RLCORR_VERL, ours with =helper, a run of two steps with =record")


if __name__ == "__main__":
    main()
