"""What `python -m rlcorr report` prints: the mismatch in files of any size, and what a correction does about it."""

import json
import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from rlcorr.analysis.verdicts import Look, Verdict, look, verdict_lines, verdicts
from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.foreign.stream import check_columns, first_records, pair_batches, unpaired_tokens
from rlcorr.foreign.unsaid import said_of_unpaired
from rlcorr.measuring.measure import measure_stream
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.measuring.metrics import meaning, metrics
from rlcorr.presets import preset
from rlcorr.types import TokenBatch

FIRST = (
    "tokens", "sequences", "kl", "k3_kl", "abs_log_ratio", "is_ratio_mean", "is_ratio_max", "is_ratio_min",
    "ratio_eff_sample_size", "rollout_is_oob_ratio", "rollout_is_eff_sample_size", "kept_fraction",
    "trained_eff_sample_size",
)  # fmt: skip
"""The metrics that one looks at first; the shares that the rules reject are added."""
WIDTH = 118
LOOKED_AT = 1 << 20
"""Tokens at the beginning of the files that are diagnosed, a part at a time, with the ids that metrics do not need."""
NOTES = (
    "Names are those of the metrics, without rollout_corr/. Every number is over all files together, as if they were "
    "one batch; quantiles do not follow from sums and are left out."
)


def measured_files(
    files: Sequence[Path], config: CorrectionConfig, *, clamp_rounding: bool = False
) -> dict[str, float]:
    """Every metric over all tokens of the files, which need not fit into memory. Raises `UsageError`."""
    check_columns(files, advantages=config.needs_advantages)
    batches = pair_batches(files, advantages=config.needs_advantages, clamp_rounding=clamp_rounding)
    return metrics(measure_stream(_counted(batches), config))


@dataclass(frozen=True)
class Diagnosis:
    """A summary of how the pairs at the beginning of the files look, and of how many tokens have no pair."""

    verdicts: tuple[Verdict, ...]
    tokens: int
    """Tokens that were looked at."""
    unpaired: int
    why_not: str | None
    """Why there is no diagnosis."""


def diagnosed(files: Sequence[Path], *, clamp_rounding: bool = False) -> Diagnosis:
    """Return the diagnosis of at least the first `LOOKED_AT` tokens, or why there is none."""
    looks: list[Look] = []
    why_not = None
    try:
        for number, record in enumerate(first_records(files, LOOKED_AT, clamp_rounding=clamp_rounding), 1):
            looks.append(look(number, record.batch))
    except UsageError as error:  # ids and padding ask more of a file than the metrics do, and those are there already
        why_not = str(error)
    looks_like = () if why_not else tuple(verdicts(looks))
    return Diagnosis(looks_like, sum(one.tokens for one in looks), unpaired_tokens(files), why_not)


def _counted(batches: Iterable[TokenBatch]) -> Iterator[TokenBatch]:
    """The batches, with a bar on a terminal that says how many tokens are done, and how fast."""
    with tqdm(unit=" tokens", unit_scale=True, disable=None, leave=False) as bar:
        for batch in batches:
            yield batch
            bar.update(int(batch.response_mask.sum()))


def report_table(name: str, files: Sequence[Path], numbers: dict[str, float], diagnosis: Diagnosis) -> str:
    """What was read, what the preset does, the numbers that one looks at first, and all others."""
    rules = [f"rollout_rs_{rule.name}_masked_fraction" for rule in preset(name).rollout_rs]
    first = [key for key in (PREFIX + metric for metric in (*FIRST, *rules)) if key in numbers]
    what = f"{len(files)} file{'s' * (len(files) > 1)}, from {files[0]}" + (f" to {files[-1]}" if files[1:] else "")
    return "\n".join(
        [
            f"{what}; preset {name}.",
            *textwrap.wrap(preset(name).explain(), WIDTH),
            *_said(diagnosis, int(numbers[f"{PREFIX}tokens"])),
            "",
            *_lines({key: numbers[key] for key in first}),
            "",
            *_lines({key: number for key, number in numbers.items() if key not in first}),
            "",
            *textwrap.wrap(NOTES, WIDTH),
        ]
    )


def _said(diagnosis: Diagnosis, tokens: int) -> Iterator[str]:
    """Return what the pairs look like, and of which tokens that is said."""
    if diagnosis.unpaired:
        yield from textwrap.wrap(said_of_unpaired(diagnosis.unpaired, tokens), WIDTH)
    if diagnosis.why_not is not None:
        yield from textwrap.wrap(f"There is no diagnosis: {diagnosis.why_not}", WIDTH)
    elif diagnosis.tokens < tokens:
        yield f"The diagnosis is of the first {diagnosis.tokens:,} of {tokens:,} tokens."
    for line in verdict_lines(diagnosis.verdicts, "part"):
        yield from textwrap.wrap(line, WIDTH)


def _lines(numbers: dict[str, float]) -> Iterator[str]:
    width = max(map(len, numbers)) - len(PREFIX)
    for key, number in numbers.items():
        shown = f"{number:,.0f}" if key in (f"{PREFIX}tokens", f"{PREFIX}sequences") else f"{number:.6g}"
        yield f"{key.removeprefix(PREFIX):<{width}}{shown:>16}  {meaning(key)}"


def report_document(name: str, files: Sequence[Path], numbers: dict[str, float], diagnosis: Diagnosis) -> str:
    """Return the same for other programs: the files, the preset, the metrics by name, and the diagnosis. What is not
    finite is null."""
    finite = {key: number if math.isfinite(number) else None for key, number in numbers.items()}
    said = {"files": [str(file) for file in files], "preset": name, "metrics": finite, "diagnosis": asdict(diagnosis)}
    return json.dumps(said, indent=2)
