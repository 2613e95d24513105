"""A finished run, loaded again for prediction."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.runs.metrics import predict_dist
from dpvd.runs.network import NetworkSpec
from dpvd.runs.record import RunRecord
from dpvd.runs.run_dir import MODEL
from dpvd.training import remember

__all__ = ["TrainedRun"]


class TrainedRun:
    """Model and record of a finished run.

    Args:
        folder: where the run is.

    Raises:
        DpvdError: if the folder holds no finished run, or its files are damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.record = RunRecord.read(folder)
        self.network = NetworkSpec.from_dict(self.record.model["network"])
        self.model = self._load(folder / MODEL)

    def predict_dist(self, x: Tensor, samples: int = 32) -> tuple[Tensor, Tensor]:
        """Class probabilities of raw examples, and their spread between weight samples."""
        inputs = self.network.inputs(x)
        return predict_dist(self.model, inputs, samples=samples)

    def _load(self, path: Path) -> nn.Module:
        model = self.network.build()
        try:
            model.load_state_dict(load_file(path))
        except (SafetensorError, OSError) as error:
            raise DpvdError(f"the model {path} cannot be read: {error}") from error
        except RuntimeError as error:  # other names or shapes of parameters
            raise DpvdError(
                f"the model {path} does not fit the network in the record beside it"
            ) from error
        # Whoever trains it further goes on counting.
        remember(model, PrivacyPlan.from_dict(self.record.plan), self.record.guarantee["steps"])
        return model.eval()
