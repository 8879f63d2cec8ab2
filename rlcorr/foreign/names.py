"""Names of columns in the files of other systems, by our names, and what is known of each: tables, and no code."""

from rlcorr.foreign.parse.request import Keys
from rlcorr.systems.loss_masks import COUNTED, LOSSES, MASKS, PLACED, REWARDS, TOKEN_SCORES
from rlcorr.systems.mapping.facts import FACTS
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
    *PAIR,
    "sampled_log_probs",
    "log_probs",
    "ref_log_probs",
    "response_mask",
    "lengths",
    "advantages",
    "rewards",
)
"""The most important columns. If a file has two names of one of these, it is refused or the column is left out."""

WITHOUT_PAIR = tuple(facts.without_pair for facts in FACTS.values() if facts.without_pair is not None)

WANTED = frozenset(name for names in NAMES.values() for name in names) | {
    TOKEN_SCORES, *COUNTED,
    *(name for dump in DUMPS for name in (*dump.renamed, dump.mask_over_dummy, dump.row_mask) if name),
}  # fmt: skip
"""Names of all columns that are read."""

OPTIONAL = frozenset(name for field, names in NAMES.items() if field not in NEEDED for name in names) | {
    TOKEN_SCORES, *REWARDS, *PLACED.values(),
}  # fmt: skip
"""Names of `WANTED` that are left out if unreadable. A mask that is multiplied into response_mask is not optional."""

PAIR_NAMES = frozenset(name for field in PAIR for name in NAMES[field]) | {
    theirs for dump in DUMPS for theirs, mine in dump.renamed.items() if mine in PAIR
}  # fmt: skip
"""Names that the two log-probs have in files."""

RECORDED_STEP_COLUMNS = {
    "group_id", "policy_version", "reward", "prompt_ids", "response_ids", "prompt", "response"
}  # fmt: skip
"""A file with all these columns was written by `records`, which never pads lists."""

_TO_MEASURE = (*PAIR, "response_mask", "lengths", "advantages")
WANTED_TO_MEASURE = frozenset(name for field in _TO_MEASURE for name in NAMES[field]) | {
    name for dump in DUMPS for name in (*dump.renamed, dump.mask_over_dummy, dump.row_mask) if name
} | COUNTED  # fmt: skip
"""Names of the columns that are read if only the mismatch is measured."""

_LOG_PROBS = tuple(
    name for field, names in NAMES.items() if field.endswith("log_probs") and field not in TOP for name in names
)
_LOSS_MASKS = (
    *NAMES["response_mask"],
    *MASKS,
    LOSSES,
    *(dump.mask_over_dummy for dump in DUMPS if dump.mask_over_dummy),
)
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
