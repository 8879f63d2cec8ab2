"""`python -m rlcorr report`: the mismatch in files of any size, and the effect of a correction on it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tqdm import tqdm

from rlcorr.analysis.verdicts import Look, look
from rlcorr.command.gaps import details
from rlcorr.command.options import ClampRounding
from rlcorr.command.printing import table_row, wrap_each
from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.foreign.stream import count_unpaired_tokens, first_records, pair_batches, pair_files
from rlcorr.foreign.to_record import unpaired_sentence
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
"""Metrics that are printed first, together with the shares that the rules reject."""
DIAGNOSED_TOKENS = 1 << 20
"""Number of tokens at the beginning of the files that are diagnosed. These are read with ids, part by part."""
NOTES = (
    "Names are those of the metrics, without rollout_corr/. Every number is for all files together, as if they were "
    "one batch. Quantiles are left out, because they cannot be computed from sums."
)


@dataclass(frozen=True)
class Report:
    """Measure the mismatch of log-prob pairs in Parquet files of any size, and the effect of a preset on it."""

    paths: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Recorded runs (name or directory), folders of Parquet files, Parquet files, or globs of these."""
    preset: str = "disabled"
    """Name of a correction; by default no correction."""
    clamp_rounding: ClampRounding = False

    def __post_init__(self) -> None:
        if not self.paths:
            raise UsageError("report needs something to read: a run, a folder of Parquet files, or a glob.")


def run_report(request: Report) -> int:
    """Print the report and return the exit code."""
    config, files = preset(request.preset), [file for path in request.paths for file in pair_files(path)]
    numbers = measured_files(files, config, clamp_rounding=request.clamp_rounding)
    tokens = int(numbers[f"{PREFIX}tokens"])
    diagnosis = diagnosis_lines(files, tokens, clamp_rounding=request.clamp_rounding)
    print(report_table(request.preset, files, numbers, diagnosis))
    return 0


def measured_files(
    files: Sequence[Path], config: CorrectionConfig, *, clamp_rounding: bool = False
) -> dict[str, float]:
    """Return every metric over all tokens of the files, which may be larger than memory.

    Raises `UsageError` if a file lacks a needed column or holds unusable numbers.
    """
    batches = pair_batches(files, advantages=config.needs_advantages, clamp_rounding=clamp_rounding)
    return metrics(measure_stream(_with_progress_bar(batches), config))


def diagnosis_lines(files: Sequence[Path], tokens: int, *, clamp_rounding: bool = False) -> Iterator[str]:
    """Yield verdicts about at least the first `DIAGNOSED_TOKENS` of the `tokens` tokens, or why there are none."""
    if unpaired := count_unpaired_tokens(files):
        yield from wrap_each([unpaired_sentence(unpaired, tokens)])
    looks: list[Look] = []
    try:
        for part, record in enumerate(first_records(files, DIAGNOSED_TOKENS, clamp_rounding=clamp_rounding), 1):
            looks.append(look(part, record.batch))
    except UsageError as error:  # reading ids and padding can fail although the metrics could be computed
        yield from wrap_each([f"There is no diagnosis: {error}"])
        return
    diagnosed = sum(one.tokens for one in looks)
    if diagnosed < tokens:
        yield f"The diagnosis is for the first {diagnosed:,} of {tokens:,} tokens."
    yield from details(looks, "part")


def _with_progress_bar(batches: Iterable[TokenBatch]) -> Iterator[TokenBatch]:
    """Yield the batches, and show the number of tokens and the speed on a terminal."""
    with tqdm(unit=" tokens", unit_scale=True, disable=None, leave=False) as bar:
        for batch in batches:
            yield batch
            bar.update(int(batch.response_mask.sum()))


def report_table(name: str, files: Sequence[Path], numbers: dict[str, float], diagnosis: Iterable[str]) -> str:
    """Return the report as text: files, preset, diagnosis, the most important metrics, and all others."""
    rules = [f"rollout_rs_{rule.name}_masked_fraction" for rule in preset(name).rollout_rs]
    first = [key for key in (PREFIX + metric for metric in (*FIRST, *rules)) if key in numbers]
    source = f"{len(files)} file{'s' * (len(files) > 1)}, from {files[0]}" + (f" to {files[-1]}" if files[1:] else "")
    return "\n".join(
        [
            f"{source}; preset {name}.",
            *wrap_each([preset(name).explain()]),
            *diagnosis,
            "",
            *_lines({key: numbers[key] for key in first}),
            "",
            *_lines({key: number for key, number in numbers.items() if key not in first}),
            "",
            *wrap_each([NOTES]),
        ]
    )


def _lines(numbers: dict[str, float]) -> Iterator[str]:
    width = max(map(len, numbers)) - len(PREFIX)
    for key, number in numbers.items():
        shown = f"{number:,.0f}" if key in (f"{PREFIX}tokens", f"{PREFIX}sequences") else f"{number:.6g}"
        yield table_row([key.removeprefix(PREFIX), shown, "  " + meaning(key)], [-width, 16, -1])
