"""TRL's completions."""

from rlcorr.systems.dumps import WithoutPair

COMPLETIONS = WithoutPair(frozenset({"prompt", "completion", "advantage"}), "TRL's completions, which have texts alone")
