"""Columns of other systems' files under our names.

Dumps of NeMo RL, prime-rl and slime are recognised by their columns: what is particular to each stands in `systems/`,
a file per system. Of verl no file is recognised, since none that it writes holds both log-probs; arrays that somebody
saved of its batch are read. Every other file is read by the names that its columns have.
"""

import difflib
from collections.abc import Collection

import torch

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import Columns, Lists
from rlcorr.systems import areal, nemo_rl, open_instruct, prime_rl, slime, trl, verl_dumps
from rlcorr.systems.dumps import Dump

PAIR = {"rollout_log_probs": "the engine's", "old_log_probs": "the trainer's, before the update"}

_ENDINGS = ("log_probs", "log_prob", "logprobs", "logprob", "logps", "logp", "per_token_logps")


def _spelt(*stems: str) -> tuple[str, ...]:
    return tuple(f"{stem}_{ending}" for stem in stems for ending in _ENDINGS)


NAMES: dict[str, tuple[str, ...]] = {
    "rollout_log_probs": _spelt(
        "rollout", "inference", "generation", "generator", "infer", "sampling", "sampler", "behave", "behavior", "vllm",
        "sglang",
    ),
    "old_log_probs": _spelt("old", "prev", "prox", "proximal", "trainer", "training", "train", "action"),
    "log_probs": ("log_probs", *_spelt("current", "curr")),
    "ref_log_probs": _spelt("ref", "reference", "reference_policy", "base", "base_action"),
    "response_mask": ("response_mask", "loss_mask", "loss_masks", "action_mask", "completion_mask", "token_loss_mask"),
    "lengths": ("lengths", "response_lengths", "response_length", "completion_lengths", "completion_length"),
    "offsets": ("offsets", "cu_seqlens"),
    "advantages": ("advantages", "advantage"),
    "returns": ("returns",),
    "values": ("values",),
    "rewards": ("rewards", "reward", "scores", "score"),
    "group_ids": ("group_ids", "group_id", "uid", "prompt_idx", "group_idx"),
    "policy_versions": ("policy_versions", "policy_version", "weight_version"),
    "prompt_ids": ("prompt_ids", "prompt_token_ids"),
    "prompt_mask": ("prompt_mask",),
    "response_ids": ("response_ids", "response_token_ids", "completion_ids", "completion_token_ids"),
    "token_ids": ("token_ids", "input_ids", "tokens"),
    "prompts": ("prompts", "prompt"),
    "responses": ("responses", "response", "completions", "completion", "output"),
    "step": ("step", "global_step", "rollout_id"),
}  # fmt: skip
"""Our name → how other systems spell it. Where a file has several of these, the first counts; but see `_CHOOSE`."""

_CHOOSE = (*PAIR, "log_probs", "ref_log_probs", "response_mask", "lengths")
"""The numbers that everything rests on: a file that has two names of one of these is refused."""

_DUMPS = (nemo_rl.DUMP, prime_rl.DUMP, slime.DUMP)
_WITHOUT_PAIR = (
    slime.ROLLOUT_DATA, open_instruct.ROLLOUTS, verl_dumps.ROLLOUT_DATA, trl.COMPLETIONS, areal.ROLLOUTS
)  # fmt: skip

WANTED = frozenset(name for names in NAMES.values() for name in names) | {
    verl_dumps.ATTENTION_MASK, verl_dumps.TOKEN_SCORES,
    *(name for dump in _DUMPS for name in (*dump.renamed, dump.mask_over_dummy, dump.row_mask) if name),
}  # fmt: skip
"""What is read of a file."""

OF_A_RECORDED_STEP = {
    "group_id", "policy_version", "reward", "prompt_ids", "response_ids", "prompt", "response"
}  # fmt: skip
"""A file with all these columns was written by `records`, which pads no lists."""

_TO_MEASURE = (*PAIR, "response_mask", "lengths", "advantages")
WANTED_TO_MEASURE = frozenset(name for field in _TO_MEASURE for name in NAMES[field]) | {
    name for dump in _DUMPS for name in (*dump.columns, *dump.one_of, dump.mask_over_dummy, dump.row_mask) if name
}  # fmt: skip
"""What is read of a file of which only the mismatch is measured."""


def ours(columns: Columns, names: Collection[str]) -> Columns:
    """The columns under our names. `names` are all of the file's. Raises `UsageError` where the pair is not there, or
    twice, with the columns that are there and those that are needed."""
    columns = _adapted(columns, names)
    named: Columns = {}
    for field, spellings in NAMES.items():
        present = [name for name in spellings if name in columns]
        if len(present) > 1 and field in _CHOOSE:
            raise UsageError(f"{' and '.join(present)} are two names of {field}; leave all but one out.")
        if present:
            named[field] = columns[present[0]]
    missing = [field for field in PAIR if field not in named]
    if missing:
        raise UsageError(_what_is_missing(missing, names))
    return named


def _what_is_missing(missing: list[str], names: Collection[str]) -> str:
    needed = " and ".join(f"{name} ({whose})" for name, whose in PAIR.items())
    recognised = {name for field, spellings in NAMES.items() if field != "log_probs" for name in spellings}
    others = sorted(name for name in set(names) - recognised if len(name) < 60)[:200]
    nearest = []
    for field in missing:
        close = difflib.get_close_matches(field, others, n=1)
        nearest.append(f"{field} is not there" + (f"; the nearest is {close[0]!r:.60}" if close else ""))
    shown = ", ".join(f"{name!r:.60}" for name in list(names)[:20]) or "none"
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    looks = [f" It looks like {file.what}." for file in _WITHOUT_PAIR if file.columns <= set(names)][:1]
    return f"found the columns {shown}{more}; needed are {needed}. {'; '.join(nearest)}.{''.join(looks)}"


# --- what is particular to a system ---


def _adapted(columns: Columns, names: Collection[str]) -> Columns:
    for dump in _DUMPS:
        if dump.columns <= columns.keys() and (not dump.one_of or dump.one_of & set(names)):
            return _read_as(dump, columns)
    return _arrays_of_verl(columns)


def _read_as(dump: Dump, columns: Columns) -> Columns:
    columns = dict(columns)
    mask, rows = columns.get(dump.mask_over_dummy), columns.get(dump.row_mask)
    if isinstance(mask, Lists):
        counted = mask.values * (mask.places() > 0)
        if isinstance(rows, torch.Tensor) and len(rows) == len(mask.lengths):
            counted = counted * rows[mask.rows()]
        columns[dump.mask_over_dummy] = Lists(counted, mask.lengths)
    for theirs, mine in dump.renamed.items():
        if theirs in columns:
            columns[mine] = columns.pop(theirs)
    return columns


def _arrays_of_verl(columns: Columns) -> Columns:
    columns = dict(columns)
    for theirs, mine in verl_dumps.TOKEN_IDS.items():
        if isinstance(columns.get(theirs), Lists):
            columns[mine] = columns.pop(theirs)
    prompts, attention = columns.get("prompt_ids"), columns.get(verl_dumps.ATTENTION_MASK)
    if isinstance(prompts, Lists) and isinstance(attention, Lists):
        if len(prompts.lengths) != len(attention.lengths) or bool((prompts.lengths > attention.lengths).any()):
            raise UsageError("attention_mask must cover prompt and response; it is shorter than the prompts.")
        in_prompt = attention.places() < prompts.lengths[attention.rows()]
        columns["prompt_mask"] = Lists(attention.values[in_prompt], prompts.lengths)
    scores = columns.get(verl_dumps.TOKEN_SCORES)
    if isinstance(scores, Lists) and "rewards" not in columns:
        columns["rewards"] = torch.zeros(len(scores.lengths)).index_add_(0, scores.rows(), scores.values.float())
    return columns
