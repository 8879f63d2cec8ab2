"""Two corrections of one batch, or one correction of two batches: what moves with a bound of either."""

from browser.live_part import Moving, Note, Number, Picture
from data import corrections
from words import compare as say
from words import words

from rlcorr import CorrectionConfig, TokenBatch
from rlcorr.analysis.comparison import MetricPair, agreement, metric_pairs
from rlcorr.figures import comparison, correction

HEADER = ["metric", "A", "B", "B − A"]
EXPLAINED = {"A": "explained_a", "B": "explained_b"}
HEADLINES = "headlines"


def two_corrections(batch: TokenBatch, a: CorrectionConfig, b: CorrectionConfig) -> Moving:
    """Raises `UsageError` where a correction does."""
    of_a, of_b = corrections.corrected(batch, a), corrections.corrected(batch, b)
    shared, against = comparison.mask_map(batch, of_a[0], of_b[0]), comparison.weights_against(batch, of_a[0], of_b[0])
    weights = {
        f"weights_{name}": Picture(
            correction.weight_histogram(batch, of[0], config), say.EACH.format(name=name), words.WEIGHTS
        )
        for name, config, of in (("A", a, of_a), ("B", b, of_b))
    }
    return Moving(
        numbers={
            label: Number(text, say.AGREEMENT[label])
            for label, text in say.agreement(agreement(batch, of_a[0], of_b[0])).items()
        },
        rows=[
            {
                "shared": Picture(shared, "Tokens trained on", say.MASKS),
                "weights_against": Picture(against, "Weights of B against A", say.WEIGHTS),
            },
            weights,
        ],
        texts={EXPLAINED[name]: f"{name}. {config.explain()}" for name, config in (("A", a), ("B", b))},
        **_headlines(metric_pairs(of_a[1], of_b[1])),
    )


def two_batches(a: TokenBatch, b: TokenBatch, config: CorrectionConfig) -> Moving:
    """Raises `UsageError` where the correction does."""
    pairs = metric_pairs(corrections.corrected(a, config)[1], corrections.corrected(b, config)[1])
    tails = {"tails": Picture(comparison.tails(a, b), "The tail", say.TAIL)}
    return Moving({}, [tails], texts={EXPLAINED["A"]: config.explain()}, **_headlines(pairs))


def _headlines(pairs: list[MetricPair]) -> dict:
    shown = say.pairs_table(HEADER, say.metric_rows(pair for pair in pairs if pair.key in say.HEADLINES))
    return {"tables": {HEADLINES: shown}, "notes": [Note(f"**Metrics.** {say.METRICS}", HEADLINES)]}
