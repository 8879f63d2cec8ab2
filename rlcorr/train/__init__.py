"""The trainer, the only part that imports transformers or vllm."""
