"""The predictor: fit to a table of configurations, predict monotonically, count violations, save and load."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ..core.history import History
from ..io.checkpoint import CheckpointError, load, save
from .dominance import Dominance, Ints, Violations
from .networks import Perceptron, Profiles
from .precision import Floats
from .repair import isotonic
from .training import MODELS, Ranges, Recipe, Sample, recipe_named, train

FORMAT = "ldf-transprecision-1"

NETWORKS: dict[str, type[Perceptron] | type[Profiles]] = {"perceptron": Perceptron, "profiles": Profiles}

REFERENCE = 4000
"""Maximum number of training configurations stored for repair."""


@torch.no_grad()
def predictions(network: nn.Module, configurations: Ints) -> Floats:
    """Raw outputs of a network, [n], in double precision."""
    found: Floats = copy.deepcopy(network).double()(torch.from_numpy(configurations).double())[:, 0].numpy()
    return found


@dataclass
class Predictor:
    """Predicts the target of a configuration, monotonically: adding bits never lowers it (or never raises it).

    >>> from ldf.transprecision.kernels import KERNELS, target
    >>> from ldf.transprecision.tables import draw
    >>> kernel, drawn = KERNELS["saxpy"], draw(3, 300, seed=0)
    >>> y = target(kernel.errors(drawn))
    >>> predictor = Predictor.fit(drawn[:200], y[:200], variables=kernel.variables, epochs=50)
    >>> bool(np.abs(predictor.predict(drawn[200:]) - y[200:]).mean() < 0.02)
    True
    >>> predictor.violations(drawn[200:]).violated
    0
    """

    variables: tuple[str, ...]
    ranges: Ranges
    network: nn.Module
    reference: Ints
    """Configurations of the training set, [m, variables]."""
    offset: float = 0.0
    span: float = 1.0
    """target = offset + span·(network output); the span is negative if the target falls with more bits."""
    facts: dict[str, Any] = field(default_factory=dict)
    history: History = field(default_factory=lambda: History([]))

    @classmethod
    def fit(
        cls,
        configurations: npt.ArrayLike,
        targets: npt.ArrayLike,
        *,
        variables: Sequence[str] | None = None,
        model: str = "MCD",
        recipe: str | Recipe = "tuned",
        increasing: bool = True,
        seed: int = 0,
        epochs: int | None = None,
        progress: bool | None = False,
        checkpoint: Path | None = None,
    ) -> Predictor:
        """Train a predictor on a table.

        Args:
            configurations: [n, d] integers.
            targets: [n] finite numbers.
            model: M (no constraint), MC (fixed multipliers) or MCD (dual ascent).
            recipe: "tuned" or "paper".
            increasing: True if the target rises with more bits, as y does; False if it falls, as the error does.
            checkpoint: folder for checkpoints; an interrupted run resumes from it.
        """
        table = np.asarray(configurations)
        Dominance(table[:1])  # rejects anything but a 2-D array of integers
        values = np.asarray(targets, dtype=np.float64)
        if values.shape != (len(table),) or len(table) < 10:
            raise ValueError(
                f"need at least ten configurations and one target for each, got {len(table)} and shape {values.shape}"
            )
        if not np.isfinite(values).all():
            raise ValueError(
                f"targets must be finite numbers; row {int(np.flatnonzero(~np.isfinite(values))[0])} is not"
            )
        names = tuple(variables) if variables is not None else tuple(f"x{i + 1}" for i in range(table.shape[1]))
        if len(set(names)) != table.shape[1] or len(names) != table.shape[1]:
            raise ValueError(f"variables must be {table.shape[1]} distinct names, one per column, got {names}")
        if model not in MODELS:
            raise ValueError(f"model must be one of {', '.join(MODELS)}, got {model!r}")
        chosen = recipe_named(recipe) if isinstance(recipe, str) else recipe
        limits = Ranges(tuple(table.min(0).tolist()), tuple(table.max(0).tolist()))
        low, high = float(values.min()), float(values.max())
        # y is in [0, 1] already; other targets are scaled to [0, 1].
        offset, span = (0.0, 1.0) if increasing and low >= 0 and high <= 1 else (low, (high - low) or 1.0)
        if not increasing:
            offset, span = offset + span, -span
        sample = Sample(table.astype(np.int64), (values - offset) / span)
        done = train(
            [sample], limits, chosen, [model], seeds=[seed], epochs=epochs, progress=progress, checkpoint=checkpoint
        )
        fit = done[0][model]
        keep = np.random.default_rng(seed).permutation(len(table))[:REFERENCE]
        facts = {
            "model": model,
            "recipe": chosen.name,
            "seed": seed,
            "rows": len(table),
            "epochs": len(fit.history),
            "doctor": fit.doctor().to_dict(),
        }
        reference = sample.configurations[np.sort(keep)]
        return cls(names, limits, fit.model.eval(), reference, offset, span, facts, fit.history)

    def predict(self, configurations: npt.ArrayLike, repair: bool = True) -> Floats:
        """Targets [n] of configurations [n, d]; with repair, no pair of them violates monotonicity.

        For a `Profiles` network the profiles are repaired, which makes it monotone everywhere. The predictions of any
        other network are replaced by the least-squares closest values that are monotone on the training configurations
        and these.
        """
        asked = self._check(configurations)
        if not repair:
            return self.offset + self.span * predictions(self.network, asked)
        if isinstance(self.network, Profiles):
            return self.offset + self.span * self.network.monotone(asked)
        both = np.concatenate([asked, self.reference])
        return self.offset + self.span * isotonic(predictions(self.network, both), both)[: len(asked)]

    def violations(self, configurations: npt.ArrayLike, repair: bool = True) -> Violations:
        """VC and SMVC of the predictions for these configurations."""
        sign = 1.0 if self.span > 0 else -1.0
        return Dominance(configurations).violations(sign * self.predict(configurations, repair))

    def outside(self, configurations: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether each configuration has a width outside the training range, where predictions are constant."""
        asked = self._check(configurations)
        return np.asarray(((asked < self.ranges.low) | (asked > self.ranges.high)).any(1))

    def _check(self, configurations: npt.ArrayLike) -> Ints:
        asked = np.asarray(configurations)
        if asked.ndim != 2 or asked.shape[1] != len(self.variables) or not np.issubdtype(asked.dtype, np.integer):
            raise ValueError(
                f"configurations must be integers with columns {', '.join(self.variables)}, got {asked.dtype} of shape "
                f"{asked.shape}"
            )
        return asked.astype(np.int64)

    def save(self, path: Path) -> None:
        """Write the predictor to one safetensors file."""
        kind = next(name for name, network in NETWORKS.items() if isinstance(self.network, network))
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        tensors["reference"] = torch.from_numpy(self.reference)
        facts = {
            "format": FORMAT,
            "network": kind,
            "variables": list(self.variables),
            "low": list(self.ranges.low),
            "high": list(self.ranges.high),
            "offset": self.offset,
            "span": self.span,
            "facts": self.facts,
            "history": self.history.rows,
        }
        save(path, tensors, facts)

    @classmethod
    def load(cls, path: Path) -> Predictor:
        """Read a file written by `save`; an error if it is damaged or not a predictor."""
        if not path.is_file():
            raise CheckpointError(f"there is no file {path}; create it with `ldf transprecision train`")
        tensors, facts = load(path)
        if facts.get("format") != FORMAT:
            raise CheckpointError(f"{path} is not a predictor written by `ldf transprecision train` ({FORMAT})")
        try:
            ranges = Ranges(tuple(facts["low"]), tuple(facts["high"]))
            network = NETWORKS[facts["network"]](*ranges.tensors())
            network.load_state_dict({n.removeprefix("network."): v for n, v in tensors.items() if n != "reference"})
            return cls(
                tuple(facts["variables"]),
                ranges,
                network.eval(),
                tensors["reference"].numpy(),
                facts["offset"],
                facts["span"],
                facts["facts"],
                History(facts["history"]),
            )
        except (RuntimeError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(f"{path}: the tensors do not match the metadata: {reason}") from error
