"""Train a network on labelled demands: the paper's M, MC and MCD, by the paper's recipe or by ours."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from ..checkpoint import CheckpointError, load, save
from ..dual import Ascent, Dual, Fixed
from ..history import History
from ..text import write_whole
from ..training import fit
from .dataset import Dataset
from .network import Architecture, Proxy, Rows, build, components
from .problem import Problem

FORMAT = "ldf-run-1"
FILE = "model.safetensors"
VALIDATION_SHARE = 0.1
"""Of the training rows: for choosing, never for reporting."""
MEMORY = 512
"""Earlier states that a network with a hot start remembers, to have one for any demand."""
MODELS = ("M", "MC", "MCD")


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Args:
        architecture: of the network.
        epochs: passes over the training rows.
        schedule: of the learning rate.
        ascent: the dual rule of MCD; M has none, MC has λ = 1.
        keep: the best iterate on validation rows, or the last.
    """

    name: str
    architecture: Architecture
    epochs: int
    schedule: Literal["cosine"] | None
    ascent: Dual
    keep: Literal["best", "last"]
    batch_size: int = 64
    lr: float = 1e-3

    def dual(self, model: str) -> Dual | None:
        """The rule that makes a model M, MC or MCD."""
        if model not in MODELS:
            raise ValueError(f"model must be one of {', '.join(MODELS)}, got {model!r}")
        return {"M": None, "MC": Fixed(1.0), "MCD": self.ascent}[model]


RECIPES = {
    "paper": Recipe(
        "paper",
        Architecture(layers=4, width=None, skip=False, bounded=False),  # five linear layers
        epochs=80,
        schedule=None,
        ascent=Ascent(1e-4, normalise=False),
        keep="last",
    ),
    "tuned": Recipe(
        "tuned",
        Architecture(layers=3, width=256, skip=True, bounded=True),
        epochs=80,
        schedule="cosine",
        ascent=Ascent(),
        keep="best",
    ),
}


def recipe_named(name: str) -> Recipe:
    """One of the recipes."""
    if name not in RECIPES:
        raise ValueError(f"recipe must be one of {', '.join(RECIPES)}, got {name!r}")
    return RECIPES[name]


@dataclass
class Trained:
    """A trained network and what is needed to use it."""

    problem: Problem
    proxy: Proxy
    facts: dict[str, Any]
    """Model, recipe, seed, epochs, data set, and what the doctor said."""
    history: History
    range: dict[str, Tensor]
    """What was trained on: low and high [D] of the demands, their centre [D] and the directions [D, r] they span."""
    memory: Rows | None = None
    """With a hot start: demands and states to start from."""

    def save(self, folder: Path) -> None:
        """Write all of it to a folder; the model's file comes last, so that a folder with one is complete."""
        folder.mkdir(parents=True, exist_ok=True)
        self.problem.save(folder)
        self.history.to_csv(folder / "history.csv")
        tensors = {f"proxy.{name}": value for name, value in self.proxy.state_dict().items()}
        tensors |= {f"range.{name}": value for name, value in self.range.items()}
        if self.memory is not None and self.memory.earlier_state is not None:
            tensors |= {"memory.demand": self.memory.demand, "memory.state": self.memory.earlier_state}
        proxy = self.proxy
        facts = {
            "format": FORMAT,
            **self.facts,
            "network": {"architecture": asdict(proxy.architecture), "hot": proxy.hot, "sizes": proxy.sizes},
            "history": self.history.rows,
        }
        write_whole(folder / "run.json", json.dumps({k: facts[k] for k in self.facts}, indent=1) + "\n")
        save(folder / FILE, tensors, facts)

    @classmethod
    def load(cls, folder: Path, problem: Problem | None = None) -> Trained:
        """Read what `save` wrote; refused if it is damaged or of another network."""
        from . import load_problem

        path = folder / FILE
        if not path.is_file():
            raise CheckpointError(f"{folder} has no {FILE}: it is not a finished run; `ldf train` makes one")
        tensors, facts = load(path)
        if facts.get("format") != FORMAT:
            raise CheckpointError(f"{path} is not a run of `ldf train` ({FORMAT})")
        problem = problem or load_problem(facts["kind"], folder)
        if problem.fingerprint != facts["fingerprint"]:
            raise CheckpointError(
                f"{folder}: the model was trained on another network than {problem.name} as it is now"
            )
        network, history = facts.pop("network"), History(facts.pop("history"))
        sizes = {"curved": 0, **network["sizes"]}  # runs from before there were curved bases have none
        proxy = Proxy(Architecture(**network["architecture"]), network["hot"], sizes)
        parts: dict[str, dict[str, Tensor]] = {"proxy": {}, "range": {}, "memory": {}}
        for name, value in tensors.items():
            group, _, rest = name.partition(".")
            parts[group][rest] = value
        try:
            proxy.load_state_dict(parts["proxy"])
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(f"{path} does not hold the network it describes: {reason}") from error
        held = parts["memory"]
        memory = Rows(held["demand"], held["demand"], held["state"]) if held else None
        facts.pop("format")
        return cls(problem, proxy.eval(), facts, history, parts["range"], memory)

    def rows(self, demand: Tensor, earlier: tuple[Tensor, Tensor] | None = None) -> Rows:
        """Inputs for demands [B, D]; with a hot start the earlier state is the one given or the nearest remembered."""
        if not self.proxy.hot:
            return Rows(demand)
        if earlier is None:
            assert self.memory is not None
            assert self.memory.earlier_state is not None
            nearest = torch.cdist(demand, self.memory.demand).argmin(1)
            earlier = self.memory.demand[nearest], self.memory.earlier_state[nearest]
        return Rows(demand, *earlier)

    def predict(self, demand: Tensor, earlier: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """States [B, S] for demands [B, D], in the problem's own units."""
        return self.proxy.predict(self.rows(demand, earlier))

    def outside(self, demand: Tensor) -> list[str | None]:
        """For each demand [D] what is unlike all training rows, in words, or None."""
        low, high, span = self.range["low"], self.range["high"], self.range["span"]
        margin = 1e-6 + 0.01 * (high - low)
        beyond = torch.maximum(low - margin - demand, demand - high - margin)
        away = demand - self.range["centre"]
        apart = (away - away @ span @ span.T).norm(dim=1) / demand.norm(dim=1).clamp_min(1e-12)
        found: list[str | None] = []
        for row in range(len(demand)):
            worst = int(beyond[row].argmax())
            if beyond[row, worst] > 0:
                name, unit, factor = self.problem.entry(worst)
                found.append(
                    f"{name} is {float(demand[row, worst]) * factor:.4g} {unit}, trained between "
                    f"{float(low[worst]) * factor:.4g} and {float(high[worst]) * factor:.4g}"
                )
            elif apart[row] > 1e-3:
                found.append(f"loads differ from each other as in no training row, by {100 * float(apart[row]):.2g} %")
            else:
                found.append(None)
        return found


def columns(proxy: Proxy, data: Dataset) -> dict[str, Tensor]:
    """What `fit` trains on: features and z in single precision, and what the laws need in the problem's own."""
    rows = Rows.of(data)
    base = proxy.base(rows)
    seen = {"inputs": proxy.features(rows), "targets": proxy.targets(data.state, base)}
    needed = {"base": base, "demand": data.demand, "states": data.state}
    found = {name: value.float() for name, value in seen.items()}
    return found | {name: value.to(data.problem.precision) for name, value in needed.items()}


def divide(data: Dataset, seed: int) -> tuple[Dataset, Dataset]:
    """Training rows into those to fit and those to choose on."""
    order = torch.from_numpy(np.random.default_rng([seed, 1]).permutation(len(data)))
    held = max(1, round(VALIDATION_SHARE * len(data)))
    if len(data) - held < 2:
        raise ValueError(f"{len(data)} training rows are too few: 2 are needed to fit and 1 to choose on")
    return data.take(order[held:]), data.take(order[:held])


def train(
    data: Dataset,
    model: str,
    recipe: Recipe,
    *,
    seed: int = 0,
    epochs: int | None = None,
    folder: Path | None = None,
    facts: dict[str, Any] | None = None,
    progress: bool | None = None,
) -> Trained:
    """Train on the training part of a data set (`Dataset.split`); a folder keeps the result, and a run that was killed.

    A folder that has the finished run of the same settings is read instead.
    """
    training, _ = data.split()
    problem = data.problem
    epochs = recipe.epochs if epochs is None else epochs
    known = {
        "kind": problem.kind,
        "case": problem.name,
        "fingerprint": problem.fingerprint,
        "model": model,
        "recipe": recipe.name,
        "seed": seed,
        "epochs": epochs,
        "rows": len(data),
        "sampling": asdict(data.sampling),
        "data_seed": data.seed,
        "dual": repr(recipe.dual(model)),
        **(facts or {}),
    }
    if folder is not None and (folder / FILE).exists():
        held = Trained.load(folder, problem)
        differing = [name for name in known if name not in (facts or {}) and held.facts.get(name) != known[name]]
        if differing:
            name = differing[0]
            raise CheckpointError(
                f"{folder} has another run: its {name} is {held.facts.get(name)!r}, not {known[name]!r}; "
                "take another folder, or remove this one"
            )
        _tidy(folder)
        return held
    fitted, chosen = divide(training, seed)
    proxy = build(recipe.architecture, fitted, chosen, seed)
    constraints = problem.constraints(lambda z, batch: proxy.states(z, batch.base), problem.precision)
    done = fit(
        proxy,
        columns(proxy, fitted),
        loss=mse_loss,
        constraints=constraints,
        dual=recipe.dual(model),
        epochs=epochs,
        batch_size=recipe.batch_size,
        lr=recipe.lr,
        schedule=recipe.schedule,
        validation=columns(proxy, chosen),
        keep=recipe.keep,
        seed=seed,
        checkpoint=folder / "checkpoint" if folder is not None else None,
        progress=progress,
    )
    if recipe.architecture.skip:
        proxy.temper(chosen)
    result = Trained(
        problem,
        proxy.eval(),
        {**known, "best_epoch": done.best_epoch, "doctor": str(done.doctor())},
        done.history,
        _range(training),
        _memory(training, seed),
    )
    if folder is not None:
        result.save(folder)
        _tidy(folder)
    return result


def _tidy(folder: Path) -> None:
    """Remove a finished run's checkpoint, and what a kill left of one half written."""
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)


def _range(training: Dataset) -> dict[str, Tensor]:
    demand = training.demand
    centre, span = components(demand, scaled=False)
    return {"low": demand.amin(0), "high": demand.amax(0), "centre": centre, "span": span.contiguous()}


def _memory(training: Dataset, seed: int) -> Rows | None:
    if training.earlier_demand is None or training.earlier_state is None:
        return None
    kept = torch.from_numpy(np.random.default_rng([seed, 2]).permutation(len(training))[:MEMORY])
    return Rows(training.earlier_demand[kept], training.earlier_demand[kept], training.earlier_state[kept])


Baseline = Callable[[Dataset], Tensor]


def baselines(data: Dataset, seed: int = 0) -> dict[str, Baseline]:
    """What a network has to beat: a constant, ridge regression, and with a hot start the earlier state itself."""
    training, _ = data.split()
    fitted, chosen = divide(training, seed)
    centre = training.state.mean(0)
    linear = build(Architecture(1, 1, skip=True, bounded=False), fitted, chosen, seed, linear=True)
    found: dict[str, Baseline] = {
        "mean": lambda rows: centre.expand_as(rows.state),
        "linear": lambda rows: linear.base(Rows.of(rows)),
    }
    if data.hot:

        def previous(rows: Dataset) -> Tensor:
            assert rows.earlier_state is not None
            return rows.earlier_state

        found["previous"] = previous
    return found
