"""What kind of gap is this: one test per known cause, based only on the pairs of log-probs of a batch.

For each token, q is the reported log π_rollout, p is log π_old, d = p − q = log r; x = logit q and y = logit p − x. The
tests use two facts. First, if the tokens were sampled from q, and p gives no probability to tokens that q cuts off,
then the mean of r is 1 for any p. Second, noise of one size on the logits gives y the same size for any x, while d is
about (1 − π)·y and therefore larger on rarer tokens. So sizes and slopes are measured in logits.

Pairs cannot show a temperature, a penalty or a cut that the sampler used and that is in neither log-prob. Both then
agree on a policy that sampled nothing.

The sentence of each sign is in `symptoms.SIGNS`. Faults of the pairs themselves are found in `pair_faults`.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

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
from rlcorr.analysis.pair_faults import constant_runs, marked, opposite_sides, other_base, padding, shift, strongest
from rlcorr.analysis.published import (
    SPREAD,
    KnownCause,
    by_cause,
    largest_rounding,
    matching_causes,
    range_text,
    rounding,
)
from rlcorr.analysis.symptoms import HEALTHY, SIGNS, Pattern, Symptom, listed, mend_first, percent, short, some_rows
from rlcorr.measuring.gap_parts import age_part, engine_part
from rlcorr.ratios import k3, ratio
from rlcorr.types import TokenBatch

# How the limits were measured: `make bench ARGS=confusion` draws tokens of known causes, `make bench ARGS=diagnosis`
# goes through all recorded steps.
OTHER_PROMPT = 0.5
"""k3 above which a constant per token id is no sign of a stale head: tokens scored after another text have such
constants, too."""
ONE_SIDED = 0.98
"""Share of the tokens with π_old ≤ π_rollout, up to rounding, from which on mass is missing and not noise."""
CERTAIN_BELOW, CERTAIN_ABOVE = 10.0, 5.0
"""Standard errors by which a mean ratio must differ from 1. A batch lacks the rarest tokens, which have the largest
ratios, so its mean tends to be below 1 while its standard error looks small (6 standard errors at temperature 0.5)."""
LIGHT = 0.05
"""Largest share of Σr on 1 % of the tokens for which this does not happen; 0.04 with noise of 0.5 on the logits."""
FEWEST = 100
"""Smallest number of tokens for slopes and variances, in a group of answers and outside it, and for "few" tokens."""
LARGEST_ENTROPY = 13.0
"""ln of a vocabulary of 440,000, larger than any in use."""
TEMPERATURES = (0.25, 4.0)
"""Trainer over engine. An unrelated π_old would look like a trainer that is much too hot."""
FITTING, BELOW_ONE, BESIDE_A_CUT = 0.8, 0.9, 0.98
"""Share of the tokens that a temperature must explain: usually, if the mean ratio is below 1, and beside a cut.
Temperatures explain at least 0.92 of them, noise up to 0.15, and a cut hidden by noise up to 0.97."""
CLEARLY_BELOW = 3.0
"""Standard errors by which the mean ratio is then below 1."""
PER_TOKEN = 0.4
"""Share of the variance that constants per token id must explain. With a stale head it was 0.4 to 0.8, with old weights
up to 0.39. So the two overlap, and the sentence says "may be"."""
CLEAN_K3 = 1e-7
"""The largest k3 of a clean batch, in which only the order of float32 sums differs; measured were up to 3.6e-11."""
FEW = 200
"""Number of tokens below which a cut may take so little that it looks like rounding."""
HALF = 0.5
"""Share of k3 on 1 % of the tokens from which on the sentence about precision mentions it. It decides nothing."""
COPIED, CUT = 8, 20
"""Tokens that an answer must have to count as a copy, and as sampled with a cut."""
APART = 1.5
"""Factor by which the mean |Δ| of all answers of a group must be above that of all others."""
MOST = 3
"""Largest number of tokens that are called few; of answers it is this number, or a tenth of them if that is more."""
SHARE, NEARLY_ALL = 0.5, 0.9
"""Share of k3 that few tokens or answers must make; and from which on answers and places are named although the verdict
without them is the same."""
TIMES = 100
"""The mean of k3 of these answers, or at this place, over that of the others. Recorded steps reach 37."""
WIDEST = 0.25
"""Largest share of the tokens that one place of every answer may be."""
_TURNS = "Check what is scored next to the answer of a tool, which one side may tokenise in another way."


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
    reported for them, with the further faults of the others.

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
    numbers = mismatch_numbers(tokens_of(batch))
    old = SIGNS["old weights"].symptom(age / (age + engine), numbers, age=short(age), engine=short(engine))
    by_engine = [replace(symptom, sentence=f"The engine's part: {symptom.sentence}") for symptom in by_engine]
    return [old, *by_engine] if age > engine else [*by_engine, old]


def _of_whole(batch: TokenBatch) -> list[Symptom]:
    """Return the patterns of a gap whose parts are not known, the strongest first."""
    tokens = tokens_of(batch)
    finite, total, unpaired = tokens.old.isfinite() & tokens.rollout.isfinite(), len(tokens.old), batch.count_unpaired()
    count, symptoms = int((~finite).sum()), []
    if count:
        symptoms = [SIGNS["not finite"].symptom(1.0, {"tokens": count}, count=count, total=total)]
    marks, real = marked(tokens, finite)
    runs, real = constant_runs(tokens, real)
    symptoms += [*marks, *runs]
    if not bool(real.all()):
        batch = batch.replace(response_mask=tokens.where(real))
    patterns = symptoms + _finite_patterns(batch, select_tokens(tokens, real), hide=bool(symptoms))
    if unpaired:  # if more are missing than not, a healthy rest proves nothing about the batch
        share = unpaired / (unpaired + total)
        numbers = {"tokens": unpaired, "left_out": share}
        missing = SIGNS["left out"].symptom(share, numbers, count=unpaired, total=unpaired + total)
        patterns = [missing, *(symptom for symptom in patterns if share < 0.5 or symptom.pattern not in HEALTHY)]
    return sorted(patterns, key=lambda symptom: (_comes_later(symptom), -symptom.strength))


def _comes_later(symptom: Symptom) -> bool:
    return symptom.pattern != "outlier" and mend_first([symptom]) is None


def _finite_patterns(batch: TokenBatch, tokens: Tokens, *, hide: bool) -> list[Symptom]:
    """Return the patterns of finite log-probs. `hide` leaves out those of healthy batches."""
    if same := identical(tokens):
        return [] if hide else [same]
    if fault := strongest([shift(batch), opposite_sides(tokens)]) or other_base(tokens):
        return [fault]
    zeros = padding(tokens)
    if zeros:
        tokens = select_tokens(tokens, (tokens.old != 0) & (tokens.rollout != 0))
    if zeros or hide:  # a fault is known, so only further faults are reported
        causes = _causes(tokens) if len(tokens.old) else []
        further = [cause for cause in causes if cause.pattern not in HEALTHY]
        return [zeros, *further] if zeros else further
    if few := outliers(tokens, batch.turn_ids):
        symptom, rest = few
        others = select_tokens(tokens, rest)
        same = identical(others)
        return [symptom, *([same] if same else _causes(others))]
    causes = _causes(tokens)
    if any(cause.pattern in ("top-p mass", "temperature", "stale tensor") for cause in causes):
        return causes
    return _of_some_answers(tokens) or causes


def _of_some_answers(tokens: Tokens) -> list[Symptom]:
    """Return the fault of a group of answers, if there is one, and the further faults of the others."""
    for group in _groups(tokens):
        chosen = group[tokens.answer]
        if not FEWEST <= int(chosen.sum()) <= len(chosen) - FEWEST:
            continue
        part, others = select_tokens(tokens, chosen), select_tokens(tokens, ~chosen)
        fault = identical(part) or top_p_mass(part) or temperature(part)
        if fault is None and size(part).pattern == "beyond rounding" != size(others).pattern:
            fault = size(part)
        if fault is not None and identical(others) is None:
            said = f"In {some_rows(tokens.rows[group], len(group))}: {fault.sentence}"
            further = [cause for cause in _causes(others) if cause.pattern not in (*HEALTHY, fault.pattern)]
            return [replace(fault, sentence=said), *further]
    return []


def _groups(tokens: Tokens) -> Iterator[Tensor]:
    """Yield answers, (A,) bool, that may have a fault of their own, as if one worker had it; none of them proves one.

    These are answers with equal log-probs on both sides, answers with π_old ≤ π_rollout, and answers whose mean |Δ| is
    above the widest gap between two answers.
    """
    answer, d = tokens.answer, tokens.old - tokens.rollout
    count, total, size, below, shown = (
        torch.bincount(answer, x.double())
        for x in (torch.ones_like(d), d, d.abs(), d <= 0.02, tokens.rollout != 0)
    )  # fmt: skip
    yield (size == 0) & (shown >= COPIED)
    yield (count >= CUT) & (below / count >= ONE_SIDED) & (total < -0.02 * count)
    ordered, order = (size / count).sort()
    steps = ordered.clamp(min=1e-9).log().diff()
    if len(steps) and float(steps.max()) >= math.log(APART):
        yield torch.isin(torch.arange(len(count)), order[int(steps.argmax()) + 1 :])


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


# --- one test per cause ---


def identical(tokens: Tokens) -> Symptom | None:
    """Check whether both sides have the same log-prob on every token."""
    same = bool((tokens.old == tokens.rollout).all())
    return SIGNS["identical"].symptom(1.0, {}, total=len(tokens.old)) if same else None


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
    numbers = mismatch_numbers(tokens) | {"share_at_most_one": below}
    return SIGNS["top-p mass"].symptom(below, numbers, share=percent(below), mean=mean)


def temperature(tokens: Tokens, fitting: float = FITTING) -> Symptom | None:
    """Check whether both sides have the same logits and divide them by different temperatures, T_q and T_p.

    Then π_old ∝ π_rollout^β with β = T_q/T_p, and over the other tokens u of the vocabulary

        (1 − π_old)/π_old = Σ_u π_rollout(u)^β / π_rollout^β,  so that  y = (β − 1)·(x + H),  exactly.

    H, between 0 and ln V, is the Rényi entropy of order β of the other tokens. It differs between positions, and pairs
    of log-probs do not contain it. Still, there must be one β for which the H of every token, y/(β − 1) − x, is between
    0 and ln V. Noise, which has both signs, fails this test. The slope of y over x (the median over pairs of tokens
    half a batch apart) is about β − 1 = 1/T − 1 with T = T_p/T_q; it was 0.45 to 1.05 times that on random logits,
    because H has a slope, too. The strength is the share of tokens that pass: at least `fitting`, and `BELOW_ONE` or
    more if the mean ratio is clearly below 1, as it is if noise hides a cut.
    """
    x, y, _ = logits(tokens)
    if len(x) < FEWEST:
        return None
    slope, r = median_slope(x, y), ratio(tokens.old - tokens.rollout)
    entropy, (lowest, highest) = y / slope - x, TEMPERATURES
    share = float(((entropy > -0.5) & (entropy < LARGEST_ENTROPY)).double().mean())
    mean, error = float(r.mean()), standard_error(r)
    if mean + CLEARLY_BELOW * error < 1:
        fitting = max(fitting, BELOW_ONE)
    if not (share >= fitting and 1 / highest < 1 + slope < 1 / lowest):
        return None
    times = 1 / (1 + slope)
    raw = (
        f" The mean ratio of {mean:.2f} is above 1, so the tokens were not sampled from the engine's log-probs: these "
        "are raw."
    )
    raw = raw if mean - CERTAIN_ABOVE * error > 1 else ""
    numbers = mismatch_numbers(tokens) | {"slope": slope, "temperature": times}
    return SIGNS["temperature"].symptom(share, numbers, slope=slope, times=times, raw=raw)


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
    numbers |= {"share_per_token": share}
    return SIGNS["stale head"].symptom(share, numbers, share=percent(share), k3=short(numbers["k3"]))


# --- the size of the gap alone ---


def size(tokens: Tokens) -> Symptom:
    """Compare the size of the mismatch with measured gaps, see `published.toml`. Only k3 counts.

        clean            at most `CLEAN_K3`
        precision        at most what was measured for rounding to bfloat16
        undecided        more, but at most what the coarsest rounding makes: several causes make gaps of this size
        beyond rounding  more than any measured rounding makes

    The strength is the distance of k3 from the bound b, of float32 or of bfloat16: 1 − k3/b inside, 1 − b/k3 outside.
    """
    numbers = mismatch_numbers(tokens)
    gap, bound, coarsest = numbers["k3"], rounding("bfloat16")[1], largest_rounding()
    pattern, _ = verdict_on(gap)
    words = {"k3": short(gap), "tail": f"1 % of the tokens cause {percent(numbers['worst_share'])} of k3."}
    strength = 1 - (gap / (CLEAN_K3 if pattern == "clean" else bound) if pattern in HEALTHY else bound / gap)
    if pattern == "precision":
        words |= _words_of_precision(numbers, words["tail"])
    if pattern == "undecided":
        words |= {
            "most": short(bound), "near": ", and may be this on another one" if gap <= SPREAD * bound else "",
            "causes": listed([match.words for match in matching_causes(gap).values()]),
        }  # fmt: skip
    if pattern == "beyond rounding":
        words |= {"most": f"{short(coarsest.high)} ({coarsest.name})"}
    symptom = SIGNS[pattern].symptom(strength, numbers, **words)
    if len(tokens.old) >= FEW or pattern == "clean":
        return symptom
    return replace(symptom, sentence=f"{symptom.sentence} {len(tokens.old)} tokens are too few to see a cut by top-p.")


def verdict_on(gap: float) -> tuple[Pattern, tuple[KnownCause, ...]]:
    """Return the pattern of a k3 of this size, and the causes that its sentence names."""
    if gap <= CLEAN_K3:
        return "clean", ()
    if gap <= rounding("bfloat16")[1]:
        return "precision", _formats(gap)
    if gap <= largest_rounding().high:
        return "undecided", tuple(matching_causes(gap))
    return "beyond rounding", ()


def _formats(gap: float) -> tuple[KnownCause, ...]:
    """Return the 16-bit formats that were measured to make gaps of this size or larger ones."""
    return ("float16", "bfloat16") if gap <= rounding("float16")[1] else ("bfloat16",)


def _words_of_precision(numbers: dict[str, float], tail: str) -> dict[str, str]:
    """Return the words about a gap of the size of rounding to 16 bits. `tail` is said of heavy tails only."""
    matches = [by_cause()[format] for format in _formats(numbers["k3"])]
    example, near = matches[-1].nearest(numbers["k3"])
    more = " On another model 8 bits may make as little." if numbers["k3"] > rounding("float16")[1] else ""
    return {
        "causes": " and ".join(match.words for match in matches),
        "example": f"{range_text(near)} on {example.model}",
        "noise": short(numbers["logit_noise"]),
        "above": percent(numbers["share_above_one"]),
        "more": more + (f" {tail}" if numbers["worst_share"] > HALF else ""),
    }


# --- few tokens, few answers, or one place of every answer that make most of k3 ---


def outliers(tokens: Tokens, turn_ids: Tensor | None = None) -> tuple[Symptom, Tensor] | None:
    """Return the symptom of what makes most of k3, if the verdict is another without it, and all other tokens, (N,).

    As few tokens are taken as are enough, at most `MOST`. If the others do not look healthy then, few answers or one
    place of every answer come first. The strength is their share of k3. All log-probs must be finite.
    """
    divergence = k3(tokens.old - tokens.rollout)
    if len(divergence) < FEWEST:
        return None
    few = _few_tokens(tokens, divergence)
    if few is not None and verdict_on(float(divergence[few[1]].mean()))[0] in HEALTHY:
        return few
    return _few_answers(tokens, divergence, turn_ids) or few


def _few_tokens(tokens: Tokens, divergence: Tensor) -> tuple[Symptom, Tensor] | None:
    with_them, largest = float(divergence.mean()), divergence.topk(MOST).indices
    for taken in range(1, len(largest) + 1):
        others = torch.ones_like(divergence, dtype=torch.bool)
        others[largest[:taken]] = False
        without = float(divergence[others].mean())
        if float(divergence[others].sum()) >= (1 - SHARE) * float(divergence.sum()):
            continue
        if verdict_on(with_them) != verdict_on(without):
            return _named(tokens, largest[:taken], with_them, without), others
    return None


def _named(tokens: Tokens, largest: Tensor, with_them: float, without: float) -> Symptom:
    """Name the tokens by row and position, with both log-probs of each."""
    places = [(int(row), int(column)) for row, column in tokens.mask.nonzero()[largest]]
    pairs = zip(places, tokens.rollout[largest].tolist(), tokens.old[largest].tolist(), strict=True)
    names = [
        f"response {row}, token {column} (log-probs {rollout:.4g} in the engine and {old:.4g} in the trainer)"
        for (row, column), rollout, old in pairs
    ]
    share = 1 - without * (len(tokens.old) - len(largest)) / (with_them * len(tokens.old))
    subject = "One token makes" if len(names) == 1 else f"{len(names)} tokens make"
    words = {
        "subject": f"{subject} {percent(share)}", "names": listed(names).replace(" -", " −"),
        "them": "it" if len(names) == 1 else "them", "with_them": short(with_them), "without": short(without),
    }  # fmt: skip
    symptom = SIGNS["few tokens"].symptom(share, mismatch_numbers(tokens) | {"k3_without": without}, **words)
    return replace(symptom, tokens=tuple(places))


def _few_answers(tokens: Tokens, divergence: Tensor, turn_ids: Tensor | None) -> tuple[Symptom, Tensor] | None:
    """Return few answers, or one place of every answer, far above the others: they decide the pattern or most of k3."""
    with_them, whole = float(divergence.mean()), float(divergence.sum())
    if verdict_on(with_them)[0] in HEALTHY:
        return None
    for part, name, advice in (*_largest_answers(tokens, divergence), *_places(tokens, turn_ids)):
        if not MOST < int(part.sum()) <= len(part) - FEWEST:
            continue
        without, share = float(divergence[~part].mean()), float(divergence[part].sum()) / max(whole, 1e-300)
        decides = share > SHARE and verdict_on(with_them)[0] != verdict_on(without)[0]
        if float(divergence[part].mean()) > TIMES * without and (decides or share >= NEARLY_ALL):
            words = {
                "percent": f"{100 * share:.3g}", "name": name, "share": percent(float(part.double().mean())),
                "with_them": short(with_them), "without": short(without), "advice": advice,
            }  # fmt: skip
            numbers = mismatch_numbers(tokens) | {"k3_without": without}
            return replace(SIGNS["few answers"].symptom(share, numbers, **words), places=tokens.where(part)), ~part
    return None


def _largest_answers(tokens: Tokens, divergence: Tensor) -> Iterator[tuple[Tensor, str, str]]:
    """Yield the tokens of the few answers above the widest gap between two answers."""
    means = torch.bincount(tokens.answer, divergence) / tokens.widths
    if most := min(max(MOST, len(means) // 10), len(means) // 2):
        ordered, order = means.topk(most + 1)
        few = order[: int((ordered[:-1] / ordered[1:].clamp(min=1e-300)).argmax()) + 1].sort().values
        name = some_rows(tokens.rows[few], len(means))
        yield torch.isin(tokens.answer, few), name, "Look at these answers first: did both sides score the same tokens?"


def _places(tokens: Tokens, turn_ids: Tensor | None) -> Iterator[tuple[Tensor, str, str]]:
    """Yield the tokens at one place of every answer, with its name and what to check there."""
    first = tokens.place == 0
    end = "Check what is scored at the end of answers: an end token, or the boundary to the next text."
    start = "Check what is scored at the beginning of answers: another token, or the end of the prompt."
    named = [(first.roll(-1), "the last tokens of the answers", end), (first, "the first tokens of the answers", start)]
    if turn_ids is not None:
        turn = turn_ids[tokens.mask]
        new = torch.zeros_like(first)
        new[1:] = (turn[1:] != turn[:-1]) & ~first[1:]
        named += [
            (new, "the first tokens of the later turns", _TURNS),
            (new.roll(-1), "the last tokens before the later turns", _TURNS),
        ]
    yield from (place for place in named if int(place[0].sum()) <= WIDEST * len(first))
