"""The pages: the name of each is its address and its file in views/; its title stands here and nowhere else."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PageWords:
    """A page's title, and one sentence on what to look for."""

    title: str
    look: str


PAGES = {
    "start": PageWords(
        "Start",
        "The program that writes answers and the one that learns from them give the same token different "
        "probabilities. Here you see by how much, what every known correction makes of it, and what that does "
        "to learning. Open one of three trainings: everything in it is set, and nothing that you press can "
        "break it.",
    ),
    "yours": PageWords(
        "Your data",
        "Drop the log-probs of your training: what they look like, which bounds they suggest, and the text that takes "
        "those to your system.",
    ),
    "mismatch": PageWords(
        "Mismatch",
        "What is wrong with my run? The answer comes first, then what to do, then the pictures that it rests on.",
    ),
    "bench": PageWords(
        "Correction bench",
        "Look for the bounds that touch few tokens and keep the effective sample size (ESS) of the kept tokens high.",
    ),
    "gradient": PageWords(
        "Gradient",
        "Look for where the curve over the bound is highest, and for presets that differ at the size of your batch.",
    ),
    "tokens": PageWords(
        "Tokens",
        "Look for the tokens that carry the mismatch: open one and follow its numbers through the formulas.",
    ),
    "compare": PageWords(
        "Compare",
        "Look for tokens that only one of the two trains on, and for differences whose intervals exclude 0.",
    ),
    "training": PageWords(
        "Training",
        "Look for a mismatch that climbs over the steps, and for what the reward does after it.",
    ),
    "learn": PageWords(
        "Learn",
        "Look for the lesson, the word or the preset that answers your question.",
    ),
}
"""In the order of the navigation."""
