"""A pytest plugin: run the lessons on recorded numbers that are each off by up to a millionth of themselves.

Another processor adds in another order, which moves results by about this much: what still passes then does not depend
on it. Use: `pytest --nbval -p perturbed_inputs lessons`.
"""

import pytest
from nbval.plugin import IPyNbFile

IN_THE_KERNEL = """
def _perturb():
    import dataclasses
    import torch
    from rlcorr.records import runs, sketch_files

    rng = torch.Generator().manual_seed(0)

    def moved(x):
        return x * (1 + 1e-6 * (2 * torch.rand(x.shape, generator=rng, dtype=torch.float64) - 1)).to(x.dtype)

    def read_step(run, step, original=runs.read_step):
        record = original(run, step)
        engine, trainer = record.batch.rollout_log_probs, record.batch.old_log_probs
        log_ratio = trainer.double() - engine.double()
        _, value, count = log_ratio.abs().unique(return_inverse=True, return_counts=True)
        old = torch.where(count[value] == 1, engine + moved(log_ratio), trainer)  # ties are the same everywhere
        return dataclasses.replace(record, batch=record.batch.replace(old_log_probs=old.to(trainer.dtype)))

    def scores(prefix, tensors, original=sketch_files._scores):
        return moved(original(prefix, tensors))

    runs.read_step = read_step
    sketch_files._scores = scores

_perturb()
"""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item):
    yield  # the first cell of a notebook has started its kernel
    notebook = item.parent
    if isinstance(notebook, IPyNbFile) and notebook not in _PERTURBED:
        _PERTURBED.add(notebook)
        kernel = notebook.kernel
        assert kernel is not None
        message = kernel.execute_cell_input(IN_THE_KERNEL, allow_stdin=False)
        kernel.await_reply(message, timeout=300)
        kernel.await_idle(message, 60)


_PERTURBED: set[IPyNbFile] = set()
