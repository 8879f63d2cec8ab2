"""Sampling with top-p or top-k and a replay of the sampler's support, as text for the systems that have it.

A sampler with top-p or top-k renormalises over the tokens that it keeps. Without a replay, a trainer that normalises
over the whole vocabulary multiplies every ratio by the share that was kept. With it, the trainer normalises over the
tokens that the sampler kept, which our trainer does with rollout.support_replay.

Sources: SkyRL 0.4.0, skyrl/train/config/config.py:1000-1002, 1257; prime-rl, pull request 3431; slime v0.3.1 (commit
624b824a), slime/backends/megatron_utils/loss.py:83-93; miles, its guide "Sampling-Support Replay"; TRL, the summary of
release 1.17.0 and issue 6789. NeMo RL 0.8 applies the filter in its trainer; its keys for a recorded mask were not
read.
"""

from typing import Any

from rlcorr.errors import UsageError
from rlcorr.systems.mapping.serialize import as_call, as_flags, as_toml, as_yaml, commented

PRIME_RL_TOP_K = 512
"""The largest top_k of prime-rl, and the one that it takes if top_p is set alone."""


def support_replay_text(system: str, *, top_p: float = 1.0, top_k: int = -1) -> str:
    """Return the text that samples with top_p and top_k (−1: all tokens) and replays the sampler's support.

    A comment names the version. Raises `UsageError` for a system whose replay is not known, for a cut that it cannot
    replay, and if nothing is cut.
    """
    texts = _texts(top_p, top_k)
    if system not in texts:
        raise UsageError(
            f"{system} has no replay of the sampler's support that was read; nearest: top_p 1 and top_k -1, or one of "
            f"{', '.join(texts)}."
        )
    if not 0 < top_p <= 1 or not (top_k == -1 or top_k > 0):
        raise UsageError(f"top_p must be above 0 and at most 1, top_k -1 or positive; got {top_p:g} and {top_k}.")
    if top_p == 1 and top_k == -1:
        raise UsageError("top_p 1 and top_k -1 keep every token, so there is nothing to replay.")
    if system == "prime-rl" and top_k > PRIME_RL_TOP_K:
        raise UsageError(f"prime-rl replays at most {PRIME_RL_TOP_K} tokens; nearest: top_k {PRIME_RL_TOP_K}.")
    if system == "slime" and top_k != -1:
        raise UsageError("slime replays top-p only; nearest: top_k -1.")
    if system == "miles" and top_k == -1:
        raise UsageError("miles needs a positive top_k next to top_p, which bounds what it stores; nearest: 64.")
    note, text = texts[system]
    return commented(text, [note])


def _texts(top_p: float, top_k: int) -> dict[str, tuple[str, str]]:
    """Return system → the comment and the text."""
    sampling, engine = {"top_p": top_p, "top_k": top_k, "logprobs": 1}, {"enable_return_sample_support_set": True}
    generator: dict[str, Any] = {"sampling_params": sampling, "inference_engine": engine}
    skyrl = {"trainer": {"algorithm": {"enable_sample_support_replay": True}}, "generator": generator}
    trl = {"use_vllm": True, "top_p": top_p, "top_k": 0 if top_k == -1 else top_k}  # 0 is TRL's "all tokens"
    table, prime_rl = "orchestrator.train.sampling", {"top_p": top_p, "top_k": PRIME_RL_TOP_K if top_k == -1 else top_k}
    miles = {"rollout_top_p": top_p, "rollout_top_k": top_k, "use_miles_router": True}
    by_itself = "TRL 1.17, by itself according to its release; before, every ratio is multiplied by the kept share"
    guide = "miles, guide Sampling-Support Replay: a cut is always replayed, without a KL to the reference"
    return {
        "SkyRL": ("SkyRL 0.4.0", as_yaml("", skyrl)),
        "TRL": (by_itself, as_call("GRPOConfig", trl)),
        "prime-rl": ("prime-rl, pull request 3431: a cut is always replayed", as_toml(table, prime_rl)),
        "slime": ("slime v0.3.2: top-p is always replayed", as_flags("--", {"rollout_top_p": top_p}, hyphens=True)),
        "miles": (guide, as_flags("--", miles, hyphens=True)),
    }
