"""What every page says about its link, its controls and the projector."""

COPY = "Copy link"
LINK = {"link": "Link to this view", "copied": "Copied", "press": "Press Ctrl+C to copy"}
PROJECTOR = "Projector"
PROJECTOR_HELP = "Large type, figures too, and fewer words. In a link: projector=1."
WRONG_PROJECTOR = "projector={got!r} is not known; using 0. Known: 0, 1."

HIDEABLE = {
    "navigation": "the links to the other views",
    "run_picker": "the pickers of run and step",
    "upload": "the box for a file of one's own",
    "preset": "the picker of the preset",
    "bounds": "the sliders and boxes of the bounds",
    "choices": "what is weighed and rejected",
    "methods": "the picker of the methods in the mismatch view",
    "budget": "the budget",
    "use_it": "the configuration, ready to copy",
    "second": "what is picked of B in the comparison",
    "training": "the form that starts a training, and the button that stops it",
    "explanations": "“What is this?”",
    "links": "“Copy link” and the projector switch",
}
"""Name in hide= → what it hides."""
WRONG_HIDE = "{error} Nothing is hidden for it."
