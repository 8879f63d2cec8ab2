"""Log-probs in the formats of the engines, converted to one number per token.

- vLLM: per token a dictionary {token id: Logprob}, for the sampled token and the most likely ones
  (vllm/logprobs.py, 0.11). As JSON a Logprob is an object with "logprob".
- SGLang: per token [log-prob, token id, text or null] (meta_info["output_token_logprobs"], 0.5).
- OpenAI's formats, which both servers return: {"content": [{"token": …, "logprob": …}, …]} of /v1/chat/completions, or
  that list alone, and {"token_logprobs": [log-prob, …]} of /v1/completions.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlcorr.errors import UsageError


def plain_log_probs(value: Any, ids: Any, where: str) -> Any:
    """Return one number per token, nested as `value` is; a value in none of these formats is returned unchanged.

    Args:
        value: the log-probs of a file or of a trainer.
        ids: the sampled token ids in the same nesting, or None.
        where: a name of the value, for messages.

    Raises `UsageError` if it is not certain which number belongs to the sampled token.
    """
    value = _list_of(value)
    if not isinstance(value, list | tuple):
        return value
    first = next((x for x in value if x is not None and not (isinstance(x, list | tuple) and not x)), None)
    pairs = enumerate(zip(value, _token_ids(ids, len(value)), strict=True))  # a list of them would be large
    is_object = isinstance(first, Mapping) and _list_of(first) is first
    if is_object or (isinstance(first, list | tuple) and _are_triples(value, where)):
        return [_of_token(entry, token_id, f"token {t} (from 0) of {where}") for t, (entry, token_id) in pairs]
    if isinstance(first, Mapping) or (isinstance(first, list | tuple) and isinstance(first[0], Mapping | list | tuple)):
        return [plain_log_probs(part, part_ids, f"list {n} (from 0) of {where}") for n, (part, part_ids) in pairs]
    return value


def _list_of(value: Any) -> Any:
    """Return the list in an object of OpenAI's formats, and any other value unchanged."""
    keys = ("content", "token_logprobs") if isinstance(value, Mapping) else ()
    return next((value[key] for key in keys if isinstance(value.get(key), list)), value)


def _token_ids(ids: Any, count: int) -> Sequence[Any]:
    """Return the ids, or None for every token if their number is not `count`."""
    if isinstance(ids, np.ndarray):
        ids = ids.tolist()
    if not isinstance(ids, list | tuple) or len(ids) != count:
        return [None] * count
    return [int(x) if isinstance(x, float) and x.is_integer() else x for x in ids]


def _are_triples(value: Sequence[Any], where: str) -> bool:
    """Check whether all entries are triples [log-prob, token id, text or null].

    Raises `UsageError` if they may also be lists of three log-probs, the second 0 and the third null.
    """
    entries = [x for x in value if x is not None]
    if not all(isinstance(x, list | tuple) and len(x) == 3 and _is_triple(*x) for x in entries):
        return False
    if any(isinstance(x[2], str) or x[1] > 0 for x in entries):
        return True
    raise UsageError(
        f"{where} may hold SGLang's triples [log-prob, token id, text], or lists of three log-probs; write one number "
        "per token, the first of each triple."
    )


def _is_triple(log_prob: Any, token_id: Any, text: Any) -> bool:
    whole = _is_number(token_id) and math.isfinite(token_id) and token_id >= 0 and token_id == int(token_id)
    return whole and (log_prob is None or _is_number(log_prob)) and (text is None or isinstance(text, str))


def _of_token(entry: Any, token_id: Any, where: str) -> float:
    """Return the log-prob of the sampled token. The first prompt token has none: null becomes NaN."""
    if isinstance(entry, list | tuple):
        entry, sampled_id, _ = entry
        if token_id is not None and token_id != sampled_id:
            raise UsageError(f"{where} is for token {sampled_id:g}, but response_ids has {token_id!r:.20} there.")
    elif isinstance(entry, Mapping) and "logprob" not in entry:
        entry = _sampled(entry, token_id, where)
    if isinstance(entry, Mapping):
        entry = entry.get("logprob", entry)
    elif entry is not None and not _is_number(entry):
        entry = getattr(entry, "logprob", entry)  # a `vllm.Logprob` in the batch of a trainer
    if entry is not None and not _is_number(entry):
        raise UsageError(f"{where} must be a log-prob; got {entry!r:.60}.")
    return math.nan if entry is None else float(entry)


def _sampled(candidates: Mapping[Any, Any], token_id: Any, where: str) -> Any:
    """Return the entry of the sampled token among those of vLLM's likeliest tokens."""
    by_id = {str(key): x for key, x in candidates.items()}
    if len(by_id) == 1 and (token_id is None or not next(iter(by_id)).isdecimal()):
        return next(iter(by_id.values()))
    if token_id is None:
        raise UsageError(
            f"{where} holds {len(by_id)} candidates ({', '.join(by_id)!s:.60}), and it is unknown which was sampled: "
            "give response_ids, one per token and nested as the log-probs are."
        )
    if str(token_id) not in by_id:
        raise UsageError(
            f"{where} has no entry for the sampled token {token_id!r:.20} of response_ids; it has "
            f"{', '.join(by_id)!s:.60}."
        )
    return by_id[str(token_id)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
