"""The formulas that gave a token its numbers, as lines of text that can be checked digit by digit.

Measured numbers have at most four significant digits; bounds are written as configured. A result has only the digits
that its printed operands reproduce: typing the left side into a calculator gives the right side. If this leaves few
digits, the number itself follows in parentheses.
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
from rlcorr.ratios import SAFETY_BOUND, Reduce

_SYMBOLS: dict[str, str] = {"k1": "log r", "abs_ratio_error": "|r − 1|", "mult_error": "e^|log r|"}
_SUMS: dict[Reduce, str] = {"sum": "Σ", "mean": "mean", "max": "max", "min": "min"}
_RATIOS: dict[Reduce, str] = {
    "sum": "product of r", "mean": "geometric mean of r", "max": "largest r", "min": "smallest r",
}  # fmt: skip
_OF_LOG_RATIO: dict[str, tuple[str, Callable[[float], float]]] = {
    "k2": ("{}²/2", lambda d: d * d / 2),
    "k3": ("exp({0}) − 1 − {0}", lambda d: math.expm1(d) - d),
    "abs_ratio_error": ("|exp({}) − 1|", lambda d: abs(math.expm1(d))),
    "mult_error": ("exp(|{}|)", lambda d: math.exp(abs(d))),
}


def formulas(story: TokenStory, config: CorrectionConfig) -> list[str]:
    """Write the ratio, the weight, every rule, and the contribution to the gradient, in this order.

    A line is one of: `name = expression = result`; a comparison with bounds; or the name of a rule with a colon,
    followed by its indented lines. Words follow after three spaces. `config` must be that of the story.
    """
    rules = [line for rule in story.rules for line in _rule_lines(rule, story)]
    return [*_ratio_lines(story), *_weight_lines(story, config), *rules, *_gradient_lines(story, config)]


def _ratio_lines(story: TokenStory) -> list[str]:
    """Write the ratio, and those of the two parts of the gap if the log-prob of the sampling weights is known."""
    lines = _ratio_of("r", story.old_log_prob, story.rollout_log_prob, story.log_ratio)
    if story.sampled_log_prob is None:
        return lines
    engine, age = story.sampled_log_prob - story.rollout_log_prob, story.old_log_prob - story.sampled_log_prob
    return [
        *lines,
        *_ratio_of("r of the engine", story.sampled_log_prob, story.rollout_log_prob, engine),
        *_ratio_of("r of the age", story.old_log_prob, story.sampled_log_prob, age),
    ]


def _ratio_of(name: str, above: float, below: float, log_ratio: float) -> list[str]:
    """Write a ratio in one line if the two log-probs reproduce all digits of their difference.

    Otherwise write one line for the difference and one for its exp.
    """
    difference = without_needless_brackets(f"{bracketed(digits(above))} − {bracketed(digits(below))}")
    d, edge = agreed(log_ratio, read(digits(above)) - read(digits(below))), _clamped(log_ratio)
    exp = equation(name, "exp({})", (edge,), math.exp, math.exp(edge))
    if abs(log_ratio) > SAFETY_BOUND:
        return [with_notes(f"log {name} = {difference} = {d}", f"counts as {digits(edge)}"), exp]
    if d != digits(edge):
        return [with_notes(f"log {name} = {difference} = {d}", more_exactly(d, log_ratio)), exp]
    return [f"{name} = exp({difference}) {exp.removeprefix(name + ' ')}"]


# --- weights ---


def _weight_lines(story: TokenStory, config: CorrectionConfig) -> list[str]:
    if config.rollout_is is None:
        return [with_notes("w = 1", "no importance weights")]
    lines = []
    if config.rollout_is != "token":
        reduce: Reduce = "mean" if config.rollout_is == "geometric" else "sum"
        prefix = config.rollout_is == "prefix"
        lines.append(
            _prefix_sum(story) if prefix else _reduced(reduce, "log r", story.log_ratio, story.log_weight, story.tokens)
        )
        product = "product of r up to here" if prefix else _RATIOS[reduce]
        lines.append(equation(product, "exp({})", (_clamped(story.log_weight),), math.exp, story.raw_weight))
    bound = _truncated if config.rollout_is_mode == "truncate" else _masked
    lines.append(bound(story, config.rollout_is_threshold_lower, config.rollout_is_threshold))
    if story.norm_factor is not None:
        operands = (story.bounded_weight, story.norm_factor)
        note = "divided by the mean of the kept weights"
        lines.append(equation("w", "{}/{}", operands, lambda w, mean: w / mean, story.weight, note))
    return lines


def _prefix_sum(story: TokenStory) -> str:
    """Write the sum of the log-ratios up to this token as its own part plus that of the tokens before it."""
    name, before = "Σ log r up to here", story.log_weight - story.log_ratio
    if before == 0 or not math.isfinite(story.log_weight):
        return with_notes(f"{name} = {digits(story.log_weight)}", f"this token has {digits(story.log_ratio)}")
    operands, note = (story.log_ratio, before), "this token and those before it"
    return equation(name, "{} + {}", operands, lambda x, y: x + y, story.log_weight, note)


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
    raw = digits(story.raw_weight)
    logs = (-math.inf if lower is None else math.log(lower), math.log(upper))
    comparison = _comparison(raw, (lower, upper), kept, story.log_weight, logs, "log w − log ")
    return f"{comparison}, so w = {raw if kept else 0}"


# --- rules ---


def _rule_lines(rule_story: RuleStory, story: TokenStory) -> list[str]:
    rule = rule_story.rule
    symbol = _SYMBOLS.get(rule.divergence, rule.divergence)
    lines = []
    if rule.divergence != "k1":
        lines.append(_divergence(rule_story, story, symbol))
    if rule.reduce is not None:
        lines.append(_reduced(rule.reduce, symbol, rule_story.token_value, rule_story.statistic, story.tokens))
    printed = digits(rule_story.statistic)
    if rule.divergence == "k1":
        printed = digits(_exp(rule_story.statistic))
        if rule.reduce is not None:
            lines.append(
                equation(_RATIOS[rule.reduce], "exp({})", (rule_story.statistic,), _exp, _exp(rule_story.statistic))
            )  # fmt: skip
    if not rule_story.inside and rule.applies_to != "all" and story.advantage is not None:
        lines.append(_condition(rule_story, story, story.advantage))
    less = "log r − log " if rule.divergence == "k1" else f"{symbol} − "
    limits = (rule_story.lower, rule_story.upper)
    comparison = _comparison(printed, (rule.lower, rule.upper), rule_story.inside, rule_story.statistic, limits, less)
    verdict = "inside" if rule_story.inside else "outside: rejected"
    if rule_story.passes and not rule_story.inside:
        verdict = "outside, but the rule skips this token"
    return [f"{rule.name}:", *(f"  {line}" for line in [*lines, with_notes(comparison, verdict)])]


def _condition(rule_story: RuleStory, story: TokenStory, advantage: float) -> str:
    """Write the condition that decides whether the rule applies to this token."""
    if rule_story.rule.applies_to == "negative":
        return f"A = {digits(advantage)} {'≥' if rule_story.passes else '<'} 0"
    d = story.log_ratio
    line = equation("log r·A", "{}·{}", (d, advantage), lambda x, y: x * y, d * advantage)
    return f"{line} {'≤' if rule_story.passes else '>'} 0"


def _divergence(rule_story: RuleStory, story: TokenStory, symbol: str) -> str:
    """Write the divergence of this token alone."""
    value = rule_story.token_value
    pair = (story.old_prob, story.rollout_prob)
    if rule_story.rule.divergence == "prob_diff":
        return equation("prob_diff = π_old − π_rollout", "{} − {}", pair, lambda p, q: p - q, value)
    if rule_story.rule.divergence == "binary_tv":
        return equation(symbol, "|{} − {}|", pair, lambda p, q: abs(p - q), value)
    if rule_story.prefix is not None:
        w, overspent = rule_story.prefix
        note = "plus what the tokens before it have overspent"
        return equation(symbol, "{}·|{} − {}| + {}", (w, *pair, overspent), _prefix_gap, value, note)
    if rule_story.coins is not None:
        return _coins(symbol, *rule_story.coins, value)
    template, function = _OF_LOG_RATIO[rule_story.rule.divergence]
    d = _clamped(story.log_ratio)
    note = f"log r counts as {digits(d)}" if abs(story.log_ratio) > SAFETY_BOUND else ""
    return equation(symbol, template, (d,), function, value, note)


def _prefix_gap(w: float, p: float, q: float, overspent: float) -> float:
    return w * abs(p - q) + overspent


def _coins(name: str, p: float, q: float, token: float, rest: float, value: float) -> str:
    """Write KL(P‖Q) = p·log p/q + (1−p)·log (1−p)/(1−q), or the same with P and Q exchanged."""
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
    """Write a number of the whole response as this token's part plus the rest."""
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
    text: str,
    bounds: tuple[float | None, float],
    inside: bool,
    statistic: float,
    limits: tuple[float, float],
    less: str,
) -> str:
    """Write `0.5 ≤ 1.522 ≤ 2`, or only the bound that is violated.

    Args:
        text: the statistic as printed.
        bounds: the bounds as printed.
        inside: the result of the comparison.
        statistic: the statistic that was compared.
        limits: the bounds that it was compared with.
        less: the text before a bound that is subtracted from the statistic.
    """
    if math.isnan(statistic):
        return "nan is outside every bound"
    lower, upper = bounds
    above, below = statistic - limits[1], statistic - limits[0]
    if not inside and lower is not None and abs(below) <= abs(above):
        return _against(text, "<", lower, below, less)
    if not inside:
        return _against(text, ">", upper, above, less)
    # The comparison was in the dtype of the batch. At equality the difference in float64 may have the wrong sign.
    if lower is None:
        return _against(text, "≤", upper, min(above, 0.0), less)
    low, high = _against(text, "≥", lower, max(below, 0.0), less), _against(text, "≤", upper, min(above, 0.0), less)
    if low.startswith(text) and high.startswith(text):
        return f"{bound_text(lower)} ≤ {text}" if upper == math.inf else f"{bound_text(lower)} ≤ {high}"
    return high if low.startswith(text) else low


def _against(text: str, sign: str, bound: float, gap: float, less: str) -> str:
    """Write a comparison in printed digits, or as the sign of the difference if these digits do not show it."""
    shown = bound_text(bound)
    compare = {"<": operator.lt, ">": operator.gt, "≤": operator.le, "≥": operator.ge}[sign]
    return f"{text} {sign} {shown}" if compare(read(text), read(shown)) else f"{less}{shown} = {digits(gap)} {sign} 0"


# --- the gradient ---


def _gradient_lines(story: TokenStory, config: CorrectionConfig) -> list[str]:
    """Write c = w·A/N, for a mean over tokens at π_θ = π_old.

    In bypass mode the ratio r = π_θ/π_rollout of the loss replaces w.
    """
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
        return [with_notes("c = 0", f"the clip of {config.loss_type} removes the gradient")]
    return [with_notes(f"c = {digits(c)}", f"from the loss {config.loss_type}")]


def _clamped(d: float) -> float:
    return d if math.isnan(d) else min(max(d, -SAFETY_BOUND), SAFETY_BOUND)


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else x if math.isnan(x) else math.inf
