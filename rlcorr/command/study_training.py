"""One training of a study, from its options to the rows that stay of it."""

import shutil
from dataclasses import asdict
from pathlib import Path

from rlcorr.analysis.budget import with_budget
from rlcorr.command.train_options import train_config
from rlcorr.config import CorrectionConfig
from rlcorr.gradients.report import compare
from rlcorr.records import runs, study
from rlcorr.records.index import in_runs
from rlcorr.records.runs import read_step
from rlcorr.records.sketch_files import read_gradients
from rlcorr.records.study import Arm, Study
from rlcorr.records.trained_arms import TrainedArm
from rlcorr.train.config.training import TrainConfig
from rlcorr.types import TokenBatch

PROGRAM = "python -m rlcorr study"


def config_of(arm: Arm) -> TrainConfig:
    return train_config(in_runs(arm.options), PROGRAM)


def train_arm(of_study: Study, arm: Arm) -> TrainedArm:
    """Train, and keep the rows alone."""
    from rlcorr.train.loop import train

    config = config_of(arm)
    shutil.rmtree(runs.LOCAL / config.run, ignore_errors=True)
    run = train(config)
    manifest = runs.read_manifest(run)
    about = {key: getattr(manifest, key) for key in ("engine", "engine_settings", "versions", "hardware", "git_commit")}
    about["progress"] = {str(step): progress_of_arms(run, step, of_study) for step in runs.list_sketches(run)}
    rows = study.rows_of(run, arm, config.correction, config.policy_loss)
    shutil.rmtree(run)
    return TrainedArm(rows, about)


def progress_of_arms(run: Path, step: int, of_study: Study) -> dict[str, list[float]]:
    """η at the size of this training's batches, of every arm that does not reject by chance: [value, low, high]. A
    budget's bound is solved for on the step's own answers."""
    configs = {arm.name: config_of(arm) for arm in of_study.arms}
    configs = {name: config for name, config in configs.items() if not config.budget.at_random}
    batch = read_step(run, step).batch
    corrections = [on_batch(config, batch) for config in configs.values()]
    sizes = (len(batch.response_mask),)
    reports = compare(*read_gradients(run, step), corrections, batch_sizes=sizes).reports
    return {name: list(asdict(of_arm.progress[0]).values()) for name, of_arm in zip(configs, reports, strict=True)}


def on_batch(config: TrainConfig, batch: TokenBatch) -> CorrectionConfig:
    """The correction with the bounds that it has on this batch."""
    budget = config.budget
    return with_budget(batch, config.correction, budget.rule, budget.keep) if budget.rule else config.correction
