"""The newest version of each system that was read, and the package that brings it.

`tests/peers/newest.py`, a part of `make peers`, fails when the Python package index has a newer version.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Version:
    """A version of a system whose source was read."""

    version: str
    """Version of the package, or a commit, a date or a release if the system is not on the index."""
    package: str | None = None
    """Name on the Python package index; None if the system is not there."""


READ = {
    "verl": Version("0.9.1", "verl"),
    "SkyRL": Version("0.4.0", "skyrl"),
    "TRL": Version("1.16.0", "trl"),
    "OpenRLHF": Version("0.11.2", "openrlhf"),
    "prime-rl": Version("2026-09"),
    "AReaL": Version("1.0.4", "areal"),
    "slime": Version("v0.3.2"),
    "NeMo RL": Version("commit 006907a9"),
    "ROLL": Version("v0.3.0"),
    "open-instruct": Version("commit e6c3044a"),
    "ms-swift": Version("4.6.0", "ms-swift"),
    "xtuner": Version("commit b934f462"),
    "torchtitan": Version("0.3.0", "torchtitan"),
    "Unsloth": Version("2026.10.9", "unsloth"),
    "axolotl": Version("0.21.0", "axolotl"),
    "miles": Version("commit 10944efb"),
    "rLLM": Version("commit 06bffb24"),
    "ART": Version("0.5.23", "openpipe-art"),
    "Tinker": Version("0.6.1", "tinker-cookbook"),
    "Agent Lightning": Version("1.0.2", "agentlightning"),
}
"""System → what was read. NeMo RL's package on the index is a placeholder, version 0.0.0."""


def packages() -> dict[str, str]:
    """Return {package: version that was read} of the systems on the Python package index.

    >>> packages()["openpipe-art"]
    '0.5.23'
    """
    return {read.package: read.version for read in READ.values() if read.package is not None}


def unlisted() -> list[str]:
    """Return the systems that are not on the Python package index, where a newer version could be looked up.

    >>> unlisted()[:2]
    ['prime-rl', 'slime']
    """
    return [system for system, read in READ.items() if read.package is None]
