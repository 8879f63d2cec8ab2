"""Patterns of the mismatch of a batch: one test per known cause, based only on its pairs of log-probs.

For each token, q is the reported log π_rollout, p is log π_old, d = p − q = log r; x = logit q and y = logit p − x. The
tests use two facts. First, if the tokens were sampled from q, and p gives no probability to tokens that q cuts off,
then the mean of r is 1 for any p. Second, noise of one size on the logits gives y the same size for any x, while d is
about (1 − π)·y and therefore larger on rarer tokens. So sizes and slopes are measured in logits.

Pairs cannot show a temperature, a penalty or a cut that the sampler used and that is in neither log-prob. Both then
agree on a policy that sampled nothing.
"""

from dataclasses import replace

import torch

from rlcorr.analysis.bases import other_base
from rlcorr.analysis.constant_runs import constant_runs
from rlcorr.analysis.fill_values import left_out, marked, not_finite, padding
from rlcorr.analysis.log_prob_pairs import (
    Tokens,
    logits,
    median_slope,
    mismatch_numbers,
    one_sided,
    select_tokens,
    standard_error,
    tokens_of,
    worst_share,
)
from rlcorr.analysis.opposite_sides import opposite_sides
from rlcorr.analysis.outliers import outliers
from rlcorr.analysis.published import rounding
from rlcorr.analysis.row_groups import row_groups
from rlcorr.analysis.shifts import shift
from rlcorr.analysis.size_pattern import CLEAN_K3, size
from rlcorr.analysis.symptoms import HEALTHY, Symptom, mend_first, percent, short, some_rows
from rlcorr.measuring.gap_parts import age_part, engine_part
from rlcorr.ratios import k3, ratio
from rlcorr.types import TokenBatch

OTHER_PROMPT = 0.5
"""k3 above which a constant per token id does not suggest a stale head, see `stale_tensor`: tokens scored after another
text have such constants, too. Calibrated on synthetic policies over 12 and 800 tokens and on recorded runs with 1.3
million parameters; miles (debug.md) reports 0.8 for another chat template. It has no other use."""
ONE_SIDED = 0.98
"""Share of the tokens with π_old ≤ π_rollout, up to rounding, from which on mass is missing and not noise."""
CERTAIN_BELOW, CERTAIN_ABOVE = 10.0, 5.0
"""Standard errors by which a mean ratio must differ from 1. A batch lacks the rarest tokens, which have the largest
ratios. So its mean tends to be below 1 while its standard error looks small (6 standard errors at temperature 0.5)."""
LIGHT = 0.05
"""Largest share of Σr on 1 % of the tokens for which this does not happen; with noise of 0.5 on the logits it
is 0.04."""
FEWEST = 100
"""Smallest number of tokens for which slopes, variances and shifts are tested."""
LARGEST_ENTROPY = 13.0
"""ln of a vocabulary of 440,000, larger than any in use."""
TEMPERATURES = (0.25, 4.0)
"""Trainer over engine. An unrelated π_old would look like a trainer that is much too hot."""
FITTING, BELOW_ONE, BESIDE_A_CUT = 0.8, 0.9, 0.98
"""Share of the tokens that a temperature must explain: usually, if the mean ratio is below 1, and beside a cut. On
random logits, noise had up to 0.15, a cut hidden by noise 0.97, and temperatures from 0.6 to 1.3 without noise at
least 0.97. On the distributions of SmolLM2, 100 tokens and more: temperatures with the noise of an 8-bit cache had at
least 0.92, and top-p with it at most 0.89, with a mean ratio that was at least 4 standard errors below 1 (`make bench
ARGS=confusion`)."""
CLEARLY_BELOW = 3.0
"""Standard errors by which the mean ratio is then below 1."""
PER_TOKEN = 0.4
"""Share of the variance that constants per token id must explain. With a stale head it was 0.4 to 0.8 on models with
1.3 million parameters. With weights that are four or six updates old it was up to 0.31 there, and up to 0.39 with
SmolLM2-135M. With rounding it was below 0.28 on both. Old weights change the head, too, so the two overlap: the result
is a hint, and its sentence says "may be"."""


def triage(batch: TokenBatch) -> list[Symptom]:
    """Return the patterns that the batch fits: faults that must be mended first, then the others, the strongest first.

    There is always at least one.

        not finite     a log-prob is NaN or infinite, or tokens were left out because the engine's was
        identical      d = 0 everywhere
        shift by one   the two sides agree after one of them is shifted by a token, in all answers or in some
        padding        several tokens have a value that is not a log-prob, such as −9999, or the 0 of padding
        top-p mass     the mean of r is below 1, and π_old ≤ π_rollout
        temperature    y = (β − 1)·(x + H), see `temperature`
        stale tensor   y is a constant per token id, see `stale_tensor`
        clean, precision, undecided, beyond rounding
                       none of these. The size of k3 decides: that of float32 sums, that of 16 bits, that of coarser
                       formats and old weights, or more than any measured rounding, see `size`
        outlier        one to three tokens, few answers or one place of every answer decide which of these four it is,
                       see `outliers`. The other patterns are then those of the other tokens

    beyond rounding is also the pattern of logarithms of two bases, see `other_base`. A fault of some answers alone is
    reported for them, see `row_groups`, with the further faults of the others.

    With sampled_log_probs, the engine's part of the gap is diagnosed, and

        old weights    the part of the weights' age is larger than what float32 sums make

    Raises `UsageError` without old_log_probs or without tokens.
    """
    return _of_parts(batch) if batch.sampled_log_probs is not None else _of_whole(batch)


def _of_parts(batch: TokenBatch) -> list[Symptom]:
    """Return the patterns of the engine's part, and the age of the weights: first if its part is the larger one."""
    by_engine = _of_whole(engine_part(batch))
    engine, age = (mismatch_numbers(tokens_of(part(batch)))["k3"] for part in (engine_part, age_part))
    if not age > CLEAN_K3:
        return by_engine
    share = age / (age + engine)
    sentence = f"Old weights: k3 of the part that the age of the weights makes is {short(age)}, that of the engine's "
    sentence += f"part {short(engine)}."
    old = Symptom("old weights", sentence, mismatch_numbers(tokens_of(batch)), share)
    by_engine = [replace(symptom, sentence=f"The engine's part: {symptom.sentence}") for symptom in by_engine]
    return [old, *by_engine] if age > engine else [*by_engine, old]


def _of_whole(batch: TokenBatch) -> list[Symptom]:
    """Return the patterns of a gap whose parts are not known, the strongest first."""
    tokens, mask = tokens_of(batch), batch.response_mask
    finite = torch.isfinite(tokens.old) & torch.isfinite(tokens.rollout)
    symptoms = [] if bool(finite.all()) else [not_finite(finite)]
    marks, real = marked(tokens, finite)
    runs, real = constant_runs(tokens, real, mask)
    symptoms += [*marks, *runs]
    if not bool(real.all()):
        batch = batch.replace(response_mask=torch.zeros_like(mask).masked_scatter(mask, real))
    patterns = symptoms + _finite_patterns(batch, select_tokens(tokens, real), hide=bool(symptoms))
    if (missing := left_out(batch, len(finite))) is not None:
        few = missing.strength < 0.5  # if more are missing, a healthy rest proves nothing about the batch
        patterns = [missing, *(symptom for symptom in patterns if few or symptom.pattern not in HEALTHY)]
    return sorted(patterns, key=lambda symptom: (_comes_later(symptom), -symptom.strength))


def _comes_later(symptom: Symptom) -> bool:
    return symptom.pattern != "outlier" and mend_first([symptom]) is None


def _finite_patterns(batch: TokenBatch, tokens: Tokens, *, hide: bool) -> list[Symptom]:
    """Return the patterns of finite log-probs. `hide` leaves out those of healthy batches."""
    if same := identical(tokens):
        return [] if hide else [same]
    mask = batch.response_mask
    if fault := shift(batch) or opposite_sides(tokens, mask) or other_base(tokens, mask):
        return [fault]
    zeros = padding(tokens)
    if zeros:
        tokens = select_tokens(tokens, (tokens.old != 0) & (tokens.rollout != 0))
    if zeros or hide:  # a fault is known, so only further faults are reported
        causes = _causes(tokens) if len(tokens.old) else []
        further = [cause for cause in causes if cause.pattern not in HEALTHY]
        return [zeros, *further] if zeros else further
    if few := outliers(tokens, batch):
        others = select_tokens(tokens, few.others)
        same = identical(others)
        return [few.symptom, *([same] if same else _causes(others))]
    causes = _causes(tokens)
    if any(cause.pattern in ("top-p mass", "temperature", "stale tensor") for cause in causes):
        return causes
    return _of_some_answers(batch, tokens) or causes


def _of_some_answers(batch: TokenBatch, tokens: Tokens) -> list[Symptom]:
    """Return the fault of a group of answers, if there is one, and the further faults of the others."""
    row = batch.response_mask.nonzero()[:, 0]
    for chosen in row_groups(tokens, batch.response_mask):
        part, others = select_tokens(tokens, chosen), select_tokens(tokens, ~chosen)
        fault = identical(part) or top_p_mass(part) or temperature(part)
        if fault is None and size(part).pattern == "beyond rounding" != size(others).pattern:
            fault = size(part)
        if fault is not None and identical(others) is None:
            said = f"In {some_rows(row[chosen].unique(), len(row.unique()))}: {fault.sentence}"
            further = [cause for cause in _causes(others) if cause.pattern not in (*HEALTHY, fault.pattern)]
            return [replace(fault, sentence=said), *further]
    return []


def _causes(tokens: Tokens) -> list[Symptom]:
    """Return the causes of the mismatch.

    Cuts are tested first: a cut looks like a temperature, and both make k3 large and y depend on the token id.
    """
    mass = top_p_mass(tokens)
    if mass and mass.strength >= ONE_SIDED:
        return [mass]
    symptoms = [mass] if mass else []
    if heat := temperature(tokens, BESIDE_A_CUT if mass else FITTING):
        return [*symptoms, heat]
    if mass and 2 * float(k3((tokens.old - tokens.rollout).clamp(min=0)).mean()) <= rounding("bfloat16")[1]:
        return symptoms  # the tokens with r > 1, which no cut explains, are within rounding
    return [*symptoms, stale_tensor(tokens) or size(tokens)]


# --- one test per pattern ---


def identical(tokens: Tokens) -> Symptom | None:
    """Check whether both sides have the same log-prob on every token."""
    if not bool((tokens.old == tokens.rollout).all()):
        return None
    sentence = f"Identical: both sides have the same {len(tokens.old):,} log-probs, to the last bit."
    return Symptom("identical", sentence, {}, 1.0)


def top_p_mass(tokens: Tokens) -> Symptom | None:
    """Check whether the engine redistributes the probability that top-p or top-k cut off, and the trainer does not.

    Then log q = log(π/S), with S the probability mass that was kept, so d = log S ≤ 0 and the mean of r is the mean of
    S. The strength is the share of tokens with d ≤ 0, with 0.02 allowed for rounding. If noise or a temperature hides
    this, a mean below 1 is enough, unless it comes from a few tokens.
    """
    d = tokens.old - tokens.rollout
    r, below = ratio(d), one_sided(d)
    mean = float(r.mean())
    if not mean + CERTAIN_BELOW * standard_error(r) < 0.999 or (below < ONE_SIDED and worst_share(r) > LIGHT):
        return None
    sentence = f"Looks like top-p or top-k: π_old ≤ π_rollout on {percent(below)} of the tokens. The mean ratio, "
    sentence += f"{mean:.3f}, is the probability mass that the cut kept."
    return Symptom("top-p mass", sentence, mismatch_numbers(tokens) | {"share_at_most_one": below}, below)


def temperature(tokens: Tokens, fitting: float = FITTING) -> Symptom | None:
    """Check whether both sides have the same logits and divide them by different temperatures, T_q and T_p.

    Then π_old ∝ π_rollout^β with β = T_q/T_p, and over the other tokens u of the vocabulary

        (1 − π_old)/π_old = Σ_u π_rollout(u)^β / π_rollout^β,  so that  y = (β − 1)·(x + H),  exactly.

    H, between 0 and ln V, is the Rényi entropy of order β of the other tokens. It differs between positions, and pairs
    of log-probs do not contain it. Still, there must be one β for which the H of every token, y/(β − 1) − x, is between
    0 and ln V. Noise, which has both signs, fails this test. The slope of y over x (the median over pairs of tokens
    half a batch apart) is β − 1 = 1/T − 1 with T = T_p/T_q, if H has no slope itself.

    The pairs do not give T exactly, because H does have a slope: on random logits the slope of y was 0.45 to 1.05 times
    1/T − 1, closest for small vocabularies and for realistic, steep ones. They do not show which side is wrong, nor
    anything that is in neither log-prob. The strength is the share of tokens that pass: at least `fitting`, and
    `BELOW_ONE` or more if the mean ratio is clearly below 1, as it is if noise hides a cut.
    """
    x, y, _ = logits(tokens)
    if len(x) < FEWEST:
        return None
    slope, r = median_slope(x, y), ratio(tokens.old - tokens.rollout)
    entropy, (lowest, highest) = y / slope - x, TEMPERATURES
    share = float(((entropy > -0.5) & (entropy < LARGEST_ENTROPY)).double().mean())
    if float(r.mean()) + CLEARLY_BELOW * standard_error(r) < 1:
        fitting = max(fitting, BELOW_ONE)
    if not (share >= fitting and 1 / highest < 1 + slope < 1 / lowest):
        return None
    times = 1 / (1 + slope)
    sentence = f"Looks like temperature: the slope of the differences between logits is {slope:.2f}. It should be "
    sentence += f"1/T − 1, so the trainer's temperature is about {times:.2f} times that of the engine's log-probs."
    mean = float(r.mean())
    if mean - CERTAIN_ABOVE * standard_error(r) > 1:
        sentence += f" The mean ratio of {mean:.2f} is above 1, so the tokens were not sampled from the engine's "
        sentence += "log-probs: these are raw."
    return Symptom("temperature", sentence, mismatch_numbers(tokens) | {"slope": slope, "temperature": times}, share)


def stale_tensor(tokens: Tokens) -> Symptom | None:
    """Check whether y is a constant per token id, because rows of the output head, or a bias, were not updated.

    The strength is ω², the share of the variance of y between token ids minus what chance gives. The test needs ids,
    and four tokens per id on average. Any other stale tensor changes all tokens and looks like other weights.
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
    numbers = mismatch_numbers(tokens)
    if not share >= PER_TOKEN or numbers["k3"] > OTHER_PROMPT:
        return None
    sentence = f"May be a stale output head: constants per token id explain {percent(share)} of the variance of the "
    sentence += f"differences between logits; k3 is {short(numbers['k3'])}. Compare the head's weights on both sides."
    return Symptom("stale tensor", sentence, numbers | {"share_per_token": share}, share)
