"""What the page without installation says, beside what the app says."""

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
TRY = "Try it: drag the bound"
TRY_IS = (
    "A training whose engine keeps its cache in 8 bits. Left of the bound the weights stay as they are, right of it "
    "they are cut. Watch the orange bars and the numbers."
)
THREE = "Three trainings"
STORIES = (
    start.HEALTHY,
    replace(
        start.STALE,
        press="Compare the tokens with the lines of the four methods.",
        changes="Tokens outside a method's lines are what it caps or rejects.",
    ),
    start.LONG,
)
"""Here the methods cannot be chosen."""
DROPPED = (
    "This page shows recorded runs only and does not read files. To see your own, install rlcorr: clone the project "
    "and run make app, open http://localhost:8501 and drop the file onto “Your data”. It stays on your machine."
)
FROM_A_FILE = (
    "This page was opened as a file, and then a browser lets it read nothing else: only the Start page works. Serve "
    "its folder, for example with python3 -m http.server, and open http://localhost:8000."
)
LATE = "This part could not be loaded."
WRONG = "The address names {name}, which this page does not have; showing {shown}."
RESET = "Reset to the preset's numbers"
RECORDED = "{slug} · step {step}: {story}"
LESSONS = "Lessons"
LESSONS_ARE = "The lessons are notebooks: clone the project, run `make learn`, and open the one that you want."
NO_CURVE = "No curve over the bound: it changes no token of this step, or the preset has no gradient for each token."
NO_SKETCH = "No gradients were recorded for this run. Choose another."
