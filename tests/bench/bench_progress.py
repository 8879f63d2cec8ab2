"""Does the share of the progress rank corrections as a step of training does? One step of `stale_8` of the study.

η is measured on all likely answers to some prompts. Then each correction steps from the same weights along its gradient
of the same sampled batches, with the length that is best on half of them; the progress of the expected reward, which is
exact for a task with one right answer, is measured with the other half, on prompts that neither has seen.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from exact_training import trained
from torch import Tensor

from rlcorr.config import CorrectionConfig, LossConfig
from rlcorr.correction import correct
from rlcorr.gradients.bootstrap import interval_of
from rlcorr.gradients.report import compare
from rlcorr.gradients.sketch import ExactSketch
from rlcorr.losses.objective import policy_loss
from rlcorr.presets import preset
from rlcorr.records.study import find_study
from rlcorr.records.study_comparisons import rank_correlation
from rlcorr.train.inputs.tasks import examples
from rlcorr.train.inputs.tokenizer import encode
from rlcorr.train.learner.policy import Policy
from rlcorr.train.learner.ranks import ALONE
from rlcorr.train.learner.score import score, whitened, with_advantages
from rlcorr.train.rollout.collect import batch_of, collect
from rlcorr.train.rollout.engine import Samples, to_batch
from rlcorr.train.session.session import Session
from rlcorr.types import TokenBatch

STEP, PROMPTS, JUDGED = 20, 512, 512
BATCHES, BATCH_SIZE = 32, 256
DRAWN_FROM = 2_000_003
"""Added to the seed of the prompts: another draw than the training's and the sketch's."""
LENGTHS = torch.tensor([0.005 * 2 ** (n / 2) for n in range(10)])
"""Of a step, in parameter space, if a batch's gradient has its root mean square length."""


@dataclass(frozen=True)
class Steps:
    """What one correction's steps gain: expected reward after the step minus before."""

    gained: Tensor  # (lengths, batches)

    @property
    def best(self) -> int:
        """The length that gains most on the first half of the batches."""
        return int(self.gained[:, : BATCHES // 2].mean(1).argmax())

    @property
    def checked(self) -> Tensor:
        """(batches / 2,) what it gains on the second half."""
        return self.gained[self.best, BATCHES // 2 :]


def main() -> None:
    study = find_study("stale_8")
    names = list(dict.fromkeys(arm.name for arm in study.arms))
    (arm,) = (arm for arm in study.arms if arm.name == "decoupled_seq_is" and arm.seed == 0)
    asked = f"--steps {STEP} --sketch.every {STEP} --sketch.exact-prompts {PROMPTS}"
    sketch, steps = trained((*arm.options, *asked.split()), lambda session: stepped(session, names))
    for line in lines(names, sketch, steps):
        print(line, flush=True)


def stepped(session: Session, names: list[str]) -> list[Steps]:
    batches = list(drawn(session))
    return [steps_of(session, preset(name), batches) for name in names]


def drawn(session: Session) -> Iterator[TokenBatch]:
    """Batches of the engine, which still has the weights that sampled, with advantages as an update sees them."""
    config = session.config
    stream = examples(session.worker.task, config.seed + DRAWN_FROM)
    for number in range(BATCHES):
        some = list(itertools.islice(stream, BATCH_SIZE))

        def sample(some: list = some, number: int = number) -> TokenBatch:
            sampling = config.rollout.sampling
            collected = collect(session.worker, some, samples=1, sampling=sampling, version=0, seed=number)
            return batch_of(collected, session.ranks.device)

        batch = score(session.queue.run_exclusive(sample), session.policy, session.reference, config, ALONE)
        batch = with_advantages(batch, config.advantage)
        yield whitened(batch, correct(batch, CorrectionConfig()), config.advantage)


def steps_of(session: Session, correction: CorrectionConfig, batches: list[TokenBatch]) -> Steps:
    policy, temperature = session.policy, session.config.rollout.scored_temperature
    parameters = [parameter for parameter in policy.lm.parameters() if parameter.requires_grad]
    gradients = []
    for batch in batches:
        log_probs = policy(batch, temperature).log_probs
        loss, _ = policy_loss(log_probs, batch, correct(batch, correction), correction, LossConfig())
        of_batch = torch.autograd.grad(loss, parameters)
        gradients.append(torch.cat([-gradient.flatten() for gradient in of_batch]))
    usual = torch.stack([gradient.norm() for gradient in gradients]).square().mean().sqrt().clamp(min=1e-12)
    judged = right_answers(session)
    before = torch.nn.utils.parameters_to_vector(parameters).detach().clone()
    start = expected_reward(policy, judged, temperature)
    gained = torch.zeros(len(LENGTHS), len(batches))
    for row, length in enumerate(LENGTHS):
        for column, gradient in enumerate(gradients):
            torch.nn.utils.vector_to_parameters(before + length / usual * gradient, parameters)
            gained[row, column] = expected_reward(policy, judged, temperature) - start
    torch.nn.utils.vector_to_parameters(before, parameters)
    return Steps(gained)


def right_answers(session: Session) -> TokenBatch:
    """The one answer to each held-out prompt that is rewarded, with its end."""
    worker = session.worker
    some = list(itertools.islice(examples(worker.task, 0, held_out=True), JUDGED))
    bos = encode(worker.tokenizer, "")
    answers = [[*encode(worker.tokenizer, example.answer)[len(bos) :], worker.eos_ids[0]] for example in some]
    prompts = [encode(worker.tokenizer, example.prompt) for example in some]
    return to_batch(prompts, Samples(answers, [[0.0] * len(ids) for ids in answers], None), session.ranks.device)


@torch.no_grad()
def expected_reward(policy: Policy, judged: TokenBatch, temperature: float) -> float:
    """The mean probability of the right answer."""
    log_probs = policy(judged, temperature).log_probs
    return float(torch.where(judged.response_mask, log_probs, 0).double().sum(-1).exp().mean())


def lines(names: list[str], sketch: ExactSketch, steps: list[Steps]) -> Iterator[str]:
    corrections = [preset(name) for name in names]
    ranking = compare(sketch.answers.batch, sketch, corrections, LossConfig(), batch_sizes=(BATCH_SIZE,))
    eta = ranking.progress[:, 0]  # (C, 1 + R)
    gained = torch.stack([of_one.checked for of_one in steps])  # (C, batches / 2)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(gained.shape[1], (eta.shape[1] - 1, gained.shape[1]), generator=generator)
    rows = torch.cat([torch.arange(gained.shape[1])[None], rows])
    means = gained[:, rows].mean(-1)  # (C, 1 + R)
    yield f"stale_8, step {STEP}, {BATCH_SIZE} answers in a batch: what a step of the best length gains in reward"
    for name, of_one, share, mean in zip(names, steps, eta, means, strict=True):
        predicted, measured = interval_of(share, signed=False), interval_of(mean, signed=True)
        yield (
            f"  {name:<24} η {predicted.value:.3f} [{predicted.low:.3f}, {predicted.high:.3f}]   gains "
            f"{measured.value:.4f} [{measured.low:.4f}, {measured.high:.4f}]   length {float(LENGTHS[of_one.best]):.3f}"
        )
    both = zip(eta.T.tolist(), means.T.tolist(), strict=True)
    agreed = interval_of(torch.tensor([rank_correlation(a, b) for a, b in both]), signed=True)
    yield f"  rank correlation {agreed.value:.2f} [{agreed.low:.2f}, {agreed.high:.2f}]"
