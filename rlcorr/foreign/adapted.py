"""What is particular to a system: its dump's columns, so that their names say the rest.

The facts stand in `systems/`, a file per system.
"""

from collections.abc import Collection

import torch

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import Column, Columns, Lists, Unreadable
from rlcorr.systems import nemo_rl, prime_rl, skyrl_dumps, slime
from rlcorr.systems.mapping.dumps import Dump
from rlcorr.systems.verl import dumps as verl_dumps

DUMPS = (nemo_rl.DUMP, prime_rl.DUMP, slime.DUMP)


def adapted(columns: Columns, names: Collection[str]) -> Columns:
    """The columns of a file with these names. Raises `UsageError`."""
    if columns.keys() >= skyrl_dumps.COLUMNS:
        return _skyrl(columns)
    for dump in DUMPS:
        if dump.columns <= columns.keys() and (not dump.one_of or dump.one_of & set(names)):
            return _read_as(dump, columns)
    return _arrays_of_verl(columns)


def _read_as(dump: Dump, columns: Columns) -> Columns:
    columns = dict(columns)
    mask, rows = columns.get(dump.mask_over_dummy), columns.get(dump.row_mask)
    if isinstance(mask, Lists):
        counted = mask.values * (mask.places() > 0)
        if rows is not None:
            counted = counted * _per_row(dump.row_mask, rows, len(mask.lengths))[mask.rows()]
        columns[dump.mask_over_dummy] = Lists(counted, mask.lengths)
    for theirs, mine in dump.renamed.items():
        if theirs in columns:
            columns[mine] = columns.pop(theirs)
    return columns


def _per_row(name: str, column: Column, rows: int) -> torch.Tensor:
    """A number per row, or lists of one. Raises `UsageError`."""
    values = column.values if isinstance(column, Lists) and bool((column.lengths == 1).all()) else column
    if not isinstance(values, torch.Tensor) or len(values) != rows:
        raise UsageError(f"{name} must hold one number per row, which says whether the row counts.")
    return values


def _arrays_of_verl(columns: Columns) -> Columns:
    columns = dict(columns)
    for theirs, mine in verl_dumps.TOKEN_IDS.items():
        if isinstance(columns.get(theirs), Lists):
            columns[mine] = columns.pop(theirs)
    prompts, attention = columns.get("prompt_ids"), columns.get(verl_dumps.ATTENTION_MASK)
    if isinstance(prompts, Lists) and attention is not None:
        columns["prompt_mask"] = _mask_of_prompts(prompts, attention)
    scores = columns.get(verl_dumps.TOKEN_SCORES)
    if scores is not None and "rewards" not in columns:
        columns["rewards"] = _sums(verl_dumps.TOKEN_SCORES, scores)
    return columns


def _mask_of_prompts(prompts: Lists, attention: Column) -> Column:
    if not isinstance(attention, Lists):
        return attention if isinstance(attention, Unreadable) else Unreadable("attention_mask must hold lists per row.")
    if len(prompts.lengths) != len(attention.lengths) or bool((prompts.lengths > attention.lengths).any()):
        return Unreadable("attention_mask must cover prompt and response; it is shorter than the prompts.")
    in_prompt = attention.places() < prompts.lengths[attention.rows()]
    return Lists(attention.values[in_prompt], prompts.lengths)


def _sums(name: str, scores: Column) -> Column:
    """The sum of each row's numbers."""
    if not isinstance(scores, Lists):
        return scores if isinstance(scores, Unreadable) else Unreadable(f"{name} must hold a list of numbers per row.")
    return torch.zeros(len(scores.lengths)).index_add_(0, scores.rows(), scores.values.float())


def _skyrl(columns: Columns) -> Columns:
    """The loss runs over loss_mask. What it leaves out of the response (a tool's answer) is no prompt, either."""
    columns = dict(columns)
    sequences = columns.pop(skyrl_dumps.SEQUENCES)
    response = columns.pop(skyrl_dumps.RESPONSE, columns[skyrl_dumps.LOSS])
    attention = columns.get(verl_dumps.ATTENTION_MASK)
    if isinstance(sequences, Unreadable):
        return columns | {"response_ids": sequences}
    if not (isinstance(sequences, Lists) and isinstance(response, Lists) and sequences.padded and response.padded):
        return columns
    rows, tokens = len(sequences.lengths), int(response.lengths[0]) if len(response.lengths) else 0
    ids = sequences.values.view(rows, -1)
    if len(response.lengths) != rows or tokens > ids.shape[1]:
        why = Unreadable("sequences must cover prompt and response; it is shorter than the log-probs.")
        return columns | {"response_ids": why}
    columns["response_ids"] = Lists(ids[:, ids.shape[1] - tokens :].flatten(), response.lengths, padded=True)
    if isinstance(attention, Lists) and torch.equal(attention.lengths, sequences.lengths):
        in_prompt = attention.values.view(rows, -1) != 0
        in_prompt[:, ids.shape[1] - tokens :] &= response.values.view(rows, -1) == 0
        columns["prompt_ids"] = Lists(ids[in_prompt], in_prompt.sum(-1))
    return columns
