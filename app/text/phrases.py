"""Sentences of several pages."""

import re

WHAT_IS_THIS = "What is this?"
BATCH_SIZE, BATCH_SIZE_IS = "Answers in a batch (B)", "Larger batches cut the noise, not the bias."
EXPLAIN = (
    "A language model in training writes answers with a fast program, the sampler (for example vLLM). It learns from "
    "them in a slower and more exact program, the trainer. Both have the same weights, yet they give the same token "
    "slightly different probabilities. So the model learns from text that it would not have written in quite the same "
    "way. A correction compares the two probabilities of every token. Depending on their ratio it counts the token "
    "more, counts it less, or leaves it out. A threshold is the limit at which it does so; formulas call it a bound. "
    "Other names of the sampler are engine and rollout, and of an answer response and sequence."
)
WEIGHTS = (
    "Bars: final weights of the kept tokens. Grey line: weights of the same tokens before the thresholds. The counts "
    "are logarithmic. The outermost bars contain everything outside the axis. You can drag a dashed threshold."
)
CHOICES = "Advanced: weights and rejection rules"
RESET, RESET_B = "Reset to the preset's numbers", "Reset B to the preset's numbers"
BUDGET_KEEP, BUDGET_ESS = "share of tokens that it leaves as they are", "effective sample size of the kept tokens"
EXPORT = "Export the config"
EXPORT_IS = (
    "This configuration as text to copy, for your system. If the system cannot express it, you get the nearest one "
    "that it can."
)
SYSTEM = "Your system"
NO_RUNS = "No runs yet in {root}. Record one with `make train` or `python -m rlcorr train`; it appears here by itself."
NO_STEPS = "This run has no step yet. The first one appears here by itself."


def in_words(sentence: str) -> str:
    """Return a sentence of the library in the words of the pages, which call its engine the sampler.

    >>> in_words("The engine's part, if an engine in bfloat16 samples.")
    "The sampler's part, if a sampler in bfloat16 samples."
    """
    return sentence.replace("an engine", "a sampler").replace("engine", "sampler")


def answers(sentence: str) -> str:
    """Return a sentence of the library with "answer" for "response", and minus signs at which no browser breaks a line.

    >>> answers("k3 is 4e-5 in response 7 (responses 7, 9), see response_mask.")
    'k3 is 4e−5 in answer 7 (answers 7, 9), see response_mask.'
    """
    return re.sub(r"(?<=\de)-(?=\d)", "−", re.sub(r"\bresponse(s?)\b", r"answer\1", sentence))
