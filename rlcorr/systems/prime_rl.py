"""prime-rl's token_exports/step_N/*.jsonl: arrays over prompt and response, null for what is not finite.

It has no π_old: its trainer's log-probs are π_θ's, and are compared with the engine's as π_old's are here. The files of
several ranks are concatenated.
"""

from rlcorr.systems.dumps import Dump

DUMP = Dump(columns=frozenset({"inference_logprobs", "trainer_logprobs"}), mask_over_dummy="loss_mask")
