"""The rejection rules that costly tests take, instead of all 132 combinations."""

from itertools import combinations

from rlcorr import PRESETS
from rlcorr.rules import RULE_NAMES
from rlcorr.systems.verl.thresholds import RULES


def part_pairs(name: str) -> set[tuple[object, object]]:
    """Return every pair of parts of a rule: of its divergence, its reduction (None: a token rule) and its scope."""
    _, divergence, reduce, applies_to = RULE_NAMES[name]
    parts = (("divergence", divergence), ("reduce", reduce), ("applies_to", applies_to))
    return set(combinations(parts, 2))


def rules_under_test() -> list[str]:
    """Return the rules in use, by a preset or by verl, and further ones until every pair of parts occurs.

    A fault is one of a divergence, a reduction or a scope, or of how two of them meet; no code looks at all three.
    """
    names = {rule.name: None for preset in PRESETS.values() for rule in preset.config.rollout_rs}
    names |= dict.fromkeys(RULES.values())
    missing = set().union(*map(part_pairs, RULE_NAMES)).difference(*map(part_pairs, names))
    while missing:
        name = max(RULE_NAMES, key=lambda name: len(part_pairs(name) & missing))
        names[name] = None
        missing -= part_pairs(name)
    return list(names)


RULES_UNDER_TEST = rules_under_test()
