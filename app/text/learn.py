"""Sentences and tables of the Learn page."""

LESSONS, CARD, GLOSSARY, SHEET, PAPERS, TEACHING = PARTS = (
    "Lessons", "Decision card", "Glossary", "Cheat sheet", "Papers", "Teaching"
)  # fmt: skip

LESSONS_ARE = (
    "The lessons derive every formula, check it, and show it on the recorded runs. `make site` turns them into pages "
    "that open here; `make learn` opens them as notebooks. They need no network and no GPU, except where stated."
)
PATH = "## Five lessons, four hours"
PATH_IS = (
    "They lead to a decision about your own run, and need none of the others. They end with the decision card, one "
    "page to print and to fill in."
)
PATH_HEADER = ["Lesson", "What you can decide after it", "Minutes"]
ALL_LESSONS = "## All lessons"
FRAME = "The lessons as pages, with their own list and search"
FACTS = "{minutes} minutes · {level} · {needs} · {hardware}"
NEEDS, NEEDS_NOTHING = "after {lessons}", "no other lesson before it"

SEARCH = "Search the glossary"
WORDS = ["Word", "Symbol", "Meaning", "Also called"]
NOT_FOUND = "No word and no metric contains {text}."
METRICS = "Metrics, with the names that the trainer logs"
METRIC_HEADER = ["Metric", "Meaning"]

SYMBOLS = r"""
| | symbol | in the code | |
|---|---|---|---|
| the sampler's probability | $q = \pi_{rollout}$ | `rollout_log_probs` is $\log q$ | sampled the token |
| the trainer's | $p = \pi_{old}$ | `old_log_probs` is $\log p$ | before the update |
| log-ratio | $d = \log p - \log q$ | `log_ratio(p, q, mask)` | 0 where they agree |
| ratio | $r = p/q = e^d$ | `ratio(d)` | $E_q[r] = 1$ |
| ratio of an answer | $\prod_t r_t = e^{\sum_t d_t}$ | `over_sequence(d, mask, "sum")` | spread grows with $\sqrt T$ |
| geometric mean | $e^{\frac1T \sum_t d_t}$ | `over_sequence(d, mask, "mean")` | stays near 1 |
"""
ESTIMATORS = r"""
| estimator of $KL(q\|p)$ | value | over tokens from $q$ | as a loss that keeps $\pi_\theta$ near $\pi$ |
|---|---|---|---|
| k1 | $-d$ | unbiased, high variance, either sign | its expected gradient is 0 |
| k2 | $d^2/2$ | biased, low variance | follows $\nabla KL(\pi_\theta\|\pi)$ |
| k3 | $e^d - 1 - d$ | unbiased, never negative | follows $\nabla KL(\pi\|\pi_\theta)$ |
"""
CORRECTIONS = r"""
| | | costs |
|---|---|---|
| truncate (TIS) | $w = \min(r, C)$ | bias: all ratios above $C$ count the same |
| mask (IcePop) | $w = r$ inside the thresholds, else 0 | bias: tokens outside never teach |
| reject | left out if a divergence is outside its thresholds | bias, and a step that is smaller by the kept share |
| effective sample size | $(\sum w)^2 / (n \sum w^2)$ | 1: all weights are equal; $1/n$: one token decides |
| a threshold $C$ of a product | $C^{1/T}$ per token | for $T = 1000$, $C = 2$: 1.0007 |
"""
MAP = "Presets by the level of their weights (rows) and the divergence of their rules (columns)"
MAP_CORNER = "weights \\ rules"
PICK = "Look up a preset"
OPEN_PRESET = "Open it in the bench"
ALL = "All presets: what they do, when they hurt, and their source"
ALL_HEADER = ["Preset", "System", "What it does", "When it hurts", "Source"]

BUILD = "## Make a link"
BUILD_IS = "The link has the run, step, preset and thresholds that you have set in the other views."
VIEW, HIDE, LARGE, MAKE = "View", "Hide", "For the projector", "Copy this link"
HIDE_HEADER = ["In hide=", "What it hides"]
