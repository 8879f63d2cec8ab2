"""Columns of verl's DataProto, saved as arrays.

verl itself writes no file with both log-probs. A DataProto's batch has them, under our names; its prompts and responses
are token ids, which are texts in other files.
"""

from rlcorr.systems.mapping.dumps import WithoutPair

TOKEN_SCORES = "token_level_scores"
"""Column (B, T) that is 0 except at one token of each response, which has its score."""
ROLLOUT_DATA = WithoutPair(
    frozenset({"input", "output", "score"}),
    "verl's rollout_data_dir, which has only texts and scores. To get log-probs, train a few steps with "
    "RLCORR_VERL=record, RLCORR_RUN=my_run and actor_rollout_ref.rollout.calculate_log_probs=True",
)
FROM_PICKLE = (
    "a DataProto of verl becomes arrays by `numpy.savez('pairs.npz', **{name: x.numpy() for name, x in "
    "DataProto.load_from_disk(FILE).batch.items()})`"
)
"""How to convert its pickle into a file that can be read."""
