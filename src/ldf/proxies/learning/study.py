"""Label a case, train every model for every seed, score them and repair them: what the paper's tables are made of.

All of it lies in a folder and goes on there when it was stopped: labels by shard, runs by checkpoint, scores by file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ...io.text import Progress, write_whole
from ..answering.certifier import Certifier
from ..answering.repair import Projection
from ..data import dataset
from ..data.labelling import DatasetError, label, read_manifest
from ..data.sampling import Sampling
from ..problem import Problem
from .evaluation import Scores, evaluate
from .network import Rows
from .training import MODELS, Trained, baselines, recipe_named, train

SCORES = "scores.json"
PROJECTED = 1e-5
"""The tolerance of the violations table: projections keep the laws up to that of the solver, a hundred times less."""


@dataclass(frozen=True)
class Study:
    """One data set and everything trained on it.

    Args:
        problem: the network.
        sampling: of the demands.
        rows: labels, train and test together.
        folder: where all of it lies.
    """

    problem: Problem
    sampling: Sampling
    rows: int
    folder: Path
    workers: int | None = None
    progress: bool | None = None

    @property
    def labels(self) -> Path:
        """The data set's folder."""
        return self.folder / "labels"

    @property
    def labelled(self) -> bool:
        """Whether the data set is complete."""
        try:
            return bool(read_manifest(self.labels)["complete"])
        except DatasetError:
            return False

    def folder_of(self, run: Run) -> Path:
        """Where a run lies."""
        return self.folder / f"{run.recipe}-{run.epochs}" / f"{run.model}-{run.seed}"

    def done(self, run: Run) -> bool:
        """Whether it is trained and scored."""
        return (self.folder_of(run) / SCORES).exists()

    def repairs_of(self, run: Run, rows: int) -> Path:
        """The file of a run's repaired test rows."""
        return self.folder_of(run) / f"repairs-{rows}.json"

    def label(self) -> dataset.Dataset:
        """The data set; what is missing is made."""
        label(self.problem, self.rows, self.sampling, self.labels, workers=self.workers, progress=self.progress)
        return dataset.load(self.labels, self.problem)

    def train(self, runs: Sequence[Run]) -> None:
        """Train them on all cores; those that are there already are kept."""
        todo = [run for run in runs if not self.done(run)]
        jobs = [(str(self.labels), str(self.folder_of(run)), asdict(run)) for run in todo]
        self._parallel(_train, jobs, "run", f"{self.problem.name} {self.sampling.mode}")

    def scores(self, run: Run) -> Scores:
        """Errors and violations of a run on the test rows."""
        return Scores(**json.loads((self.folder_of(run) / SCORES).read_text()))

    def trained(self, run: Run) -> Trained:
        """The network of a run."""
        return Trained.load(self.folder_of(run), self.problem)

    def baselines(self) -> dict[str, Scores]:
        """Errors and violations of what a network has to beat."""
        data = dataset.load(self.labels, self.problem)
        _, test = data.split()
        return {name: evaluate(predict(test), test) for name, predict in baselines(data).items()}

    def repair(self, runs: Sequence[Run], rows: int) -> dict[Run, list[dict[str, Any]]]:
        """Project the first test rows of every run: for each its certificate, and how far the controls moved."""
        jobs = [
            (str(self.labels), str(self.folder_of(run)), rows)
            for run in runs
            if not self.repairs_of(run, rows).exists()
        ]
        self._parallel(_repair, jobs, "repair", f"{self.problem.name} {self.sampling.mode}")
        return {run: json.loads(self.repairs_of(run, rows).read_text()) for run in runs}

    def _parallel(self, work: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], unit: str, note: str) -> None:
        from joblib import Parallel, cpu_count, delayed

        if not jobs:
            return
        line = Progress(len(jobs), unit, self.progress)
        line.update(0, lambda: note)
        pool = Parallel(n_jobs=min(self.workers or cpu_count(), len(jobs)), return_as="generator_unordered")
        for done, _ in enumerate(pool(delayed(work)(*job) for job in jobs), 1):
            line.update(done, lambda: note)


@dataclass(frozen=True)
class Run:
    """One training run."""

    recipe: str
    model: str
    seed: int
    epochs: int

    @staticmethod
    def all_of(recipe: str, seeds: int, epochs: int | None) -> list[Run]:
        """Every model for every seed, with the recipe's own epochs by default."""
        epochs = recipe_named(recipe).epochs if epochs is None else epochs
        return [Run(recipe, model, seed, epochs) for seed in range(seeds) for model in MODELS]


def _train(labels: str, folder: str, run: dict[str, Any]) -> None:
    """Train, score on the test rows and write both down: in a worker."""
    torch.set_num_threads(1)
    data = dataset.load(Path(labels))
    recipe = recipe_named(run["recipe"])
    done = train(
        data,
        run["model"],
        recipe,
        seed=run["seed"],
        epochs=run["epochs"],
        folder=Path(folder),
        facts={"data": str(Path(labels).resolve())},
        progress=False,
    )
    _, test = data.split()
    scores = evaluate(done.proxy.predict(Rows.of(test)), test)
    write_whole(Path(folder) / SCORES, json.dumps(asdict(scores), indent=1) + "\n")


def _repair(labels: str, folder: str, rows: int) -> None:
    """Repair the first test rows of a run and write down what was found: in a worker."""
    torch.set_num_threads(1)
    _, test = dataset.load(Path(labels)).split()
    test = test.take(torch.arange(min(rows, len(test))))
    trained = Trained.load(Path(folder), test.problem)
    certifier, projection = Certifier(test.problem, PROJECTED), Projection(test.problem.solver())
    predicted = trained.proxy.predict(Rows.of(test)).numpy()
    found = []
    for demand, state, best in zip(test.demand.numpy(), predicted, test.objective.tolist(), strict=True):
        found.append(certifier.answer(demand, state, projection, optimum=best).to_dict())
    write_whole(Path(folder) / f"repairs-{rows}.json", json.dumps(found) + "\n")
