"""verl writes no file with both log-probs. What it has of them is in a DataProto's batch, which one can save as arrays:
their names are ours, but its prompts (padded on the left) and responses are token ids."""

from rlcorr.systems.mapping.dumps import WithoutPair

TOKEN_IDS = {"prompts": "prompt_ids", "responses": "response_ids"}
"""Column of ids → ours. As columns of texts the same names mean what they say."""
ATTENTION_MASK = "attention_mask"
"""Over prompt and response."""
TOKEN_SCORES = "token_level_scores"
"""A response's score stands at one of its tokens."""
ROLLOUT_DATA = WithoutPair(
    frozenset({"input", "output", "score"}), "verl's rollout_data_dir, which has texts and scores alone"
)
FROM_PICKLE = (
    "a DataProto of verl becomes arrays by `numpy.savez('pairs.npz', **{name: x.numpy() for name, x in "
    "DataProto.load_from_disk(FILE).batch.items()})`"
)
"""How its pickle becomes a file that is read."""
