"""What the mismatch of a batch looks like: one test per known cause, on nothing but its pairs of log-probs.

Per token, q is log π_rollout as it was reported, p is log π_old, d = p − q = log r; x = logit q and y = logit p − x.
Two facts carry the tests. If the tokens were drawn from q, and p gives no mass to what q cuts off, then the mean of r
is 1, whatever p is. And noise of one size on the logits gives y that size wherever x lies, while d is about (1 − π)·y
and so larger on rarer tokens: sizes and slopes are looked at in logits.

What no pair can show: a temperature, a penalty or a cut that the sampler used and that neither log-prob knows of. Both
then agree, on a policy that sampled nothing.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlcorr.errors import UsageError
from rlcorr.masked import masked_mean
from rlcorr.ratios import k3, ratio
from rlcorr.types import TokenBatch

ROUNDING_K3 = {"float32": 1e-7, "float16": 1e-4, "bfloat16": 1e-3, "fp8": 0.05, "fp8_e5m2": 0.2}
"""The k3 that rounding alone may reach, by the coarsest number format of the engine.

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
RESOLVED = -1e-3
"""Log-probs above this one are left out of logits: float32 leaves too few digits of 1 − π there."""
FEWEST = 100
"""Tokens below which slopes, variances and neighbours are not looked at."""
LARGEST_ENTROPY = 13.0
"""ln of a vocabulary of 440,000, larger than any in use."""
TEMPERATURES = (0.25, 4.0)
"""Of the trainer over the engine. An unrelated π_old would look like a trainer that is much too hot."""
FITTING, BESIDE_A_CUT = 0.8, 0.98
"""Share of the tokens that a temperature must explain: on random logits noise had up to 0.15, a cut hidden by noise
0.97, and temperatures from 0.6 to 1.3 without noise 0.97 and more."""
PER_TOKEN = 0.25
"""Share of the variance that constants per token id must explain. The recorded runs have 0.4 and more with a stale
head, and less than 0.1 with every other mismatch."""


@dataclass(frozen=True)
class Finding:
    """One pattern that the batch fits. `strength`, from 0 to 1, is the share of the batch that fits, as the pattern's
    test defines it; `numbers` are those of the test, and the size of the mismatch."""

    pattern: str
    sentence: str
    numbers: dict[str, float]
    strength: float


@dataclass(frozen=True)
class Tokens:
    """Real tokens, flat, in float64."""

    old: Tensor  # (N,) p
    rollout: Tensor  # (N,) q
    ids: Tensor | None  # (N,)


def triage(batch: TokenBatch) -> list[Finding]:
    """The patterns that the batch fits, the strongest first; there is always one.

    not finite     a log-prob is NaN or infinite
    identical      d = 0 everywhere
    shift by one   the two sides agree once one of them is moved by a token
    padding        a log-prob is exactly 0, as padding is, where the other side's is far below
    top-p mass     the mean of r is below 1, and π_old ≤ π_rollout
    temperature    y = (β − 1)·(x + H), see `temperature`
    stale tensor   y is a constant per token id, see `stale_tensor`
    clean, precision, beyond rounding   none of these, and k3 is what float32 leaves, what bfloat16 leaves, or more

    Raises `UsageError` without old_log_probs or without tokens.
    """
    tokens = tokens_of(batch)
    finite = torch.isfinite(tokens.old) & torch.isfinite(tokens.rollout)
    found = [] if bool(finite.all()) else [_not_finite(finite)]
    tokens = chosen(tokens, finite)
    if bool((tokens.old == tokens.rollout).all()):
        same = f"Identical: both sides have the same {len(tokens.old):,} log-probs, to the last bit."
        return found or [Finding("identical", same, {}, 1.0)]
    if moved := shift(batch):
        return [*found, moved]
    if zeros := padding(tokens):
        found.append(zeros)
        tokens = chosen(tokens, (tokens.old != 0) & (tokens.rollout != 0))
    causes = _causes(tokens) if len(tokens.old) else []
    if found:  # what is left of the batch is worth a word only if something is wrong with it, too
        causes = [cause for cause in causes if cause.pattern not in ("clean", "precision")]
    return sorted([*found, *causes], key=lambda finding: -finding.strength)


def _causes(tokens: Tokens) -> list[Finding]:
    """A cut looks like a temperature, and both make y depend on the token id and k3 large: hence this order."""
    mass = top_p_mass(tokens)
    if mass and mass.strength >= ONE_SIDED:
        return [mass]
    found = [mass] if mass else []
    if heat := temperature(tokens, BESIDE_A_CUT if mass else FITTING):
        return [*found, heat]
    if mass and 2 * float(k3((tokens.old - tokens.rollout).clamp(min=0)).mean()) <= ROUNDING_K3["bfloat16"]:
        return found  # the side that no cut can make is within rounding
    return [*found, stale_tensor(tokens) or size(tokens)]


# --- one test per pattern ---


def _not_finite(finite: Tensor) -> Finding:
    count, total = int((~finite).sum()), len(finite)
    sentence = f"Not finite: {count:,} of {total:,} tokens have a log-prob that is NaN or infinite."
    return Finding("not finite", sentence, {"tokens": count}, 1.0)


def shift(batch: TokenBatch) -> Finding | None:
    """Whether p of a token agrees better with q of the token before or after it. Strength: the share of Σ|d| that the
    move takes away, over the tokens that have such a neighbour; from one half on."""
    old, rollout = batch.tensors()["old_log_probs"].double(), batch.rollout_log_probs.double()
    real = batch.response_mask & torch.isfinite(old) & torch.isfinite(rollout)
    first, second = (slice(None), slice(None, -1)), (slice(None), slice(1, None))
    both = real[first] & real[second]
    found = []
    for own, other, name in ((first, second, "next"), (second, first, "previous")):
        before = float(masked_mean((old[own] - rollout[own]).abs(), both))
        moved = float(masked_mean((old[own] - rollout[other]).abs(), both))
        if moved < before / 2 and int(both.sum()) >= FEWEST:
            sentence = f"Looks like a shift by one: π_old agrees with π_rollout of the {name} token (mean |Δ| "
            sentence += f"{_short(moved)} instead of {_short(before)})."
            numbers = {"mean |Δ|": before, "mean |Δ| moved": moved}
            found.append(Finding("shift by one", sentence, numbers, 1 - moved / before))
    return max(found, key=lambda finding: finding.strength, default=None)


def padding(tokens: Tokens) -> Finding | None:
    """Whether at least three tokens have a log-prob of exactly 0 on one side and a probability below 1/2 on the other.

    Strength: their share of Σ|d|, from 1 % on. Not where the other tokens show a cut: alone in its nucleus, a token
    has log-prob 0.
    """
    odd = unwritten(tokens)
    count, d = int(odd.sum()), (tokens.old - tokens.rollout).abs()
    strength = float(d[odd].sum() / d.sum())
    if count < 3 or strength < 0.01 or top_p_mass(chosen(tokens, ~odd)):
        return None
    share, side = count / len(odd), "engine" if bool((tokens.rollout[odd] == 0).any()) else "trainer"
    sentence = (
        f"Looks like padding: the {side}'s log-prob is exactly 0 on {count:,} tokens ({_percent(share)}) to which "
    )
    sentence += "the other side gives less than one half."
    return Finding("padding", sentence, {"tokens": count, "share of tokens": share}, strength)


def unwritten(tokens: Tokens) -> Tensor:
    """(N,) bool: exactly 0 on one side, below log 1/2 on the other."""
    low, high = torch.minimum(tokens.old, tokens.rollout), torch.maximum(tokens.old, tokens.rollout)
    return (high == 0) & (low < -0.6931)


def top_p_mass(tokens: Tokens) -> Finding | None:
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
    sentence = f"Looks like top-p or top-k: π_old is not above π_rollout on {_percent(below)} of the tokens, and the "
    sentence += f"mean ratio of {mean:.3f} is the mass that was kept."
    return Finding("top-p mass", sentence, measured(tokens) | {"share with r ≤ 1": below}, below)


def temperature(tokens: Tokens, fitting: float = FITTING) -> Finding | None:
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
    return Finding("temperature", sentence, measured(tokens) | {"slope": slope, "T": times}, share)


def stale_tensor(tokens: Tokens) -> Finding | None:
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
    sentence = f"Looks like a stale output head: {_percent(share)} of the variance of the logits' differences is a "
    sentence += f"constant per token; k3 is {_short(numbers['k3'])}."
    return Finding("stale tensor", sentence, numbers | {"share per token": share}, share)


def size(tokens: Tokens) -> Finding:
    """Whether rounding explains the size: k3 and mean e^|d| within their bounds. Strength: how far k3 is within, or
    beyond, its bound b: 1 − k3/b or 1 − b/k3."""
    numbers = measured(tokens)
    found, exact, bound = numbers["k3"], ROUNDING_K3["float32"], ROUNDING_K3["bfloat16"]
    if found <= exact:
        sentence = f"Clean: k3 is {_short(found)}, no more than the order of sums in float32 leaves."
        return Finding("clean", sentence, numbers, 1 - found / exact)
    if found <= bound and numbers["mean e^|Δ|"] <= LARGEST_ERROR:
        noise, above = numbers["noise of logits"], numbers["share with r > 1"]
        sentence = (
            f"Looks like precision: k3 is {_short(found)}, and rounding leaves up to {_short(bound)}. The logits "
        )
        sentence += f"differ by {_short(noise)}, to either side: {_percent(above)} of the ratios are above 1."
        return Finding("precision", sentence, numbers, 1 - found / bound)
    worst = _percent(numbers["share of the worst 1 %"])
    sentence = (
        f"Beyond rounding: k3 is {_short(found)}, and bfloat16 leaves up to {_short(bound)}; {worst} of it comes "
    )
    sentence += "from 1 % of the tokens. "
    if found > OTHER_PROMPT:
        sentence += "Another prompt or chat template looks like this."
    else:
        sentence += "Older weights look like this, and so does a cache in 8 bits: pairs cannot tell which."
    return Finding("beyond rounding", sentence, numbers, max(1 - bound / found, 0.0))


# --- what the tests are made of ---


def tokens_of(batch: TokenBatch) -> Tokens:
    """Raises `UsageError` without old_log_probs or without tokens."""
    mask, ids = batch.response_mask, batch.response_ids
    if batch.old_log_probs is None:
        raise UsageError("a mismatch needs old_log_probs; the batch has only rollout_log_probs.")
    if not bool(mask.any()):
        raise UsageError("a mismatch needs tokens; the response_mask of this batch is empty.")
    old, rollout = batch.old_log_probs[mask].double(), batch.rollout_log_probs[mask].double()
    return Tokens(old.detach(), rollout.detach(), None if ids is None else ids[mask])


def chosen(tokens: Tokens, where: Tensor) -> Tokens:
    """The tokens of a mask (N,)."""
    return Tokens(tokens.old[where], tokens.rollout[where], None if tokens.ids is None else tokens.ids[where])


def measured(tokens: Tokens) -> dict[str, float]:
    """The size of the mismatch, in numbers that its patterns share."""
    d, (_, y, _) = tokens.old - tokens.rollout, logits(tokens)
    divergence, r = k3(d), ratio(d)
    return {
        "mean |Δ|": float(d.abs().mean()),
        "k3": float(divergence.mean()),
        "mean e^|Δ|": float(ratio(d.abs()).mean()),
        "mean ratio": float(r.mean()),
        "error of the mean ratio": standard_error(r),
        "share with r > 1": float((d > 0).double().mean()),
        "noise of logits": 1.4826 * float((y - y.median()).abs().median()) if len(y) else 0.0,
        "share of the worst 1 %": worst_share(divergence),
    }


def one_sided(d: Tensor) -> float:
    """Share of the tokens on which the trainer's log-prob is at most the engine's, but for a rounding of 0.02."""
    return float((d <= 0.02).double().mean())


def worst_share(values: Tensor) -> float:
    """Share of the sum that the largest hundredth of some numbers ≥ 0 holds; 0 where all are 0."""
    largest = values.topk(-(-len(values) // 100)).values
    return float(largest.sum() / values.sum().clamp(min=1e-300))


def standard_error(values: Tensor) -> float:
    """Of the mean, for independent values; infinite for fewer than two."""
    return float(values.std()) / len(values) ** 0.5 if len(values) > 1 else torch.inf


def logits(tokens: Tokens) -> tuple[Tensor, Tensor, Tensor | None]:
    """x = logit q, y = logit p − x and the ids, of the tokens whose q is resolved. Chosen by q alone: a choice by p
    would bend what y looks like over x."""
    some = chosen(tokens, tokens.rollout < RESOLVED)
    x, p = _logit(some.rollout), _logit(some.old)
    return x, p - x, some.ids


def _logit(log_p: Tensor) -> Tensor:
    c = log_p.clamp(-50.0, -1e-8)
    return c - (-torch.expm1(c)).log()


def median_slope(x: Tensor, y: Tensor) -> float:
    """Median slope between tokens half a batch apart in x: a quarter of the tokens may be anywhere."""
    order = x.argsort(stable=True)
    x, y, half = x[order], y[order], len(x) // 2
    return float(((y[-half:] - y[:half]) / (x[-half:] - x[:half])).median())


def _short(number: float) -> str:
    """Two digits, without the zeros of Python's exponents."""
    return f"{number:.2g}" if number >= 0.001 else f"{number:.1e}".replace("e-0", "e-").replace(".0e", "e")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"
