"""`python -m rlcorr import`: a run of your own log-prob pairs, with a diagnosis of its gap."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tqdm import tqdm

from rlcorr.analysis.advice import advise
from rlcorr.analysis.gap_size import GapSize, gap_size, total_size
from rlcorr.analysis.published import among_published
from rlcorr.analysis.symptoms import percent, short
from rlcorr.analysis.verdicts import look
from rlcorr.command.gaps import details
from rlcorr.command.options import ClampRounding, Details
from rlcorr.command.printing import print_lines, wrap_each
from rlcorr.errors import UsageError, require_extra, unknown
from rlcorr.foreign.import_run import COLUMN, import_files, return_large_blocks
from rlcorr.foreign.read_file import LARGE, find_files
from rlcorr.foreign.retokenised import has_ids_and_texts, reencode
from rlcorr.records import runs
from rlcorr.records.run_folders import require_run_name
from rlcorr.systems.export import SYSTEMS, export

ASK = (
    "The ids and the texts of the answers are recorded: with --tokenizer MODEL, import counts the answers whose text "
    "encodes to other ids."
)
ADVICE = (
    "A trainer, or a next turn, that encodes the text again works on other tokens than the engine sampled. Pass the "
    "engine's token ids on instead of the text."
)


@dataclass(frozen=True)
class Import:
    """Make a run of your own log-prob pairs: Parquet, JSON Lines, .npz, .pt or .safetensors, or another system's dump.

    The step of a file is read from its column `step` or from its name; the ranks of a step are merged. The verb prints
    what the gap looks like, what to set for your system, and the text for it.
    """

    paths: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Files, folders, or globs. They must hold rollout_log_probs and old_log_probs, and response_mask if they are
    padded."""
    run: str = ""
    """Name of the run, written to runs/local/<name>; empty: imported and the next free number."""
    system: str = "verl"
    """System for which the setting is printed."""
    details: Details = False
    nan_is_ratio_one: bool = False
    """Leave tokens whose engine log-prob is NaN out of every number, and print how many there are. TRL gives them a
    ratio of 1 and leaves them out of its metrics, too. Without this option NaN is refused."""
    clamp_rounding: ClampRounding = False
    leave_out_aborted: bool = False
    """Leave out responses for which one side has no log-prob at all, as for aborted ones, and print how many there are.
    Without this option they are refused."""
    join: bool = False
    """Join the rows that several files have of one step: shards that were cut by size, or a file per micro-batch."""
    tokenizer: str | None = None
    """Folder of a model: count the answers whose text its tokenizer.json encodes to other ids than the file has."""

    def __post_init__(self) -> None:
        if not self.paths:
            raise UsageError("import needs something to read: files, folders or globs.")
        if self.run:
            require_run_name(self.run)
        if self.system not in SYSTEMS:  # before the files are read
            raise unknown("system", self.system, SYSTEMS)


def run_import(request: Import) -> int:
    """Make the run, print what was read and how it looks, and return the exit code."""
    path = runs.LOCAL / (request.run or runs.free_name("imported"))
    tokenizer = None
    if request.tokenizer is not None:
        require_extra("train", "transformers")
        from rlcorr.train.inputs.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(Path(request.tokenizer)).backend_tokenizer
    files = find_files(request.paths)
    size = sum(file.stat().st_size for file in files)
    return_large_blocks(COLUMN if size > LARGE else 16 * COLUMN)  # most small files have no column of 4 MiB
    with tqdm(total=size, unit="B", unit_scale=True, disable=None, leave=False) as bar:
        summary = import_files(
            files, path, join=request.join, watch=bar.update, nan_is_ratio_one=request.nan_is_ratio_one,
            clamp_rounding=request.clamp_rounding, leave_out_aborted=request.leave_out_aborted,
        )  # fmt: skip
    looks = [look(step, runs.read_step(path, step).batch) for step in runs.list_steps(path)]
    advice = advise(looks, runs.read_step(path, looks[-1].step).batch, request.system)
    steps = "1 step" if summary.steps == 1 else f"{summary.steps} steps"
    print(f"Read {summary.responses} responses, {summary.tokens} tokens, {steps}: the run {path} records it")
    print_lines(wrap_each([advice.sentence, advice.reason]))
    if advice.take is not None:
        print(f"\n{export(advice.take.config, request.system, advice.take.loss)}")
    named, more = [*summary.missing][:3], len(summary.missing) - 3
    lacks = f"Missing: {', '.join(named)}{f' and {more} more' * (more > 0)}; --details says what each is for."
    told = [among_published(advice.k3), lacks, *summary.notes, *summary.left_out()]
    print_lines(wrap_each([*told, *retokenised_lines(path, tokenizer)]))
    if request.details:
        print_lines(f"  {name:<17} {use}" for name, use in summary.missing.items())
        print_lines(details(looks))
    return 0


# --- answers whose text encodes to other token ids ---


def retokenised_lines(run: Path, tokenizer: Any) -> Iterator[str]:
    """Yield how many answers of a run encode to other ids, and their k3.

    Without a `tokenizer` (a `tokenizers.Tokenizer`), yield how to ask for it if ids and texts are there.
    """
    counts = [(0, 0, 0)]  # answers, comparable and differing ones per step
    inside: list[GapSize | None] = []
    outside: list[GapSize | None] = []
    for record in (runs.read_step(run, step) for step in runs.list_steps(run)):
        if not has_ids_and_texts(record):
            continue
        if tokenizer is None:
            yield ASK
            return
        comparable, differing = reencode(record, tokenizer)
        counts.append((len(comparable), int(comparable.sum()), int(differing.sum())))
        inside.append(gap_size(record.batch.rows(differing.nonzero()[:, 0])))
        outside.append(gap_size(record.batch.rows((~differing).nonzero()[:, 0])))
    if tokenizer is not None:
        total, of_text, changed = map(sum, zip(*counts, strict=True))
        yield _sentence(total, of_text, changed, total_size(inside), total_size(outside))


def _sentence(answers: int, comparable: int, differing: int, inside: GapSize | None, outside: GapSize | None) -> str:
    if not comparable:
        return "re-tokenised: no answer has ids that this tokenizer decodes to its text, so none can be encoded again."
    said = f"re-tokenised: the text of {differing:,} of {comparable:,} answers ({percent(differing / comparable)}) "
    said += "encodes to other ids than were recorded."
    if comparable < answers:
        said += f" {answers - comparable:,} more answers are left out, because their ids decode to another text."
    if inside is not None and outside is not None:
        said += f" k3 is {short(inside.k3)} on them and {short(outside.k3)} on the others."
    return f"{said} {ADVICE}" if differing else said
