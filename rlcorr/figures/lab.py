"""The pictures of the Lab without their points, which `lab_part.js` writes while the networks learn."""

from collections.abc import Sequence

from rlcorr.figures.axes import power_axis
from rlcorr.figures.canvas import COOL, CUT, KEPT, REJECTED, WARM, Figure, Part, fade, figure, line, vertical_line

UPDATE = "update"
"""Title of the axis whose end is the number of updates, which `lab_part.js` sets."""
ARMS = {"no correction": REJECTED, "this correction": KEPT}
"""Name on the page → colour, in the order of the curves."""
PARTS = {
    "ess": ("effective sample size", {"range": [-0.02, 1.02], "tickformat": ".0%"}),
    "clipped": ("weights changed", {"range": [-0.02, 1.02], "tickformat": ".0%"}),
    "mean_ratio": ("mean ratio", power_axis(0.1, 10)),
    "k3": ("k3", power_axis(1e-6, 10)),
    "kl": ("KL to the start", power_axis(1e-4, 100)),
}
"""Name in `rlcorr.lab.Curves` → title, and axis."""


def curves() -> Figure:
    """Return the reward over the steps: for each arm the interval of its mean over the seeds, and the mean."""
    return _over_steps({"title_text": "reward", "range": [0, 1]}, list(ARMS.items()), height=320)


def part(name: str) -> Figure:
    """Return one number of the correction over the steps, a key of `PARTS`, and for `kl` what the penalty shows."""
    arms = [("this correction", KEPT)] if name in ("ess", "clipped") else list(ARMS.items())
    return _over_steps(
        PARTS[name][1], [*arms, *([("what the penalty shows", CUT)] if name == "kl" else [])], height=170
    )


def _over_steps(y: Part, arms: Sequence[tuple[str, str]], *, height: int) -> Figure:
    traces = [part for name, colour in arms for part in (_band(colour), line(name, [], [], colour))]
    return figure(traces, height=height, x={"title_text": UPDATE, "range": [0, 120]}, y=y, legend=len(arms) > 1)


def _band(colour: str) -> Part:
    """Return an area that is drawn as one outline: there along its lower edge and back along its upper one."""
    return line(
        "", [], [], fade(colour, 0), fill="toself", fillcolor=fade(colour, 0.2), hoverinfo="skip", showlegend=False
    )


def over_threshold(thresholds: Sequence[float]) -> Figure:
    """Return the reward at the end over the threshold, with that of no correction, and a line to drag."""
    name, colour = list(ARMS.items())[1]
    traces = [
        _band(REJECTED), line("no correction", [], [], REJECTED), _band(colour),
        line(name, [], [], colour, mode="lines+markers", marker={"size": 5, "color": colour}),
    ]  # fmt: skip
    ticks = [t for t in (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64) if thresholds[0] <= t <= thresholds[-1]]
    x = power_axis(thresholds[0], thresholds[-1]) | {"title_text": "threshold: tighter ← → looser"}
    x |= {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
    shapes = [vertical_line(x=1, colour=colour, dash="solid", width=2)]
    return figure(traces, height=320, x=x, y={"title_text": "reward at the end", "range": [0, 1]}, shapes=shapes)


def gains(ages: Sequence[float], rates: Sequence[float]) -> Figure:
    """Return what the correction adds to the reward at the end, over the age of the sampler and the learning rate."""
    cells: Part = {
        "type": "heatmap", "name": "gain", "x": [f"{rate:g}" for rate in rates], "y": [f"{age:g}" for age in ages],
        "z": [[None] * len(rates) for _ in ages], "zmin": -0.5, "zmax": 0.5, "xgap": 2, "ygap": 2,
        "colorscale": [[0, fade(WARM, 0.75)], [0.5, fade(REJECTED, 0.15)], [1, fade(COOL, 0.75)]], "showscale": False,
        "texttemplate": "%{z:+.2f}", "hovertemplate": "age %{y}, rate %{x}: %{z:+.2f}<extra></extra>",
    }  # fmt: skip
    # Axes that are there before the first cell
    x, y = ({"type": "category", "categoryarray": cells[of], "range": [-0.5, len(cells[of]) - 0.5]} for of in "xy")
    x["title_text"], y["title_text"] = "learning rate", "age of the sampler, in updates"
    return figure([cells], height=330, x=x, y=y)
