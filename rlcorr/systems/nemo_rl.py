"""NeMo RL's train_data_step{N}.jsonl: arrays over prompt and response, and two masks."""

from rlcorr.systems.dumps import Dump

DUMP = Dump(
    columns=frozenset({"generation_logprobs", "prev_logprobs"}),
    renamed={"content": "responses"},  # the text of prompt and response
    mask_over_dummy="token_loss_mask",
    row_mask="sample_loss_mask",
)
