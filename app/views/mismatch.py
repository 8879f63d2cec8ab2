"""The Mismatch view: where the two log-probs disagree, and the likely cause."""

from collections.abc import Mapping, Sequence

import streamlit as st
from components.links import Link, links
from components.picture import Picture, picture, picture_row
from controls import sharing
from controls.pickers import picked_record
from controls.widgets import pick_several
from data.names import run_title
from data.options import OFFERED
from data.recorded import Selection
from text.formatting import number, plain, table
from text.phrases import in_words

from rlcorr import CorrectionConfig, TokenBatch, evaluate
from rlcorr.analysis.published import rounding
from rlcorr.analysis.regions import SEQUENCE_METHODS
from rlcorr.analysis.segments import AgeShare, age_share, by_lag, by_turn, token_lags
from rlcorr.analysis.symptoms import Pattern, Symptom, short
from rlcorr.analysis.symptoms import percent as round_percent
from rlcorr.analysis.triage import triage
from rlcorr.errors import UsageError
from rlcorr.figures import mismatch
from rlcorr.figures.canvas import Figure
from rlcorr.foreign.to_record import missing
from rlcorr.measuring.gap_parts import part_metrics
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.records import runs
from rlcorr.records.step_files import StepRecord

CHECKS = {
    "Old weights?": "Sync the weights and measure. Gap gone? It was old weights.",
    "Rounding?": "Measure with the sampler in float32, its KV cache too. Gap gone? It was the sampler's rounding.",
}
"""Check → how to do it, and what its result means."""


def headline(sentence: str) -> tuple[str, str]:
    """Split the sentences of a symptom into the first one, which is a heading, and the others.

    >>> headline("Undecided: k3 is 0.01. Gaps of this size have several causes. Measure again.")
    ('Undecided: k3 is 0.01.', 'Gaps of this size have several causes. Measure again.')
    """
    first, stop, others = sentence.partition(". ")
    return first + stop.strip(), others


_TOKENS, _THRESHOLD = ("tokens", "See the tokens"), ("bench", "Choose a threshold")
_FIX = ("Fix this before you choose a correction. The tokens show where it is.", *_TOKENS)
NEXT: dict[Pattern, tuple[str, str, str]] = {
    "not finite": _FIX,
    "identical": (
        "If two programs computed the two sides, one was probably copied from the other. Check what was recorded.",
        "training", "See how the run was made",
    ),
    "shift by one": _FIX,
    "padding": _FIX,
    "top-p mass": ("Sample without top-p and top-k, or take both log-probs from the same distribution.", *_TOKENS),
    "temperature": ("Use one temperature for sampling and for both log-probs.", *_TOKENS),
    "stale tensor": (
        "Check first: are the rows of the output head the same on both sides? Then choose a threshold.", *_TOKENS
    ),
    "clean": ("The log-probs give no reason to correct.", "bench", "See what a threshold would cost"),
    "precision": (
        "The log-probs show nothing except rounding. Any of these leaves it alone: a cap of 2, a band of 0.5 to 5.",
        *_THRESHOLD
    ),
    "undecided": ("Check first, then choose a threshold, and see what it costs.", *_THRESHOLD),
    "old weights": (
        "Sample with newer weights, or correct their age. Then choose a threshold, and see what it costs.", *_THRESHOLD
    ),
    "beyond rounding": (
        "Fix this before you choose a correction. Check first: do both sides see the same prompt and the same chat "
        "template? Are the weights very old?", *_TOKENS
    ),
    "outlier": (
        "Look at the token first. If it was recorded wrongly, leave it out. If it is real, a cap or a rule limits its "
        "effect. The next verdict is that of the other tokens.", *_TOKENS
    ),
}  # fmt: skip
"""Pattern that `triage` returns → (what to do, the view that helps, the text of its link)."""
ROUNDING: tuple[Pattern, ...] = ("clean", "precision", "undecided", "old weights")
"""Patterns that a size alone decides. Old weights may have made any of these gaps; versions show whether they did."""
SIZES = {
    "Mean |Δ|": ("abs_log_ratio", "Mean absolute difference of the two log-probs."),
    "k3": (
        "k3",
        f"Mean of eᵈ − 1 − d, which estimates the KL divergence. Rounding to bfloat16 alone has been measured to give "
        f"up to {short(rounding('bfloat16')[1])}.",
    ),
    "Mean e^|Δ|": (
        "mult_error",
        "The mean factor between the two probabilities. NeMo RL suspects a bug above 1.05.",
    ),
    "Mean ratio": (
        "mean_ratio",
        "1 up to noise, if the sampler's log-probs are those of the policy that sampled, without top-p and top-k.",
    ),
}
"""Label on the page → (name in the numbers of a symptom, what it means)."""
PART_ROWS = {"whole gap": "", "sampler": "engine_", "age": "age_"}
"""Name of a row → the beginning of its metrics."""
PART_COLUMNS = {
    "k3": "k3_kl",
    "mean |d|": "abs_log_ratio",
    "largest |d|": "abs_log_ratio_max",
    "mean ratio": "is_ratio_mean",
    "ESS": "ratio_eff_sample_size",
}
PART_MEANINGS = {
    "sampler": "Log-prob of the sampling weights in the trainer's arithmetic, less the sampler's log-prob.",
    "age": "Log-prob of the present weights less that of the sampling weights, both in the trainer's arithmetic.",
    "ESS": "(Σ r)²/Σ r² of the unbounded token ratios, as a share of the tokens.",
}
CORRELATION = (
    "The correlation of the two parts is {correlation}. Sizes of parts add up to that of the whole only if it is 0."
)
PICTURES = {
    "acceptance": (
        "Both probabilities, and the tokens that each method leaves alone",
        "Tokens by their probability in the sampler (horizontal) and in the trainer (vertical). A method does not "
        "change tokens between its two lines. Outside a solid line it rejects the token, outside a dashed line it "
        "clips the weight.",
    ),
    "magnified": (
        "The difference, magnified",
        "The same tokens and lines. Horizontal: probability in the sampler. Vertical: the ratio. The outermost rows "
        "contain everything outside the axis.",
    ),
    "parts": (
        "The tails of the two parts",
        "How many tokens differ by at least this much: in all, by the sampler alone, and by the age of the weights "
        "alone.",
    ),
    "tail": (
        "The tail",
        "How many tokens differ by at least this much. A line that falls slowly is a heavy tail. If one colour is "
        "above the other, the mismatch has a direction.",
    ),
    "position": (
        "Along the response",
        "The ratio at each position of the response. A band that widens is an error that builds up. A mean away from 1 "
        "is more than noise. Positions that fewer than five responses reach are left out.",
    ),
    "tokens": (
        "Tokens that differ most",
        "Token ids by their mean |log r|, if they occur at least five times. Orange: more likely in the trainer. Blue: "
        "more likely in the sampler. If a few ids differ much more than the rest, check their rows of the output head.",
    ),
    "length": (
        "Over the length of the response",
        "One point per response. Independent noise of this size would stay inside the dotted cone. The lines are usual "
        "thresholds of the product and of the mean ratio.",
    ),
    "lag": ("By age of the weights", "Mean |log r| by the age of the weights that sampled, in updates."),
    "turn": ("By turn", "Mean |log r| by the turn of a token, if a tool or another speaker answers in between."),
}
"""(title, caption) per picture."""


def show(shown: Selection) -> None:
    """Show the verdict with the sizes of the gap and the age of the weights, and below it the pictures."""
    record = picked_record(shown)
    if record is None:
        return
    batch, lags = record.batch, []
    if "policy_versions" not in missing(record):
        lags = token_lags(batch, record.step)[batch.response_mask].unique().tolist()
    try:
        symptoms = triage(batch)
    except UsageError as error:
        st.error(plain(str(error)))
        return
    _result(shown, record, symptoms)
    with st.container(horizontal=True, key="sizes"):
        for label, (name, help) in SIZES.items():
            if name in symptoms[0].numbers:
                st.metric(label, number(symptoms[0].numbers[name]), help=help, width=112)
    if len(lags) == 1 and lags[0] > 0:
        age = "one update" if lags[0] == 1 else f"{lags[0]} updates"
        st.caption(f"All answers of this step were sampled by weights {age} older than those that scored them.")
    if batch.sampled_log_probs is not None:
        _parts(batch, shown.source)
    _pictures(record, lags, shown.source)


def _result(shown: Selection, record: StepRecord, symptoms: list[Symptom]) -> None:
    """Show the verdict, or the cause that a committed run records, as the heading; what to do, pictures, and why."""
    part = None if "policy_versions" in missing(record) else age_share(by_lag(record.batch, record.step))
    first, *others = map(in_words, verdict(symptoms, part))
    heading, details = headline(first)
    pattern, title = symptoms[0].pattern, run_title(shown.slug)
    advice, view, label = NEXT["old weights" if _is_old(symptoms[0], part) else pattern]
    is_open = pattern == "undecided"
    if is_open and shown.run.parent == runs.ROOT and title != shown.slug:
        heading, details = f"{title}: k3 is {short(symptoms[0].numbers['k3'])}.", first
        advice, is_open = "The record of this run names the cause. Choose a threshold, and see what it costs.", False
    sharing.verdict(plain(heading))
    with st.container(horizontal=True, vertical_alignment="center", key="next"):
        for check, result in CHECKS.items() if is_open else ():
            st.popover(check).markdown(result)
        st.markdown(advice, width="content")
        links(Link(label, {"view": view}), key="next_link")
    _regions(record.batch, shown.source)
    with st.expander("What the log-probs alone say"):
        st.markdown(plain("\n\n".join([details, *others])))


def _is_old(symptom: Symptom, part: AgeShare | None) -> bool:
    """Check for a gap that mostly comes with the age of the weights: it is no rounding, whatever its size is."""
    return part is not None and part.is_most and symptom.pattern in ROUNDING


def verdict(symptoms: Sequence[Symptom], part: AgeShare | None) -> list[str]:
    """Return the sentences about a step in the order in which they are read; the first one becomes the heading."""
    first, *others = [symptom.sentence for symptom in symptoms]
    if part is None or symptoms[0].pattern not in ROUNDING:
        return [first, *(f"Also: {sentence}" for sentence in others)]
    if not _is_old(symptoms[0], part):
        return [first, *(f"Also: {sentence}" for sentence in (*others, part.sentence))]
    old = f"Looks like old weights: about {round_percent(part.share)} of k3 comes with their age. {part.sentence}"
    return [old, f"By its size alone: {first}", *(f"Also: {sentence}" for sentence in others)]


def _parts(batch: TokenBatch, source: str) -> None:
    """Show how much of the gap is the engine's and how much the age of the weights."""
    st.markdown("## Where the gap comes from")
    left, right = st.columns(2, gap="medium")
    with left:
        picture("mismatch_parts", Picture(mismatch.tail_of_parts(batch), *PICTURES["parts"]), source)
    numbers = part_metrics(batch) | evaluate(batch, CorrectionConfig())[1]
    with right:
        rows = [
            [name, *(number(numbers[f"{PREFIX}{key}{metric}"]) for metric in PART_COLUMNS.values())]
            for name, key in PART_ROWS.items()
        ]
        st.html(table(["", *PART_COLUMNS], rows, PART_MEANINGS))
        st.caption(CORRELATION.format(correlation=number(numbers[f"{PREFIX}parts_correlation"])))


def _regions(batch: TokenBatch, source: str) -> None:
    """Show the choice of methods, and above it their pictures."""
    above = st.container()
    methods = {name: OFFERED[name] for name in pick_several("methods", "Methods to draw", list(OFFERED))}
    with above:
        magnified = mismatch.acceptance(batch, methods, magnified=True)
        _rows({"acceptance": mismatch.acceptance(batch, methods), "magnified": magnified}, source)
    if methods:
        with st.expander("What these methods do"):
            st.html(table(["", ""], [[name, config.explain()] for name, config in methods.items()]))


def _pictures(record: StepRecord, lags: list[int], source: str) -> None:
    batch = record.batch
    figures = {
        "tail": mismatch.tail(batch), "position": mismatch.by_position(batch),
        "length": mismatch.by_length(batch, SEQUENCE_METHODS),
    }  # fmt: skip
    if "response_ids" not in missing(record):
        figures["tokens"] = mismatch.by_token(batch, mismatch.token_labels(record))
    if len(lags) > 1:
        figures["lag"] = mismatch.lag_bars(by_lag(batch, record.step))
    if batch.turn_ids is not None:
        figures["turn"] = mismatch.turn_bars(by_turn(batch))
    _rows(figures, source)
    if "tokens" not in figures:
        st.caption("The step has no token ids, so the page cannot show which tokens differ.")


def _rows(figures: Mapping[str, Figure], source: str) -> None:
    """Show pictures by their keys in `PICTURES`, two in a row."""
    shown = [(f"mismatch_{key}", Picture(figure, *PICTURES[key])) for key, figure in figures.items()]
    for index in range(0, len(shown), 2):
        picture_row(dict(shown[index : index + 2]), source)
