"""Sentences of the static site, which also uses sentences of the app."""

from dataclasses import dataclass, replace

from text import start
from text.pages import PAGES
from text.tours import STUDY

TITLE = "rlcorr: the gap between the policy that samples and the policy that is trained"
NAVIGATION = {
    name: PAGES[name].title for name in ("start", "yours", "mismatch", "bench", "gradient", "kl", "compare", "lab")
}
NAVIGATION["study"] = "Study"
READ = "Read the lessons"


@dataclass(frozen=True)
class SiteStory:
    """A story of the Start page with a view of the site, which its link opens, in place of its tour."""

    told: start.Story
    view: str
    query: tuple[tuple[str, str], ...] = ()
    """The query of the view, if it is not run and preset."""


STORIES = (
    SiteStory(start.HEALTHY, "bench"),
    SiteStory(start.STALE, "mismatch"),
    SiteStory(start.LONG, "bench"),
    SiteStory(replace(start.COLLAPSING, button="Open the study"), "study", (("study", STUDY),)),
)
"""Those whose run or study is on the site are shown."""

# --- own data ---

OWN = (
    "This site has no server and computes nothing, so it cannot read your file. The app can: it runs on your machine, "
    "and the file stays there. Clone the project, and type in its folder:"
)
OWN_COMMAND = 'make app ARGS="--file my_log_probs.jsonl"'
OWN_THEN = (
    "The first time, this sets up a virtual environment, which takes two to five minutes. Then it prints the address "
    "of the page Your data with your file: the likely cause of the mismatch, what your system ships, thresholds by "
    "budget, and the configuration to copy. The file can be .jsonl, .parquet, .npz, .pt or .safetensors, with the "
    "log-probs of the engine and of the trainer: rollout_log_probs and old_log_probs, or the names of NeMo RL, "
    "prime-rl, slime, SkyRL or verl."
)

# --- what only the app has ---

ONLY_APP = "This view is only in the app"
ONLY_APP_IS = "Clone the project, type make app in its folder, and open this address:"
EVERY_VIEW, ONE_VIEW = "In every view", "Only in Mismatch"
"""Two groups of runs in the picker."""

# --- what the script says ---

WORDS = {
    "APP": "In the app",
    "FROM_A_FILE": "Only the Start page works, because this page was opened as a file, and the browser lets such a "
    "page read no other files. Serve its folder, for example with python3 -m http.server, and open "
    "http://localhost:8000.",
    "LATE": "This part could not be loaded.",
    "WRONG": "The address names {name}, which this page does not have. Showing {shown}.",
    "OTHER_STEP": "The address names step {step}. This site has only the last recorded step of this run, step {shown}.",
    "NEAREST": "{value} is not a value that this site has. Showing the nearest one, {shown}.",
    "ONE_BOUND": "One threshold at a time can differ from the preset's numbers here. {name} is shown at the preset's "
    "number.",
    "NO_SKETCH": "No gradients were recorded for this run. Choose another.",
    "NO_CURVE": "There is no curve over the threshold. Either it changes no token of this step, or the preset has no "
    "gradient per token, or no threshold.",
    "ONE_AT_A_TIME": "While you drag one threshold, the others have the preset's numbers: the site has a file for "
    "each threshold, not for every combination. In the app they all move independently.",
    "NO_SLIDER": "No value of {name} changes a token of this step, so it has no slider here.",
    "DROPPED": "This page cannot read {name}. The command below opens a file in the app.",
    "ONLY_MISMATCH": "Of this run the site has only the Mismatch view, so that it does not become too large. Choose "
    "another run, or open this one in the app.",
}
"""What the script says, by the names that it has there."""

# --- views ---

RECORDED = "{label} · step {step}: {story}"
CURVES_OVER = (
    "The whole correction at every value of “{label}”; the other thresholds have the preset's numbers. Dotted: the "
    "present value. You can drag this line."
)
LESSONS = "Lessons"
LESSONS_ARE = "The lessons are notebooks. Clone the project, run `make learn`, and open a lesson."
COMPARE = (
    "The same step under two presets, A and B. Which tokens they disagree on, and how their gradients differ, is in "
    "the app, at this address:"
)

# --- the study ---

REWARD = (
    "Mean over the seeds; the band goes from the lowest seed to the highest. Dotted: the mean of the first step, "
    "before a correction has changed anything"
)
STUDY_LINK = "([Study `{name}`](#view=study&study={name}).)"
FRESH = ", and the reward at the end of a training run without the mismatch"
