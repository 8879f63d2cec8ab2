"""AReaL's rollouts."""

from rlcorr.systems.dumps import WithoutPair

ROLLOUTS = WithoutPair(frozenset({"prompt", "completion", "head_version"}), "AReaL's rollouts, which have texts alone")
