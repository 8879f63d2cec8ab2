"""Files of log-prob pairs that other programs wrote, read as recorded steps, or at any size as a stream of batches."""

from rlcorr.errors import require_extra

require_extra("data", "numpy", "pyarrow", "safetensors")
