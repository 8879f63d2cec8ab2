"""What the Learn page says."""

LESSONS, GLOSSARY, SHEET, TEACHING = PARTS = ("Lessons", "Glossary", "Cheat sheet", "Teaching")

LESSONS_ARE = (
    "Notebooks that derive every formula, check it, and show it on the recorded runs. They need no network and no GPU, "
    "unless it is said. Read one here on the code host, or run it yourself:"
)
JUPYTER = ".venv/bin/jupyter lab {notebook}"
CHECK = "`make nb` runs all of them again and compares every number that they print."
FACTS = "{minutes} minutes · {level} · {needs} · {hardware}"
NEEDS, NEEDS_NOTHING = "after {lessons}", "no other lesson before it"

SEARCH = "Search the glossary"
WORDS = ["Word", "Symbol", "Meaning", "Also called"]
NOT_FOUND = "No word and no metric holds {text}."
METRICS = "Metrics of a report, under the names that the trainer logs"
METRIC_HEADER = ["Metric", "Meaning"]

SYMBOLS = r"""
| | symbol | in the code | |
|---|---|---|---|
| the engine's probability | $q = \pi_{rollout}$ | `rollout_log_probs` is $\log q$ | sampled the token |
| the trainer's | $p = \pi_{old}$ | `old_log_probs` is $\log p$ | before the update |
| log-ratio | $d = \log p - \log q$ | `log_ratio(p, q, mask)` | 0 where they agree |
| ratio | $r = p/q = e^d$ | `ratio(d)` | $E_q[r] = 1$ |
| of an answer | $\prod_t r_t = e^{\sum_t d_t}$ | `over_sequence(d, mask, "sum")` | spreads with $\sqrt T$ |
| geometric mean | $e^{\frac1T \sum_t d_t}$ | `over_sequence(d, mask, "mean")` | stays near 1 |
"""
ESTIMATORS = r"""
| of $KL(q\|p)$ | value | over tokens from $q$ | as a loss that holds $\pi_\theta$ near $\pi$ |
|---|---|---|---|
| k1 | $-d$ | unbiased, noisy, either sign | its expected gradient is 0 |
| k2 | $d^2/2$ | biased, little noise | follows $\nabla KL(\pi_\theta\|\pi)$ |
| k3 | $e^d - 1 - d$ | unbiased, never negative | follows $\nabla KL(\pi\|\pi_\theta)$ |
"""
CORRECTIONS = r"""
| | | costs |
|---|---|---|
| truncate (TIS) | $w = \min(r, C)$ | bias: ratios beyond $C$ are treated alike |
| mask (IcePop) | $w = r$ inside the bounds, else 0 | bias: what lies outside never teaches |
| reject | out if a divergence leaves its bounds | bias, and a smaller step by the kept share |
| effective sample size | $(\sum w)^2 / (n \sum w^2)$ | 1: all weights alike; $1/n$: one token decides |
| a bound $C$ on a product | $C^{1/T}$ per token | for $T = 1000$, $C = 2$: 1.0007 |
"""
MAP = "Presets: what the weights are taken of (down), what the rules look at (across)"
MAP_CORNER = "weights \\ rules"
PICK = "Look up a preset"
OPEN_PRESET = "Open it in the bench"
ALL = "All presets: what they do, where they come from, when they hurt"
ALL_HEADER = ["Preset", "System", "What it does", "When it hurts", "Source"]

TEACHING_IS = """
##### Before the day
- `make setup` once, on every machine, with a network; afterwards nothing needs one. `make app` opens the app.
- One process serves some twenty redraws a second and core. With more than ten people, let each run their own.
- Open the app once, so that the recorded runs are in memory, and try the projector in the room.

##### Links for a class
Whatever is shown is in the address. **Copy link** takes it, with run and step. `hide=` takes controls away, so that all
see the same and have one thing to move; `projector=1` gives large type and fewer words. Nothing is locked: whoever
changes the address gets everything back.
"""
BUILD = "##### Make a link"
BUILD_IS = "Run, step, preset and bounds are those that you have set in the other views."
VIEW, HIDE, LARGE, MAKE = "View", "Hide", "For the projector", "Copy this link"
HIDE_HEADER = ["In hide=", "What it hides"]
PLANS = """
##### 90 minutes
| minutes | what | with |
|---|---|---|
| 10 | Two programs, one model: why a ratio | Start, the healthy run |
| 25 | Lesson 00, both exercises | notebook |
| 15 | Where the two disagree: all methods in one picture | Mismatch, the stale run |
| 25 | Drag a bound; what it costs; find 95 % of the tokens | Correction bench, in pairs |
| 15 | Bias against noise: one round of “will it rise or fall?” | Gradient |

##### Half a day
The 90 minutes, and then
| minutes | what | with |
|---|---|---|
| 20 | One token's story, by hand with a calculator | Tokens |
| 40 | Token, sequence, geometric: the longer the answer | Correction bench, `kv_fp8_e5m2` |
| 30 | KL losses: value is not gradient | Gradient, k2 against k3 |
| 40 | Own data: drop a file, find its cause, choose a bound | every view |
| 20 | What each takes home: the configuration for their system | “Use it” |

##### What people stumble over
- The ratio's direction. Here it is always trainer over engine; some systems bound its inverse.
- “No rejection, so no bias.” A cap biases as well, and a small mismatch may need neither.
- A high kept share says nothing about the few tokens that carry the gradient: look at the effective sample size too.
- A collapse seen once proves little: ask for seeds and intervals.
"""
