"""The pages: the name of each is its address and its file in views/; its title stands here and nowhere else."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PageWords:
    """A page's title, the question that it answers, and what one should know before, if anything."""

    title: str
    question: str
    before: str = ""


PAGES = {
    "start": PageWords(
        "Start",
        "Two programs, one model: how far apart are they?",
        "The program that writes answers and the one that learns from them give the same token different "
        "probabilities. Here you see by how much, what every known correction makes of it, and what that does "
        "to learning. Open one of three trainings: everything in it is set, and nothing that you press can "
        "break it.",
    ),
    "yours": PageWords(
        "Your data",
        "What do my log-probs look like, and which bounds do they suggest?",
        "Drop the log-probs of your training here.",
    ),
    "mismatch": PageWords("Mismatch", "What is wrong with my run?"),
    "bench": PageWords("Correction bench", "What does this bound cost, and what does it leave?"),
    "gradient": PageWords("Gradient", "Which bound makes most progress with my batch?"),
    "tokens": PageWords("Tokens", "Which tokens carry the mismatch?"),
    "compare": PageWords("Compare", "Which of two should I take?"),
    "training": PageWords("Training", "Does it learn, and do the two policies drift apart?"),
    "learn": PageWords("Learn", "What do I want to understand?"),
}
"""In the order of the navigation."""
STUDY = "Which corrections keep a training going?"
"""The question of the study, which is a part of Training."""
