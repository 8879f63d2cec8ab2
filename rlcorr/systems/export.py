"""A configuration as text to carry away: in the words of every system that can say it, and as Python."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError, unknown
from rlcorr.rules import RejectionRule
from rlcorr.systems import openrlhf, prime_rl, trl
from rlcorr.systems.areal import areal_text, from_areal
from rlcorr.systems.ms_swift import from_ms_swift, ms_swift_text
from rlcorr.systems.nemo_rl import from_nemo_rl, nemo_rl_text
from rlcorr.systems.open_instruct import from_open_instruct, open_instruct_text
from rlcorr.systems.openrlhf import from_openrlhf, openrlhf_text
from rlcorr.systems.prime_rl import from_prime_rl, prime_rl_text
from rlcorr.systems.roll import from_roll, roll_text
from rlcorr.systems.skyrl import from_skyrl, skyrl_text
from rlcorr.systems.slime import from_slime, slime_text
from rlcorr.systems.torchtitan import from_torchtitan, torchtitan_text
from rlcorr.systems.trl import from_trl, trl_text
from rlcorr.systems.verl import config as verl
from rlcorr.systems.verl.config import from_verl, verl_text
from rlcorr.systems.xtuner import from_xtuner, xtuner_text


@dataclass(frozen=True)
class System:
    """Where a configuration can go."""

    text: Callable[..., str]
    """Of a configuration. Raises `UsageError` with the nearest thing that the system can say."""
    read: Callable[..., Any]
    """From the system's own words to a configuration, or to one and the loss's numbers; from none to its defaults."""
    versions: tuple[str, ...] = ()
    """Where its dialect has moved, the newest first."""
    loss_too: bool = False
    """Whether it takes the loss's numbers as well."""
    rollout_kl: bool = False
    """True if its exporter writes the rollout KL loss, or refuses it."""


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
    "verl": System(verl_text, from_verl, verl.VERSIONS),
    "SkyRL": System(skyrl_text, from_skyrl),
    "TRL": System(trl_text, from_trl, trl.VERSIONS, loss_too=True),
    "OpenRLHF": System(openrlhf_text, from_openrlhf, openrlhf.VERSIONS),
    "prime-rl": System(prime_rl_text, from_prime_rl, prime_rl.VERSIONS, loss_too=True, rollout_kl=True),
    "AReaL": System(areal_text, from_areal),
    "slime": System(slime_text, from_slime),
    "NeMo RL": System(nemo_rl_text, from_nemo_rl),
    "ROLL": System(roll_text, from_roll),
    "open-instruct": System(open_instruct_text, from_open_instruct),
    "ms-swift": System(ms_swift_text, from_ms_swift),
    "xtuner": System(xtuner_text, from_xtuner),
    "torchtitan": System(torchtitan_text, from_torchtitan, loss_too=True),
    "Python": System(to_python, lambda _: CorrectionConfig()),
}


def export(config: CorrectionConfig, system: str, loss: LossConfig | None = None, *, version: str | None = None) -> str:
    """Return the text that a person pastes into the configuration of this system; None is its newest version. A rollout
    KL loss that the text lacks is named in a comment.

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
    text = chosen.text(config, *numbers, **({} if version is None else {"version": version}))
    if chosen.rollout_kl or loss is None or not loss.use_rollout_kl_loss:
        return text
    return f"# The rollout KL loss (rollout_kl_loss_coef={loss.rollout_kl_loss_coef:g}) is not in this text.\n{text}"


def exports(config: CorrectionConfig, loss: LossConfig | None = None) -> dict[str, str]:
    """The text for each system: in its newest version that can do it, which the text names; where none can, a comment
    that says why the newest cannot."""
    texts = {}
    for title in SYSTEMS:
        try:
            texts[title] = _newest(config, title, loss)[1]
        except UsageError as error:
            texts[title] = refused(error)
    return texts


def refused(error: UsageError) -> str:
    """What stands in place of a text that cannot be written."""
    return f"# cannot be expressed: {error}"


def beyond_defaults(config: CorrectionConfig, system: str, loss: LossConfig | None = None) -> tuple[str, list[str]]:
    """The text of `exports`, and its lines that the text of the system's own defaults does not have. Raises
    `UsageError` where no version of the system can do it.

    >>> beyond_defaults(CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0), "verl")[1]
    ['rollout_is: token']
    """
    version, text = _newest(config, system, loss)
    dialect = {} if version is None else {"version": version}
    usual = SYSTEMS[system].read({}, **dialect)
    usual_config, usual_loss = usual if isinstance(usual, tuple) else (usual, None)
    there = set(export(usual_config, system, usual_loss, version=version).splitlines())
    return text, [line.strip(" \\,") for line in text.splitlines() if line not in there]


def _newest(config: CorrectionConfig, title: str, loss: LossConfig | None) -> tuple[str | None, str]:
    """The newest version that can do it, None where there is but one, and its text. Raises `UsageError` as the newest
    of all does where none can."""
    refusals = []
    for version in SYSTEMS[title].versions or (None,):
        try:
            return version, export(config, title, loss, version=version)
        except UsageError as error:
            refusals.append(error)
    raise refusals[0]


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        rules = ", ".join(map(_rule, value))
        return f"({rules},)"
    return "math.inf" if isinstance(value, float) and math.isinf(value) else repr(value)


def _rule(rule: RejectionRule) -> str:
    bounds = [] if rule.lower is None else [f"lower={_literal(rule.lower)}"]
    bounds += [] if math.isinf(rule.upper) else [f"upper={_literal(rule.upper)}"]
    return f'RejectionRule.named("{rule.name}", {", ".join(bounds)})'
