"""Your own training loop: the lessons say what to write below each line, with a check for each piece.

`python lessons/mini.py --lag 16 --weights capped --seeds 5` says whose pieces it runs, and draws the curve. A piece
that is missing here is taken from the solutions in the lessons, so the command works from the beginning.
"""
# ruff: noqa: F401 — what the pieces need; add what yours need

import copy
import math
from collections import deque

import torch
from count_on import END, LONGEST, PROMPTS, START, reward

from rlcorr.ratios import log_ratio, over_sequence

# Lesson 01: ratios

# Lesson 03: capped

# Lesson 05: sample, log_probs, advantages, clipped

# Lesson 08: kept, loss

# Lesson 12: update, train

if __name__ == "__main__":
    from mini_curve import main

    main(globals())
