"""The trained policy in one or several processes: scores, micro-batches, gradient steps."""

from rlcorr.errors import require_extra

require_extra("train", "transformers")
