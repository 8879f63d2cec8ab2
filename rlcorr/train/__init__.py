"""The trainer: the only place that imports transformers or vllm."""
