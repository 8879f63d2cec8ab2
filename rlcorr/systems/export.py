"""The export of a configuration as text for each system, or as Python, and the corrections that a system ships."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError, unknown
from rlcorr.presets import PRESETS
from rlcorr.rules import RejectionRule
from rlcorr.systems.areal import to_areal
from rlcorr.systems.art import to_art
from rlcorr.systems.axolotl import to_axolotl
from rlcorr.systems.mapping.facts import FACTS
from rlcorr.systems.mapping.serialize import FORMS, commented, five_digits
from rlcorr.systems.miles import miles_text
from rlcorr.systems.ms_swift import to_ms_swift
from rlcorr.systems.nemo_rl import to_nemo_rl
from rlcorr.systems.open_instruct import to_open_instruct
from rlcorr.systems.openrlhf import to_openrlhf
from rlcorr.systems.prime_rl import to_prime_rl
from rlcorr.systems.rllm import to_rllm
from rlcorr.systems.roll import to_roll
from rlcorr.systems.skyrl import skyrl_settings
from rlcorr.systems.slime import slime_text
from rlcorr.systems.tinker import to_tinker
from rlcorr.systems.torchtitan import to_torchtitan
from rlcorr.systems.trl import to_trl
from rlcorr.systems.unsloth import to_unsloth
from rlcorr.systems.verl.config import verl_text
from rlcorr.systems.xtuner import to_xtuner


def to_python(config: CorrectionConfig, loss: LossConfig | None = None) -> str:
    """Return Python code that builds the configuration, without the fields that have their default.

    If the loss has score centering, a second line builds a loss with it; its other fields are not in the text.
    """
    defaults = CorrectionConfig()
    lines = [
        f"    {f.name}={_literal(getattr(config, f.name))},"
        for f in fields(config)
        if getattr(config, f.name) != getattr(defaults, f.name)
    ]
    centered = loss is not None and loss.score_centering
    names = ["CorrectionConfig", *["LossConfig"] * centered, *["RejectionRule"] * bool(config.rollout_rs)]
    imports = [f"from rlcorr import {', '.join(names)}"]
    if any("math.inf" in line for line in lines):
        imports.insert(0, "import math\n")
    body = ["config = CorrectionConfig(", *lines, ")"] if lines else ["config = CorrectionConfig()"]
    body += ["loss = LossConfig(score_centering=True)"] if centered else []
    return "\n".join([*imports, "", *body])


SYSTEMS: dict[str, Callable[[CorrectionConfig, LossConfig], Mapping[str, Any] | str]] = {
    "verl": verl_text,
    "SkyRL": skyrl_settings,
    "TRL": to_trl,
    "OpenRLHF": lambda config, _: to_openrlhf(config),
    "prime-rl": to_prime_rl,
    "AReaL": lambda config, _: to_areal(config),
    "slime": slime_text,
    "NeMo RL": to_nemo_rl,
    "ROLL": lambda config, _: to_roll(config),
    "open-instruct": lambda config, _: to_open_instruct(config),
    "ms-swift": lambda config, _: to_ms_swift(config),
    "xtuner": lambda config, _: to_xtuner(config),
    "torchtitan": to_torchtitan,
    "Unsloth": to_unsloth,
    "axolotl": lambda config, _: to_axolotl(config),
    "miles": lambda config, _: miles_text(config),
    "rLLM": lambda config, _: to_rllm(config),
    "ART": to_art,
    "Tinker": to_tinker,
    "Python": to_python,
}
"""System → its function, which returns the settings, or the text itself if the form of its row in `FACTS` is "text".

The functions raise `UsageError` for what the system cannot do; the message names the nearest setting that it has.
"""


def export(config: CorrectionConfig, system: str, loss: LossConfig | None = None) -> str:
    """Return the text to paste into the configuration of this system.

    A comment names the version: the newest that was read, or the one that has score centering if the loss has it.
    Numbers have five significant digits, see `five_digits`. If the loss has the rollout KL loss, which no text can
    contain, a comment says so. Raises `UsageError` for an unknown system, and for what the system cannot do: the
    message names the nearest setting.

    >>> print(export(CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0), "slime"), end="")
    # slime v0.3.2
    --use-tis \\
    --tis-clip 2.0 \\
    --tis-clip-low 0.0
    """
    if system not in SYSTEMS:
        raise unknown("system", system, SYSTEMS)
    loss, facts = loss or LossConfig(), FACTS[system]
    if loss.score_centering and facts.centering is None:
        reason = f" ({facts.centering_elsewhere})" if facts.centering_elsewhere else ""
        systems = [title for title in SYSTEMS if FACTS[title].centering]
        raise UsageError(
            f"{system}'s text cannot contain score centering{reason}; nearest: {', '.join(systems)}, or "
            f"score_centering=False."
        )
    written = SYSTEMS[system](config, loss)
    if not isinstance(written, str):
        text = FORMS[facts.form](facts.under, written)
        version = facts.centering if loss.score_centering else facts.comment
        written = commented(text, [version or "", *_notes(facts.notes, written, is_empty=not text)])
    text = five_digits(written)
    if not loss.use_rollout_kl_loss:
        return text
    return f"# The rollout KL loss (rollout_kl_loss_coef={loss.rollout_kl_loss_coef:g}) is not in this text.\n{text}"


def _notes(notes: Mapping[str, str], settings: Mapping[str, Any], *, is_empty: bool) -> list[str]:
    on = {"always", *(["nothing"] if is_empty else ()), *_settings_that_are_on(settings)}
    return [sentence for name, sentence in notes.items() if name in on]


def _settings_that_are_on(settings: Mapping[str, Any]) -> set[str]:
    """Return the names, at any depth, whose value is not null, false or empty."""
    inner = {name: _settings_that_are_on(value) for name, value in settings.items() if isinstance(value, Mapping)}
    off = {name for name, value in settings.items() if value is None or value is False or value == []}
    return {name for name in settings if name not in off and inner.get(name, True)}.union(*inner.values())


def exports(
    config: CorrectionConfig, loss: LossConfig | None = None, systems: Iterable[str] = SYSTEMS
) -> dict[str, str]:
    """Return the text of `export` for each system, or a comment with the reason why it cannot be written."""
    texts = {}
    for title in systems:
        try:
            texts[title] = export(config, title, loss)
        except UsageError as error:
            texts[title] = refused(error)
    return texts


CANNOT = "# cannot be expressed"


def refused(error: UsageError) -> str:
    """Return the comment that replaces a text that cannot be written."""
    return f"{CANNOT}: {error}"


def beyond_defaults(config: CorrectionConfig, system: str, loss: LossConfig | None = None) -> tuple[str, list[str]]:
    """Return the text of `export`, and its lines that are not in the text of the system's own defaults.

    Raises `UsageError` as `export` does.

    >>> beyond_defaults(CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0), "verl")[1]
    ['rollout_is: token']
    """
    text, default_lines = export(config, system, loss), set(default_text(system).splitlines())
    return text, [line.strip(" \\,") for line in text.splitlines() if line not in default_lines]


def default_text(system: str) -> str:
    """Return the text of what the system does if nothing is set."""
    return export(FACTS[system].correction, system, FACTS[system].loss)


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        rules = ", ".join(map(_rule, value))
        return f"({rules},)"
    return "math.inf" if isinstance(value, float) and math.isinf(value) else repr(value)


def _rule(rule: RejectionRule) -> str:
    bounds = [] if rule.lower is None else [f"lower={_literal(rule.lower)}"]
    bounds += [] if math.isinf(rule.upper) else [f"upper={_literal(rule.upper)}"]
    return f'RejectionRule.named("{rule.name}", {", ".join(bounds)})'


WEIGHING_LOSSES = ("ppo_clip", "reinforce")
"""Losses that apply weights and rules as they are. The others have masks or weights of their own inside."""


@dataclass(frozen=True)
class Shipped:
    """A correction with the numbers that a system ships."""

    config: CorrectionConfig
    loss: LossConfig
    preset: str | None = None
    """Name of the preset; None if only the system's default has these numbers."""
    is_default: bool = False
    """True if the system does this if nothing is set."""


def shipped(system: str) -> list[Shipped]:
    """Return the system's default, and each of its presets that its text can express and that gives other weights.

    Systems without presets get those of the system whose correction they run, or else all.

    >>> [(one.preset, one.is_default) for one in shipped("open-instruct")]
    [('open_instruct_tis', True), ('open_instruct_vaco', False)]
    """
    facts = FACTS[system]
    family = facts.presets_of or system
    names = [name for name, one in PRESETS.items() if one.system == family and not one.loss.score_centering]
    rows = {_effect(facts.correction): Shipped(facts.correction, facts.loss, is_default=True)}
    for name in names or PRESETS:
        config, loss = PRESETS[name].config, PRESETS[name].loss
        default = rows.get(_effect(config))
        if default is None and config.loss_type in WEIGHING_LOSSES and can_express(system, config, loss):
            rows[_effect(config)] = Shipped(config, loss, name)
        elif default is not None and default.preset is None and default.config == config:
            rows[_effect(config)] = replace(default, preset=name, loss=loss)
    return list(rows.values())


def _effect(config: CorrectionConfig) -> CorrectionConfig:
    """Return the configuration without what does not change weights and rejections."""
    threshold = 2.0 if config.rollout_is is None else config.rollout_is_threshold
    return replace(config, rollout_is_threshold=threshold, bypass_mode=False, loss_type="ppo_clip", denominator="fixed")


def can_express(system: str, config: CorrectionConfig, loss: LossConfig | None) -> bool:
    """Check whether the system has a text for this correction."""
    return not exports(config, loss, [system])[system].startswith(CANNOT)
