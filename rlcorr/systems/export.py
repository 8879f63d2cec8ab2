"""A configuration as text to carry away: in the language of every system that can say it, and as Python."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError, unknown
from rlcorr.rules import RejectionRule
from rlcorr.systems import openrlhf, prime_rl, trl, verl
from rlcorr.systems.areal import areal_text
from rlcorr.systems.ms_swift import ms_swift_text
from rlcorr.systems.nemo_rl import nemo_rl_text
from rlcorr.systems.open_instruct import open_instruct_text
from rlcorr.systems.openrlhf import openrlhf_text
from rlcorr.systems.prime_rl import prime_rl_text
from rlcorr.systems.roll import roll_text
from rlcorr.systems.skyrl import skyrl_text
from rlcorr.systems.slime import slime_text
from rlcorr.systems.torchtitan import torchtitan_text
from rlcorr.systems.trl import trl_text
from rlcorr.systems.verl import verl_text
from rlcorr.systems.xtuner import xtuner_text


@dataclass(frozen=True)
class System:
    """Where a configuration can go."""

    language: str
    """Of the text: yaml, toml, bash or python."""
    text: Callable[..., str]
    """Of a configuration. Raises `UsageError` with the nearest thing that the system can say."""
    versions: tuple[str, ...] = ()
    """Where its dialect has moved, the newest first."""
    loss_too: bool = False
    """Whether it takes the loss's numbers as well."""


def to_python(config: CorrectionConfig) -> str:
    """Source that builds it; what has its default is left out."""
    plain = CorrectionConfig()
    lines = [
        f"    {f.name}={_literal(getattr(config, f.name))},"
        for f in fields(config)
        if getattr(config, f.name) != getattr(plain, f.name)
    ]
    imports = ["from rlcorr import CorrectionConfig" + (", RejectionRule" if config.rollout_rs else "")]
    if any("math.inf" in line for line in lines):
        imports.insert(0, "import math\n")
    body = ["config = CorrectionConfig(", *lines, ")"] if lines else ["config = CorrectionConfig()"]
    return "\n".join([*imports, "", *body])


SYSTEMS = {
    "verl": System("yaml", verl_text, verl.VERSIONS),
    "SkyRL": System("yaml", skyrl_text),
    "TRL": System("python", trl_text, trl.VERSIONS, loss_too=True),
    "OpenRLHF": System("bash", openrlhf_text, openrlhf.VERSIONS),
    "prime-rl": System("toml", prime_rl_text, prime_rl.VERSIONS, loss_too=True),
    "AReaL": System("yaml", areal_text),
    "slime": System("bash", slime_text),
    "NeMo RL": System("yaml", nemo_rl_text),
    "ROLL": System("yaml", roll_text),
    "open-instruct": System("bash", open_instruct_text),
    "ms-swift": System("bash", ms_swift_text),
    "xtuner": System("python", xtuner_text),
    "torchtitan": System("python", torchtitan_text, loss_too=True),
    "Python": System("python", to_python),
}


def export(config: CorrectionConfig, system: str, loss: LossConfig | None = None, *, version: str | None = None) -> str:
    """The text that a person pastes into the configuration of this system; None is its newest version.

    Raises `UsageError` for an unknown system or version, and with the nearest thing that it can say for what it cannot
    do.

    >>> print(export(CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0), "slime"), end="")
    # slime v0.3.1
    --use-tis \\
    --tis-clip 2.0 \\
    --tis-clip-low 0.0
    """
    if system not in SYSTEMS:
        raise unknown("system", system, SYSTEMS)
    chosen = SYSTEMS[system]
    if version is not None and not chosen.versions:
        raise UsageError(f"{system} is written in one version only; got {version!r}.")
    numbers = (loss,) if chosen.loss_too else ()
    return chosen.text(config, *numbers, **({} if version is None else {"version": version}))


def exports(config: CorrectionConfig, loss: LossConfig | None = None) -> list[tuple[str, str, str]]:
    """(title, language, text) of each system: in its newest version that can do it, which the text names; where none
    can, a comment that says why the newest cannot."""
    return [(title, system.language, _newest(config, title, loss)) for title, system in SYSTEMS.items()]


def _newest(config: CorrectionConfig, title: str, loss: LossConfig | None) -> str:
    refusals = []
    for version in SYSTEMS[title].versions or (None,):
        try:
            return export(config, title, loss, version=version)
        except UsageError as error:
            refusals.append(error)
    return f"# cannot be expressed: {refusals[0]}"


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        rules = ", ".join(map(_rule, value))
        return f"({rules},)"
    return "math.inf" if isinstance(value, float) and math.isinf(value) else repr(value)


def _rule(rule: RejectionRule) -> str:
    bounds = [] if rule.lower is None else [f"lower={_literal(rule.lower)}"]
    bounds += [] if math.isinf(rule.upper) else [f"upper={_literal(rule.upper)}"]
    return f'RejectionRule.named("{rule.name}", {", ".join(bounds)})'
