"""Sentences of the page for a person's own data."""

import re

from rlcorr.foreign.import_run import ImportSummary

# --- the box ---

DROP = "Drop your files here"
RECORD = {
    "verl: how to record": (
        "export RLCORR_VERL=record RLCORR_RUN=my_run",
        "python -m verl.trainer.main_ppo … actor_rollout_ref.rollout.calculate_log_probs=True",
        "# then drop the files of runs/local/my_run/steps here",
    ),
    "TRL: how to record": (
        "from rlcorr.recorders.trl import RecordPairs",
        'trainer = GRPOTrainer(…, args=GRPOConfig(…, use_vllm=True), callbacks=[RecordPairs("my_run")])',
        "# then drop the files of runs/local/my_run/steps here",
    ),
    "SkyRL: how to record": (
        "from rlcorr.recorders.skyrl import record_pairs",
        'trainer.add_callback(record_pairs("my_run"))  # with generator.sampling_params.logprobs=1',
        "# then drop the files of runs/local/my_run/steps here",
    ),
}
"""Tab → the lines that record both log-probs."""
HINTS = {
    ".zip": "Unpack it, and drop the files that are in it.",
    ".gz": "Unpack it, and drop the file that is in it.",
    ".csv": "A cell of such a table holds no list of numbers. Write JSON Lines: one answer per line, with a list for "
    "each column.",
    ".txt": "If each line is a JSON object, name the file .jsonl.",
}
"""Ending → what to do with such a file, after the sentence that it is not read."""
NOT_SENT = (
    "A file did not arrive; its reason is beside its name. If it is too large, drop one file per step or per rank: "
    "this server takes {limit} MB, and a proxy before it may take less (413). The command python -m rlcorr report "
    "reads Parquet files of any size."
)
REFUSED = "Nothing was read. Drop another file."
EXAMPLE = "You have not dropped a file yet. As an example, the page shows the recorded run {run}."


def read_line(name: str, summary: ImportSummary) -> str:
    """Return the line that the box folds to after files have been read."""
    steps = "" if summary.steps == 1 else f", {summary.steps} steps"
    return f"{name}: {summary.responses:,} answers, {summary.tokens:,} tokens{steps}"


def answers(sentence: str) -> str:
    """Return a sentence of the library with "answer" for "response", and minus signs at which no browser breaks a line.

    >>> answers("k3 is 4e-5 in response 7 (responses 7, 9), see response_mask.")
    'k3 is 4e−5 in answer 7 (answers 7, 9), see response_mask.'
    """
    return re.sub(r"(?<=\de)-(?=\d)", "−", re.sub(r"\bresponse(s?)\b", r"answer\1", sentence))


# --- what to set ---

SEE_TOKEN = "See token {column} of answer {row}"
SEE_TOKENS = "See the tokens"
STRIP = (
    "Is this gap normal?",
    "Each point is a measured gap, open if this project measured it: point at it for the model and the source. Larger "
    "points are larger models.",
)
DO_THIS = "Do this"
TAKE = "Correction to copy"
DEFAULT = "{system}'s default"
EFFECT = "On step {step} this {does}."
ACTS_NOT = "Nothing is corrected."
OR = "Or: {name}"
OPEN = "Open it in the bench"
EFFECTS = "What each would do to your tokens"
EFFECTS_ARE = (
    "Green: kept. Purple: weight clipped. Grey: teaches nothing. Measured on step {step}. Click a row to take it."
)
KEEP = "Keep at least"
KEEPS = ("80 %", "85 %", "90 %", "95 %", "98 %", "99 %", "99.5 %", "99.9 %")
KEEP_DEFAULT = "99 %"
KEEP_IS = (
    "The last rows are the strictest setting of each kind that still keeps this share (dotted line). A cap on weights "
    "keeps every token, so no share can choose it; published caps are 2 to 5."
)
SUGGESTED = {
    "decoupled_token_icepop": "band of each token's weight",
    "decoupled_geo_rs": "mean ratio of an answer",
    "decoupled_k3_rs": "mean k3 of an answer",
}
"""Preset whose bounds a budget moves, one for each kind of bound that rejects tokens or gives them weight 0 → what its
threshold limits. A product over an answer is not among them, because its threshold depends on the length."""
PROMISED = "chosen to keep {share:g} %"
NO_TEXT = "{system} cannot express it"
WHICH_LEARNS = (
    "A share says what a threshold costs, not whether training gets better. For that see the study on the Training "
    "page, or the Gradient page for a run with score sketches."
)
CARD = "The decision card: cause, setting, evidence"

NO_GRADIENT = (
    "{name} has log-probs, and log-probs alone do not give one a gradient. What a threshold costs your tokens is on "
    "the bench. What it does to a gradient step is shown for a recorded run with a gap like yours."
)
GRADIENT_LINKS = ("Open the bench", "Open a recorded run")

# --- details ---

DETAILS = "Details: averages, tail, shorter answers"
THIS_STEP = "Step {step}"
ALL_STEPS = "Over all recorded steps:"
WITHOUT = "without the token"
AVERAGES = ("", "mean", WITHOUT, "trimmed", "median")
"""Columns of the sizes of the gap; the third only if tokens are named."""
AVERAGES_ARE = {
    WITHOUT: "The mean over all tokens except those that the verdict names.",
    "trimmed": "The mean without the 1 % of the tokens with the largest |Δ|.",
}
BANDS = ("ratios within", "tokens", "answers")
BANDS_ARE = {
    "ratios within": "Distance of the ratio from 1.",
    "tokens": "Share of the tokens whose ratio is within the band.",
    "answers": "Share of the answers whose geometric mean of the token ratios is within the band.",
}
BY_LENGTH = "The thresholds that keep {share} on shorter answers"
BY_LENGTH_IS = (
    "A limit on a token does not depend on the length. A limit on a mean does, so longer answers need another."
)
LIMITED = "what is limited"
FIRST, WHOLE = "first {length:,}", "whole, up to {length:,}"


def size_name(label: str) -> str:
    """Return the name of a row of the sizes, whose columns say which average it is.

    >>> size_name("Mean |Δ|")
    '|Δ|'
    """
    return label.removeprefix("Mean ")
