"""The columns of a file under our names: tables of names in other systems, and what differs from ours is converted.

Dumps of NeMo RL, prime-rl, slime and SkyRL are recognised by their columns. verl writes no file with both log-probs, so
none is recognised; arrays that somebody saved from its batch can be read. Every other file is read by the names of its
columns. A column that may be a loss mask is used or refused.
"""

import difflib
import json
from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import Column, Columns, Lists, one_per_row, require_lists, require_readable
from rlcorr.foreign.parse.request import Keys, Unreadable
from rlcorr.systems.loss_masks import COUNTED, LOSSES, MASKS, PLACED, REFUSED, REWARDS, RL, TOKEN_SCORES, may_count
from rlcorr.systems.mapping.facts import FACTS, Dump, WithoutPair
from rlcorr.types import TOP

DUMPS = tuple(facts.dump for facts in FACTS.values() if facts.dump is not None)
PAIR = {"rollout_log_probs": "the engine's", "old_log_probs": "the trainer's, before the update"}

_ENDINGS = ("log_probs", "log_prob", "logprobs", "logprob", "logps", "logp", "per_token_logps")


def _spellings(*stems: str) -> tuple[str, ...]:
    return tuple(f"{stem}_{ending}" for stem in stems for ending in _ENDINGS)


NAMES: dict[str, tuple[str, ...]] = {
    "rollout_log_probs": _spellings(
        "rollout", "inference", "generation", "generator", "infer", "sampling", "sampler", "behave", "behavior", "vllm",
        "sglang",
    ),
    "old_log_probs": _spellings("old", "prev", "prox", "proximal", "trainer", "training", "train", "action"),
    "sampled_log_probs": ("sampled_log_probs",),
    "log_probs": ("log_probs", *_spellings("current", "curr")),
    "ref_log_probs": _spellings("ref", "reference", "reference_policy", "base", "base_action"),
    "response_mask": ("response_mask", "loss_mask", "loss_masks", "action_mask", "completion_mask", "token_loss_mask"),
    "lengths": ("lengths", "response_lengths", "response_length", "completion_lengths", "completion_length"),
    "advantages": ("advantages", "advantage"),
    "returns": ("returns",),
    "values": ("values",),
    "rewards": ("rewards", "reward", "scores", "score"),
    "group_ids": ("group_ids", "group_id", "uid", "prompt_idx", "group_idx"),
    "policy_versions": (
        "token_policy_versions", "policy_versions", "policy_version", "weight_version", "weight_versions", "versions",
    ),
    "turn_ids": ("turn_ids", "turn_id"),
    "top_ids": ("top_ids",),
    "rollout_top_log_probs": ("rollout_top_log_probs",),
    "old_top_log_probs": ("old_top_log_probs",),
    "unpaired_tokens": ("unpaired_tokens",),
    "prompt_ids": ("prompt_ids", "prompt_token_ids"),
    "prompt_mask": ("prompt_mask",),
    "response_ids": ("response_ids", "response_token_ids", "completion_ids", "completion_token_ids"),
    "token_ids": ("token_ids", "input_ids", "tokens"),
    "prompts": ("prompts", "prompt"),
    "responses": ("responses", "response", "completions", "completion", "output"),
    "step": ("export_step", "step", "global_step", "rollout_id"),
}  # fmt: skip
"""Our name → the names in other systems. If a file has several of these, the first is used, except for `UNIQUE`.
prime-rl's export_step is the step of a run; its step is that of a trainer, which several runs may share."""

NEEDED = (*PAIR, "response_mask", "lengths", "step")
"""Columns that must be readable, otherwise the file is refused: the pair, the columns that say which tokens count, and
the step. Any other column that cannot be read is left out, with a note."""

UNIQUE = (
    *PAIR, "sampled_log_probs", "log_probs", "ref_log_probs", "response_mask", "lengths", "advantages", "rewards",
)  # fmt: skip
"""The most important columns. If a file has two names of one of these, it is refused or the column is left out."""

WITHOUT_PAIR = (
    *(facts.without_pair for facts in FACTS.values() if facts.without_pair is not None),
    WithoutPair(
        frozenset({"columns", "data"}),
        "a table, whose names are a list of its own; write one object per answer, as pandas' to_json does with "
        "orient='records', lines=True",
    ),
)


def _spelled(fields: Iterable[str]) -> frozenset[str]:
    return frozenset(name for field in fields for name in NAMES[field])


_OF_DUMPS = COUNTED | {
    name for dump in DUMPS for name in (*dump.renamed, dump.mask_over_dummy, dump.row_mask) if name
}  # fmt: skip
WANTED = _spelled(NAMES) | _OF_DUMPS | {TOKEN_SCORES}
"""Names of all columns that are read."""
WANTED_TO_MEASURE = _spelled([*PAIR, "response_mask", "lengths", "advantages"]) | _OF_DUMPS
"""Names of the columns that are read if only the mismatch is measured."""
OPTIONAL = _spelled(NAMES.keys() - set(NEEDED)) | {TOKEN_SCORES, *REWARDS, *PLACED.values()}
"""Names of `WANTED` that are left out if unreadable. A mask that is multiplied into response_mask is not optional."""
PAIR_NAMES = _spelled(PAIR) | {theirs for dump in DUMPS for theirs, mine in dump.renamed.items() if mine in PAIR}
"""Names that the two log-probs have in files."""

RECORDED_STEP_COLUMNS = {
    "group_id", "policy_version", "reward", "prompt_ids", "response_ids", "prompt", "response"
}  # fmt: skip
"""A file with all these columns was written by `records`, which never pads lists."""

_LOG_PROBS = tuple(
    name for field, names in NAMES.items() if field.endswith("log_probs") and field not in TOP for name in names
)
_LOSS_MASKS = (
    *NAMES["response_mask"], *MASKS, LOSSES, *(dump.mask_over_dummy for dump in DUMPS if dump.mask_over_dummy)
)  # fmt: skip
_SINGLE = frozenset({*NAMES["rewards"], *REWARDS, *NAMES["lengths"]})
KEYS = Keys(
    log_probs=_LOG_PROBS,
    masks=_LOSS_MASKS,
    ids=(*NAMES["response_ids"], *NAMES["token_ids"]),
    top=TOP,
    per_token=frozenset({
        *_LOG_PROBS, *_LOSS_MASKS, *NAMES["response_ids"], *NAMES["policy_versions"], *NAMES["turn_ids"],
        *NAMES["values"], *NAMES["advantages"], *NAMES["returns"],
    }),
    single=_SINGLE,
    per_response=_SINGLE | {*NAMES["group_ids"], *(dump.row_mask for dump in DUMPS if dump.row_mask)},
    placed=PLACED,
)  # fmt: skip
"""The names whose lists of lists may be turns or responses, and those that say which they are."""
ABORTED = "--leave-out-aborted leaves out the rows for which one side has no log-prob, and counts them"
"""What to do with such rows, for messages."""


# --- columns under our names ---


def _adapt_dump(columns: Columns, names: Collection[str]) -> Columns:
    """Return the columns of a file in our layout, if a known system wrote it; `names` are all of the file's columns.

    Raises `UsageError` if a mask over rows has no number per row.
    """
    for dump in DUMPS:
        if dump.columns <= set(names) and (not dump.one_of or dump.one_of & set(names)):
            return _apply_dump(dump, columns)
    return _verl_arrays(columns)


def _apply_dump(dump: Dump, columns: Columns) -> Columns:
    columns = dict(columns)
    mask, rows = columns.get(dump.mask_over_dummy), columns.get(dump.row_mask)
    if isinstance(mask, Lists):
        mask_values = mask.values * (mask.positions() > 0)
        if rows is not None:
            numbers = one_per_row(dump.row_mask, fit_rows("response_mask", rows, len(mask.lengths)))
            mask_values = mask_values * numbers[mask.rows()]
        columns[dump.mask_over_dummy] = Lists(mask_values, mask.lengths)
    for theirs, mine in dump.renamed.items():
        if theirs in columns:
            columns[mine] = columns.pop(theirs)
    return columns


def _verl_arrays(columns: Columns) -> Columns:
    columns = dict(columns)
    if isinstance(columns.get("responses"), Lists):
        columns["response_ids"] = columns.pop("responses")
    if isinstance(columns.get("prompts"), Lists):
        del columns["prompts"]  # ids between padding, not texts
    scores = columns.get(TOKEN_SCORES)
    if isinstance(scores, Lists) and "rewards" not in columns:
        sums = torch.zeros(len(scores.lengths))
        columns["rewards"] = sums.index_add_(0, scores.rows(), scores.values.float())
    return columns


def to_our_names(columns: Columns, names: Collection[str]) -> Columns:
    """Return the columns under our names; one that is not `NEEDED` may be `Unreadable`.

    Args:
        columns: the columns that were read.
        names: the names of all columns of the file.

    Raises `UsageError` if the pair is missing or there twice, if a needed column cannot be read, and for a column that
    may be a loss mask but is unknown.
    """
    _refuse_unknown_masks(names)
    columns = {name: _without_null(name, column) for name, column in columns.items()}
    _refuse_unreadable({name: column for name, column in columns.items() if name not in OPTIONAL})
    columns = _adapt_dump(columns, names)
    named: Columns = {}
    for field, spellings in NAMES.items():
        present = [name for name in spellings if name in columns]
        if len(present) > 1 and field in UNIQUE:
            named[field] = Unreadable(f"{' and '.join(present)} are two names of {field}; keep only one of them.")
        elif present:
            named[field] = columns[present[0]]
    missing = [field for field in PAIR if field not in named]
    if missing:
        raise UsageError(_missing_message(missing, names))
    _refuse_unreadable({field: column for field, column in named.items() if field in NEEDED})
    return _apply_masks(named, columns)


def _refuse_unreadable(columns: Columns) -> None:
    for column in columns.values():
        require_readable(column)


def _missing_message(missing: list[str], names: Collection[str]) -> str:
    needed = " and ".join(f"{name} ({whose})" for name, whose in PAIR.items())
    recognised = {name for field, spellings in NAMES.items() if field != "log_probs" for name in spellings}
    others = sorted(name for name in set(names) - recognised if len(name) < 60)[:200]
    nearest = []
    for field in missing:
        close = difflib.get_close_matches(field, others, n=1)
        nearest.append(f"{field} is missing" + (f"; the nearest name is {close[0]!r:.60}" if close else ""))
    shown = ", ".join(f"{name!r:.60}" for name in list(names)[:20]) or "none"
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    pair = PAIR_NAMES & set(names)  # a file with one of the two sides is no file of texts
    hints = [f" It looks like {file.what}." for file in WITHOUT_PAIR if pair <= file.columns <= set(names)][:1]
    return f"found the columns {shown}{more}; needed are {needed}. {'; '.join(nearest)}.{''.join(hints)}"


def _without_null(name: str, column: Column) -> Column:
    """Return the column, as `Unreadable` if it has lists in some rows and null in others."""
    if not isinstance(column, Lists) or column.null is None or not bool(column.null.any()):
        return column
    row, hint = int(column.null.nonzero()[0]), f": {ABORTED}" if name in PAIR_NAMES else ""
    return Unreadable(f"row {row} (from 0) has nothing as {name}, another row has a list of numbers{hint}.")


def fit_rows(name: str, column: Column, rows: int) -> Column:
    """Return the column if it has so many rows, or one number for the whole file; otherwise see `leave_out`."""
    if isinstance(column, Unreadable) or (isinstance(column, Tensor) and not column.dim()):
        return column
    got = len(column.lengths if isinstance(column, Lists) else column)
    return column if got == rows else leave_out(name, f"{name} has {got} rows, rollout_log_probs has {rows}.")


def leave_out(name: str, why: str) -> Unreadable:
    """Return an optional column as `Unreadable`. Raises `UsageError` for a needed one."""
    if name in NEEDED:
        raise UsageError(why)
    return Unreadable(why)


def require_aligned(name: str, columns: Columns, rollout: Lists) -> Lists:
    """Return the lists of a column that has the row lengths of rollout_log_probs. Raises `UsageError` otherwise."""
    lists = require_lists(name, columns[name])
    if len(wrong := (lists.lengths != rollout.lengths).nonzero()):
        got, wanted = int(lists.lengths[row := int(wrong[0])]), int(rollout.lengths[row])
        aborted = not wanted or (not got and name.endswith("log_probs"))
        hint = f"; {ABORTED}" if aborted else ": give both for the same tokens"
        raise UsageError(f"row {row} (from 0): {name} has {got} values, rollout_log_probs {wanted}{hint}.")
    return lists


# --- masks of other systems ---


def _refuse_unknown_masks(names: Collection[str]) -> None:
    """Raise `UsageError` for a column that may be a loss mask, by its name, and is not known."""
    for name in names:
        if name in REFUSED:
            raise UsageError(f"has a column {name}: {REFUSED[name]}.")
        if name not in WANTED and may_count(name):
            raise UsageError(
                f"{name!r:.60} may say which tokens count, but its meaning is unknown: multiply it into the "
                "response_mask, or leave it out."
            )


def _apply_masks(columns: Columns, theirs: Columns) -> Columns:
    """Return our columns with the masks in `theirs` multiplied into response_mask, and with the rewards in `theirs`.

    Raises `UsageError` for a mask of another shape, or with other numbers than 0 and 1.
    """
    for name, replaced in REWARDS.items():
        if name in theirs:
            columns = columns | {replaced: theirs[name]}
    masks = {name: theirs[name] for name in MASKS if name in theirs}
    if isinstance(texts := theirs.get(LOSSES), list):
        masks[LOSSES] = _rl_loss_masks(texts)
    for name, mask in masks.items():
        columns = columns | {"response_mask": _multiply_masks(name, mask, columns.get("response_mask"))}
    return columns


def _multiply_masks(name: str, column: Column, response_mask: Column | None) -> Lists:
    """Return the product of the two masks; a null (NaN) of the first counts as 1."""
    mask = require_lists(name, column)
    counts = torch.where(mask.values.isnan(), 1, mask.values) if mask.values.is_floating_point() else mask.values
    if bool((odd := (counts != 0) & (counts != 1)).any()):
        got = float(counts[odd][0])
        raise UsageError(f"{name} must hold 0 and 1, which say whether a token counts; got {got:g}.")
    if response_mask is None:
        return Lists(counts, mask.lengths)
    if not isinstance(response_mask, Lists) or not torch.equal(response_mask.lengths, mask.lengths):
        raise UsageError(f"{name} must have the shape of response_mask.")
    return Lists(response_mask.values * counts, mask.lengths)


def _rl_loss_masks(texts: list[str]) -> Lists:
    """Return the masks of the RL loss from prime-rl's column of losses: per row a JSON list of objects, one per token.

    Raises `UsageError` for anything else.
    """
    rows: list[list[float]] = []
    for text in texts:
        try:
            rows.append([1.0 if token.get(RL, {}).get("mask") else 0.0 for token in json.loads(text)])
        except (ValueError, RecursionError, AttributeError, TypeError) as error:
            raise UsageError(f"{LOSSES} must hold a JSON list with an object per token; got {text!r:.60}.") from error
    return Lists(torch.tensor([x for row in rows for x in row]), torch.tensor([len(row) for row in rows]))
