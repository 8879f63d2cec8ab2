"""The pages. The name of a page is its address and its file in views/. Its title is written here only."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PageWords:
    """A page's title, the question that it answers, and an introduction, if it needs one."""

    title: str
    question: str
    before: str = ""


PAGES = {
    "start": PageWords(
        "Start",
        "rlcorr · Your sampler and your trainer disagree. See how much it costs, and what fixes it.",
    ),
    "yours": PageWords(
        "Your data",
        "What do my log-probs look like, and which thresholds fit them?",
        "Drop the log-probs of your training run here.",
    ),
    "mismatch": PageWords("Mismatch", "What is wrong with my run?"),
    "bench": PageWords("Correction bench", "What does this threshold throw away, and what mismatch remains?"),
    "gradient": PageWords("Gradient", "Which threshold gives the best gradient step?"),
    "tokens": PageWords("Tokens", "Which tokens make the mismatch?"),
    "compare": PageWords("Compare", "Which of these two configs is better?"),
    "training": PageWords("Training", "Does it learn, and do sampler and trainer drift apart?"),
    "learn": PageWords("Learn", "What do you want to understand?"),
}
"""In the order of the navigation."""
STUDY = "Which corrections keep training stable?"
"""The question of the study, which is a part of Training."""
