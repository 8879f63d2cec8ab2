"""The sweep against a loop over tokens at every kind of bound, against correct(), and against what verl computed."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import oracle
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from reference import VERL, batch, config
from rules_under_test import RULES_UNDER_TEST
from torch import Tensor

from rlcorr.analysis.sweep import BoundMetrics, Sweep, sweep_rule, sweep_weights
from rlcorr.config import CorrectionConfig
from rlcorr.correction import blocks, correct
from rlcorr.errors import UsageError
from rlcorr.measuring.measure import evaluate
from rlcorr.measuring.metric_definitions import PREFIX
from rlcorr.ratios import log_ratio
from rlcorr.rejection import rule_statistic
from rlcorr.rules import RULE_NAMES, RejectionRule
from rlcorr.types import CorrectionResult, TokenBatch

INF = math.inf
NAMES = [name for name, (*_, applies_to) in RULE_NAMES.items() if applies_to == "all"]
# (lower, upper) for every rule of the divergence. e^(±1/4) and (1/4)²/2 lie on values of the batches of oracle.pairs.
ON_RATIO = [
    (None, 1.3), (None, 1.0), (None, INF), (None, math.exp(0.25)), (None, 0.8), (0.6, 1.7), (0.9, INF), (1.0, 1.0),
    (math.exp(-0.25), math.exp(0.25)), (1.2, 3.0), (INF, INF), (1e-300, 1e300),
]  # fmt: skip
ON_DIFFERENCE = [(None, 0.05), (-0.02, 0.3), (-0.3, INF), (-INF, 0.001), (None, INF)]
ON_DIVERGENCE = [(None, 0.01), (None, 0.03125), (None, 0.5), (None, 8.0), (None, INF)]
BOUNDS = {
    "k1": ON_RATIO,
    "prob_diff": ON_DIFFERENCE,
    "signed_kl": ON_DIFFERENCE,
    "mult_error": [(None, 1.0), (None, 1.1), (None, 2.0), (None, 9.0), (None, INF)],
}


def rule(name: str, applies_to: str = "all") -> RejectionRule:
    """With a bound that is not looked at."""
    return RejectionRule.named(name if applies_to == "all" else f"{name}_{applies_to}", upper=3.0)


# --- the oracle: a loop over tokens ---


@dataclass
class Token:
    row: int
    d: float
    statistic: float
    droppable: bool


def concerned(applies_to: str, d: float, advantage: float) -> bool:
    if applies_to == "negative":
        return not advantage >= 0
    return applies_to == "all" or not d * advantage <= 0


def tokens(pairs: oracle.Pairs, advantages: oracle.Rows, swept: CorrectionConfig | RejectionRule) -> list[Token]:
    of_tokens = []
    for b, mask in enumerate(pairs.mask):
        old, rollout, advantage = (oracle.real(x[b], mask) for x in (pairs.old, pairs.rollout, advantages))
        d = [o - r for o, r in zip(old, rollout, strict=True)]
        if isinstance(swept, RejectionRule):
            per_token = oracle.divergences(swept.divergence, old, rollout)
            how, hit = swept.reduce, [concerned(swept.applies_to, *pair) for pair in zip(d, advantage, strict=True)]
        else:
            how = {"token": None, "sequence": "sum", "geometric": "mean"}[str(swept.rollout_is)]
            per_token, hit = d, [swept.rollout_is_mode == "mask"] * len(d)
        whole = per_token if how is None else [oracle.reduce(per_token, how)] * len(d)
        of_tokens += [Token(b, *token) for token in zip(d, whole, hit, strict=True)]
    return of_tokens


@dataclass
class Question:
    """One pair of bounds, on the statistic as the batch's dtype holds them."""

    swept: CorrectionConfig | RejectionRule
    lower: float | None
    upper: float
    low: float
    high: float

    @property
    def weights(self) -> bool:
        return isinstance(self.swept, CorrectionConfig)

    @property
    def per_sequence(self) -> bool:
        swept = self.swept
        return swept.reduce is not None if isinstance(swept, RejectionRule) else swept.rollout_is != "token"

    def trained_weight(self, token: Token) -> float:
        inside = self.low <= token.statistic <= self.high
        if isinstance(self.swept, RejectionRule):
            return float(inside or not token.droppable)
        if self.swept.rollout_is_mode == "mask":
            return oracle.ratio(token.statistic) if inside else 0.0
        return oracle.clamp(oracle.ratio(token.statistic), self.lower or 0.0, self.upper)

    def floor(self) -> float:
        """Where fraction_low starts: weights without a lower bound are counted below 1/upper."""
        return -self.high if self.weights and self.lower is None else self.low


def question(swept: CorrectionConfig | RejectionRule, lower: float | None, upper: float, dtype: str) -> Question:
    on_log = isinstance(swept, CorrectionConfig) or swept.divergence == "k1"
    low = -INF if lower is None else math.log(lower) if on_log else lower
    high = math.log(upper) if on_log else upper
    if dtype != "float64":
        low, high = torch.tensor([low, high], dtype=torch.float32).tolist()
    return Question(swept, lower, upper, low, high)


def expected(of_tokens: list[Token], asked: Question) -> dict[str, float]:
    """Every field from its formula, Σ by Σ."""
    v = [asked.trained_weight(token) for token in of_tokens]
    kept = [token for token, x in zip(of_tokens, v, strict=True) if x != 0]
    items = list({token.row: token for token in of_tokens}.values()) if asked.per_sequence else of_tokens
    rows = {token.row for token in of_tokens}
    lost = {token.row for token, x in zip(of_tokens, v, strict=True) if x == 0}
    ratios = [x for x in v if x != 0] if asked.weights else [oracle.ratio(token.d) for token in kept]
    return {
        "kept_fraction": len(kept) / len(of_tokens) if of_tokens else 0.0,
        "seq_kept_fraction": 1 - len(lost) / len(rows) if rows else 0.0,
        "rollout_is_mean": oracle.mean(v),
        "rollout_is_std": oracle.std(v),
        "rollout_is_eff_sample_size": oracle.ess(v),
        "fraction_high": oracle.mean([float(item.statistic > asked.high) for item in items]),
        "fraction_low": oracle.mean([float(item.statistic < asked.floor()) for item in items]),
        "oob_ratio": oracle.mean([float(t.statistic < asked.low or t.statistic > asked.high) for t in of_tokens]),
        "kept_kl": oracle.mean([-token.d for token in kept]),
        "kept_k3_kl": oracle.mean([oracle.divergence("k3", token.d, 0.0) for token in kept]),
        "kept_chi2": oracle.mean([r * r for r in ratios]) - 1 if ratios else 0.0,
    }


def doubtful(of_tokens: list[Token], asked: Question) -> bool:
    """float32 may see a statistic on the other side of a bound. Sums, extremes and squares of the grid are exact."""
    if isinstance(asked.swept, RejectionRule):
        how, name = asked.swept.reduce, asked.swept.divergence
        exact = name == "k1" and how != "mean"
        margin = 2e-3 if name in ("binary_kl", "signed_kl", "forward_kl") else 1e-4
    else:
        exact, margin = asked.swept.rollout_is != "geometric", 1e-4
    bounds = (asked.low, asked.high, asked.floor())
    near = [abs(t.statistic - x) for t in of_tokens for x in bounds if not math.isinf(x)]
    return not exact and any(0 < gap < margin * max(1.0, abs(asked.high)) for gap in near if math.isfinite(gap))


def assert_answer(got: BoundMetrics[float], of_tokens: list[Token], asked: Question) -> None:
    """To rounding of float32, of the largest weight, and, if the bounds exclude r = 1, of what lies in between."""
    skipped = [t for t in of_tokens if asked.high < t.statistic < 0 or 0 <= t.statistic < asked.low]
    between = max((oracle.ratio(t.d) ** 2 for t in skipped), default=0.0)
    v = [x for x in map(asked.trained_weight, of_tokens) if not math.isnan(x)]
    for name, value in expected(of_tokens, asked).items():
        absolute = 1e-6
        if name.startswith("rollout_is"):
            absolute *= max(1.0, *v, 0.0)
        if name == "kept_chi2":
            absolute = max(absolute, 1e-13 * between)
        assert getattr(got, name) == pytest.approx(value, rel=1e-5, abs=absolute, nan_ok=True), name


def beyond(of_tokens: list[Token], asked: Question) -> bool:
    """The limit that `at` tells: infinite or overwhelming tokens between r = 1 and bounds that exclude it."""
    skipped = [t for t in of_tokens if asked.high < t.statistic < 0 or 0 <= t.statistic < asked.low]
    v = [x for x in map(asked.trained_weight, of_tokens) if x != 0]
    return bool(skipped) and (any(math.isinf(t.d) for t in skipped) or all(abs(x) < 1e-4 for x in v))


def check(pairs: oracle.Pairs, advantages: oracle.Rows, swept: CorrectionConfig | RejectionRule) -> None:
    given = with_advantages(oracle.to_batch(pairs), advantages)
    index = sweep_rule(given, swept) if isinstance(swept, RejectionRule) else weights_of(given, swept)
    of_tokens = tokens(pairs, advantages, swept)
    for lower, upper in bounds_of(swept):
        asked = question(swept, lower, upper, pairs.dtype)
        if not doubtful(of_tokens, asked) and not beyond(of_tokens, asked):
            assert_answer(index.at(upper, lower), of_tokens, asked)


def bounds_of(swept: CorrectionConfig | RejectionRule) -> list[tuple[float | None, float]]:
    if isinstance(swept, RejectionRule):
        return BOUNDS.get(swept.divergence, ON_DIVERGENCE)
    return [pair for pair in ON_RATIO if swept.rollout_is_mode == "mask" or pair[0] != INF]


def with_advantages(given: TokenBatch, advantages: oracle.Rows) -> TokenBatch:
    return given.replace(advantages=torch.tensor(advantages).reshape(given.response_mask.shape))


def weights_of(given: TokenBatch, settings: CorrectionConfig) -> Sweep:
    assert settings.rollout_is is not None
    return sweep_weights(given, settings.rollout_is, settings.rollout_is_mode)


def signs(pairs: oracle.Pairs) -> oracle.Rows:
    """A few advantages of each sign, 0 and NaN included, so that rules concern some tokens of a row."""
    pattern = [1.0, -1.0, -0.5, 0.0, math.nan, 2.0, -1.0]
    return [[pattern[(3 * b + t) % 7] for t in range(pairs.columns)] for b in range(len(pairs.mask))]


@oracle.examples(72)
@given(oracle.pairs(), st.sampled_from(["token", "sequence", "geometric"]), st.sampled_from(["truncate", "mask"]))
def test_weights(pairs: oracle.Pairs, level: str, mode: str) -> None:
    settings = CorrectionConfig(rollout_is=level, rollout_is_mode=mode)  # pyright: ignore[reportArgumentType]
    check(pairs, signs(pairs), settings)


@oracle.examples(220)
@given(oracle.pairs(), st.sampled_from(NAMES), st.sampled_from(["all", "negative", "outward"]))
def test_rule(pairs: oracle.Pairs, name: str, applies_to: str) -> None:
    check(pairs, signs(pairs), rule(name, applies_to))


@oracle.examples(60)
@given(oracle.pairs(wild=False), st.sampled_from(NAMES), st.floats(0.01, 1))
def test_the_bound_that_keeps_a_share(pairs: oracle.Pairs, name: str, share: float) -> None:
    """It keeps at least the share, and the next smaller value of the statistic keeps less."""
    assume(any(any(mask) for mask in pairs.mask))
    index, of_tokens = sweep_rule(oracle.to_batch(pairs), rule(name)), tokens(pairs, signs(pairs), rule(name))
    bound = index.upper_for(share)
    assume(name != "mult_error" or bound >= 1)
    assert index.at(bound).kept_fraction >= share
    assume(bound > 5e-324)  # the smallest bound there is
    cut = math.log(bound) if name.endswith("k1") else bound
    below = [t.statistic for t in of_tokens if t.statistic < cut - 2e-3 * max(1, abs(cut))]
    assert len(below) / len(of_tokens) < share


# --- correct(), at bounds that lie exactly on its own statistics ---


def noisy(rows: int = 6, columns: int = 5, dtype: torch.dtype = torch.float32) -> TokenBatch:
    """Noise, holes, a NaN, an outlier, a row of one token and a row of none."""
    some = torch.Generator().manual_seed(0)
    rollout = -3 * torch.rand(rows, columns, generator=some, dtype=torch.float64) - 0.5
    noise = torch.randn(rows, columns, generator=some, dtype=torch.float64)
    old = (rollout + 0.3 * noise).clamp(max=0)
    mask = torch.rand(rows, columns, generator=some) < 0.8
    mask[-2:] = False
    mask[-2, 1] = mask[0, :2] = mask[1, 3] = True
    old[0, 0], old[1, 3] = math.nan, rollout[1, 3] - 6
    given = TokenBatch(response_mask=mask, rollout_log_probs=rollout.to(dtype), old_log_probs=old.to(dtype))
    return given.replace(advantages=torch.randn(rows, columns, generator=some))


def direct(given: TokenBatch, result: CorrectionResult, weights: bool) -> dict[str, float]:
    """Sums over what correct() returned."""
    mask = given.response_mask
    v = torch.where(result.keep_mask, result.weights, 0).double()
    kept, rows = mask & (v != 0), mask.any(-1)
    on_kept = result.log_ratio[kept].double()
    c = on_kept.clamp(-20, 20)
    r = v[kept] if weights else c.exp()
    v = v[mask]
    return {
        "kept_fraction": float(kept.sum() / mask.sum()),
        "seq_kept_fraction": float((kept == mask).all(-1)[rows].double().mean()),
        "rollout_is_mean": float(v.mean()),
        "rollout_is_std": float(v.std(correction=0)),
        "rollout_is_eff_sample_size": float(v.sum() ** 2 / (len(v) * v.square().sum())) if kept.any() else 0.0,
        "kept_kl": float(-on_kept.mean()) if kept.any() else 0.0,
        "kept_k3_kl": float((c.exp() - 1 - c).mean()) if kept.any() else 0.0,
        "kept_chi2": float(r.square().mean() - 1) if kept.any() else 0.0,
    }


def on_values(statistic: Tensor, logarithmic: bool) -> Iterator[float]:
    """Bounds on values of the statistic, and one step of float64 beside each."""
    for value in statistic.double().unique().tolist():
        if math.isfinite(value):
            bound = math.exp(value) if logarithmic else value
            yield from (bound, math.nextafter(bound, -INF), math.nextafter(bound, INF))


def assert_same(got: BoundMetrics[float], want: dict[str, float], case: object) -> None:
    for name, value in want.items():
        assert getattr(got, name) == pytest.approx(value, rel=1e-5, abs=1e-6, nan_ok=True), (case, name)


def test_rules_agree_with_correct() -> None:
    for name, dtype in zip(RULES_UNDER_TEST, itertools.cycle((torch.float32, torch.float64))):
        assert_rule_agrees_with_correct(name, dtype)


def assert_rule_agrees_with_correct(name: str, dtype: torch.dtype) -> None:
    given, swept = noisy(5, 4, dtype), RejectionRule.named(name, upper=3.0)
    index = sweep_rule(given, swept)
    assert given.old_log_probs is not None
    d = log_ratio(given.old_log_probs, given.rollout_log_probs, given.response_mask)
    statistic = rule_statistic(swept, given, d).expand_as(d)[given.response_mask]
    asked = 0
    for bound in on_values(statistic, swept.divergence == "k1"):
        two_sided = swept.divergence in ("k1", "prob_diff", "signed_kl")
        lower = {"k1": 1.0, "prob_diff": -0.05, "signed_kl": -0.05}.get(swept.divergence) if two_sided else None
        for low, high in ((None, bound), (lower, bound), (bound, 2.0)):
            try:
                settings = CorrectionConfig(rollout_rs=(replace(swept, lower=low, upper=high),))
            except UsageError:  # this value is no bound of such a rule
                continue
            want = direct(given, correct(given, settings), weights=False)
            assert_same(index.at(high, low), want, (name, dtype, low, high))
            asked += 1
    assert asked >= 6, name


@pytest.mark.parametrize("mode", ["truncate", "mask"])
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_weights_agree_with_correct(level: str, mode: str) -> None:
    for dtype in (torch.float32, torch.float64):
        given = noisy(dtype=dtype)
        given = given.replace(response_mask=given.response_mask & ~given.old_log_probs.isnan())  # pyright: ignore[reportOptionalMemberAccess]
        settings = CorrectionConfig(rollout_is=level, rollout_is_mode=mode)  # pyright: ignore[reportArgumentType]
        index = weights_of(given, settings)
        for bound in on_values(index.statistic, logarithmic=True):
            for low, high in ((None, bound), (min(bound, 0.7), bound), (bound, max(bound, 1.5))):
                bounded = replace(settings, rollout_is_threshold_lower=low, rollout_is_threshold=high)
                want = direct(given, correct(given, bounded), weights=True)
                assert_same(index.at(high, low), want, (dtype, low, high))


def test_more_than_one_block_of_rows() -> None:
    """300 rows of 1000 are two blocks of correct(), and two of the index."""
    given = noisy(300, 1000)
    assert len(blocks(given)) == 2
    for name in ("token_k3", "seq_mean_k1", "seq_max_k2_outward"):
        swept = RejectionRule.named(name, upper=1.02 if name == "seq_mean_k1" else 0.3)
        want = direct(given, correct(given, CorrectionConfig(rollout_rs=(swept,))), weights=False)
        assert_same(sweep_rule(given, swept).at(swept.upper), want, name)


def test_names_mean_what_they_mean_in_the_report() -> None:
    """Bounds that change nothing for the KLs and χ²; a bound of 1.2 for the weights; a rule for what it rejects."""
    given = oracle.to_batch(
        oracle.Pairs(
            old=[[-1.0, -0.5, -2.0], [-1.0, -0.25, 0.0]],
            rollout=[[-1.5, -0.5, -1.5], [-1.25, -0.5, 0.0]],
            mask=[[True, True, True], [True, True, False]],
            columns=3,
            dtype="float64",
        )
    )
    settings = CorrectionConfig(rollout_is="token", rollout_is_threshold=1.2)
    report = {key.removeprefix(PREFIX): x for key, x in evaluate(given, settings)[1].items()}
    got = sweep_weights(given, "token").at(1.2)
    for name in ("kept_fraction", "rollout_is_mean", "rollout_is_std", "rollout_is_eff_sample_size"):
        assert getattr(got, name) == pytest.approx(report[name])
    assert got.fraction_high == pytest.approx(report["rollout_is_ratio_fraction_high"])
    assert got.fraction_low == pytest.approx(report["rollout_is_ratio_fraction_low"])
    assert got.oob_ratio == pytest.approx(report["rollout_is_oob_ratio"])
    unbounded = sweep_rule(given, rule("token_k1")).at()
    assert unbounded.kept_kl == pytest.approx(report["kl"])
    assert unbounded.kept_k3_kl == pytest.approx(report["k3_kl"])
    assert unbounded.kept_chi2 == pytest.approx(report["chi2_token"])
    ruled = CorrectionConfig(rollout_rs=(RejectionRule.named("token_k1", upper=1.2),))
    report = {key.removeprefix(PREFIX): x for key, x in evaluate(given, ruled)[1].items()}
    got = sweep_rule(given, ruled.rollout_rs[0]).at(1.2)
    assert got.seq_kept_fraction == pytest.approx(1 - report["rollout_rs_seq_masked_fraction"])
    assert got.rollout_is_eff_sample_size == pytest.approx(report["trained_eff_sample_size"])
    assert got.fraction_high == pytest.approx(report["rollout_rs_token_k1_log_ratio_fraction_high"])


# --- verl ---

# Log-probs above 0, which a batch refuses; and a mask that verl multiplies the weights by, where we ask if it is 0.
NOT_COMPARED = ("exact_bounds", "fractional_mask")


@pytest.mark.parametrize("key", [key for key in VERL["is"] if key.endswith("bn=0")])
def test_weights_of_verl(key: str) -> None:
    """Sums over the weights that verl returned, which in bf16 have 8 bits."""
    settings = config(VERL["is"][key]["config"])
    compared = 0
    for case, golden in VERL["is"][key]["cases"].items():
        if "error" in golden or case in NOT_COMPARED:
            continue
        given = batch(case)
        rows = [[float(w) for w in row] for row in golden["weights"]]
        v = [w for row, m in zip(rows, given.response_mask.tolist(), strict=True) for w in oracle.real(row, m)]
        got = weights_of(given, settings).at(settings.rollout_is_threshold, settings.rollout_is_threshold_lower)
        rel = 2**-8 if given.rollout_log_probs.dtype == torch.bfloat16 else 1e-5
        assert got.rollout_is_mean == pytest.approx(oracle.mean(v), rel=rel, nan_ok=True), case
        assert got.rollout_is_std == pytest.approx(oracle.std(v), rel=rel, abs=rel, nan_ok=True), case
        assert got.rollout_is_eff_sample_size == pytest.approx(oracle.ess(v), rel=rel, nan_ok=True), case
        compared += 1
    assert compared >= 10


def test_masks_of_verl() -> None:
    for key in VERL["rs"]:
        if "," not in key:  # one rule alone
            assert_masks_of_verl(key)


def assert_masks_of_verl(key: str) -> None:
    swept = config(VERL["rs"][key]["config"]).rollout_rs[0]
    compared = 0
    for case, golden in VERL["rs"][key]["cases"].items():
        if "error" in golden or case in NOT_COMPARED:
            continue
        given = batch(case)
        keep = [float(m > 0) for row in golden["mask"] for m in row]
        got = sweep_rule(given, swept).at(swept.upper, swept.lower)
        assert got.kept_fraction * given.response_mask.sum().item() == pytest.approx(sum(keep)), (key, case)
        compared += 1
    assert compared >= 10, key


# --- named cases ---


def row(*log_ratios: float, dtype: torch.dtype = torch.float64) -> TokenBatch:
    """One sequence with these log-ratios: the engine gave every token log-prob −32, which keeps them exact."""
    rollout = torch.full((1, len(log_ratios)), -32.0, dtype=dtype)
    old = rollout + torch.tensor([log_ratios], dtype=dtype)
    return TokenBatch(response_mask=torch.ones_like(rollout).bool(), rollout_log_probs=rollout, old_log_probs=old)


def stacked(*rows: tuple[float, ...]) -> TokenBatch:
    """Sequences of one length, as `row`."""
    d = torch.tensor(rows, dtype=torch.float64)
    rollout = torch.full_like(d, -512.0)
    return TokenBatch.from_log_probs(rollout + d, rollout, torch.ones_like(d))


LOG2 = math.log(2)


def test_truncated_weights_by_hand() -> None:
    """r = 4, 2, 1, ½ at upper 2: w = 2, 2, 1, ½, mean 11/8, Σw² = 37/4. The bound touches the first only."""
    got = sweep_weights(row(2 * LOG2, LOG2, 0, -LOG2), "token").at(2.0)
    assert got.rollout_is_mean == pytest.approx(11 / 8, rel=1e-7)
    assert got.rollout_is_std == pytest.approx(math.sqrt(37 / 16 - (11 / 8) ** 2), rel=1e-6)
    assert got.rollout_is_eff_sample_size == pytest.approx(5.5**2 / 37)
    assert got.kept_chi2 == pytest.approx(37 / 16 - 1)
    assert (got.fraction_high, got.oob_ratio, got.kept_fraction) == (0.25, 0.25, 1.0)
    assert got.kept_kl == pytest.approx(-LOG2 / 2)


def test_masked_weights_are_a_rule_on_the_same_ratio() -> None:
    """What IcePop keeps and what the rule on the same statistic keeps are the same tokens with the same KL."""
    given = noisy()
    for level, name in (("token", "token_k1"), ("sequence", "seq_sum_k1"), ("geometric", "seq_mean_k1")):
        masked = asdict(sweep_weights(given, level, "mask").at(1.2, 0.7))  # pyright: ignore[reportArgumentType]
        ruled = asdict(sweep_rule(given, rule(name)).at(1.2, 0.7))
        assert 0 < masked["kept_fraction"] < 1
        for field in ("kept_fraction", "seq_kept_fraction", "oob_ratio", "kept_kl", "kept_k3_kl"):
            assert masked[field] == ruled[field]
        if level == "token":
            assert masked["kept_chi2"] == ruled["kept_chi2"]


def test_sequences_of_different_lengths_count_by_their_tokens() -> None:
    """Rows of 3 tokens with r = 2 each and 1 token with r = ½, geometric: means over tokens, shares over rows."""
    d = torch.tensor([[LOG2] * 3, [-LOG2] * 3], dtype=torch.float64)
    given = TokenBatch.from_log_probs(d - 9, d * 0 - 9, torch.tensor([[1, 1, 1], [0, 1, 0]]))
    got = sweep_weights(given, "geometric", "mask").at(1.5)
    assert got.rollout_is_mean == pytest.approx(0.5 / 4)
    assert (got.kept_fraction, got.seq_kept_fraction) == (1 / 4, 1 / 2)
    assert (got.fraction_high, got.oob_ratio) == (1 / 2, 3 / 4)
    assert got.fraction_low == 1 / 2  # ½ < 1/1.5
    assert sweep_weights(given, "geometric", "mask").at(2.5).fraction_low == 0.0  # ½ > 1/2.5


def test_a_rule_that_concerns_some_tokens_keeps_the_others_of_a_rejected_row() -> None:
    """seq_max_k2 = 2 > 1 drops the row, but of its tokens only those with A < 0: 1 of 3."""
    given = row(2.0, 0.0, 0.0).replace(advantages=torch.tensor([[1.0, -1.0, 0.0]]))
    got = sweep_rule(given, rule("seq_max_k2", "negative")).at(1.0)
    assert got.kept_fraction == pytest.approx(2 / 3)
    assert got.seq_kept_fraction == 0
    assert (got.oob_ratio, got.fraction_high) == (1.0, 1.0)
    assert got.kept_kl == -1.0


def test_a_small_mismatch_keeps_its_digits() -> None:
    """d = ±2⁻³⁰: mean w − 1 = d²/2 and std = d, where 1 + d in float64 would leave seven digits of the variance."""
    rollout = torch.full((1, 2), -1e-3, dtype=torch.float64)
    old = rollout + torch.tensor([[2.0**-30, -(2.0**-30)]])
    given = TokenBatch.from_log_probs(old, rollout, torch.ones(1, 2))
    plus, minus = (old - rollout)[0].tolist()
    got = sweep_weights(given, "token").at(2.0)
    assert got.rollout_is_std == pytest.approx((math.expm1(plus) - math.expm1(minus)) / 2, rel=1e-9)
    assert got.kept_k3_kl == pytest.approx((plus**2 + minus**2) / 4, rel=1e-8)


def test_an_outlier_outside_of_the_bounds_costs_no_digits() -> None:
    """The first row's largest r² is e⁴⁰ = 2e17, and the rule drops it: plain prefix sums would end at 2e17 − 2e17."""
    given = stacked((20.0, -31.0), (2**-20, -(2**-20)))
    got = sweep_rule(given, rule("seq_min_k1")).at(lower=0.5)
    assert got.kept_fraction == 0.5
    d = 2.0**-20
    assert got.kept_chi2 == pytest.approx((math.expm1(2 * d) + math.expm1(-2 * d)) / 2, rel=1e-4)


def test_sequence_weights_that_have_collapsed_still_have_a_sample_size() -> None:
    """Weights e⁻¹⁹ and e⁻¹⁸: (1 + e)²/(2(1 + e²)) = 0.824, of terms near 1e-16."""
    got = sweep_weights(stacked((-9.0, -10.0), (-9.0, -9.0)), "sequence").at(2.0)
    assert got.rollout_is_eff_sample_size == pytest.approx((1 + math.e) ** 2 / (2 * (1 + math.e**2)), rel=1e-6)


def test_nan() -> None:
    """A rule and masking drop the token; truncation keeps its NaN, as correct() does. It is on neither side."""
    given = row(0.0, math.nan)
    for got in (sweep_weights(given, "token", "mask").at(), sweep_rule(given, rule("token_k1")).at()):
        assert (got.kept_fraction, got.seq_kept_fraction, got.rollout_is_mean, got.oob_ratio) == (0.5, 0.0, 0.5, 0.0)
        assert got.kept_kl == 0.0
    got = sweep_weights(given, "token", "truncate").at()
    assert (got.kept_fraction, got.oob_ratio) == (1.0, 0.0)
    assert all(math.isnan(x) for x in (got.rollout_is_mean, got.rollout_is_std, got.kept_kl, got.kept_chi2))
    assert math.isnan(got.rollout_is_eff_sample_size)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (2, 3)])
def test_nothing_to_sweep(shape: tuple[int, int]) -> None:
    nan = torch.full(shape, math.nan)
    given = TokenBatch.from_log_probs(nan, nan, torch.zeros(shape)).replace(advantages=torch.zeros(shape))
    indices = [sweep_rule(given, rule(name, to)) for name in NAMES for to in ("all", "outward")]
    indices += [sweep_weights(given, level) for level in ("token", "sequence", "geometric")]
    for index in indices:
        assert set(asdict(index.at(2.0)).values()) == {0.0}


def test_a_curve_is_its_points() -> None:
    index = sweep_weights(noisy(), "token", "mask")
    uppers = torch.tensor([0.9, 1.0, 1.3, 2.0, INF], dtype=torch.float64)
    for lower in (None, 0.5, uppers / 2):
        curve = index.curve(uppers, lower)
        lowers = lower.tolist() if isinstance(lower, Tensor) else [lower] * 5
        points = [asdict(index.at(u, x)) for u, x in zip(uppers.tolist(), lowers, strict=True)]
        assert {name: x.tolist() for name, x in asdict(curve).items()} == {
            name: [point[name] for point in points] for name in points[0]
        }
    moving_lower = index.curve(2.0, torch.tensor([0.5, 1.0]))
    assert moving_lower.kept_fraction.tolist() == [index.at(2.0, 0.5).kept_fraction, index.at(2.0, 1.0).kept_fraction]


def test_asking_changes_nothing() -> None:
    """Truncation adds what lies at the bounds to sums that belong to the answer, not to the index."""
    index = sweep_weights(row(1.0, 0.5, -1.0), "token")
    first = index.at(1.2, 0.8)
    index.curve(torch.tensor([1.0, 3.0]))
    assert index.at(1.2, 0.8) == first


def test_the_bound_that_keeps_90_percent() -> None:
    """Ten tokens, d = 0.1 … 1: nine lie at or below e^0.9; e^0.95 is as far as it need not go."""
    index = sweep_weights(row(*[k / 10 for k in range(1, 11)]), "token", "mask")
    assert index.upper_for(0.9) == pytest.approx(math.exp(0.9))
    assert index.at(index.upper_for(0.9)).kept_fraction == 0.9
    assert index.upper_for(0.85) == index.upper_for(0.9) < index.upper_for(0.91)
    assert sweep_rule(row(*[k / 10 for k in range(1, 11)]), rule("token_k2")).upper_for(0.5) == pytest.approx(0.125)


def test_the_share_is_of_all_tokens() -> None:
    """Truncation drops nothing, and the rule only A < 0, the last token. Yet half of the tokens lie at or below e^½."""
    given = row(-0.5, 0.5, 1.0, 1.5).replace(advantages=torch.tensor([[1.0, 1.0, 1.0, -1.0]]))
    for index in (sweep_weights(given, "token", "truncate"), sweep_rule(given, rule("token_k1", "negative"))):
        assert index.upper_for(0.5) == math.exp(0.5)
        assert index.upper_for(1.0) == math.exp(1.5)


def test_the_bound_that_keeps_a_share_of_the_extreme() -> None:
    """Perfect agreement has k3 = 0, which is no bound: the smallest positive float is. e^±1000 are no floats."""
    assert sweep_rule(row(0.0, 0.0), rule("token_k3")).upper_for(0.9) == 5e-324
    index = sweep_weights(stacked((500.0, 500.0), (-500.0, -500.0)), "sequence", "mask")
    assert (index.upper_for(1.0), index.at(index.upper_for(0.5)).kept_fraction) == (INF, 0.5)
    assert sweep_weights(stacked((355.0, 354.875)), "sequence", "mask").upper_for(1.0) == INF  # e^709.8 is none either


@pytest.mark.parametrize(("share", "reachable"), [(0.6, "0.5"), (0.0, "0.5"), (1.5, "0.5"), (math.nan, "0.5")])
def test_no_bound_keeps_that_share(share: float, reachable: str) -> None:
    with pytest.raises(UsageError, match=f"the share {share}; .* at most {reachable}"):
        sweep_rule(row(0.0, math.nan), rule("token_k1")).upper_for(share)


def test_no_bound_for_no_token() -> None:
    with pytest.raises(UsageError, match="at most 0 here"):
        sweep_weights(row(), "token").upper_for(0.5)


@pytest.mark.parametrize(
    ("name", "upper", "lower", "message"),
    [
        ("token_k3", 1.0, 0.1, "takes only an upper bound"),
        ("token_k1", 0.5, 2.0, "lower bound 2.0 is above upper bound 0.5"),
        ("token_k1", 0.0, None, "upper bound must be > 0"),
        ("token_prob_diff", 0.1, 0.05, "lower bound must be < 0"),
        ("seq_max_mult_error", 0.5, None, "never below 1"),
        ("token_k1", math.nan, None, "upper bound must be > 0"),
    ],
)
def test_bounds_are_checked_as_in_the_configuration(name: str, upper: float, lower: float, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sweep_rule(row(0.0), rule(name)).at(upper, lower)


def test_bounds_of_weights_are_checked() -> None:
    with pytest.raises(UsageError, match=r"lower bound 3\.0 is above upper bound 2\.0"):
        sweep_weights(row(0.0), "token").curve(torch.tensor([4.0, 2.0]), 3.0)
    with pytest.raises(UsageError, match="unknown rollout_is"):
        sweep_weights(row(0.0), "tokens")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="unknown rollout_is_mode"):
        sweep_weights(row(0.0), "token", "clip")  # pyright: ignore[reportArgumentType]


def test_what_is_missing_is_named() -> None:
    given = TokenBatch(response_mask=torch.ones(1, 1, dtype=torch.bool), rollout_log_probs=torch.zeros(1, 1))
    for index in (lambda: sweep_weights(given, "token"), lambda: sweep_rule(given, rule("token_k1"))):
        with pytest.raises(UsageError, match="needs old_log_probs"):
            index()
    with pytest.raises(UsageError, match="no advantages"):
        sweep_rule(row(0.0), rule("token_k1", "negative"))
