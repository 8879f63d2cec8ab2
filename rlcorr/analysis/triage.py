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
from rlcorr.analysis.symptoms import HEALTHY, Symptom, percent, short
from rlcorr.masked import masked_mean
from rlcorr.ratios import k3, ratio
from rlcorr.types import TokenBatch

ROUNDING_K3 = {"float32": 1e-7, "float16": 1e-4, "bfloat16": 1e-3, "fp8": 0.05, "fp8_e5m2": 0.2}
"""The k3 that rounding alone may reach, by the coarsest number format of the two sides.

Measured on perturbed weights of the warm start: float32 3e-13, float16 1e-6 (1.3e-5 on a random model of the tests),
bfloat16 1e-4, where one stale tensor gives 3e-3 to 1e-1. An fp8 KV cache rounds by 1e-2 (e4m3) to 7e-2 (e5m2) itself.
The bound for bfloat16 is also what NeMo RL's documentation expects of the KL (docs/guides/grpo.md).
"""
LARGEST_ERROR = 1.05
"""Mean e^|d| above which NeMo RL expects a bug (token_mult_prob_error, docs/guides/grpo.md and issue 1767)."""
OTHER_PROMPT = 0.5
"""k3 from which on tokens were not scored behind the same text: miles (debug.md) names 0.8 for a chat template."""
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
TEMPERATURES = (0.25, 4.0)
"""Of the trainer over the engine. An unrelated π_old would look like a trainer that is much too hot."""
FITTING, BESIDE_A_CUT = 0.8, 0.98
"""Share of the tokens that a temperature must explain: on random logits noise had up to 0.15, a cut hidden by noise
0.97, and temperatures from 0.6 to 1.3 without noise 0.97 and more."""
PER_TOKEN = 0.35
"""Share of the variance that constants per token id must explain. Runs with a stale head have had 0.4 to 0.8. Other
mismatches have less than 0.1, but for one step of weights that were four updates old, which had 0.31."""


def triage(batch: TokenBatch) -> list[Symptom]:
    """Return the patterns that the batch fits, the strongest first; there is always one.

    not finite     a log-prob is NaN or infinite, or tokens were left out because the engine's was
    identical      d = 0 everywhere
    shift by one   the two sides agree once one of them is moved by a token
    padding        several tokens hold a value that is no log-prob, such as −9999, or the 0 of padding
    top-p mass     the mean of r is below 1, and π_old ≤ π_rollout
    temperature    y = (β − 1)·(x + H), see `temperature`
    stale tensor   y is a constant per token id, see `stale_tensor`
    clean, precision, beyond rounding   none of these, and k3 is what float32 leaves, what bfloat16 leaves, or more

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
    if mass and 2 * float(k3((tokens.old - tokens.rollout).clamp(min=0)).mean()) <= ROUNDING_K3["bfloat16"]:
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
    sentence = f"Looks like a stale output head: {percent(share)} of the variance of the logits' differences is a "
    sentence += f"constant per token; k3 is {short(numbers['k3'])}."
    return Symptom("stale tensor", sentence, numbers | {"share_per_token": share}, share)


def size(tokens: Tokens) -> Symptom:
    """Whether rounding explains the size: k3 and mean e^|d| within their bounds. Strength: how far k3 is within, or
    beyond, its bound b: 1 − k3/b or 1 − b/k3."""
    numbers = measured(tokens)
    size_k3, exact, bound = numbers["k3"], ROUNDING_K3["float32"], ROUNDING_K3["bfloat16"]
    if size_k3 <= exact:
        sentence = f"Clean: k3 is {short(size_k3)}, no more than the order of sums in float32 leaves."
        return Symptom("clean", sentence, numbers, 1 - size_k3 / exact)
    if size_k3 <= bound and numbers["mult_error"] <= LARGEST_ERROR:
        noise, above = numbers["logit_noise"], numbers["share_above_one"]
        sentence = (
            f"Looks like precision: k3 is {short(size_k3)}, and rounding leaves up to {short(bound)}. The logits "
        )
        sentence += f"differ by {short(noise)}, to either side: {percent(above)} of the ratios are above 1."
        return Symptom("precision", sentence, numbers, 1 - size_k3 / bound)
    worst = percent(numbers["worst_share"])
    sentence = (
        f"Beyond rounding: k3 is {short(size_k3)}, and bfloat16 leaves up to {short(bound)}; {worst} of it comes "
    )
    sentence += "from 1 % of the tokens. "
    if size_k3 > OTHER_PROMPT:
        sentence += "Another prompt or chat template looks like this."
    else:
        sentence += "Older weights look like this, and so does a cache in 8 bits: log-probs alone cannot tell which."
    return Symptom("beyond rounding", sentence, numbers, max(1 - bound / size_k3, 0.0))
