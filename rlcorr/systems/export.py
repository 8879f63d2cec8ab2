"""A configuration as text to carry away: verl's and SkyRL's keys as YAML, and Python."""

import math
from dataclasses import fields
from typing import Any

import yaml

from rlcorr.config import CorrectionConfig
from rlcorr.errors import UsageError
from rlcorr.rules import RejectionRule
from rlcorr.systems.skyrl import to_skyrl
from rlcorr.systems.verl import to_verl


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


def to_verl_yaml(config: CorrectionConfig) -> str:
    """verl's `algorithm.rollout_correction`. Raises `UsageError` for what verl cannot do."""
    return yaml.safe_dump({"algorithm": {"rollout_correction": to_verl(config)}}, sort_keys=False)


def to_skyrl_yaml(config: CorrectionConfig) -> str:
    """SkyRL's `trainer.algorithm.off_policy_correction`. Raises `UsageError` for what SkyRL cannot do."""
    return yaml.safe_dump({"trainer": {"algorithm": {"off_policy_correction": to_skyrl(config)}}}, sort_keys=False)


def exports(config: CorrectionConfig) -> list[tuple[str, str, str]]:
    """(title, language, text) of each form; where a system cannot do it, a comment that says why."""
    forms = [("verl", "yaml", to_verl_yaml), ("SkyRL", "yaml", to_skyrl_yaml), ("Python", "python", to_python)]
    written = []
    for title, language, write in forms:
        try:
            text = write(config)
        except UsageError as error:
            text = f"# cannot be expressed: {error}"
        written.append((title, language, text))
    return written


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        rules = ", ".join(map(_rule, value))
        return f"({rules},)"
    return "math.inf" if isinstance(value, float) and math.isinf(value) else repr(value)


def _rule(rule: RejectionRule) -> str:
    bounds = [] if rule.lower is None else [f"lower={_literal(rule.lower)}"]
    bounds += [] if math.isinf(rule.upper) else [f"upper={_literal(rule.upper)}"]
    return f'RejectionRule.named("{rule.name}", {", ".join(bounds)})'
