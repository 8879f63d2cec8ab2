"""Columns of other systems' files under our names.

Dumps of NeMo RL, prime-rl, slime and SkyRL are recognised by their columns (`adapted`). Of verl no file is recognised,
since none that it writes holds both log-probs; arrays that somebody saved of its batch are read. Every other file is
read by the names that its columns have. What else in a file says which tokens count is in `counted`.
"""

import difflib
from collections.abc import Collection

from rlcorr.errors import UsageError
from rlcorr.foreign.adapted import DUMPS, adapted
from rlcorr.foreign.columns import Columns, Unreadable, the_readable
from rlcorr.foreign.counted import refuse_unknown, with_counted
from rlcorr.systems import areal, open_instruct, skyrl_dumps, slime, trl
from rlcorr.systems.counted import COUNTED, PLACED, REWARDS
from rlcorr.systems.verl import dumps as verl_dumps

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
    "unpaired_tokens": ("unpaired_tokens",),
    "prompt_ids": ("prompt_ids", "prompt_token_ids"),
    "prompt_mask": ("prompt_mask",),
    "response_ids": ("response_ids", "response_token_ids", "completion_ids", "completion_token_ids"),
    "token_ids": ("token_ids", "input_ids", "tokens"),
    "prompts": ("prompts", "prompt"),
    "responses": ("responses", "response", "completions", "completion", "output"),
    "step": ("export_step", "step", "global_step", "rollout_id"),
}  # fmt: skip
"""Our name → how other systems spell it. Where a file has several of these, the first counts; but see `_CHOOSE`.
prime-rl's export_step is that of a run, its step that of a trainer which several runs may share."""

NEEDED = (*PAIR, "response_mask", "lengths", "offsets", "step")
"""What must be read, or the file is refused: the pair, and what says which tokens count and of which step they are. A
column of another name that cannot be read is left out, and named."""

_CHOOSE = (*PAIR, "log_probs", "ref_log_probs", "response_mask", "lengths", "advantages", "rewards")
"""The numbers that everything rests on: two names of one of these are refused, or left out, and not chosen from."""

_WITHOUT_PAIR = (
    slime.ROLLOUT_DATA, open_instruct.ROLLOUTS, verl_dumps.ROLLOUT_DATA, trl.COMPLETIONS, areal.ROLLOUTS
)  # fmt: skip

WANTED = frozenset(name for names in NAMES.values() for name in names) | {
    verl_dumps.ATTENTION_MASK, verl_dumps.TOKEN_SCORES, skyrl_dumps.SEQUENCES, *COUNTED,
    *(name for dump in DUMPS for name in (*dump.renamed, dump.mask_over_dummy, dump.row_mask) if name),
}  # fmt: skip
"""What is read of a file."""

_OPTIONAL = frozenset(name for field, names in NAMES.items() if field not in NEEDED for name in names) | {
    verl_dumps.ATTENTION_MASK, verl_dumps.TOKEN_SCORES, *REWARDS, *PLACED.values(),
}  # fmt: skip
"""Of `WANTED`, what is left out where it cannot be read. A mask that is multiplied into the response's is needed."""

OF_A_RECORDED_STEP = {
    "group_id", "policy_version", "reward", "prompt_ids", "response_ids", "prompt", "response"
}  # fmt: skip
"""A file with all these columns was written by `records`, which pads no lists."""

_TO_MEASURE = (*PAIR, "response_mask", "lengths", "advantages")
WANTED_TO_MEASURE = frozenset(name for field in _TO_MEASURE for name in NAMES[field]) | {
    name for dump in DUMPS for name in (*dump.columns, *dump.one_of, dump.mask_over_dummy, dump.row_mask) if name
} | skyrl_dumps.COLUMNS | COUNTED  # fmt: skip
"""What is read of a file of which only the mismatch is measured."""


def ours(columns: Columns, names: Collection[str]) -> Columns:
    """Return the columns under our names; one that is not `NEEDED` may be `Unreadable`.

    `names` are all of the file's. Raises `UsageError` where the pair is not there, or twice, with the columns that are
    there and those that are needed; for a needed column that cannot be read; and for a column that may say which tokens
    count and is not understood.
    """
    refuse_unknown(names, WANTED)
    _refuse_unreadable({name: column for name, column in columns.items() if name not in _OPTIONAL})
    columns = adapted(columns, names)
    named: Columns = {}
    for field, spellings in NAMES.items():
        present = [name for name in spellings if name in columns]
        if len(present) > 1 and field in _CHOOSE:
            named[field] = Unreadable(f"{' and '.join(present)} are two names of {field}; leave all but one out.")
        elif present:
            named[field] = columns[present[0]]
    missing = [field for field in PAIR if field not in named]
    if missing:
        raise UsageError(_what_is_missing(missing, names))
    _refuse_unreadable({field: column for field, column in named.items() if field in NEEDED})
    return with_counted(named, columns)


def _refuse_unreadable(columns: Columns) -> None:
    for column in columns.values():
        the_readable(column)


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
