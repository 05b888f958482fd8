"""The predictor: fit a table of configurations, predict monotonically, say what is violated, save and load."""

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
"""Training configurations kept for repair, at most."""


@torch.no_grad()
def predictions(network: nn.Module, configurations: Ints) -> Floats:
    """What a network gives for configurations, [n], in double precision."""
    found: Floats = copy.deepcopy(network).double()(torch.from_numpy(configurations).double())[:, 0].numpy()
    return found


@dataclass
class Predictor:
    """Predicts the target of a configuration, never lower (or never higher) for one that has more of everything.

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
    """target = offset + span·(what the network gives); a negative span for a target that falls with more bits."""
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
        """Train on a table.

        Args:
            configurations: [n, d] whole numbers.
            targets: [n] finite numbers.
            model: M (no constraint), MC (multipliers fixed) or MCD (dual ascent).
            recipe: "tuned" or "paper".
            increasing: whether the target rises with more bits, as y does; False where it falls, as the error does.
            checkpoint: a folder; a run that was stopped goes on from it.
        """
        table = np.asarray(configurations)
        Dominance(table[:1])  # refuses what is no table of whole numbers
        values = np.asarray(targets, dtype=np.float64)
        if values.shape != (len(table),) or len(table) < 10:
            raise ValueError(
                f"at least ten configurations and a target for each are needed, got {len(table)} and {values.shape}"
            )
        if not np.isfinite(values).all():
            raise ValueError(
                f"targets must be finite numbers; row {int(np.flatnonzero(~np.isfinite(values))[0])} is not"
            )
        names = tuple(variables) if variables is not None else tuple(f"x{i + 1}" for i in range(table.shape[1]))
        if len(set(names)) != table.shape[1] or len(names) != table.shape[1]:
            raise ValueError(f"{table.shape[1]} columns need as many different names of variables, got {names}")
        if model not in MODELS:
            raise ValueError(f"model must be one of {', '.join(MODELS)}, got {model!r}")
        chosen = recipe_named(recipe) if isinstance(recipe, str) else recipe
        limits = Ranges(tuple(table.min(0).tolist()), tuple(table.max(0).tolist()))
        low, high = float(values.min()), float(values.max())
        # y is in [0, 1] as it is; anything else is brought there.
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
            "doctor": str(fit.doctor()),
        }
        reference = sample.configurations[np.sort(keep)]
        return cls(names, limits, fit.model.eval(), reference, offset, span, facts, fit.history)

    def predict(self, configurations: npt.ArrayLike, repair: bool = True) -> Floats:
        """Targets [n] of configurations [n, d]; repaired, they are monotone among themselves without exception.

        Profiles are repaired themselves, so that the network is monotone everywhere. Any other network's predictions
        are moved the least, in the sum of squares, that makes them monotone on the training configurations and these.
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
        """Which configurations have a width beyond those trained on, where predictions are flat."""
        asked = self._check(configurations)
        return np.asarray(((asked < self.ranges.low) | (asked > self.ranges.high)).any(1))

    def _check(self, configurations: npt.ArrayLike) -> Ints:
        asked = np.asarray(configurations)
        if asked.ndim != 2 or asked.shape[1] != len(self.variables) or not np.issubdtype(asked.dtype, np.integer):
            raise ValueError(
                f"configurations must be whole numbers for {', '.join(self.variables)}, got {asked.dtype} of shape "
                f"{asked.shape}"
            )
        return asked.astype(np.int64)

    def save(self, path: Path) -> None:
        """One safetensors file."""
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
        """Read what `save` wrote; refused if it is damaged or something else."""
        if not path.is_file():
            raise CheckpointError(f"there is no file {path}; `ldf transprecision train` makes one")
        tensors, facts = load(path)
        if facts.get("format") != FORMAT:
            raise CheckpointError(f"{path} is no predictor of `ldf transprecision train` ({FORMAT})")
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
            raise CheckpointError(f"{path} does not hold the predictor it describes: {reason}") from error
