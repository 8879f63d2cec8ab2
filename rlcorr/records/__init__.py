"""Recorded runs as files: write them atomically, read them, verify them, and record them again."""

from rlcorr.errors import require_extra

require_extra("data", "numpy", "pyarrow", "safetensors")
