"""verl's own tests of its helper, from its wheel, with ours (rlcorr/recorders/verl_helper.py) in the helper's place."""

import os
import sys

import pytest
from verl_peer import PEERS, load

from rlcorr.recorders import verl_helper

FOLDER = PEERS / "tests" / "trainer" / "ppo"
TESTS = [str(FOLDER / f"test_rollout_corr{part}.py") for part in ("", "_integration")]


def main() -> int:
    verl = load()
    sys.modules[verl.helper.__name__] = verl_helper
    # Neither our settings nor our plugins: warnings are errors here, and verl's tests have some.
    options = ["-q", "-c", os.devnull, "--rootdir", str(PEERS), "-p", "no:cacheprovider", "--noconftest"]
    code = pytest.main([*TESTS, *options, "-p", "no:nbval", "-p", "no:xdist"])
    assert sys.modules[verl.helper.__name__] is verl_helper
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
