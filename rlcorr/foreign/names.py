"""What other systems call what we call rollout_log_probs, and how their dumps differ from lists of these.

NeMo RL   train_data_step{N}.jsonl        arrays over prompt and response with a dummy at place 0; two masks
prime-rl  token_exports/step_N/*.jsonl    the same, null for what is not finite. It has no π_old: its trainer's
                                          log-probs are π_θ's, and are compared with the engine's as π_old's here.
                                          The files of several ranks are concatenated
slime     train_data/{id}.pt, converted   lists over the response, under "samples"; its log_probs are π_old's
verl      a DataProto batch, as arrays    our names, but prompts and responses are token ids
"""

import difflib
from collections.abc import Collection

import torch

from rlcorr.errors import UsageError
from rlcorr.foreign.columns import Columns, Lists

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
"""Our name → all names by which it is known. Where several are there, the first counts; not for those of `_CHOOSE`."""

_CHOOSE = (*PAIR, "log_probs", "ref_log_probs", "response_mask", "lengths")
"""The numbers that everything rests on: two names for one of these are refused."""

WANTED = frozenset(name for names in NAMES.values() for name in names) | {
    "sample_loss_mask", "content", "attention_mask", "token_level_scores",
}  # fmt: skip
"""What is read of a file."""

_WITHOUT_PAIR = (
    ({"tokens", "rollout_log_probs", "response_length"}, "slime's rollout_data, which has the engine's log-probs "
     "alone; --save-debug-train-data writes both"),
    ({"response_tokens", "logprobs"}, "open-instruct's rollouts, which have vLLM's log-probs alone"),
    ({"input", "output", "score"}, "verl's rollout_data_dir, which has texts and scores alone"),
    ({"prompt", "completion", "advantage"}, "TRL's completions, which have texts alone"),
    ({"prompt", "completion", "head_version"}, "AReaL's rollouts, which have texts alone"),
)  # fmt: skip


def ours(columns: Columns, names: Collection[str]) -> Columns:
    """The columns under our names. `names` are all of the file's. Raises `UsageError` where the pair is not there, or
    twice, with what was found and what is needed."""
    columns = _adapted(columns, names)
    found: Columns = {}
    for field, known in NAMES.items():
        here = [name for name in known if name in columns]
        if len(here) > 1 and field in _CHOOSE:
            raise UsageError(f"{' and '.join(here)} are two names of {field}; leave all but one out.")
        if here:
            found[field] = columns[here[0]]
    missing = [field for field in PAIR if field not in found]
    if missing:
        raise UsageError(_what_is_missing(missing, names))
    return found


def _what_is_missing(missing: list[str], names: Collection[str]) -> str:
    needed = " and ".join(f"{name} ({whose})" for name, whose in PAIR.items())
    recognised = {name for field, known in NAMES.items() if field != "log_probs" for name in known}
    others = sorted(name for name in set(names) - recognised if len(name) < 60)[:200]
    nearest = []
    for field in missing:
        close = difflib.get_close_matches(field, others, n=1)
        nearest.append(f"{field} is not there" + (f"; the nearest is {close[0]!r:.60}" if close else ""))
    shown = ", ".join(f"{name!r:.60}" for name in list(names)[:20]) or "none"
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    looks = [f" It looks like {what}." for keys, what in _WITHOUT_PAIR if keys <= set(names)][:1]
    return f"found the columns {shown}{more}; needed are {needed}. {'; '.join(nearest)}.{''.join(looks)}"


# --- what is particular to a system ---


_OF_SLIME = {"response_lengths", "response_length", "sample_index", "rollout_position"}


def _adapted(columns: Columns, names: Collection[str]) -> Columns:
    if {"generation_logprobs", "prev_logprobs"} <= columns.keys():
        return _nemo_rl(columns)
    if {"inference_logprobs", "trainer_logprobs"} <= columns.keys():
        return _without_first(columns, "loss_mask")
    if {"tokens", "rollout_log_probs", "log_probs"} <= columns.keys() and _OF_SLIME & set(names):
        return {"old_log_probs" if name == "log_probs" else name: column for name, column in columns.items()}
    return _verl(columns)


def _nemo_rl(columns: Columns) -> Columns:
    """A token counts where both masks say so; "content" is the text of prompt and response."""
    columns = _without_first(columns, "token_loss_mask")
    tokens, samples = columns.get("token_loss_mask"), columns.get("sample_loss_mask")
    if isinstance(tokens, Lists) and isinstance(samples, torch.Tensor) and len(samples) == len(tokens.lengths):
        columns["token_loss_mask"] = Lists(tokens.values * samples[tokens.rows()], tokens.lengths)
    return columns | ({"responses": columns["content"]} if "content" in columns else {})


def _without_first(columns: Columns, mask: str) -> Columns:
    """Place 0 of a row has no log-prob, since nothing precedes it: a dummy stands there."""
    column = columns.get(mask)
    if not isinstance(column, Lists):
        return dict(columns)
    return columns | {mask: Lists(column.values * (column.places() > 0), column.lengths)}


def _verl(columns: Columns) -> Columns:
    """Its prompts (left-padded) and responses are ids; attention_mask covers both; a score stands at a token."""
    found = dict(columns)
    for theirs, mine in (("prompts", "prompt_ids"), ("responses", "response_ids")):
        if isinstance(found.get(theirs), Lists):
            found[mine] = found.pop(theirs)
    prompts, attention, scores = (found.get(name) for name in ("prompt_ids", "attention_mask", "token_level_scores"))
    if isinstance(prompts, Lists) and isinstance(attention, Lists):
        if len(prompts.lengths) != len(attention.lengths) or bool((prompts.lengths > attention.lengths).any()):
            raise UsageError("attention_mask must cover prompt and response; it is shorter than the prompts.")
        in_prompt = attention.places() < prompts.lengths[attention.rows()]
        found["prompt_mask"] = Lists(attention.values[in_prompt], prompts.lengths)
    if isinstance(scores, Lists) and "rewards" not in found:
        found["rewards"] = torch.zeros(len(scores.lengths)).index_add_(0, scores.rows(), scores.values.float())
    return found
