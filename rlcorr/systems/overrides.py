"""A configuration as overrides of a command line, for systems that read `key.of.the.file=value` there.

verl, NeMo RL, AReaL and rLLM read it with Hydra, SkyRL with OmegaConf. The keys are those of the text of `export`.
"""

import re
from collections.abc import Iterator

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.systems.export import default_text, export
from rlcorr.systems.mapping.facts import FACTS

NEW_IN_VERL = "actor_rollout_ref.actor.policy_loss.rollout_correction"
"""A key that verl's own files do not have, so that Hydra needs a + or ++."""
NEEDED = (
    "actor_rollout_ref.rollout.calculate_log_probs", "generator.sampling_params.logprobs",
    "trainer.algorithm.policy_loss_type", "actor.use_decoupled_loss",
)  # fmt: skip
"""Keys that are written although every text of the system has them: without them it ignores the correction."""


def overrides(config: CorrectionConfig, system: str, loss: LossConfig | None = None) -> str | None:
    """Return a line with the keys that differ from the system's own defaults, below a comment with its version.

    Return None if the system has no such command line. Raises `UsageError` as `export` does.

    >>> print(overrides(CorrectionConfig(rollout_is="token"), "verl"))
    # verl 0.9.1
    algorithm.rollout_correction.rollout_is=token actor_rollout_ref.rollout.calculate_log_probs=true
    """
    added = FACTS[system].line
    if added is None:
        return None
    text = export(config, system, loss)
    defaults = dict(_leaves(default_text(system)))
    changed = {
        key: value for key, value in _leaves(text) if key in NEEDED or key not in defaults or defaults[key] != value
    }
    infinite = {} if system == "SkyRL" else {".inf": "inf", "-.inf": "-inf"}  # OmegaConf reads YAML, Hydra its own
    line = " ".join(_override(added, key, infinite.get(value, value)) for key, value in changed.items())
    version = next(comment for comment in text.splitlines() if comment.startswith(f"# {system}"))
    return f"{version}\n{line}"


def _leaves(text: str) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, value as it is written) of a block mapping with two spaces for each level."""
    parents: list[str] = []
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        name, _, value = line.strip().partition(":")
        parents = [*parents[: (len(line) - len(line.lstrip())) // 2], name]
        if value:
            yield ".".join(parents), value.strip()


def _override(added: str, key: str, value: str) -> str:
    """Return an override, quoted for the shell. Hydra takes 0.5_2 for a number and a,b for a sweep, unless quoted."""
    plus = "++" if key.startswith(NEW_IN_VERL) else added
    if re.fullmatch(r"[A-Za-z]\w*|-?[\d.]+(e[-+]?\d+)?|-?\.?inf", value):
        return f"{plus}{key}={value}"
    if value.startswith("${"):
        return f"'{plus}{key}={value}'"
    inner = value.strip("'")
    return f"\"{plus}{key}='{inner}'\""
