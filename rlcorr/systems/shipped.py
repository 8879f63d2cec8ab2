"""The corrections that a system ships: what it does if nothing is set, and its presets with their published numbers."""

from dataclasses import dataclass, replace

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError
from rlcorr.presets import PRESETS
from rlcorr.systems.export import export
from rlcorr.systems.mapping.facts import FACTS

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
    """Check whether the system has a text for this correction.

    >>> can_express("slime", PRESETS["decoupled_k3_rs"].config, None)
    False
    """
    try:
        export(config, system, loss)
    except UsageError:
        return False
    return True
