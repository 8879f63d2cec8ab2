"""Sampling with a cut, in the texts of the systems that replay the sampler's support."""

import pytest

from rlcorr.errors import UsageError
from rlcorr.systems.support_replay import support_replay_text


def test_each_text_is_the_one_of_its_systems_documentation() -> None:
    expected = {
        "SkyRL": "# SkyRL 0.4.0\ntrainer:\n  algorithm:\n    enable_sample_support_replay: true\ngenerator:\n"
        "  sampling_params:\n    top_p: 0.95\n    top_k: 64\n    logprobs: 1\n"
        "  inference_engine:\n    enable_return_sample_support_set: true\n",
        "TRL": "# TRL 1.17, by itself according to its release; before, every ratio is multiplied by the kept share\n"
        "GRPOConfig(\n    use_vllm=True,\n    top_p=0.95,\n    top_k=64,\n)\n",
        "prime-rl": "# prime-rl, pull request 3431: a cut is always replayed\n[orchestrator.train.sampling]\n"
        "top_p = 0.95\ntop_k = 64\n",
        "miles": "# miles, guide Sampling-Support Replay: a cut is always replayed, without a KL to the reference\n"
        "--rollout-top-p 0.95 \\\n--rollout-top-k 64 \\\n--use-miles-router\n",
    }
    for system, text in expected.items():
        assert support_replay_text(system, top_p=0.95, top_k=64) == text
    assert support_replay_text("slime", top_p=0.9).splitlines()[-1] == "--rollout-top-p 0.9"
    assert support_replay_text("prime-rl", top_p=0.9).splitlines()[-1] == "top_k = 512"
    assert "top_k=0" in support_replay_text("TRL", top_p=0.9)


@pytest.mark.parametrize(
    ("system", "top_p", "top_k", "message"),
    [
        ("verl", 0.9, -1, "verl has no replay .* nearest: top_p 1 and top_k -1, or one of SkyRL, TRL"),
        ("SkyRL", 1.0, -1, "nothing to replay"),
        ("SkyRL", 0.0, -1, "top_p must be above 0"),
        ("SkyRL", 0.9, 0, "top_k -1 or positive; got 0.9 and 0"),
        ("prime-rl", 0.9, 1000, "at most 512 tokens"),
        ("slime", 0.9, 50, "top-p only; nearest: top_k -1"),
        ("miles", 0.9, -1, "needs a positive top_k"),
    ],
)
def test_a_cut_that_cannot_be_replayed_is_refused(system: str, top_p: float, top_k: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        support_replay_text(system, top_p=top_p, top_k=top_k)
