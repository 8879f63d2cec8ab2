"""What the mismatch of a batch looks like: one test per known cause, on nothing but its pairs of log-probs.

Per token, q is log π_rollout as it was reported, p is log π_old, d = p − q = log r; x = logit q and y = logit p − x.
Two facts carry the tests. If the tokens were drawn from q, and p gives no mass to what q cuts off, then the mean of r
is 1, whatever p is. And noise of one size on the logits gives y that size wherever x lies, while d is about (1 − π)·y
and so larger on rarer tokens: sizes and slopes are looked at in logits.

What no pair can show: a temperature, a penalty or a cut that the sampler used and that neither log-prob knows of. Both
then agree, on a policy that sampled nothing.
"""

import torch

from rlcorr.analysis.fill_values import left_out, marked, not_finite, padding
from rlcorr.analysis.log_prob_pairs import (
    Tokens,
    chosen,
    logits,
    measured,
    median_slope,
    one_sided,
    standard_error,
    tokens_of,
    worst_share,
)
from rlcorr.analysis.published import WORDS, largest_rounding, like, placed, rounding
from rlcorr.analysis.symptoms import HEALTHY, Symptom, listed, percent, short
from rlcorr.masked import masked_mean
from rlcorr.ratios import k3, ratio
from rlcorr.types import TokenBatch

CLEAN_K3 = 1e-7
"""The k3 up to which a batch is clean: the order of sums in float32. Measured between engine and trainer on a CPU:
3e-13 (1.3 million parameters) and 3.6e-11 (SmolLM2-135M)."""
OTHER_PROMPT = 0.5
"""k3 above which a constant per token id points to no stale head, see `stale_tensor`: tokens that were scored after
another text have such constants as well. Calibrated on synthetic policies over 12 and 800 tokens and on recorded runs
of 1.3 million parameters; miles (debug.md) names 0.8 for another chat template. It decides nothing else."""
ONE_SIDED = 0.98
"""Share of the tokens with π_old ≤ π_rollout (but for rounding) from which on mass is missing, not noise."""
CERTAIN_BELOW, CERTAIN_ABOVE = 10.0, 5.0
"""Standard errors that a mean ratio must be away from 1. A batch lacks the rarest tokens, which have the largest
ratios, so its mean tends to lie below 1 while its error looks small (by 6 of them at temperature 0.5)."""
LIGHT = 0.05
"""Share of Σr that 1 % of the tokens may hold for that not to happen; with a noise of 0.5 on the logits it is 0.04."""
FEWEST = 100
"""Tokens below which slopes, variances and neighbours are not looked at."""
LARGEST_ENTROPY = 13.0
"""ln of a vocabulary of 440,000, larger than any in use."""
HALF = 0.5
"""Share of k3 above which the sentence about precision adds that a hundredth of the tokens make it. It decides nothing:
mixtures of experts in bfloat16 have such tails."""
TEMPERATURES = (0.25, 4.0)
"""Of the trainer over the engine. An unrelated π_old would look like a trainer that is much too hot."""
FITTING, BESIDE_A_CUT = 0.8, 0.98
"""Share of the tokens that a temperature must explain: on random logits noise had up to 0.15, a cut hidden by noise
0.97, and temperatures from 0.6 to 1.3 without noise 0.97 and more."""
PER_TOKEN = 0.4
"""Share of the variance that constants per token id must explain. With a stale head it was 0.4 to 0.8 on models of 1.3
million parameters. With weights that are four or six updates old it was up to 0.31 there, and up to 0.39 with
SmolLM2-135M. With rounding it was below 0.28 on both. Old weights change the head, too, so the two overlap: the finding
is a hint, and its sentence says "may be"."""


def triage(batch: TokenBatch) -> list[Symptom]:
    """Return the patterns that the batch fits, the strongest first; there is always one.

    not finite     a log-prob is NaN or infinite, or tokens were left out because the engine's was
    identical      d = 0 everywhere
    shift by one   the two sides agree once one of them is moved by a token
    padding        several tokens hold a value that is no log-prob, such as −9999, or the 0 of padding
    top-p mass     the mean of r is below 1, and π_old ≤ π_rollout
    temperature    y = (β − 1)·(x + H), see `temperature`
    stale tensor   y is a constant per token id, see `stale_tensor`
    clean, precision, undecided, beyond rounding   none of these, and k3 is what float32 makes, what 16 bits make, what
                   coarser formats and old weights make, or more than any measured rounding, see `size`

    Raises `UsageError` without old_log_probs or without tokens.
    """
    tokens, mask = tokens_of(batch), batch.response_mask
    finite = torch.isfinite(tokens.old) & torch.isfinite(tokens.rollout)
    symptoms = [] if bool(finite.all()) else [not_finite(finite)]
    marks, real = marked(tokens, finite)
    if marks:
        symptoms += marks
        batch = batch.replace(response_mask=torch.zeros_like(mask).masked_scatter(mask, real))
    patterns = symptoms + _of_log_probs(batch, chosen(tokens, real), hide=bool(symptoms))
    if (missing := left_out(batch, len(finite))) is not None:
        few = missing.strength < 0.5  # otherwise what is left does not speak for the batch
        patterns = [missing, *(one for one in patterns if few or one.pattern not in HEALTHY)]
    return sorted(patterns, key=lambda symptom: -symptom.strength)


def _of_log_probs(batch: TokenBatch, tokens: Tokens, *, hide: bool) -> list[Symptom]:
    """Return the patterns of finite log-probs; those of a healthy batch are hidden if something is wrong already."""
    if bool((tokens.old == tokens.rollout).all()):
        same = f"Identical: both sides have the same {len(tokens.old):,} log-probs, to the last bit."
        return [] if hide else [Symptom("identical", same, {}, 1.0)]
    if moved := shift(batch):
        return [moved]
    zeros = padding(tokens)
    if zeros:
        tokens = chosen(tokens, (tokens.old != 0) & (tokens.rollout != 0))
    causes = _causes(tokens) if len(tokens.old) else []
    if zeros or hide:  # of the rest of the batch only another fault is worth a word
        causes = [cause for cause in causes if cause.pattern not in HEALTHY]
    return [zeros, *causes] if zeros else causes


def _causes(tokens: Tokens) -> list[Symptom]:
    """Cuts first: a cut looks like a temperature, and both of them make y depend on the token id and k3 large."""
    mass = top_p_mass(tokens)
    if mass and mass.strength >= ONE_SIDED:
        return [mass]
    symptoms = [mass] if mass else []
    if heat := temperature(tokens, BESIDE_A_CUT if mass else FITTING):
        return [*symptoms, heat]
    if mass and 2 * float(k3((tokens.old - tokens.rollout).clamp(min=0)).mean()) <= rounding("bfloat16")[1]:
        return symptoms  # no cut makes a token likelier for the trainer, and those that are so are within rounding
    return [*symptoms, stale_tensor(tokens) or size(tokens)]


# --- one test per pattern ---


def shift(batch: TokenBatch) -> Symptom | None:
    """Whether p of a token agrees better with q of the token before or after it. Strength: the share of Σ|d| that the
    move takes away, over the tokens that have such a neighbour; from one half on."""
    old, rollout = batch.tensors()["old_log_probs"].double(), batch.rollout_log_probs.double()
    real = batch.response_mask & torch.isfinite(old) & torch.isfinite(rollout)
    first, second = (slice(None), slice(None, -1)), (slice(None), slice(1, None))
    both = real[first] & real[second]
    symptoms = []
    for here, there, name in ((first, second, "next"), (second, first, "previous")):
        before = float(masked_mean((old[here] - rollout[here]).abs(), both))
        moved = float(masked_mean((old[here] - rollout[there]).abs(), both))
        if moved < before / 2 and int(both.sum()) >= FEWEST:
            sentence = f"Looks like a shift by one: π_old agrees with π_rollout of the {name} token (mean |Δ| "
            sentence += f"{short(moved)} instead of {short(before)})."
            numbers = {"abs_log_ratio": before, "abs_log_ratio_moved": moved}
            symptoms.append(Symptom("shift by one", sentence, numbers, 1 - moved / before))
    return max(symptoms, key=lambda symptom: symptom.strength, default=None)


def top_p_mass(tokens: Tokens) -> Symptom | None:
    """Whether the engine shares out the mass that top-p or top-k cut off, and the trainer does not.

    Then log q = log(π/S) with S the mass that was kept, so d = log S ≤ 0 and the mean of r is the mean of S. Strength:
    the share of tokens with d ≤ 0, but for a rounding of 0.02. Where noise or a temperature hides that, a mean below 1
    is enough if no few tokens make it.
    """
    d = tokens.old - tokens.rollout
    r, below = ratio(d), one_sided(d)
    mean = float(r.mean())
    if not mean + CERTAIN_BELOW * standard_error(r) < 0.999 or (below < ONE_SIDED and worst_share(r) > LIGHT):
        return None
    sentence = f"Looks like top-p or top-k: π_old is not above π_rollout on {percent(below)} of the tokens, and the "
    sentence += f"mean ratio of {mean:.3f} is the mass that was kept."
    return Symptom("top-p mass", sentence, measured(tokens) | {"share_at_most_one": below}, below)


def temperature(tokens: Tokens, fitting: float = FITTING) -> Symptom | None:
    """Whether both sides have the same logits and divide them by different temperatures, T_q and T_p.

    Then π_old ∝ π_rollout^β with β = T_q/T_p, and over the other tokens u of the vocabulary
        (1 − π_old)/π_old = Σ_u π_rollout(u)^β / π_rollout^β,  so that  y = (β − 1)·(x + H),  exactly,
    where H, between 0 and ln V, is the Rényi entropy of order β of the other tokens. The normaliser differs from place
    to place, and pairs do not hold it. What can be said all the same: there must be one β with which the H of every
    token, y/(β − 1) − x, lies between 0 and ln V. Noise, which has either sign, does not pass. The slope of y over x
    (the median over pairs of tokens half a batch apart) is β − 1 = 1/T − 1 with T = T_p/T_q, if H has no slope itself.

    What cannot be said: T exactly, since H does have one (on random logits the slope was 0.45 to 1.05 times 1/T − 1,
    nearest for small and for realistic, steep vocabularies); which side is wrong; whatever is in neither log-prob.
    Strength: the share of tokens that pass, from `fitting` on.
    """
    x, y, _ = logits(tokens)
    if len(x) < FEWEST:
        return None
    slope = median_slope(x, y)
    entropy, (lowest, highest) = y / slope - x, TEMPERATURES
    share = float(((entropy > -0.5) & (entropy < LARGEST_ENTROPY)).double().mean())
    if not (share >= fitting and 1 / highest < 1 + slope < 1 / lowest):
        return None
    times, r = 1 / (1 + slope), ratio(tokens.old - tokens.rollout)
    sentence = f"Looks like temperature: slope {slope:.2f}; expected 1/T − 1, so the trainer's temperature is about "
    sentence += f"{times:.2f} times that of the engine's log-probs."
    mean = float(r.mean())
    if mean - CERTAIN_ABOVE * standard_error(r) > 1:
        sentence += f" The mean ratio of {mean:.2f} says that the tokens were not drawn from these: they are raw."
    return Symptom("temperature", sentence, measured(tokens) | {"slope": slope, "temperature": times}, share)


def stale_tensor(tokens: Tokens) -> Symptom | None:
    """Whether y is a constant per token id, as rows of the output head leave that were not updated, or a bias.

    Strength: the share ω² of the variance of y that lies between token ids, less what chance gives. Needs the ids, and
    four tokens for each on average. Another stale tensor moves all tokens, and looks like other weights.
    """
    _, y, ids = logits(tokens)
    if ids is None or len(y) < FEWEST:
        return None
    group = ids.unique(return_inverse=True)[1]
    count = torch.bincount(group).double()
    if len(y) < 4 * len(count) or len(count) < 2:
        return None
    mean = torch.bincount(group, weights=y) / count
    inside, total = float((y - mean[group]).square().sum()), float((y - y.mean()).square().sum())
    if not total:
        return None
    within = inside / (len(y) - len(count))
    share = (total - inside - (len(count) - 1) * within) / (total + within)
    numbers = measured(tokens)
    if not share >= PER_TOKEN or numbers["k3"] > OTHER_PROMPT:
        return None
    sentence = f"May be a stale output head: {percent(share)} of the variance of the logits' differences is a constant "
    sentence += f"per token; k3 is {short(numbers['k3'])}. Compare the head's weights on both sides."
    return Symptom("stale tensor", sentence, numbers | {"share_per_token": share}, share)


def size(tokens: Tokens) -> Symptom:
    """Place the size of the mismatch among measured gaps, see `published.toml`; the only pattern is k3.

    clean            no more than `CLEAN_K3`
    precision        no more than rounding to bfloat16 has been measured to make
    undecided        more, and no more than the coarsest rounding makes: several causes make gaps of this size
    beyond rounding  more than any measured rounding makes

    Strength: how far k3 is within, or beyond, its bound b, that of float32 or else that of bfloat16: 1 − k3/b or
    1 − b/k3.
    """
    numbers = measured(tokens)
    gap, bound = numbers["k3"], rounding("bfloat16")[1]
    if gap <= CLEAN_K3:
        sentence = f"Clean: k3 is {short(gap)}, no more than the order of sums in float32 makes."
        return Symptom("clean", sentence, numbers, 1 - gap / CLEAN_K3)
    if gap <= bound:
        return Symptom("precision", _precision(numbers), numbers, 1 - gap / bound)
    if gap <= largest_rounding().high:
        return Symptom("undecided", _undecided(numbers), numbers, 1 - bound / gap)
    return Symptom("beyond rounding", _beyond(numbers), numbers, 1 - bound / gap)


def _precision(numbers: dict[str, float]) -> str:
    """Return the sentence about a gap that rounding to 16 bits makes."""
    gap = numbers["k3"]
    places = [place for place in (placed("float16", gap), placed("bfloat16", gap)) if gap <= place.high]
    ranges = " and ".join(f"{WORDS[place.cause]} ({_to(place.low, place.high)})" for place in places)
    nearest = places[-1]
    sentence = f"Looks like precision: k3 is {short(gap)}. Gaps of this size have come from {ranges}; the nearest is "
    sentence += f"{nearest.example.model} with {_to(*nearest.example_k3)}. The logits differ by "
    sentence += f"{short(numbers['logit_noise'])}, to either side: {percent(numbers['share_above_one'])} of the ratios "
    sentence += "are above 1."
    return f"{sentence} {_tail(numbers)}" if numbers["worst_share"] > HALF else sentence


def _undecided(numbers: dict[str, float]) -> str:
    """Return the sentence about a gap that several causes make, and how to find out which."""
    causes = [f"{WORDS[place.cause]} ({_to(place.low, place.high)})" for place in like(numbers["k3"])]
    return (
        f"Undecided: k3 is {short(numbers['k3'])}. Gaps of this size have come from {listed(causes)}; the log-probs do "
        f"not show which. Measure again right after a sync: a gap of old weights is gone. Measure with the engine in "
        f"float32: a gap of its rounding is gone. {_tail(numbers)}"
    )


def _beyond(numbers: dict[str, float]) -> str:
    """Return the sentence about a gap that no measured rounding makes."""
    coarsest = largest_rounding()
    return (
        f"Beyond rounding: k3 is {short(numbers['k3'])}, and the coarsest rounding that has been measured makes at "
        f"most {short(coarsest.high)} ({WORDS[coarsest.cause]}). Another prompt or chat template, much older weights "
        f"or a fault makes such gaps: compare the token ids of both sides, and measure again right after a sync. "
        f"{_tail(numbers)}"
    )


def _tail(numbers: dict[str, float]) -> str:
    return f"1 % of the tokens make {percent(numbers['worst_share'])} of k3."


def _to(low: float, high: float) -> str:
    return short(low) if low == high else f"{short(low)} to {short(high)}"
