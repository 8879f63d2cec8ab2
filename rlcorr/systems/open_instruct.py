"""open-instruct's rollouts."""

from rlcorr.systems.dumps import WithoutPair

ROLLOUTS = WithoutPair(
    frozenset({"response_tokens", "logprobs"}), "open-instruct's rollouts, which have vLLM's log-probs alone"
)
