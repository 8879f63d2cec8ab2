"""The pages, and sentences of every page about its link, its controls and the projector.

The name of a page is its address and its file in views/. Its title is written here only.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PageWords:
    """A page's title, the question that it answers, and an introduction, if it needs one."""

    title: str
    question: str
    before: str = ""
    has_verdict: bool = False
    """Whether the page's heading is its result (`sharing.verdict`). Then the question is small."""


PAGES = {
    "start": PageWords("Start", "", has_verdict=True),
    "yours": PageWords(
        "Your data",
        "What do my log-probs look like, and which thresholds fit them?",
        "Drop the log-probs of your training run here.",
        has_verdict=True,
    ),
    "mismatch": PageWords("Mismatch", "What is wrong with my run?", has_verdict=True),
    "bench": PageWords("Correction bench", "What does this threshold cost, and what does it leave?"),
    "gradient": PageWords("Gradient", "Which threshold gives the best gradient step?"),
    "kl": PageWords("KL losses", "k3 measures one KL, and as a loss it pulls towards the other."),
    "tokens": PageWords("Tokens", "Which tokens make the mismatch?", has_verdict=True),
    "compare": PageWords("Compare", "Which of these two configs is better?", has_verdict=True),
    "training": PageWords("Training", "Does it learn, and do sampler and trainer drift apart?", has_verdict=True),
    "lab": PageWords("Lab", "What does this threshold do to training?", has_verdict=True),
    "learn": PageWords("Learn", "What do you want to understand?"),
}
"""In the order of the navigation."""
STUDY = "Which corrections keep training stable?"
"""The question of the study, which is a part of Training."""
