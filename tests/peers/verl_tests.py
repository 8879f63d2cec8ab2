"""verl's own tests of its helper, from its wheel, with ours (rlcorr/systems/verl_helper.py) in the helper's place."""

import sys

import pytest
from verl_peer import PEERS, load

from rlcorr.systems import verl_helper

FOLDER = PEERS / "tests" / "trainer" / "ppo"
TESTS = [str(FOLDER / f"test_rollout_corr{part}.py") for part in ("", "_integration")]


def main() -> int:
    verl = load()
    sys.modules[verl.helper.__name__] = verl_helper
    code = pytest.main([*TESTS, "-q", "-p", "no:cacheprovider", "-p", "no:nbval", "-p", "no:xdist", "--rootdir",
                        str(PEERS), "-o", "addopts=", "--noconftest"])  # fmt: skip
    assert sys.modules[verl.helper.__name__] is verl_helper
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
