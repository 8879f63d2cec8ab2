"""Guided tours of the app: what to do on which page, which control is meant, and what can be seen afterwards."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

State = Mapping[str, str]
"""The address of the page: key → text. A key whose value is the default is missing."""


@dataclass(frozen=True)
class Step:
    """One step of a tour, on one page."""

    view: str
    do: str
    seen: str
    """The effect, which the strip says once the step is done."""
    control: str
    """CSS selector of what the step is about. A control to press is lit up until the step is done."""
    is_done: Callable[[State], bool] = lambda _: True
    """Without it, the step is done when its page is open."""
    query: tuple[tuple[str, str], ...] = ()
    """Run, preset or part with which the page opens; everything else stays as it is."""


@dataclass(frozen=True)
class Tour:
    """A tour: `tour=NAME` in the address, where NAME is its key in `TOURS`."""

    title: str
    steps: tuple[Step, ...]


def _tour(title: str, query: tuple[tuple[str, str], ...], *steps: Step) -> Tour:
    """Return the tour of these steps. `query` is that of the steps that have none."""
    return Tour(title, tuple(step if step.query else replace(step, query=query) for step in steps))


def number(state: State, key: str) -> float:
    """Return a number of the address; NaN, which is within no limit, without one."""
    try:
        return float(state.get(key, "nan"))
    except ValueError:
        return float("nan")


def changed(key: str) -> Callable[[State], bool]:
    """Return a condition: this key has another value than its default."""
    return lambda state: key in state


def has(key: str, text: str) -> Callable[[State], bool]:
    """Return a condition: this key has this text."""
    return lambda state: state.get(key) == text


def at_most(key: str, limit: float) -> Callable[[State], bool]:
    """Return a condition: this number was moved, and is not above the limit."""
    return lambda state: number(state, key) <= limit


def at_least(key: str, limit: float) -> Callable[[State], bool]:
    """Return a condition: this number was moved, and is not below the limit."""
    return lambda state: number(state, key) >= limit


def slider(key: str) -> str:
    """Return the selector of the slider of a bound."""
    return f"[data-slider='live_{key}']"


PRESET = ".st-key-preset, .st-key-open summary"
"""The picker of the preset, and the line that it may be folded into."""
RUN_OF_STALE = (("run", "smol_stale_6"), ("preset", "decoupled_token_is"))
STUDY = "stale_8"
THE_STUDY = (("part", "Study"), ("study", STUDY))

HEALTHY = _tour(
    "A healthy run",
    (("run", "smol_bf16_both"), ("preset", "decoupled_geo_rs")),
    Step(
        "bench",
        "Drag “Largest mean ratio” to 1.04 or above.",
        "A third of the tokens came back. Rounding alone moves the mean ratio of half of the answers by 0.6 % or "
        "more, so the preset's bounds of ±0.1 % threw away nine tenths of a batch that has nothing wrong with it.",
        slider("seq_mean_k1_upper"),
        at_least("seq_mean_k1_upper", 1.04),
    ),
    Step(
        "bench",
        "Now drag “Smallest mean ratio” to the right, to 0.96 or below, too. The other one stays where it is.",
        "Nearly all tokens are kept now. The mismatch was the same all the time: only the thresholds were wrong "
        "for this run.",
        slider("seq_mean_k1_lower"),
        lambda state: number(state, "seq_mean_k1_upper") >= 1.04 and number(state, "seq_mean_k1_lower") <= 0.96,
    ),
    Step(
        "mismatch",
        "Read the heading: it says how large the mismatch is and what the pattern looks like.",
        "Rounding explains it. For 95 % of the tokens the two probabilities differ by less than 0.05: in the last "
        "two pictures these tokens are close to the line of equal probabilities.",
        ".st-key-acceptance",
    ),
    Step(
        "tokens",
        "Click a coloured token.",
        "Next to the text are its two probabilities, its ratio, and the formula of the rule with these numbers.",
        ".st-key-tokens_text",
        changed("token"),
    ),
)
STALE = _tour(
    "Stale weights",
    RUN_OF_STALE,
    Step(
        "mismatch",
        "Choose other methods above the last two pictures.",
        "The lines changed. A method caps the weights of the tokens outside its lines, or rejects these tokens.",
        ".st-key-methods",
        changed("methods"),
    ),
    Step(
        "bench",
        "Drag “Largest weight” down to 1.1 or below.",
        "At 1.1 the cap clips the weights of one token in seven, and every token stays. The price is bias: the "
        "mean weight is 0.94 there, and 0.98 with the cap at 2.",
        slider("is_upper"),
        at_most("is_upper", 1.1),
    ),
    Step(
        "bench",
        "Choose the preset “Reject responses by mean ratio” of verl, which rejects whole answers.",
        "It keeps 3 % of the tokens. Its bounds are made for a mismatch that is much smaller than the one that "
        "stale weights cause.",
        PRESET,
        has("preset", "decoupled_geo_rs"),
    ),
    Step(
        "training",
        "Read the sentence above the pictures: which corrections ended significantly better than none?",
        "Each row is one preset, trained with weights that are eight steps old, compared with no correction. Only "
        "one of the nine intervals excludes 0. The other differences may be noise.",
        ".st-key-study_nothing",
        has("part", "Study"),
        THE_STUDY,
    ),
)
COLLAPSING = _tour(
    "A collapsing run",
    THE_STUDY,
    Step(
        "training",
        "Press one more, or one less, of the presets above the curves.",
        "The curves of reward and mismatch changed. With six of the nine presets the reward still rises at the "
        "end. With the other three it falls as without a correction, and a little earlier.",
        ".st-key-presets",
        changed("presets"),
    ),
    Step(
        "training",
        "Choose the study “Addition, fresh weights (control)”, whose weights are never old.",
        "It trains without a correction, and the reward rises to 0.7. In stale_8 that training run collapsed, so "
        "the old weights are the cause. Here a correction has nothing to repair.",
        ".st-key-study",
        has("study", "stale_0"),
    ),
    Step(
        "bench",
        "This is one batch of a training run with stale weights. Drag “Largest weight” down to 1.1 or below.",
        "This is what a cap does to one batch: it cuts the weights of some tokens, and every token stays.",
        slider("is_upper"),
        at_most("is_upper", 1.1),
        RUN_OF_STALE,
    ),
)
LONG = _tour(
    "Long answers",
    (("run", "long_kv_fp8_e5m2"), ("preset", "decoupled_seq_is")),
    Step(
        "bench",
        "Drag “Largest weight” to another value.",
        "The weights and the effective sample size changed. One thing stays: each weight is a product of four "
        "hundred ratios, and half of the answers have one below 0.1 at every bound.",
        slider("is_upper"),
        changed("is_upper"),
    ),
    Step(
        "bench",
        "Choose the preset “Zero each token's weight outside 0.5 to 5” of verl: weights by each token alone.",
        "The effective sample size is 99 % now. With the product and its bound of 2 it is 31 %: a token's own "
        "ratio does not depend on the length of the answer, a product does.",
        PRESET,
        has("preset", "decoupled_token_icepop"),
    ),
    Step(
        "mismatch",
        "Look at the picture of the ratio of each answer against its length.",
        "The two probabilities of a token differ by 2 % on average. Over four hundred tokens that adds up: those "
        "of half of the answers differ by a factor of more than ten.",
        ".st-key-mismatch_length",
    ),
)
CLASS = _tour(
    "Ten minutes with a class",
    (("run", "smol_kv_fp8_e5m2"), ("preset", "decoupled_token_is")),
    Step(
        "start",
        "Ask: which token would the trainer not have written? Then press “reject” and drag to 1.05 or below.",
        "The “0”. At 2, 5 % of this step's tokens are left out, and the “0” is one of them; at 1.05, 27 %. A tight "
        "threshold throws away tokens with which nothing is wrong.",
        "[data-slider='start_bound'], .st-key-fix",
        at_most("start_bound", 1.05),
        (("run", "smol_kv_fp8_e5m2"),),
    ),
    Step(
        "mismatch",
        "Ask: what makes the two probabilities differ? Then read the heading.",
        "The log-probs alone do not show the cause. The record of the run does: the cache of this sampler has 8 "
        "bits per number. The rounding changes every probability, most of them by less than 0.01.",
        "",
    ),
    Step(
        "tokens",
        "Let the class choose a token, and click it.",
        "Next to the text are both probabilities. Let the class compute the ratio before you read it.",
        ".st-key-tokens_text",
        changed("token"),
    ),
    Step(
        "bench",
        "Ask: does a tighter cap throw tokens away? Then drag “Largest weight” down to 1.1 or below.",
        "No token is thrown away: a cap makes weights smaller. At 1.1 it cuts one weight in ten, at 2 less than "
        "one in a hundred. The mean weight falls from 0.99 to 0.96: what is missing to 1 is a bias.",
        slider("is_upper"),
        at_most("is_upper", 1.1),
    ),
    Step(
        "learn",
        "Choose a view and what to hide, and copy the link for your class.",
        "The link opens the view that you chose, with the present run, step, preset and bounds. The notes for "
        "teachers are below.",
        ".st-key-copy_built",
        has("learn", "Teaching"),
        (("learn", "Teaching"),),
    ),
)
TOURS = {"healthy": HEALTHY, "stale": STALE, "collapsing": COLLAPSING, "long": LONG, "class": CLASS}

WHERE = "{title} · step {number} of {all}"
DONE, TO_DO = "done", "to do"
NEXT, BACK, LEAVE, FINISH, GO = "Next", "Back", "Leave the tour", "Finish", "Go to this step"
WRONG_STEP = "tour_step={raw} is not a step of this tour; showing step 1. Allowed: 1 to {all}."
WRONG_DONE = "tour_done={raw} does not name steps of this tour; no step is ticked. Allowed: digits from 1 to {all}."
REVEAL = "Reveal"
SHOW_ME = "Show me"
