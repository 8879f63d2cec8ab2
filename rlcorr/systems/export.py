"""The table of all systems, with how each is read, and the export of a configuration as text for each, or as Python."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.errors import UsageError, unknown
from rlcorr.rules import RejectionRule
from rlcorr.systems import nemo_rl, prime_rl
from rlcorr.systems.areal import areal_text, from_areal
from rlcorr.systems.art import art_text, from_art
from rlcorr.systems.axolotl import axolotl_text, from_axolotl
from rlcorr.systems.mapping.refusals import refuse_centering
from rlcorr.systems.mapping.serialize import five_digits
from rlcorr.systems.miles import from_miles, miles_text
from rlcorr.systems.ms_swift import from_ms_swift, ms_swift_text
from rlcorr.systems.nemo_rl import from_nemo_rl, nemo_rl_text
from rlcorr.systems.open_instruct import from_open_instruct, open_instruct_text
from rlcorr.systems.openrlhf import from_openrlhf, openrlhf_text
from rlcorr.systems.prime_rl import from_prime_rl, prime_rl_text
from rlcorr.systems.rllm import from_rllm, rllm_text
from rlcorr.systems.roll import from_roll, roll_text
from rlcorr.systems.skyrl import from_skyrl, skyrl_text
from rlcorr.systems.slime import from_slime, slime_text
from rlcorr.systems.tinker import from_tinker, tinker_text
from rlcorr.systems.torchtitan import from_torchtitan, torchtitan_text
from rlcorr.systems.trl import from_trl, trl_text
from rlcorr.systems.unsloth import from_unsloth, unsloth_text
from rlcorr.systems.verl import config as verl
from rlcorr.systems.verl.config import from_verl, verl_text
from rlcorr.systems.xtuner import from_xtuner, xtuner_text


@dataclass(frozen=True)
class System:
    """A system to which a configuration can be exported."""

    text: Callable[..., str]
    """Configuration → text. Raises `UsageError`, which names the nearest setting that the system has."""
    read: Callable[..., Any]
    """The system's own settings → configuration, or configuration and loss; an empty mapping gives its defaults."""
    versions: tuple[str, ...] = ()
    """Versions with different formats, the one that is written by default first; empty if there is one format."""
    loss_too: bool = False
    """True if the exporter takes the loss's numbers as well."""
    rollout_kl: bool = False
    """True if the exporter writes the rollout KL loss, or refuses it."""
    score_centering: bool = False
    """True if the exporter writes score centering. Otherwise `export` refuses it."""
    centering_version: str | None = None
    """The version that has score centering, if it is not the newest."""


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


SYSTEMS = {
    "verl": System(
        verl_text, from_verl, tuple(verl.VERSIONS), loss_too=True, score_centering=True, centering_version="main"
    ),
    "SkyRL": System(skyrl_text, from_skyrl, loss_too=True, score_centering=True),
    "TRL": System(trl_text, from_trl, loss_too=True),
    "OpenRLHF": System(openrlhf_text, from_openrlhf),
    "prime-rl": System(
        prime_rl_text, from_prime_rl, prime_rl.VERSIONS, loss_too=True, rollout_kl=True, score_centering=True,
        centering_version="main",
    ),
    "AReaL": System(areal_text, from_areal),
    "slime": System(slime_text, from_slime, loss_too=True, score_centering=True),
    "NeMo RL": System(
        nemo_rl_text, from_nemo_rl, nemo_rl.VERSIONS, loss_too=True, score_centering=True, centering_version="nightly"
    ),
    "ROLL": System(roll_text, from_roll),
    "open-instruct": System(open_instruct_text, from_open_instruct),
    "ms-swift": System(ms_swift_text, from_ms_swift),
    "xtuner": System(xtuner_text, from_xtuner),
    "torchtitan": System(torchtitan_text, from_torchtitan, loss_too=True),
    "Unsloth": System(unsloth_text, from_unsloth, loss_too=True),
    "axolotl": System(axolotl_text, from_axolotl),
    "miles": System(miles_text, from_miles),
    "rLLM": System(rllm_text, from_rllm),
    "ART": System(art_text, from_art, loss_too=True),
    "Tinker": System(tinker_text, from_tinker, loss_too=True),
    "Python": System(to_python, lambda _: CorrectionConfig(), loss_too=True, score_centering=True),
}  # fmt: skip


def export(config: CorrectionConfig, system: str, loss: LossConfig | None = None, *, version: str | None = None) -> str:
    """Return the text to paste into the configuration of this system.

    `version` None means the version of `version_for`; a comment of every text names its version. Numbers have five
    significant digits, see `five_digits`. If the text cannot contain the rollout KL loss, a comment says so. Raises
    `UsageError` for an unknown system or version, and for what this version cannot do: the message names the nearest
    setting.

    >>> print(export(CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0), "slime"), end="")
    # slime v0.3.2
    --use-tis \\
    --tis-clip 2.0 \\
    --tis-clip-low 0.0
    """
    if system not in SYSTEMS:
        raise unknown("system", system, SYSTEMS)
    target = SYSTEMS[system]
    if version is not None and not target.versions:
        raise UsageError(f"{system} is written in one version only; got {version!r}.")
    if not target.score_centering:
        refuse_centering(system, loss)
    version = version_for(system, loss) if version is None else version
    numbers = (loss,) if target.loss_too else ()
    text = five_digits(target.text(config, *numbers, **({} if version is None else {"version": version})))
    if target.rollout_kl or loss is None or not loss.use_rollout_kl_loss:
        return text
    return f"# The rollout KL loss (rollout_kl_loss_coef={loss.rollout_kl_loss_coef:g}) is not in this text.\n{text}"


def version_for(system: str, loss: LossConfig | None) -> str | None:
    """Return the version that `export` writes: the newest, or the one that has score centering if the loss has it.

    None if the system has only one.

    >>> version_for("verl", None), version_for("verl", LossConfig(score_centering=True))
    ('0.9.1', 'main')
    """
    target = SYSTEMS[system]
    if target.centering_version is not None and loss is not None and loss.score_centering:
        return target.centering_version
    return next(iter(target.versions), None)


def exports(config: CorrectionConfig, loss: LossConfig | None = None) -> dict[str, str]:
    """Return the text of `export` for each system, or a comment with the reason why it cannot be written."""
    texts = {}
    for title in SYSTEMS:
        try:
            texts[title] = export(config, title, loss)
        except UsageError as error:
            texts[title] = refused(error)
    return texts


def refused(error: UsageError) -> str:
    """Return the comment that replaces a text that cannot be written."""
    return f"# cannot be expressed: {error}"


def beyond_defaults(config: CorrectionConfig, system: str, loss: LossConfig | None = None) -> tuple[str, list[str]]:
    """Return the text of `export`, and its lines that are not in the text of the system's own defaults.

    Raises `UsageError` as `export` does.

    >>> beyond_defaults(CorrectionConfig(rollout_is="token", rollout_is_threshold=2.0), "verl")[1]
    ['rollout_is: token']
    """
    text = export(config, system, loss)
    default_lines = set(default_text(system, version_for(system, loss)).splitlines())
    return text, [line.strip(" \\,") for line in text.splitlines() if line not in default_lines]


def defaults_of(system: str, version: str | None = None) -> tuple[CorrectionConfig, LossConfig | None]:
    """Return the correction that a system applies if nothing is set, and its loss if its own settings name one.

    >>> defaults_of("TRL")[0].rollout_is_threshold
    3.0
    """
    defaults = SYSTEMS[system].read({}, **({} if version is None else {"version": version}))
    return defaults if isinstance(defaults, tuple) else (defaults, None)


def default_text(system: str, version: str | None = None) -> str:
    """Return the text of the system's own defaults."""
    config, loss = defaults_of(system, version)
    return export(config, system, loss, version=version)


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        rules = ", ".join(map(_rule, value))
        return f"({rules},)"
    return "math.inf" if isinstance(value, float) and math.isinf(value) else repr(value)


def _rule(rule: RejectionRule) -> str:
    bounds = [] if rule.lower is None else [f"lower={_literal(rule.lower)}"]
    bounds += [] if math.isinf(rule.upper) else [f"upper={_literal(rule.upper)}"]
    return f'RejectionRule.named("{rule.name}", {", ".join(bounds)})'
