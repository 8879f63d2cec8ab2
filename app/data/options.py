"""What can be picked on the pages: the options of fields of state.py, in the words that pages and addresses have."""

from rlcorr import PRESETS
from rlcorr.analysis.regions import TOKEN_METHODS, has_region
from rlcorr.analysis.token_story import RowOrder
from rlcorr.lab import Experiment

ORDERS: dict[RowOrder, str] = {
    "off": "mean ratio furthest from 1 first", "recorded": "as recorded", "lowest": "lowest reward first",
    "highest": "highest reward first", "rejected": "most rejected first",
}  # fmt: skip
"""Order of the responses on Tokens → its words."""
REPAIRS = {
    "clamp_rounding": "Read log-probs between 0 and 0.125 as 0: rounding to bfloat16 made them positive",
    "nan_is_ratio_one": "Leave out tokens whose engine log-prob is NaN",
    "leave_out_aborted": "Leave out answers for which one side has no log-prob, such as aborted ones",
    "join": "Join the rows that several files have of one step: shards, or a file per micro-batch",
}
"""Option of `rlcorr import` → what its box says. Without it, such files are refused with the option's name."""
KEEPS, KEEP_DEFAULT = ("80 %", "85 %", "90 %", "95 %", "98 %", "99 %", "99.5 %", "99.9 %"), "99 %"
"""Shares of the tokens that the budgets of Your data keep."""
LESSONS, CARD, GLOSSARY, PAPERS, TEACHING = LEARN = ("Lessons", "Decision card", "Glossary", "Papers", "Teaching")
"""Parts of Learn."""
OFFERED = TOKEN_METHODS | {name: entry.config for name, entry in PRESETS.items() if has_region(entry.config)}
DRAWN = ["TIS", "IcePop", "KPop", "DPPO"]
"""The methods that can be drawn, and those that are if nobody picks others."""
TRAINING = ("Runs", "Study", "Train")
"""Parts of Training."""
FIXES = NOTHING, CAP, REJECT = ("nothing", "cap", "reject")
START_USUAL, START_LOW, START_HIGH = 2.0, 1.002, 20.0
"""Corrections of Start; the threshold of the last two, and its range."""
LAB = {name: value for name, value in vars(Experiment()).items() if name != "seeds"}
"""Setting of the Lab → its default."""
HIDEABLE = {
    "navigation": ("the links to the other views", ".st-key-navigation"),
    "run_picker": (
        "the pickers of run and step",
        ".st-key-pickers:not(:has(.st-key-preset)), .st-key-run, .st-key-step, .st-key-run_state",
    ),
    "upload": ("the box for your own files", ".st-key-upload"),
    "preset": ("the picker of the preset", ".st-key-preset"),
    "bounds": (
        "the sliders and number boxes of the thresholds",
        ".rl-resets, [data-slider^=live_]:not([data-slider^='live_b.'])",
    ),
    "choices": ("the choice of weights and rejection rules", ".st-key-choices"),
    "methods": ("the picker of the methods on the Mismatch page", ".st-key-methods"),
    "budget": ("the budget", ".st-key-budget"),
    "paste": ("the box for a configuration of verl, SkyRL or TRL", ".st-key-paste"),
    "use_it": ("the export of the configuration", ".st-key-use_it"),
    "second": (
        "the pickers of B on the Compare page",
        ".st-key-second, .st-key-second_choices, [data-slider^='live_b.']",
    ),
    "training": (
        "the buttons that start and stop a training run",
        ".st-key-train, .st-key-live_stop, .st-key-part button:last-of-type",
    ),
    "explanations": ("“What is this?”", ".st-key-what_is_this"),
    "links": ("“Copy link” and the projector switch", ".st-key-links"),
}
"""Name in hide= → what it hides, and its CSS selector. Hidden controls keep their values."""
