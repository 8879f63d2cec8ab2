"""Sentences of the static site, which also uses sentences of the app."""

from dataclasses import replace

from text import start
from text.pages import PAGES

TITLE = "rlcorr: the gap between the policy that samples and the policy that is trained"
NAVIGATION = {
    "start": "Start",
    "bench": PAGES["bench"].title,
    "mismatch": "Mismatch",
    "gradient": "Gradient",
    "study": "Study",
}
TRY = "Try it: drag the threshold"
TRY_IS = (
    "A training run with an 8-bit KV cache in the engine. Weights to the left of the threshold stay as they are. "
    "Weights to the right of it are cut. Watch the orange bars and the numbers."
)
THREE = "Three training runs"
STORIES = (
    start.HEALTHY,
    replace(
        start.STALE,
        press="Compare the tokens with the lines of the four methods.",
        changes="A method caps the weights of the tokens outside its lines, or rejects these tokens.",
    ),
    start.LONG,
)
"""The methods of STALE cannot be chosen on the static site, so it has another task."""
DROPPED = (
    "This page shows recorded runs only and cannot read files. To see your own data, install rlcorr: clone the project "
    "and run make app. Then open http://localhost:8501 and drop the file onto “Your data”. It stays on your machine."
)
FROM_A_FILE = (
    "Only the Start page works, because this page was opened as a file, and the browser lets such a page read no other "
    "files. Serve its folder, for example with python3 -m http.server, and open http://localhost:8000."
)
LATE = "This part could not be loaded."
WRONG = "The address names {name}, which this page does not have. Showing {shown}."
RECORDED = "{slug} · step {step}: {story}"
LESSONS = "Lessons"
LESSONS_ARE = "The lessons are notebooks. Clone the project, run `make learn`, and open a lesson."
NO_CURVE = (
    "There is no curve over the threshold. Either it changes no token of this step, or the preset has no gradient per "
    "token."
)
NO_SKETCH = "No gradients were recorded for this run. Choose another."
