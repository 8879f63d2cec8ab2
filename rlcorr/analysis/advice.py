"""What to set: one sentence about a gap, the system's default and one setting, for page and command line alike."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlcorr.analysis.budget import Kept, kept
from rlcorr.analysis.in_words import limits
from rlcorr.analysis.symptoms import HEALTHY, SIGNS, Pattern, Symptom, percent, short
from rlcorr.analysis.triage import verdict_on
from rlcorr.analysis.verdicts import Look, last_fault
from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.systems.export import Shipped, can_express, shipped
from rlcorr.types import TokenBatch

LITTLE = 0.01
"""Share of the tokens that a default may clip or zero of a healthy batch before something else is advised."""
POINT = 0.01
"""Share of the tokens by which a promise may be missed by chance, however few answers there are."""
SHOWN = 5e-5
"""The smallest share that a sentence names."""
CAUSES: dict[Pattern, str] = {
    "clean": "Your two sides agree up to the order of float32 sums (k3 {k3}).",
    "precision": "Your gap looks like ordinary rounding to {format} (k3 {k3}).",
    "undecided": "Your gap is larger than bfloat16 rounding (k3 {k3}): fewer bits, or old weights.",
    "top-p mass": "It looks as if your engine samples with top-p or top-k, and your trainer does not.",
    "stale tensor": "The output head of one side may be old (k3 {k3}).",
    "old weights": "Your gap is mostly old weights: their age makes {share} of it (k3 {k3}).",
}
"""Pattern → the sentence about it; for other patterns it is the first one of the symptom."""
REASONS: dict[Pattern, str] = {
    "clean": "There is no gap to correct.",
    "precision": "The log-probs show nothing except rounding, so a tight threshold would only throw answers away.",
    "undecided": "A limit on single tokens keeps every answer. To find the cause, sync the weights and measure: if the "
    "gap is gone, it was old weights. Then compute with the engine in float32: if the gap is gone, it was rounding.",
    "top-p mass": "Both sides then have the same tokens to choose from. If your system can replay the engine's cut in "
    "the trainer, that does it, too: `threshold RUN --top-p 0.9` prints how.",
    "stale tensor": "Compare the rows of the output head on both sides first.",
    "old weights": "Sample with newer weights if you can. A limit on single tokens keeps every answer.",
}
"""Pattern → why the setting is advised."""
PRODUCT = "A product over an answer multiplies the gaps of all its tokens; the ratio of one token stays near 1."
EQUAL_IS = (
    "In bypass mode this is so by design: the trainer takes the engine's log-probs. To see the gap, record one step "
    "without it (verl: bypass_mode: false). With the same kernels on both sides it is so, too, and nothing needs "
    "setting. Otherwise one side was recorded twice."
)


@dataclass(frozen=True)
class Option:
    """A correction that a system can make, and its effect on the last step; a text if it cannot be applied there."""

    config: CorrectionConfig
    loss: LossConfig | None
    preset: str | None
    effect: Kept | str
    is_default: bool = False
    promise: float | None = None
    """The share of the tokens that its threshold was chosen to keep, on other steps than the last if there are any."""
    step: int | None = None
    """The step of the effect."""

    @property
    def key(self) -> str:
        """Return a name that no other option of a system has."""
        name = self.preset or ("default" if self.is_default else "none")
        return name if self.promise is None else f"{name}@{self.promise:g}"

    @property
    def acts(self) -> bool:
        """Check whether there are weights or rules."""
        return _parts(self.config) > 0

    @property
    def touched(self) -> float:
        """Return the share of the tokens that are zeroed or clipped; 1 if the effect is not known."""
        return 1.0 if isinstance(self.effect, str) else 1 - self.effect.unchanged

    @property
    def is_missed(self) -> bool:
        """Check whether fewer tokens are kept than promised, by more than two standard errors, or more than a point."""
        return isinstance(self.effect, Kept) and self._shortfall > max(SHOWN, min(2 * self.effect.error, POINT))

    @property
    def _shortfall(self) -> float:
        return 0.0 if self.promise is None or isinstance(self.effect, str) else self.promise - self.effect.unchanged

    @property
    def shortfall(self) -> str:
        """Return by how much the promise is missed; nothing if it is kept."""
        if self._shortfall < SHOWN:
            return ""
        points = f"{100 * self._shortfall:.2g} point{'' if f'{100 * self._shortfall:.2g}' == '1' else 's'}"
        if self.is_missed:
            return f"missed by {points} on step {self.step}: it does not carry over"
        return f"{points} less on step {self.step}, no more than chance"

    @property
    def is_advised(self) -> bool:
        """Check whether it may be offered to copy: it acts, the glossary calls nothing bad, and promises are kept."""
        return self.acts and isinstance(self.effect, Kept) and not self.effect.is_bad and not self.is_missed


@dataclass(frozen=True)
class Advice:
    """What to set for a system, and why."""

    cause: str
    default: str
    """A sentence about the system's default, and what to set."""
    reason: str
    take: Option | None
    """None if a fault must be mended first."""
    instead: Option | None
    """Another choice: to leave a correction off, or to take one although none is needed."""
    options: tuple[Option, ...]
    step: int
    k3: float | None
    """The gap of the step that the sentence is about; None if no token has two finite log-probs."""
    pattern: Pattern

    @property
    def sentence(self) -> str:
        return f"{self.cause} {self.default}"


def options(batch: TokenBatch, system: str) -> tuple[Option, ...]:
    """Return what a system can be told to do, with its effect: its default, then no correction, then its presets.

    Presets with both weights and rules, or several rules, are left out if there are simpler ones.
    """
    rows = shipped(system)
    simple = [row for row in rows if row.is_default or _parts(row.config) < 2]
    rows = simple if any(_parts(row.config) and not row.is_default for row in simple) else rows
    nothing = Shipped(CorrectionConfig(), LossConfig())
    if all(_parts(row.config) for row in rows):
        rows += [nothing] * can_express(system, nothing.config, nothing.loss)
    made = [Option(row.config, row.loss, row.preset, _effect(batch, row.config), row.is_default) for row in rows]
    return tuple(sorted(made, key=lambda option: (not option.is_default, option.acts, *_harm(option))))


def _effect(batch: TokenBatch, config: CorrectionConfig) -> Kept | str:
    try:
        return kept(batch, config)
    except UsageError as error:  # a rule may need advantages, which the file does not have
        return str(error)


def advise(looks: Sequence[Look], batch: TokenBatch, system: str) -> Advice:
    """Return what to set for a system.

    Args:
        looks: The summary of every step.
        batch: The last step, on which effects are measured.
        system: A name of `rlcorr.systems.export.SYSTEMS`.
    """
    choices = options(batch, system)
    if (fault := last_fault(looks)) is not None:
        return _mend_first(*fault, looks, choices, system)
    look, symptom = _strongest(looks)
    said, take, instead = _what_to_set(symptom.pattern, choices, system)
    reason = " ".join([REASONS.get(symptom.pattern, ""), *_left_out(looks)]).strip()
    if take is not choices[0] and choices[0].acts and _has_product(choices[0].config):
        reason = PRODUCT if symptom.pattern in HEALTHY else f"{PRODUCT} {reason}"
    k3 = None if look.gap is None else look.gap.k3
    return Advice(_cause(look, symptom), said, reason, take, instead, choices, look.step, k3, symptom.pattern)


def _what_to_set(pattern: Pattern, choices: tuple[Option, ...], system: str) -> tuple[str, Option, Option | None]:
    """Return the sentence about the default and the setting, the setting, and another choice."""
    default, best = choices[0], _best(choices)
    nothing = next((one for one in choices if not one.acts and not one.is_default), None)
    name, effect = _named(default, system), does(default) if default.acts else "changes nothing"
    could = f"{_lower(limits(best.config))} ({does(best)})" if best else ""
    if pattern in HEALTHY and not default.acts:
        return f"{name} is fine." + (f" As a safeguard, {could}." if best else ""), default, best
    if pattern in HEALTHY and default.touched <= LITTLE:
        return f"{name} {effect} and is fine.", default, nothing
    if pattern == "top-p mass":
        setting = "Set this: top_p 1 and top_k -1 in the engine."
        return f"{name} {effect}, and no weight undoes a cut. {setting}", default, nothing or best
    if default.is_advised and not _by_answer(default.config):
        return f"{name} is right: {_lower(limits(default.config))} ({effect}).", default, nothing
    if best is None:
        return f"{name} {effect}. No setting of {system} fits, so find the cause first.", nothing or default, None
    return f"{name} {effect}. Set this: {could}.", best, nothing or default


def _mend_first(step: int, symptom: Symptom, looks: Sequence[Look], choices: tuple[Option, ...], system: str) -> Advice:
    """Return what to say of a fault: no setting mends it."""
    default, where = choices[0], f"Step {step}: " if len(looks) > 1 else ""
    others, name = symptom.sentence.partition(". ")[2], _named(default, system)
    if symptom.pattern == "identical":
        said, reason = f"{name} changes nothing, and no other setting would.", EQUAL_IS
    else:
        effect = does(default) if default.acts else "does not hide it"
        said = f"{name} {effect}. Set nothing: mend this first, because a threshold would only hide it."
        reason = others
    (look,) = [one for one in looks if one.step == step]
    k3 = None if look.gap is None else look.gap.k3
    return Advice(f"{where}{_first(symptom.sentence)}", said, reason, None, None, choices, step, k3, symptom.pattern)


def _strongest(looks: Sequence[Look]) -> tuple[Look, Symptom]:
    """Return the step whose gap is the least ordinary one, and the sign of it: neither an outlier nor tokens left out.

    The signs of a cut, of a stale tensor and of age count more than any size; among sizes the largest k3 does.
    """
    signs = []
    for look in looks:
        shown = [symptom for symptom in look.symptoms if symptom.pattern not in ("outlier", "not finite")]
        symptom = (shown or look.symptoms)[0]
        by_size = symptom.pattern in (*HEALTHY, "undecided")
        signs.append((not by_size, 0.0 if look.gap is None else look.gap.k3, look, symptom))
    *_, look, symptom = max(signs, key=lambda sign: sign[:2])
    return look, symptom


def _cause(look: Look, symptom: Symptom) -> str:
    """Return the sentence about the gap of a step, after the outlier that it leaves out."""
    k3 = 0.0 if look.gap is None else look.gap.k3
    formats = verdict_on(k3)[1]
    words = {"k3": short(k3), "format": "16 bits" if "float16" in formats else "bfloat16"}
    words["share"] = percent(symptom.strength)
    said = CAUSES[symptom.pattern].format(**words) if symptom.pattern in CAUSES else _first(symptom.sentence)
    outlier = next((one for one in look.symptoms if one.pattern == "outlier" and one is not symptom), None)
    return said if outlier is None else f"{outlier.sentence.partition(':')[0]}. Without it: {_lower(said)}"


def _left_out(looks: Sequence[Look]) -> list[str]:
    """Return a sentence about the tokens that the engine has no log-prob for, if there are any."""
    unpaired, tokens = sum(look.unpaired for look in looks), sum(look.tokens for look in looks)
    return [SIGNS["left out"].symptom(0.0, {}, count=unpaired, total=unpaired + tokens).sentence] if unpaired else []


def _named(default: Option, system: str) -> str:
    return f"{system}'s default" if default.acts else f"{system}'s default, no correction,"


def _first(sentence: str) -> str:
    return f"{sentence.partition('. ')[0].rstrip('.')}."


def _best(choices: Sequence[Option]) -> Option | None:
    """Return the mildest correction that acts and is bad by no number; None if there is none.

    A cap on single tokens comes first: in the studies it did better than no correction, and rules that reject whole
    answers did worse. Then weights that are set to 0, and rules on tokens; of equals, the one that touches fewest.
    """
    advised = [one for one in choices if one.is_advised and not one.is_default]
    return min(advised, key=_harm, default=None)


def _parts(config: CorrectionConfig) -> int:
    """Return the number of rules, and one more if there are weights."""
    return len(config.rollout_rs) + (config.rollout_is is not None)


def _harm(option: Option) -> tuple[bool, bool, bool, float]:
    config = option.config
    return _by_answer(config), bool(config.rollout_rs), config.rollout_is_mode == "mask", option.touched


def _by_answer(config: CorrectionConfig) -> bool:
    """Check whether weights or rules are those of whole answers."""
    return config.rollout_is not in (None, "token") or any(rule.level != "token" for rule in config.rollout_rs)


def _has_product(config: CorrectionConfig) -> bool:
    return config.rollout_is == "sequence" or any(rule.name == "seq_sum_k1" for rule in config.rollout_rs)


def does(option: Option) -> str:
    """Return what a correction does to the tokens, as the end of a sentence."""
    effect = option.effect
    if isinstance(effect, str):
        return f"cannot be measured here ({effect.rstrip('.')})"
    shares = {"zeroes": effect.zeroed, "clips": effect.cut or 0.0}
    parts = [f"{verb} {percent(share)}" for verb, share in shares.items() if share >= SHOWN]
    said = f"{' and '.join(parts)} of your tokens" if parts else "touches none of your tokens"
    return f"{said} and leaves an effective sample size of {percent(effect.ess)}" if effect.has_low_ess else said


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]
