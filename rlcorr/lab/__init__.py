"""The Lab: training of a tiny policy by a sampler that differs from it, in seconds, for every threshold at once.

It is the reference of the page Lab, whose own engine is `lab_engine.js`; corrections, advantages and KL terms are the
library's. A network of fewer than 2,000 weights on 36 prompts is a toy: what it shows of language models is checked
(runs/study/lab.md), not assumed.

>>> from rlcorr.lab import Experiment, run
>>> curves = run(Experiment(lag=16, learning_rate=0.05, steps=2, seeds=2), thresholds=(None, 1.0))
>>> curves.reward.shape  # threshold, seed, step
torch.Size([2, 2, 2])
"""

from rlcorr.lab.experiment import Experiment
from rlcorr.lab.outcome import outcome
from rlcorr.lab.run import Curves, run

__all__ = ["Curves", "Experiment", "outcome", "run"]
