"""Options that several verbs have, each declared once with its help."""

from typing import Annotated

import tyro

RunName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(help="Name of a run, or its directory.")]
ClampRounding = Annotated[
    bool,
    tyro.conf.arg(
        help="Set log-probs above 0, up to 0.125, to 0, because bfloat16 rounds numbers near 0 up. Without this option "
        "they are refused."
    ),
]
Details = Annotated[
    bool,
    tyro.conf.arg(help="Print the diagnosis of every step, missing fields, measured gaps and tables, too."),
]
