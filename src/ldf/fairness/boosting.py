"""Boosted trees with equal positive rates across groups: `FairBoostingClassifier`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.batch import Batch
from ..core.dual import Dual
from ..core.lagrangian import Lagrangian, pool
from ..io.text import Progress
from .encoding import Codes
from .estimator import FairEstimator, Forecast, Given, Repair, held_out
from .rates import Floats, Ints, sigmoid

Arrays = NDArray[Any]

UPDATE_EVERY = 5
"""Trees between two updates of the multipliers."""
WARM_UP = 0.25
"""Fraction of the trees grown before the first update of the multipliers: early scores carry too little information."""


class Trees:
    """One booster and its Lagrangian: the next tree is fitted to the gradient of L + Σ μ σ at the current scores."""

    def __init__(
        self,
        features: Arrays,
        given: Given,
        rows: Ints,
        held: Ints,
        lagrangian: Lagrangian,
        settings: Mapping[str, Any],
        categorical: Sequence[int],
    ) -> None:
        import lightgbm

        self.lagrangian, self.held, self.threads = lagrangian, features[held], settings["num_threads"]
        label = given.labels[rows].astype(np.float64)
        self.weight = given.weights[rows] / given.weights[rows].mean()
        share = float(np.clip(np.average(label, weights=self.weight), 1e-6, 1 - 1e-6))
        self.start = float(np.log(share / (1 - share)))
        data = lightgbm.Dataset(
            features[rows], label, init_score=np.full(len(rows), self.start), categorical_feature=list(categorical),
            params=dict(settings),
        )  # fmt: skip
        self.booster = lightgbm.Booster(dict(settings), data)
        self.targets = torch.from_numpy(np.stack([label, self.weight], 1))
        self.batch, self.unseen = (Batch(cell=torch.from_numpy(given.cells[some])) for some in (rows, held))
        self.scores = np.full(len(held), self.start)
        """Raw scores of the held-out rows."""
        self.counted = 0

    def grow(self, count: int) -> None:
        """Add `count` trees."""
        for _ in range(count):
            self.booster.update(fobj=self._gradient)

    def _gradient(self, scores: Arrays, data: Any) -> tuple[Arrays, Arrays]:
        """∂(Σ_l L_l + n Σ μ σ)/∂score of every row, and p(1 − p) as the Hessian."""
        logits = torch.from_numpy(np.array(scores, dtype=np.float64)[:, None]).requires_grad_()
        label, weight = self.targets[:, :1], self.targets[:, 1:]
        losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, label, reduction="none")
        total = self.lagrangian((losses * weight).mean(), logits, self.batch) * len(scores)
        (gradient,) = torch.autograd.grad(total, logits)
        chance = sigmoid(np.asarray(scores, dtype=np.float64))
        return gradient[:, 0].numpy(), chance * (1 - chance) * self.weight

    def observe(self) -> None:
        """Add the new trees to the scores of the held-out rows, and pass the scores to the Lagrangian."""
        done = self.booster.current_iteration()
        if done > self.counted:
            self.scores += self.raw(self.held, self.counted, done - self.counted)
            self.counted = done
        self.lagrangian.observe(torch.from_numpy(self.scores[:, None]), self.unseen)

    def raw(self, features: Arrays, start: int = 0, count: int = -1) -> Arrays:
        """Sum of the raw scores of `count` trees from `start` (all by default)."""
        # Without num_threads, predict would reset LightGBM to all cores.
        found = self.booster.predict(
            features, raw_score=True, start_iteration=start, num_iteration=count, num_threads=self.threads
        )
        return np.asarray(found, dtype=np.float64)

    def forget(self) -> Floats:
        """Drop all references to the training data, and return the scores of the held-out rows."""
        import lightgbm

        # A booster keeps the scores of its training rows even without its data; its model string has only the trees.
        self.booster = lightgbm.Booster(model_str=self.booster.model_to_string())
        scores = self.scores
        del self.held, self.targets, self.batch, self.unseen, self.weight, self.scores
        return scores

    def predict(self, features: Arrays) -> Floats:
        """P(y = 1), [n]."""
        return sigmoid(self.start + self.raw(features))


class FairBoostingClassifier(FairEstimator):
    """LightGBM binary classifier with equal rates across groups, trained by Lagrangian duality.

    Each tree is fitted to the gradient of cross-entropy + Σ μ σ, where σ is the difference of two groups' rates. The
    multipliers μ start at their closed-form values and are updated every few trees by dual ascent on the signed 0/1
    rate gaps of held-out rows. Groups are required for training but not for prediction, unless repair="thresholds".

    Args:
        constraint, slack, dual, repair, folds, random_state, progress: as for `FairClassifier`.
        trees: number of trees.
        learning_rate, leaves, min_rows: LightGBM's shrinkage, leaves per tree, and minimum rows per leaf.
        n_jobs: LightGBM threads; None for LightGBM's default.

    Attributes:
        classes_, groups_: the classes and groups, in sorted order.
        boosters_: the LightGBM boosters, one per fold; predictions average them.
        multipliers_: final μ of every comparison in `rates_.pairs`.

    >>> from ldf.fairness.datasets import synthetic
    >>> data = synthetic(1000)
    >>> model = FairBoostingClassifier(trees=20, random_state=0)
    >>> model = model.fit(data.features, data.labels, sensitive_features=data.groups)
    >>> model.predict(data.features).shape
    (1000,)
    """

    def __init__(
        self,
        constraint: str = "demographic parity",
        slack: float = 0.0,
        dual: Dual | Literal["auto"] | None = "auto",
        repair: Repair | None = None,
        trees: int = 100,
        learning_rate: float = 0.1,
        leaves: int = 31,
        min_rows: int = 20,
        folds: int | Literal["auto"] | None = "auto",
        random_state: Any = None,
        n_jobs: int | None = None,
        progress: bool | None = None,
    ) -> None:
        self.constraint = constraint
        self.slack = slack
        self.dual = dual
        self.repair = repair
        self.trees = trees
        self.learning_rate = learning_rate
        self.leaves = leaves
        self.min_rows = min_rows
        self.folds = folds
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.progress = progress

    @property
    def boosters_(self) -> list[Any]:
        """The LightGBM boosters, one per fold."""
        return [one.booster for one in self.models_]

    @property
    def multipliers_(self) -> Floats:
        """Final μ of every comparison; empty if nothing is constrained."""
        found = [value.numpy() for value in self.models_[0].lagrangian.multipliers.values()]
        together = np.concatenate(found) if found else np.zeros(0)
        half = len(self.rates_.pairs)
        return np.asarray(together[:half] - together[half:] if len(together) == 2 * half else together)

    def _settings(self, seed: int) -> dict[str, Any]:
        return {
            "objective": "none",
            "learning_rate": self.learning_rate,
            "num_leaves": self.leaves,
            "min_data_in_leaf": self.min_rows,
            "seed": seed,
            "num_threads": self.n_jobs or 0,
            "deterministic": True,
            "force_row_wise": True,
            "verbose": -1,
        }

    def _train(self, given: Given, folds: int | None, seed: int) -> tuple[Forecast, Ints]:
        if not isinstance(self.trees, int | np.integer) or self.trees < 1:
            raise ValueError(f"trees must be an integer ≥ 1, got {self.trees!r}")
        self.codes_ = Codes().fit(given.X)
        features = self.codes_.transform(given.X)
        held = [rows.numpy() for rows in held_out(len(features), folds, seed)]
        self.held_out_ = folds is not None
        everything = np.arange(len(features))
        own = [np.setdiff1d(everything, rows) if folds is not None else everything for rows in held]
        rows = np.sort(np.concatenate(held))
        order = np.argsort(np.concatenate(held))
        self.scouts_ = []
        free: Floats | None = None
        of_groups: Floats | None = None
        if self.dual == "auto" or self.repair == "plug-in":
            self.scouts_ = [self._group_model(features[some], given, some, seed) for some in own]
            parts = [self._chances_of(scout, features[some]) for scout, some in zip(self.scouts_, held, strict=True)]
            of_groups = np.concatenate(parts)[order]
        if self.dual == "auto":
            scouts = self._grow(given, features, own, held, None, seed)
            free = sigmoid(np.concatenate([one.forget() for one in scouts])[order])
        rule = self._rule(given, rows, free, of_groups)
        self.models_ = self._grow(given, features, own, held, rule, seed)
        positive = sigmoid(np.concatenate([one.forget() for one in self.models_])[order])
        return Forecast(positive, of_groups, free), rows

    def _grow(
        self, given: Given, features: Arrays, own: Sequence[Ints], held: Sequence[Ints], rule: Dual | None, seed: int
    ) -> list[Trees]:
        """Grow the boosters of all folds together, with shared multipliers."""
        laws = self._law(rule)
        updates = len(range(0, self.trees, UPDATE_EVERY))
        settings, categorical = self._settings(seed), self.codes_.categorical
        models = [
            Trees(features, given, some, out, Lagrangian(laws, rule, updates=updates), settings, categorical)
            for some, out in zip(own, held, strict=True)
        ]
        line = Progress(self.trees, "tree", self.progress)
        for start in range(0, self.trees, UPDATE_EVERY):
            count = min(UPDATE_EVERY, self.trees - start)
            for one in models:
                one.grow(count)
                one.observe()
            if laws:
                pool([one.lagrangian for one in models])
            for one in models:
                if start + count >= WARM_UP * self.trees:
                    one.lagrangian.ascend()
            line.update(start + count, lambda: f"{len(models)} boosters")
        return models

    def _group_model(self, features: Arrays, given: Given, rows: Ints, seed: int) -> Any:
        """Classifier of P(group | x), or of P(group | x, y) if the rates are conditioned on the label."""
        import lightgbm

        model = lightgbm.LGBMClassifier(
            n_estimators=self.trees, learning_rate=self.learning_rate, num_leaves=self.leaves,
            min_child_samples=self.min_rows, random_state=seed, n_jobs=self.n_jobs, verbose=-1, deterministic=True,
            force_row_wise=True,
        )  # fmt: skip
        known = self._with_labels(features, given.labels[rows])
        return model.fit(known, given.groups[rows], categorical_feature=self.codes_.categorical)

    def _with_labels(self, features: Arrays, labels: Ints) -> Arrays:
        if self.rates_.constraint == "demographic parity":
            return features
        return np.concatenate([features, labels[:, None].astype(np.float64)], axis=1)

    def _chances_of(self, scout: Any, features: Arrays) -> Floats:
        """Group probabilities, [n, G], or [n, 2G] for both labels; zero for a group missing from the training rows."""
        parts = []
        for label in (0,) if self.rates_.constraint == "demographic parity" else (0, 1):
            chances = np.zeros((len(features), len(self.groups_)))
            rows = self._with_labels(features, np.full(len(features), label))
            chances[:, scout.classes_] = scout.predict_proba(rows)
            parts.append(chances)
        return np.concatenate(parts, axis=1)

    def _forecast(self, X: Any, groups: Ints | None, chances: bool) -> Forecast:
        features = self.codes_.transform(X)
        positive = np.mean([one.predict(features) for one in self.models_], axis=0)
        of_groups = np.mean([self._chances_of(scout, features) for scout in self.scouts_], axis=0) if chances else None
        return Forecast(np.asarray(positive), of_groups)
