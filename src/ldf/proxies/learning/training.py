"""Train networks on labelled demands: the paper's M, MC and MCD for states, by its recipe or ours; one for prices."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from ...core.certificate import TOLERANCE
from ...core.constraint import Constraint
from ...core.dual import Ascent, Balanced, Dual, Fixed
from ...core.history import History
from ...io.checkpoint import CheckpointError, load, save
from ...io.text import write_whole
from ...training.fitting import Fit, fit
from ..data.dataset import Dataset, divide
from ..problem import Problem
from ..registry import load_problem
from .evaluation import outside, reach
from .network import Architecture, Proxy, Rows, build

FORMAT = "ldf-run-1"
FILE = "model.safetensors"
CHECKPOINTS = ("checkpoint", "checkpoint-prices")
"""Checkpoint folders of an unfinished run: of its state network and of its price network."""
MEMORY = 512
"""Number of earlier states that a network with a hot start stores, to have one for any demand."""
MODELS = ("M", "MC", "MCD")
SEED = 0
"""Seed for the rows on which baselines select their penalty."""


@dataclass(frozen=True)
class Recipe:
    """Training settings.

    Args:
        architecture: layout of the network.
        epochs: passes over the training rows.
        schedule: schedule of the learning rate.
        ascent: dual rule of MCD; M has none, MC has λ = 1.
        keep: keep the best iterate on validation rows, or the last.
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
        """The dual rule of model M, MC or MCD."""
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
        ascent=Balanced(),
        keep="best",
    ),
}
PRICES = replace(
    RECIPES["tuned"], name="prices", architecture=Architecture(layers=2, width=128, skip=True, bounded=True), epochs=40
)
"""Recipe of the price network, with any recipe for states: the paper predicts no prices, and no law applies to them."""


def recipe_named(name: str) -> Recipe:
    """A recipe by its name."""
    if name not in RECIPES:
        raise ValueError(f"recipe must be one of {', '.join(RECIPES)}, got {name!r}")
    return RECIPES[name]


@dataclass
class Trained:
    """A trained network and everything needed to use it."""

    problem: Problem
    proxy: Proxy
    facts: dict[str, Any]
    """Model, recipe, seed, epochs, data set, and the doctor's diagnosis as a dict."""
    history: History
    range: dict[str, Tensor]
    """Range of the training demands: low and high [D], centre [D] and the directions [D, r] they span."""
    memory: Rows | None = None
    """With a hot start: demands and states to start from."""
    prices: Proxy | None = None
    """The price network; None if the problem has no prices."""
    price_memory: Rows | None = None
    """With a hot start: the same demands, with prices in place of states."""

    def save(self, folder: Path) -> None:
        """Write the run to a folder; the model's file is written last, so a folder that has it is complete."""
        folder.mkdir(parents=True, exist_ok=True)
        self.problem.save(folder)
        self.history.to_csv(folder / "history.csv")
        tensors = {f"range.{name}": value for name, value in self.range.items()}
        facts = {"format": FORMAT, **self.facts, "history": self.history.rows}
        for group, key, proxy in (("proxy", "network", self.proxy), ("prices", "prices", self.prices)):
            if proxy is not None:
                tensors |= {f"{group}.{name}": value for name, value in proxy.state_dict().items()}
                facts[key] = {"architecture": asdict(proxy.architecture), "hot": proxy.hot, "sizes": proxy.sizes}
        for name, memory in (("state", self.memory), ("prices", self.price_memory)):
            if memory is not None and memory.earlier_state is not None:
                tensors |= {"memory.demand": memory.demand, f"memory.{name}": memory.earlier_state}
        write_whole(folder / "run.json", json.dumps({k: facts[k] for k in self.facts}, indent=1) + "\n")
        save(folder / FILE, tensors, facts)

    @classmethod
    def load(cls, folder: Path, problem: Problem | None = None) -> Trained:
        """Read what `save` wrote; raises if it is damaged or for another network."""
        path = folder / FILE
        if not path.is_file():
            raise CheckpointError(f"{folder} has no {FILE}: it is not a finished run; `ldf train` creates one")
        tensors, facts = load(path)
        if facts.get("format") != FORMAT:
            raise CheckpointError(f"{path} is not a run of `ldf train` ({FORMAT})")
        problem = problem or load_problem(facts["kind"], folder)
        if problem.fingerprint != facts["fingerprint"]:
            raise CheckpointError(
                f"{folder}: the model was trained on another network than {problem.name} as it is now"
            )
        parts: dict[str, dict[str, Tensor]] = {"proxy": {}, "range": {}, "memory": {}, "prices": {}}
        for name, value in tensors.items():
            group, _, rest = name.partition(".")
            parts[group][rest] = value
        described = facts.pop("prices") if problem.priced else None
        held = parts["memory"]
        memory, price_memory = (
            Rows(held["demand"], held["demand"], held[name]) if name in held else None for name in ("state", "prices")
        )
        facts.pop("format")
        return cls(
            problem,
            _restored(facts.pop("network"), parts["proxy"], path),
            facts,
            History(facts.pop("history")),
            parts["range"],
            memory,
            _restored(described, parts["prices"], path) if described is not None else None,
            price_memory,
        )

    def rows(self, demand: Tensor, earlier: tuple[Tensor, Tensor] | None = None) -> Rows:
        """Inputs for demands [B, D]; with a hot start the earlier state is the given one or the nearest in memory."""
        return Rows.near(self.memory, demand, earlier)

    def predict(self, demand: Tensor, earlier: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """States [B, S] for demands [B, D], in the problem's own units."""
        return self.proxy.predict(self.rows(demand, earlier))

    def predict_prices(self, demand: Tensor, earlier: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Prices [B, K] for demands [B, D], in display units; with a hot start from earlier demands and prices."""
        if self.prices is None:
            raise ValueError(f"{self.problem.kind} {self.problem.name} has no prices to predict")
        return self.prices.predict(Rows.near(self.price_memory, demand, earlier))

    def outside(self, demand: Tensor) -> list[str | None]:
        """For each demand [D] how it differs from the training rows, as text, or None."""
        known = {name: value.numpy() for name, value in self.range.items()}
        return outside(self.problem, known, demand.numpy())


def _restored(described: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> Proxy:
    """A network from its description and its tensors."""
    proxy = Proxy(Architecture(**described["architecture"]), described["hot"], described["sizes"])
    try:
        proxy.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path} does not hold the network it describes: {reason}") from error
    return proxy.eval()


def columns(proxy: Proxy, data: Dataset) -> dict[str, Tensor]:
    """Training data of `fit`: features and z in single precision, and inputs of the laws in the problem's own."""
    rows = Rows.of(data)
    base = proxy.base(rows)
    seen = {"inputs": proxy.features(rows), "targets": proxy.targets(data.state, base)}
    needed = {"base": base, "demand": data.demand, "states": data.state}
    found = {name: value.float() for name, value in seen.items()}
    return found | {name: value.to(data.problem.precision) for name, value in needed.items()}


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
    """Train on the training part of a data set (`Dataset.split`); a folder stores the result and resumes a killed run.

    If the folder has a finished run with the same settings, that run is loaded instead.
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
                "use another folder, or remove this one"
            )
        _tidy(folder)
        return held
    proxy, done = _fit(
        training,
        replace(recipe, epochs=epochs),
        recipe.dual(model),
        lambda proxy: problem.constraints(lambda z, batch: proxy.states(z, batch.base), problem.precision),
        seed=seed,
        checkpoint=folder / CHECKPOINTS[0] if folder is not None else None,
        progress=progress,
    )
    result = Trained(
        problem,
        proxy,
        {**known, "best_epoch": done.best_epoch, "doctor": done.doctor(TOLERANCE).to_dict()},
        done.history,
        reach(training.demand),
        _memory(training, seed),
    )
    priced = training.priced()
    if priced is not None:
        place = folder / CHECKPOINTS[1] if folder is not None else None
        result.prices, _ = _fit(
            priced.cut(), PRICES, None, lambda _: [], seed=seed, checkpoint=place, progress=progress
        )
        result.price_memory = _memory(priced, seed)
    if folder is not None:
        result.save(folder)
        _tidy(folder)
    return result


def _fit(
    training: Dataset,
    recipe: Recipe,
    dual: Dual | None,
    laws: Callable[[Proxy], Sequence[Constraint]],
    *,
    seed: int,
    checkpoint: Path | None,
    progress: bool | None,
) -> tuple[Proxy, Fit]:
    """Fit a network to the states of the rows, under the laws."""
    fitted, chosen = divide(training, seed)
    proxy = build(recipe.architecture, fitted, chosen, seed)
    done = fit(
        proxy,
        columns(proxy, fitted),
        loss=mse_loss,
        constraints=laws(proxy),
        dual=dual,
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        lr=recipe.lr,
        schedule=recipe.schedule,
        validation=columns(proxy, chosen),
        keep=recipe.keep,
        seed=seed,
        compile=False,  # the same numbers with and without a C++ compiler
        checkpoint=checkpoint,
        progress=progress,
    )
    if recipe.architecture.skip:
        proxy.temper(chosen)
    return proxy.eval(), done


def _tidy(folder: Path) -> None:
    """Remove the checkpoints of a finished run, also partial ones that a killed run left."""
    for name in CHECKPOINTS:
        shutil.rmtree(folder / name, ignore_errors=True)


def _memory(training: Dataset, seed: int) -> Rows | None:
    if training.earlier_demand is None or training.earlier_state is None:
        return None
    kept = torch.from_numpy(np.random.default_rng([seed, 2]).permutation(len(training))[:MEMORY])
    return Rows(training.earlier_demand[kept], training.earlier_demand[kept], training.earlier_state[kept])


Baseline = Callable[[Dataset], Tensor]


def baselines(data: Dataset) -> dict[str, Baseline]:
    """Baselines for a network: a constant, ridge regression, and with a hot start the earlier state (or prices)."""
    training, _ = data.split()
    fitted, chosen = divide(training, SEED)
    centre = training.state.mean(0)
    linear = build(Architecture(1, 1, skip=True, bounded=False), fitted, chosen, SEED, linear=True)
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
