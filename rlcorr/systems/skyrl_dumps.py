"""SkyRL's dumped_data/global_step_N_training_input.pkl (trainer.dump_data_batch=true): a TrainingInputBatch of arrays.

Its response_mask covers the whole response, what tools answered too; the loss runs over loss_mask. Responses stand at
the end of `sequences`, so that a short one has its prompt among the last T columns. Read at SkyRL 0.3.0
(skyrl/backends/skyrl_train/training_batch.py, skyrl/train/dataset/preprocess.py).
"""

COLUMNS = frozenset({"sequences", "rollout_logprobs", "action_log_probs", "loss_mask"})
SEQUENCES = "sequences"
RESPONSE = "response_mask"
LOSS = "loss_mask"
MARK = b"_rebuild_tensor_batch"
"""In the pickle of a batch, since SkyRL 0.2: it says that arrays are stored as bytes."""
FROM_PICKLE = (
    "a TrainingInputBatch of SkyRL becomes arrays by `numpy.savez('pairs.npz', **{name: x.float().numpy() for name, x "
    "in pickle.load(open(FILE, 'rb')).items() if isinstance(x, torch.Tensor)})`"
)
"""How its pickle becomes a file that is read."""
