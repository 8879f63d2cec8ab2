"""Guided tours of the app: what to do on which page, which control is meant, and what can be seen afterwards."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
    """CSS selector of the control to light up; an empty text if there is nothing to press."""
    is_done: Callable[[State], bool]
    query: tuple[tuple[str, str], ...] = ()
    """Run, preset or part with which the page opens; everything else stays as it is."""


@dataclass(frozen=True)
class Tour:
    """A tour: `tour=NAME` in the address, where NAME is its key in `TOURS`."""

    title: str
    steps: tuple[Step, ...]


def number(state: State, key: str, default: float) -> float:
    """Return a number of the address. A text that is no number counts as the default."""
    try:
        return float(state.get(key, default))
    except ValueError:
        return default


def arrived(_: State) -> bool:
    """Return True: the step is done when its page is open."""
    return True


def changed(key: str) -> Callable[[State], bool]:
    """Return a condition: this key has another value than its default."""
    return lambda state: key in state


def has(key: str, text: str) -> Callable[[State], bool]:
    """Return a condition: this key has this text."""
    return lambda state: state.get(key) == text


def at_most(key: str, limit: float) -> Callable[[State], bool]:
    """Return a condition: this number was moved, and is not above the limit."""
    return lambda state: key in state and number(state, key, limit + 1) <= limit


def at_least(key: str, limit: float) -> Callable[[State], bool]:
    """Return a condition: this number was moved, and is not below the limit."""
    return lambda state: key in state and number(state, key, limit - 1) >= limit


def slider(key: str) -> str:
    """Return the selector of the slider of a bound."""
    return f"[data-slider='live_{key}']"


PRESET = ".st-key-preset, .st-key-open summary"
"""The picker of the preset, and the line that it may be folded into."""
RUN_OF_HEALTHY = (("run", "smol_bf16_both"), ("preset", "decoupled_geo_rs"))
RUN_OF_STALE = (("run", "smol_stale_6"), ("preset", "decoupled_token_is"))
RUN_OF_LONG = (("run", "long_kv_fp8_e5m2"), ("preset", "decoupled_seq_is"))
RUN_OF_CLASS = (("run", "smol_kv_fp8_e5m2"), ("preset", "decoupled_token_is"))
STUDY = "stale_8"
THE_STUDY = (("part", "Study"), ("study", STUDY))

HEALTHY = Tour(
    "A healthy run",
    (
        Step(
            "bench",
            "Drag the upper bound of the rule to 1.05 or above.",
            "Many grey tokens came back. The bounds of ±0.1 % are made for long answers. Here they threw away nine "
            "tenths of a batch that has nothing wrong with it.",
            slider("seq_mean_k1_upper"),
            at_least("seq_mean_k1_upper", 1.04),
            RUN_OF_HEALTHY,
        ),
        Step(
            "bench",
            "Now drag the lower bound to 0.95 or below.",
            "Nearly all tokens are kept now. The mismatch was the same all the time: only the thresholds were wrong "
            "for this run.",
            slider("seq_mean_k1_lower"),
            at_most("seq_mean_k1_lower", 0.96),
            RUN_OF_HEALTHY,
        ),
        Step(
            "mismatch",
            "Read the heading: it says how large the mismatch is and what the pattern looks like.",
            "In the pictures below, the tokens are close to the lines of equal probabilities.",
            ".st-key-next",
            arrived,
            RUN_OF_HEALTHY,
        ),
        Step(
            "tokens",
            "Click a coloured token.",
            "On the right are its two probabilities, its ratio, and the formula of the rule with these numbers.",
            ".st-key-tokens_text",
            changed("token"),
            RUN_OF_HEALTHY,
        ),
    ),
)
STALE = Tour(
    "Stale weights",
    (
        Step(
            "mismatch",
            "Scroll down and choose other methods above the two pictures.",
            "The lines changed. A method caps the weights of the tokens outside its lines, or rejects these tokens.",
            ".st-key-methods",
            changed("methods"),
            RUN_OF_STALE,
        ),
        Step(
            "bench",
            "Drag the upper bound of the weight down to 1.1 or below.",
            "The cap cuts the weights of one token in seven now, and every token stays. The price is bias: the mean "
            "weight is further below 1.",
            slider("is_upper"),
            at_most("is_upper", 1.1),
            RUN_OF_STALE,
        ),
        Step(
            "bench",
            "Choose the preset decoupled_geo_rs, which rejects whole answers.",
            "It keeps 3 % of the tokens. Its bounds are made for a mismatch that is much smaller than the one that "
            "stale weights cause.",
            PRESET,
            has("preset", "decoupled_geo_rs"),
            RUN_OF_STALE,
        ),
        Step(
            "training",
            "Read the sentence above the pictures: which corrections ended significantly better than none?",
            "Each row is one preset, trained with weights that are eight steps old. Where an interval contains 0, it "
            "may be noise.",
            "",
            has("part", "Study"),
            THE_STUDY,
        ),
    ),
)
COLLAPSING = Tour(
    "A collapsing run",
    (
        Step(
            "training",
            "Scroll down to the presets above the curves, and press one more, or one less.",
            "The curves of reward and mismatch changed. Some presets keep training stable, others only delay the "
            "collapse.",
            ".st-key-presets",
            changed("presets"),
            THE_STUDY,
        ),
        Step(
            "training",
            "Choose another study, for example stale_0, whose weights are never old.",
            "Compare the sentence and the curves with those of stale_8: with less mismatch, a correction has less "
            "to repair.",
            ".st-key-study",
            changed("study"),
            THE_STUDY,
        ),
        Step(
            "bench",
            "This is one batch of a training run with stale weights. Drag the upper bound of the weight down to 1.1 or "
            "below.",
            "This is what a cap does to one batch: it cuts the weights of some tokens, and every token stays.",
            slider("is_upper"),
            at_most("is_upper", 1.1),
            RUN_OF_STALE,
        ),
    ),
)
LONG = Tour(
    "Long answers",
    (
        Step(
            "bench",
            "Drag the upper bound of the weight to another value.",
            "The weights and the effective sample size changed. A bound on a product also limits the length.",
            slider("is_upper"),
            changed("is_upper"),
            RUN_OF_LONG,
        ),
        Step(
            "bench",
            "Choose the preset decoupled_token_icepop, which weights each token by its own ratio.",
            "The effective sample size is much larger, because a token's own ratio does not grow with the length.",
            PRESET,
            has("preset", "decoupled_token_icepop"),
            RUN_OF_LONG,
        ),
        Step(
            "mismatch",
            "Look at the picture of the ratio of each answer against its length.",
            "Small differences of four hundred tokens add up.",
            "",
            arrived,
            RUN_OF_LONG,
        ),
    ),
)
CLASS = Tour(
    "Ten minutes with a class",
    (
        Step(
            "start",
            "Ask: how many answers come back at a threshold of 0.05? Then drag the slider to 0.05 or above.",
            "Each grey answer has a mean k3 above the threshold, and the model does not learn from it.",
            "[data-slider='start_bound']",
            at_least("start_bound", 0.05),
            (("run", "smol_kv_fp8_e5m2"),),
        ),
        Step(
            "mismatch",
            "Ask: where do the two probabilities differ most, and why? Then read the heading.",
            "The cache of this sampler has 8 bits per number, and the rounding changes every probability a little.",
            "",
            arrived,
            RUN_OF_CLASS,
        ),
        Step(
            "tokens",
            "Let the class choose a token, and click it.",
            "On the right are both probabilities. Let the class compute the ratio before you read it.",
            ".st-key-tokens_text",
            changed("token"),
            RUN_OF_CLASS,
        ),
        Step(
            "bench",
            "Ask: does a tighter cap throw tokens away? Then drag the upper bound of the weight down to 1.1 or below.",
            "No token is thrown away: a cap makes weights smaller. More of them are cut, and the mean weight falls "
            "below 1, which is a bias.",
            slider("is_upper"),
            at_most("is_upper", 1.1),
            RUN_OF_CLASS,
        ),
        Step(
            "learn",
            "Choose a view and what to hide, and copy the link for your class.",
            "The link opens exactly this state. The notes for teachers are below.",
            ".st-key-copy_built",
            has("learn", "Teaching"),
            (("learn", "Teaching"),),
        ),
    ),
)
TOURS = {"healthy": HEALTHY, "stale": STALE, "collapsing": COLLAPSING, "long": LONG, "class": CLASS}

WHERE = "{title} · step {number} of {all}"
DONE, TO_DO = "done", "to do"
NEXT, BACK, LEAVE, FINISH, GO = "Next", "Back", "Leave the tour", "Finish", "Go to this step"
WRONG_STEP = "tour_step={raw} is not a step of this tour; showing step 1. Allowed: 1 to {all}."
NO_TOUR = "Showing no tour."
