"""A neural network with equal positive rates across groups: `FairClassifier`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.constraint import Constraint
from ..core.dual import Dual
from ..training.engine import chunks, evaluating
from ..training.fitting import Fit
from ..training.replicas import fit_many
from .encoding import Encoder, Encoding
from .estimator import FairEstimator, Forecast, Given, Repair, held_out
from .rates import Floats, Ints, sigmoid

Estimators = Literal["shared", "heads", "separate"]

STEPS = 40
"""Steps per epoch from which the multipliers are updated at full speed."""


class Decider(nn.Module):
    """Logits [n, k] of the decisions; the first column decides.

    Args:
        width: number of inputs.
        hidden: units of the hidden layers.
        estimators: "shared": one network, k = 1. "heads": a shared trunk and one output per group, k = 1.
            "separate": a network M for all and a network M_i for each group i, k = 2: M_i first, then M.
        groups: number of groups.
        dropout: dropout rate of the hidden layers.
    """

    def __init__(self, width: int, hidden: Sequence[int], estimators: Estimators, groups: int, dropout: float) -> None:
        super().__init__()
        self.estimators = estimators
        outputs = groups if estimators == "heads" else 1
        self.first = perceptron(width, hidden, outputs, dropout)
        own = groups if estimators == "separate" else 0
        self.own = nn.ModuleList(perceptron(width, hidden, 1, dropout) for _ in range(own))

    def forward(self, inputs: Tensor, group: Tensor) -> Tensor:
        """[n, width], [n] → [n, k]."""
        logits: Tensor = self.first(inputs)
        if self.estimators == "heads":
            return logits.gather(1, group[:, None])
        if self.estimators == "separate":
            every = torch.cat([network(inputs) for network in self.own], 1)
            return torch.cat([every.gather(1, group[:, None]), logits], 1)
        return logits


class Scout(nn.Module):
    """The unconstrained network of the closed form: the logit of y, and the logits of the groups.

    [n, 1 + G], or [n, 1 + 2G] if the group probabilities are conditioned on the label.
    """

    def __init__(self, width: int, hidden: Sequence[int], outputs: int, dropout: float) -> None:
        super().__init__()
        self.net = perceptron(width, hidden, outputs, dropout)

    def forward(self, inputs: Tensor, group: Tensor) -> Tensor:
        """[n, width] → [n, outputs]."""
        logits: Tensor = self.net(inputs)
        return logits


def perceptron(width: int, hidden: Sequence[int], outputs: int, dropout: float = 0.0) -> nn.Sequential:
    """Multi-layer perceptron: linear layers with ReLU and dropout between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise([width, *hidden]):
        layers += [nn.Linear(before, after), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear([width, *hidden][-1], outputs))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Weighted mean binary cross-entropy, summed over the columns. targets: [n, 2], label and weight."""
    label, weight = targets[:, :1], targets[:, 1:2]
    losses = nn.functional.binary_cross_entropy_with_logits(logits, label.expand_as(logits), reduction="none")
    return (losses * weight).sum(1).mean()


def scouting(groups: int, halves: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Loss of a `Scout`: cross-entropy of y plus that of the group (given y). targets: label, weight, group."""

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        label, weight, group = targets[:, 0], targets[:, 1], targets[:, 2].long()
        of_y = nn.functional.binary_cross_entropy_with_logits(logits[:, 0], label, reduction="none")
        of_groups = logits[:, 1 : 1 + groups]
        if halves:
            of_groups = torch.where(label[:, None] > 0.5, logits[:, 1 + groups :], of_groups)
        return (of_y * weight).mean() + nn.functional.cross_entropy(of_groups, group)

    return loss


class FairClassifier(FairEstimator):
    """Neural network for binary classification with equal rates across groups, trained by Lagrangian duality.

    It minimises cross-entropy + Σ μ σ, where σ is the difference of two groups' rates. The multipliers μ start at their
    closed-form values and are updated by dual ascent on the signed 0/1 rate gaps of held-out rows. Groups are required
    for training but not for prediction, except with the options marked below.

    Args:
        constraint: "demographic parity" (positive rates), "equal opportunity" (positive rates among rows with a
            positive label) or "equalised odds" (positive rates among rows with each label).
        slack: ε ≥ 0, the largest allowed difference of two rates.
        dual: "auto", the rule above, with no step size to tune; an `ldf.Ascent` or another dual rule with its own step
            size; `ldf.Fixed(1.0)` for the paper's M_C, on expected rates and ν = |σ|; None for the unconstrained M.
        estimators: "shared": one network. "heads": a shared trunk with one output per group. "separate": the paper's
            M, M₀, M₁, with a separate network for each group. "heads" and "separate" **require sensitive_features to
            predict**.
        repair: post-processing on held-out rows: "plug-in" shifts the threshold of each row by its predicted group
            probabilities; "thresholds" uses one threshold per group and **requires sensitive_features to predict**.
        hidden: units of the hidden layers.
        encoding: feature encoding, "piecewise" (see `Encoder`) or "standard".
        epochs, batch_size, lr, weight_decay, dropout: settings of AdamW with a cosine schedule; batch_size="auto" is
            1/64 of the rows, between 32 and 512.
        folds: K networks, each trained without one of K folds; predictions average them, and the multipliers are
            updated by out-of-fold rates. "auto" is 5 below 100,000 rows, where the rates of training rows are biased,
            else None: one network, with the rates of its training rows.
        random_state: seed of weights, folds and batches.
        checkpoint: folder of checkpoints; an interrupted training resumes from it.
        progress: whether to show progress; by default only on a terminal.

    Attributes:
        classes_, groups_: the classes and groups, in sorted order.
        fits_: results of `fit_many`: models, histories and multipliers, without the rows of the folds.
        multipliers_: final μ of every comparison in `rates_.pairs`.

    >>> from ldf.fairness.datasets import synthetic
    >>> data = synthetic(1000)
    >>> model = FairClassifier(epochs=4, random_state=0)
    >>> model = model.fit(data.features, data.labels, sensitive_features=data.groups)
    >>> model.predict(data.features).shape
    (1000,)
    """

    fits_: list[Fit]
    encoder_: Encoder

    def __init__(
        self,
        constraint: str = "demographic parity",
        slack: float = 0.0,
        dual: Dual | Literal["auto"] | None = "auto",
        estimators: Estimators = "shared",
        repair: Repair | None = None,
        hidden: Sequence[int] = (64, 64),
        encoding: Encoding = "piecewise",
        epochs: int = 15,
        batch_size: int | Literal["auto"] = "auto",
        lr: float = 8e-3,
        weight_decay: float = 5e-2,
        dropout: float = 0.0,
        folds: int | Literal["auto"] | None = "auto",
        random_state: Any = None,
        checkpoint: str | Path | None = None,
        progress: bool | None = None,
    ) -> None:
        self.constraint = constraint
        self.slack = slack
        self.dual = dual
        self.estimators = estimators
        self.repair = repair
        self.hidden = hidden
        self.encoding = encoding
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.folds = folds
        self.random_state = random_state
        self.checkpoint = checkpoint
        self.progress = progress

    @property
    def _attribute_needed(self) -> bool:
        return super()._attribute_needed or self._told_groups

    @property
    def _told_groups(self) -> bool:
        return self.estimators != "shared"

    @property
    def multipliers_(self) -> Floats:
        """Final μ of every comparison, averaged over the networks; empty if nothing is constrained."""
        found = [np.concatenate([m.numpy() for m in fit.multipliers.values()] or [np.zeros(0)]) for fit in self.fits_]
        mean = np.mean(found, axis=0)
        half = len(self.rates_.pairs)
        return np.asarray(mean[:half] - mean[half:] if len(mean) == 2 * half else mean)

    def _train(self, given: Given, folds: int | None, seed: int) -> tuple[Forecast, Ints]:
        if self.estimators not in ("shared", "heads", "separate"):
            raise ValueError(f"estimators must be 'shared', 'heads' or 'separate', got {self.estimators!r}")
        if self.estimators != "shared" and len(self.groups_) < 2:
            raise ValueError(f"estimators={self.estimators!r} needs sensitive_features with at least two groups")
        self.encoder_ = Encoder(self.encoding).fit(given.X, given.labels)
        inputs = torch.from_numpy(self.encoder_.transform(given.X))
        group, cells = torch.from_numpy(given.groups), torch.from_numpy(given.cells)
        weights = given.weights / given.weights.mean()
        targets = torch.from_numpy(np.stack([given.labels, weights, given.groups], 1)).float()
        data = {"inputs": inputs, "targets": targets, "group": group, "cell": cells}
        held = held_out(len(inputs), folds, seed)
        self.held_out_ = folds is not None
        scouts: list[nn.Module] = []
        halves = self.rates_.constraint != "demographic parity"
        count = len(self.groups_)
        free: Floats | None = None
        of_groups: Floats | None = None
        if self.dual == "auto" or self.repair == "plug-in":
            outputs = 1 + (2 if halves else 1) * count
            runs = self._fit(
                lambda: Scout(inputs.shape[1], self.hidden, outputs, self.dropout),
                data, scouting(count, halves), [], None, folds, seed, "scout",
            )  # fmt: skip
            scouts = [run.model for run in runs]
            said = [_predict(scout, inputs[own], group[own]) for scout, own in zip(scouts, held, strict=True)]
            seen = _assemble(said, held)
            free, of_groups = sigmoid(seen[:, 0]), _softmax(seen[:, 1:], count)
        self.scouts_ = scouts
        rows = np.sort(torch.cat(held).numpy())
        rule = self._rule(given, rows, free, of_groups)
        self.fits_ = self._fit(
            lambda: Decider(inputs.shape[1], self.hidden, self.estimators, count, self.dropout),
            data, cross_entropy, self._law(rule), rule, folds, seed, "decider",
        )  # fmt: skip
        for fit in self.fits_:
            fit.held_out = fit.sample = None  # keeps training rows out of pickles
        logits = [_predict(fit.model, inputs[own], group[own]) for fit, own in zip(self.fits_, held, strict=True)]
        positive = sigmoid(_assemble(logits, held)[:, 0])
        return Forecast(positive, of_groups, free), rows

    def _fit(
        self,
        factory: Callable[[], nn.Module],
        data: dict[str, Tensor],
        loss: Callable[[Tensor, Tensor], Tensor],
        constraints: list[Constraint],
        rule: Dual | None,
        folds: int | None,
        seed: int,
        name: str,
    ) -> list[Fit]:
        """Train the networks of all folds with `fit_many`."""
        own = folds is not None and bool(constraints) and rule is not None and rule.moves
        return fit_many(
            factory,
            data,
            loss=loss,
            constraints=constraints,
            dual=rule,
            seeds=[seed],
            folds=folds,
            epochs=self.epochs,
            batch_size=self._batch(len(data["cell"])),
            lr=self.lr,
            optimizer=self._optimizer,
            schedule="cosine",
            keep="last",
            stratify=data["cell"] if constraints else None,
            ascend_on="held-out" if own else "training",
            forward=call,
            compile=False,  # the same numbers with and without a C++ compiler
            checkpoint=Path(self.checkpoint) / name if self.checkpoint is not None else None,
            progress=self.progress,
        )

    def _batch(self, rows: int) -> int:
        """Batch size for this many rows."""
        return min(max(rows // 64, 32), 512) if self.batch_size == "auto" else self.batch_size

    def _speed(self, rows: int) -> float:
        """Slower with few steps per epoch, so that the weights can follow the multipliers."""
        return super()._speed(rows) * min(1.0, rows / self._batch(rows) / STEPS)

    def _optimizer(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.weight_decay, fused=True)

    def _forecast(self, X: Any, groups: Ints | None, chances: bool) -> Forecast:
        inputs = torch.from_numpy(self.encoder_.transform(X))
        group = torch.from_numpy(groups) if groups is not None else torch.zeros(len(inputs), dtype=torch.int64)
        positive = np.mean([sigmoid(_predict(fit.model, inputs, group)[:, 0]) for fit in self.fits_], axis=0)
        of_groups = None
        if chances:
            count = len(self.groups_)
            parts = [_softmax(_predict(scout, inputs, group)[:, 1:], count) for scout in self.scouts_]
            of_groups = np.mean(parts, axis=0)
        return Forecast(np.asarray(positive), of_groups)


def call(model: nn.Module, batch: Batch) -> Tensor:
    """Logits of a batch, [n, k]."""
    logits: Tensor = model(batch.inputs, batch.group)
    return logits


def _predict(model: nn.Module, inputs: Tensor, group: Tensor) -> Floats:
    with torch.no_grad(), evaluating(model):
        parts = [model(inputs[rows], group[rows]) for rows in chunks(torch.arange(len(inputs)))]
    return np.asarray(torch.cat(parts).double().numpy())


def _assemble(parts: Sequence[Floats], held: Sequence[Tensor]) -> Floats:
    """Predictions of all folds, in row order."""
    order = torch.cat(list(held)).argsort().numpy()
    return np.asarray(np.concatenate(parts)[order])


def _softmax(logits: Floats, groups: int) -> Floats:
    """Softmax of each block of G logits, P(group)."""
    blocks = logits.reshape(len(logits), -1, groups)
    shifted = np.exp(blocks - blocks.max(2, keepdims=True))
    return np.asarray((shifted / shifted.sum(2, keepdims=True)).reshape(len(logits), -1))
