"""A finished run, loaded again for prediction."""

from pathlib import Path

from torch import Tensor, nn

from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.runs.manifest import intact_record
from dpvd.runs.metrics import predict_dist
from dpvd.runs.model_file import load_model
from dpvd.runs.network import NetworkSpec
from dpvd.runs.own_run import OWN
from dpvd.runs.prediction_sets import PredictionSets, class_scores
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
        self.record = intact_record(folder)
        if self.record.table:
            raise DpvdError(f"the run in {folder} is one on a table: open it with TrainedTable")
        if self.record.model["network"].get("kind") == OWN:
            raise DpvdError(
                f"the run in {folder} is of a model of one's own, which only its code can build:"
                " open it with dpvd.runs.load_own_model"
            )
        self.network = NetworkSpec.from_dict(self.record.model["network"])
        self.model = self._load(folder / MODEL)

    def predict_dist(self, x: Tensor, samples: int = 32) -> tuple[Tensor, Tensor]:
        """Class probabilities of raw examples, and their spread between weight samples."""
        inputs = self.network.head_inputs(self.model, x)
        return predict_dist(self.network.trained(self.model), inputs, samples=samples)

    def predict_sets(self, x: Tensor, coverage: float) -> Tensor:
        """Which classes are in the sets of raw examples, bool [n, classes].

        The true class is in the set with a probability of at least ``coverage``, less what the
        record says is lost to noise; see `PredictionSets.sets`.

        Raises:
            DpvdError: if the run has released nothing that sets can be made from.
        """
        if not self.record.prediction_sets:
            raise DpvdError(
                "this run has released nothing to make prediction sets from, and to do so now would"
                " cost privacy: train with --prediction-sets 0.1"
            )
        sets = PredictionSets.from_dict(self.record.prediction_sets)
        inputs = self.network.head_inputs(self.model, x)
        return sets.sets(class_scores(self.network.trained(self.model), inputs), coverage)

    def _load(self, path: Path) -> nn.Module:
        model = load_model(lambda: self.network.build(loaded=True), path, self.record.model)
        # Whoever trains it further goes on counting.
        whole = {"plan": self.record.plan, "steps": self.record.guarantee["steps"]}
        for entry in self.record.releases or [whole]:
            remember(model, PrivacyPlan.from_dict(entry.get("plan", {})), entry.get("steps", -1))
        return model.eval()
