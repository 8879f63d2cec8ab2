"""The part of an import's diagnosis that needs texts: answers whose text encodes to other token ids."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlcorr.analysis.gap_size import GapSize, gap_size, total_size
from rlcorr.analysis.symptoms import percent, short
from rlcorr.foreign.retokenised import has_ids_and_texts, reencode
from rlcorr.records import runs

ASK = (
    "The ids and the texts of the answers are recorded: with --tokenizer MODEL, import counts the answers whose text "
    "encodes to other ids."
)
ADVICE = (
    "A trainer, or a next turn, that encodes the text again works on other tokens than the engine sampled. Pass the "
    "engine's token ids on instead of the text."
)


def retokenised_lines(run: Path, tokenizer: Any) -> Iterator[str]:
    """Yield how many answers of a run encode to other ids, and their k3.

    Without a `tokenizer`, see `load_tokenizer`, yield how to ask for it if ids and texts are there.
    """
    answers = comparable = differing = 0
    inside: list[GapSize | None] = []
    outside: list[GapSize | None] = []
    for record in (runs.read_step(run, step) for step in runs.list_steps(run)):
        if not has_ids_and_texts(record):
            continue
        if tokenizer is None:
            yield ASK
            return
        rows = reencode(record, tokenizer)
        answers, comparable = answers + len(rows.comparable), comparable + int(rows.comparable.sum())
        differing += int(rows.differing.sum())
        inside.append(gap_size(record.batch.rows(rows.differing.nonzero()[:, 0])))
        outside.append(gap_size(record.batch.rows((~rows.differing).nonzero()[:, 0])))
    if tokenizer is not None:
        yield _sentence(answers, comparable, differing, total_size(inside), total_size(outside))


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
