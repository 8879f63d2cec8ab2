"""slime's train_data/{id}.pt, converted: lists over the response, under "samples". Its log_probs are π_old's."""

from rlcorr.systems.dumps import Dump, WithoutPair

DUMP = Dump(
    columns=frozenset({"tokens", "rollout_log_probs", "log_probs"}),
    one_of=frozenset({"response_lengths", "response_length", "sample_index", "rollout_position"}),
    renamed={"log_probs": "old_log_probs"},
)
ROLLOUT_DATA = WithoutPair(
    frozenset({"tokens", "rollout_log_probs", "response_length"}),
    "slime's rollout_data, which has the engine's log-probs alone; --save-debug-train-data writes both",
)
FROM_PICKLE = (
    "Samples of slime become JSON Lines by `for s in torch.load(FILE, weights_only=True)['samples']: "
    "print(json.dumps(s, default=lambda x: x.tolist()))`"
)
"""How its pickle becomes a file that is read."""
