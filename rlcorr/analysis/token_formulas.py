"""A token's numbers in the formulas that made them, as lines of text that can be checked digit by digit.

Measured numbers have at most four significant digits; bounds are written as they were configured. A result has only the
digits that its printed operands give back: whoever types a line into a calculator finds what stands behind the equals
sign. Where that leaves little, the number itself follows in parentheses.
"""

import math
import operator
from collections.abc import Callable

from rlcorr.analysis.digits import (
    agreed,
    bound_text,
    bracketed,
    digits,
    equation,
    more_exactly,
    read,
    with_notes,
    without_needless_brackets,
)
from rlcorr.analysis.token_story import RuleStory, TokenStory
from rlcorr.config import UNCLIPPED, CorrectionConfig
from rlcorr.ratios import SAFETY_BOUND
from rlcorr.rules import Divergence, Reduce

_SYMBOLS: dict[Divergence, str] = {"k1": "log r", "tv": "|r − 1|", "mult_error": "e^|log r|"}
_SUMS: dict[Reduce, str] = {"sum": "Σ", "mean": "mean", "max": "max", "min": "min"}
_RATIOS: dict[Reduce, str] = {
    "sum": "product of r", "mean": "geometric mean of r", "max": "largest r", "min": "smallest r",
}  # fmt: skip
_OF_LOG_RATIO: dict[Divergence, tuple[str, Callable[[float], float]]] = {
    "k2": ("{}²/2", lambda d: d * d / 2),
    "k3": ("exp({0}) − 1 − {0}", lambda d: math.expm1(d) - d),
    "tv": ("|exp({}) − 1|", lambda d: abs(math.expm1(d))),
    "mult_error": ("exp(|{}|)", lambda d: math.exp(abs(d))),
}


def formulas(story: TokenStory, config: CorrectionConfig) -> list[str]:
    """The ratio, the weight, every rule, the contribution to the gradient, in this order; `config` as in the story.

    A line is `name = expression = result`, a comparison with bounds, or the name of a rule and a colon, under which its
    lines are indented; behind three spaces stand words.
    """
    rules = [line for rule in story.rules for line in _rule_lines(rule, story)]
    return [*_ratio_lines(story), *_weight_lines(story, config), *rules, *_gradient_lines(story, config)]


def _ratio_lines(story: TokenStory) -> list[str]:
    """One line if the two log-probs give all digits of their difference, else one for it and one for its exp."""
    old, rollout = digits(story.old_log_prob), digits(story.rollout_log_prob)
    difference = without_needless_brackets(f"{bracketed(old)} − {bracketed(rollout)}")
    d, edge = agreed(story.log_ratio, read(old) - read(rollout)), _clamped(story.log_ratio)
    exp = equation("r", "exp({})", (edge,), math.exp, story.ratio)
    if abs(story.log_ratio) > SAFETY_BOUND:
        return [with_notes(f"log r = {difference} = {d}", f"counts as {digits(edge)}"), exp]
    if d != digits(edge):
        return [with_notes(f"log r = {difference} = {d}", more_exactly(d, story.log_ratio)), exp]
    return [f"r = exp({difference}) {exp.removeprefix('r ')}"]


# --- weights ---


def _weight_lines(story: TokenStory, config: CorrectionConfig) -> list[str]:
    if config.rollout_is is None:
        return [with_notes("w = 1", "no importance weights")]
    lines = []
    if config.rollout_is != "token":
        reduce: Reduce = "sum" if config.rollout_is == "sequence" else "mean"
        lines.append(_reduced(reduce, "log r", story.log_ratio, story.log_weight, story.tokens))
        exp = equation(_RATIOS[reduce], "exp({})", (_clamped(story.log_weight),), math.exp, story.raw_weight)
        lines.append(exp)
    bound = _truncated if config.rollout_is_mode == "truncate" else _masked
    lines.append(bound(story, config.rollout_is_threshold_lower, config.rollout_is_threshold))
    if story.norm_factor is not None:
        operands = (story.bounded_weight, story.norm_factor)
        note = "divided by the mean weight of what is kept"
        lines.append(equation("w", "{}/{}", operands, lambda w, mean: w / mean, story.weight, note))
    return lines


def _truncated(story: TokenStory, lower: float | None, upper: float) -> str:
    raw = digits(story.raw_weight)
    expression, again = raw, read(raw)
    if upper < math.inf:
        expression, again = f"min({expression}, {bound_text(upper)})", min(again, upper)
    if lower is not None:
        expression, again = f"max({bound_text(lower)}, {expression})", max(lower, again)
    if expression == raw:
        return with_notes(f"w = {raw}", "without a bound")
    return f"w = {expression} = {agreed(story.bounded_weight, again)}"


def _masked(story: TokenStory, lower: float | None, upper: float) -> str:
    kept = story.bounded_weight > 0
    at = digits(story.raw_weight)
    logs = (-math.inf if lower is None else math.log(lower), math.log(upper))
    shown = _comparison(at, (lower, upper), kept, story.log_weight, logs, "log w − log ")
    return f"{shown}, so w = {at if kept else 0}"


# --- rules ---


def _rule_lines(seen: RuleStory, story: TokenStory) -> list[str]:
    rule = seen.rule
    symbol = _SYMBOLS.get(rule.divergence, rule.divergence)
    lines = []
    if rule.divergence != "k1":
        lines.append(_divergence(seen, story, symbol))
    if rule.reduce is not None:
        lines.append(_reduced(rule.reduce, symbol, seen.token_value, seen.statistic, story.tokens))
    at = digits(seen.statistic)
    if rule.divergence == "k1":
        at = digits(_exp(seen.statistic))
        if rule.reduce is not None:
            lines.append(
                equation(_RATIOS[rule.reduce], "exp({})", (seen.statistic,), _exp, _exp(seen.statistic))
            )  # fmt: skip
    if not seen.inside and rule.applies_to != "all" and story.advantage is not None:
        lines.append(_concern(seen, story, story.advantage))
    less = "log r − log " if rule.divergence == "k1" else f"{symbol} − "
    limits = (seen.lower, seen.upper)
    shown = _comparison(at, (rule.lower, rule.upper), seen.inside, seen.statistic, limits, less)
    verdict = "inside" if seen.inside else "outside, but not its concern" if seen.passes else "outside: rejected"
    return [f"{rule.name}:", *(f"  {line}" for line in [*lines, with_notes(shown, verdict)])]


def _concern(seen: RuleStory, story: TokenStory, advantage: float) -> str:
    """Whether the rule looks at this token."""
    if seen.rule.applies_to == "negative":
        return f"A = {digits(advantage)} {'≥' if seen.passes else '<'} 0"
    d = story.log_ratio
    line = equation("log r·A", "{}·{}", (d, advantage), lambda x, y: x * y, d * advantage)
    return f"{line} {'≤' if seen.passes else '>'} 0"


def _divergence(seen: RuleStory, story: TokenStory, symbol: str) -> str:
    """The divergence of this token alone."""
    value = seen.token_value
    pair = (story.old_prob, story.rollout_prob)
    if seen.rule.divergence == "prob_diff":
        return equation("prob_diff = π_old − π_rollout", "{} − {}", pair, lambda p, q: p - q, value)
    if seen.rule.divergence == "prob_gap":
        return equation(symbol, "|{} − {}|", pair, lambda p, q: abs(p - q), value)
    if seen.prefix is not None:
        w, overspent = seen.prefix
        note = "with what the tokens before it have overspent"
        return equation(symbol, "{}·|{} − {}| + {}", (w, *pair, overspent), _prefix_gap, value, note)
    if seen.coins is not None:
        return _coins(symbol, *seen.coins, value)
    template, function = _OF_LOG_RATIO[seen.rule.divergence]
    d = _clamped(story.log_ratio)
    note = f"log r counts as {digits(d)}" if abs(story.log_ratio) > SAFETY_BOUND else ""
    return equation(symbol, template, (d,), function, value, note)


def _prefix_gap(w: float, p: float, q: float, overspent: float) -> float:
    return w * abs(p - q) + overspent


def _coins(name: str, p: float, q: float, token: float, rest: float, value: float) -> str:
    """KL(P‖Q) = p·log p/q + (1−p)·log (1−p)/(1−q), and the same with P and Q exchanged."""
    if name == "binary_kl":
        template = "max({}·{} + {}·{}, {}·{} + {}·{})"
        operands = (p, token, 1 - p, rest, q, -token, 1 - q, -rest)

        def function(*x: float) -> float:
            return max(x[0] * x[1] + x[2] * x[3], x[4] * x[5] + x[6] * x[7])

        return equation(name, template, operands, function, value)
    if p == q:
        return with_notes(f"{name} = 0", "π_old = π_rollout")
    sign = 1 if p > q or name == "forward_kl" else -1
    template = "{}·{} + {}·{}" if sign > 0 else "−({}·{} + {}·{})"
    operands = (q, -token, 1 - q, -rest)
    return equation(name, template, operands, lambda *x: sign * (x[0] * x[1] + x[2] * x[3]), value)


def _reduced(reduce: Reduce, symbol: str, of_token: float, value: float, tokens: int) -> str:
    """A number of the whole response: this token's part and the rest of it."""
    name = f"{_SUMS[reduce]} {symbol}"
    if tokens == 1:
        return with_notes(f"{name} = {digits(value)}", "the only token")
    if reduce in ("max", "min") or not math.isfinite(value):
        note = "this token" if of_token == value else f"over {tokens} tokens; this one has {digits(of_token)}"
        return with_notes(f"{name} = {digits(value)}", note)
    note = f"this token and {tokens - 1} more"
    if reduce == "sum":
        return equation(name, "{} + {}", (of_token, value - of_token), lambda x, y: x + y, value, note)
    operands = (of_token, value * tokens - of_token)
    return equation(name, f"({{}} + {{}})/{tokens}", operands, lambda x, y: (x + y) / tokens, value, note)


def _comparison(
    at: str, bounds: tuple[float | None, float], inside: bool, statistic: float, limits: tuple[float, float], less: str
) -> str:
    """`0.5 ≤ 1.522 ≤ 2`, or the bound that is broken. `at` and `bounds` are what is printed, `statistic` and `limits`
    what was compared; `less` stands before a bound that is subtracted from the statistic."""
    if math.isnan(statistic):
        return "nan lies outside every bound"
    lower, upper = bounds
    above, below = statistic - limits[1], statistic - limits[0]
    if not inside and lower is not None and abs(below) <= abs(above):
        return _against(at, "<", lower, below, less)
    if not inside:
        return _against(at, ">", upper, above, less)
    # Compared was in the dtype of the batch: where a bound is met exactly, the difference may have the other sign.
    if lower is None:
        return _against(at, "≤", upper, min(above, 0.0), less)
    low, high = _against(at, "≥", lower, max(below, 0.0), less), _against(at, "≤", upper, min(above, 0.0), less)
    if low.startswith(at) and high.startswith(at):
        return f"{bound_text(lower)} ≤ {at}" if upper == math.inf else f"{bound_text(lower)} ≤ {high}"
    return high if low.startswith(at) else low


def _against(at: str, sign: str, bound: float, gap: float, less: str) -> str:
    """The comparison in the digits that are printed, or, where they do not tell the two apart, their difference."""
    shown = bound_text(bound)
    holds = {"<": operator.lt, ">": operator.gt, "≤": operator.le, "≥": operator.ge}[sign]
    return f"{at} {sign} {shown}" if holds(read(at), read(shown)) else f"{less}{shown} = {digits(gap)} {sign} 0"


# --- the gradient ---


def _gradient_lines(story: TokenStory, config: CorrectionConfig) -> list[str]:
    """c = w·A/N for a mean over tokens at π_θ = π_old; in bypass mode r = π_θ/π_rollout is the loss's own ratio."""
    c, advantage = story.contribution, story.advantage
    if c is None or advantage is None:
        return []
    if story.rejected_by is not None:
        return [with_notes("c = 0", "rejected")]
    ratio_in_loss = config.bypass_mode and config.loss_type not in UNCLIPPED
    symbol, factor = ("r", story.ratio) if ratio_in_loss else ("w", story.weight)
    operands = (factor, advantage)
    if math.isclose(factor * advantage / max(story.counted, 1), c, rel_tol=1e-3):
        counted = f"{story.counted}"
        return [equation(f"c = {symbol}·A/N", f"{{}}·{{}}/{counted}", operands, lambda x, y: x * y / int(counted), c)]
    if c == 0:
        return [with_notes("c = 0", f"the clip of {config.loss_type} takes the gradient")]
    return [with_notes(f"c = {digits(c)}", f"of the loss {config.loss_type}")]


def _clamped(d: float) -> float:
    return d if math.isnan(d) else min(max(d, -SAFETY_BOUND), SAFETY_BOUND)


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else x if math.isnan(x) else math.inf
