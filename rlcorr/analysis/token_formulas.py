"""The formulas that gave a token its numbers: its ratio, its weight, every rule, and its part of the gradient.

Numbers have four significant digits and bounds are written as configured, so the left side of a line, typed into a
calculator, gives the right side up to rounding.
"""

import math

from rlcorr.analysis.token_story import RuleStory, TokenStory
from rlcorr.config import UNCLIPPED, CorrectionConfig
from rlcorr.ratios import SAFETY_BOUND

_RAW_WEIGHTS = {
    "token": "r",
    "sequence": "product of r",
    "geometric": "geometric mean of r",
    "prefix": "product of r up to here",
}


def digits(x: float) -> str:
    """Return x with four significant digits.

    >>> [digits(x) for x in (-1.20397, 2.0, -0.0, 12345.0, 4.2e-9, -math.inf, math.nan)]
    ['−1.204', '2', '0', '1.234e4', '4.2e−9', '−∞', 'nan']
    """
    text = f"{x + 0.0:.4g}"  # −0 is 0
    return text.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e").replace("-", "−").replace("inf", "∞")


def formulas(story: TokenStory, config: CorrectionConfig) -> list[str]:
    """Write one line for the ratio, the weight, every rule, and the contribution to the gradient, in this order.

    `config` must be that of the story.
    """
    lines = [_ratio(story), _weight(story, config), *(_rule(rule) for rule in story.rules)]
    return lines if story.contribution is None else [*lines, _contribution(story, config)]


def _ratio(story: TokenStory) -> str:
    difference = f"{digits(story.old_log_prob)} − {_bracketed(story.rollout_log_prob)}"
    clamped = f" = exp({digits(math.copysign(SAFETY_BOUND, story.log_ratio))})"
    line = f"r = exp({difference}){clamped if abs(story.log_ratio) > SAFETY_BOUND else ''} = {digits(story.ratio)}"
    if story.sampled_log_prob is None:
        return line
    engine = _exp(story.sampled_log_prob - story.rollout_log_prob)
    age = _exp(story.old_log_prob - story.sampled_log_prob)
    return f"{line}   ({digits(engine)} of the engine · {digits(age)} of the age)"


def _weight(story: TokenStory, config: CorrectionConfig) -> str:
    if config.rollout_is is None:
        return "w = 1   (no importance weights)"
    lower, upper = config.rollout_is_threshold_lower, config.rollout_is_threshold
    raw, bounded, name = digits(story.raw_weight), digits(story.bounded_weight), _RAW_WEIGHTS[config.rollout_is]
    note = "" if config.rollout_is == "token" else f"   ({name} = {raw})"
    if config.rollout_is_mode == "mask":
        line = f"{raw}, {_verdict(lower, upper, story.bounded_weight > 0)}, so w = {bounded}"
    else:
        capped = raw if upper == math.inf else f"min({raw}, {_bound(upper)})"
        expression = capped if lower is None else f"max({_bound(lower)}, {capped})"
        line = f"w = {raw}" if expression == raw else f"w = {expression} = {bounded}"
    if story.norm_factor is not None:
        line += f"; w/mean of w = {bounded}/{digits(story.norm_factor)} = {digits(story.weight)}"
    return line + note


def _rule(story: RuleStory) -> str:
    rule = story.rule
    value = _exp(story.statistic, 700.0) if rule.divergence == "k1" else story.statistic
    skipped = ", but the rule skips this token" if story.passes and not story.inside else ""
    return f"{rule.name} = {digits(value)}, {_verdict(rule.lower, rule.upper, story.inside)}{skipped}"


def _contribution(story: TokenStory, config: CorrectionConfig) -> str:
    """Write c = w·A/N, for a mean over tokens at π_θ = π_old.

    In bypass mode the ratio r = π_θ/π_rollout of the loss replaces w.
    """
    c, advantage = story.contribution, story.advantage
    assert c is not None
    assert advantage is not None
    if story.rejected_by is not None:
        return "c = 0   (rejected)"
    ratio_in_loss = config.bypass_mode and config.loss_type not in UNCLIPPED
    symbol, factor = ("r", story.ratio) if ratio_in_loss else ("w", story.weight)
    if math.isclose(factor * advantage / max(story.counted, 1), c, rel_tol=1e-3):
        return f"c = {symbol}·A/N = {digits(factor)}·{_bracketed(advantage)}/{story.counted} = {digits(c)}"
    if c == 0:
        return f"c = 0   (the clip of {config.loss_type} removes the gradient)"
    return f"c = {digits(c)}   (from the loss {config.loss_type})"


def _verdict(lower: float | None, upper: float, inside: bool) -> str:
    if lower is None:
        allowed = f"at most {_bound(upper)}"
    else:
        allowed = f"at least {_bound(lower)}" if upper == math.inf else f"{_bound(lower)} to {_bound(upper)}"
    return f"allowed {allowed}: {'inside' if inside else 'outside'}"


def _bound(x: float) -> str:
    return f"{x:g}".replace("-", "−")


def _exp(x: float, limit: float = SAFETY_BOUND) -> float:
    return math.exp(min(max(x, -limit), limit))  # NaN stays NaN


def _bracketed(x: float) -> str:
    return f"({digits(x)})" if x < 0 else digits(x)
