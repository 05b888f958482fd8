"""What every problem must do, from its network to a certified answer: the same tests for all, also for a plug-in."""

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from inside import inside
from torch import Tensor

from ldf.core.batch import Batch
from ldf.core.certificate import certify
from ldf.proxies import kinds, load_problem, open_problem
from ldf.proxies.answering.certifier import Certifier
from ldf.proxies.answering.files import read_demands, write_answers
from ldf.proxies.answering.repair import Projection, Untouched
from ldf.proxies.data import dataset
from ldf.proxies.data.dataset import Dataset
from ldf.proxies.data.labelling import Labeller, Origin, label
from ldf.proxies.data.sampling import Sampling
from ldf.proxies.learning.evaluation import evaluate, price_errors
from ldf.proxies.learning.network import Rows
from ldf.proxies.learning.training import MODELS, RECIPES, Trained, baselines, train
from ldf.proxies.nlp import Solution
from ldf.proxies.problem import Floats, Problem
from ldf.proxies.program import distinct
from ldf.reproduce.networks import NAMES, PROJECTED

CASES = {"power": "case14_ieee", "gas": "24-pipe", "dc": "case3_lmbd"}
QUANTITIES = {"power": ("p", "v", "theta", "pf"), "gas": ("R", "p", "q"), "dc": ("pg", "theta")}
ROWS = 60
F64 = torch.float64
Runs = dict[tuple[str, str], Trained]


def noise(shape: Sequence[int], seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


@dataclass(frozen=True)
class Subject:
    """A problem and what all tests of it share."""

    problem: Problem
    folder: Path
    data: Dataset
    optimum: Solution

    def laws(self, labels: bool = True):
        return self.problem.constraints(lambda states, _: states, F64, labels)

    def batch(self, rows: Dataset | None = None) -> Batch:
        rows = rows or self.data
        return Batch(inputs=rows.demand, demand=rows.demand, states=rows.state)

    def shifted(self, size: float, seed: int = 0) -> Floats:
        state = self.optimum.state
        return state + size * np.random.default_rng(seed).standard_normal(len(state))


@pytest.fixture(scope="module", params=CASES)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, dcopf: Path) -> Subject:
    kind: str = request.param
    problem, folder = open_problem(kind, CASES[kind]), tmp_path_factory.mktemp(kind)
    label(problem, ROWS, Sampling("independent"), folder, workers=1, progress=False)
    return Subject(problem, folder, dataset.load(folder), problem.solver().solve())


@pytest.fixture(scope="module")
def runs(subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    return {
        (recipe, model): train(
            subject.data, model, RECIPES[recipe], epochs=3, folder=folder / f"{recipe}-{model}", progress=False
        )
        for recipe in RECIPES
        for model in MODELS
    }


class TestProblem:
    """Any problem that the proxies learn."""

    def test_its_parts_fit_together(self, subject: Subject) -> None:
        problem = subject.problem
        assert problem.kind in kinds()
        size = len(problem.lower)
        assert sorted(i for part in problem.quantities.values() for i in range(size)[part]) == list(range(size))
        assert len(problem.upper) == size
        assert (problem.lower <= problem.upper).all()
        assert len(problem.nominal) == len(problem.loads)
        count = problem.loads.max() + 1
        assert set(problem.loads[problem.loads >= 0]) == set(range(count))
        assert (problem.nominal[problem.loads < 0] == 0).all()
        assert set(problem.controls.values()) <= set(problem.quantities)
        assert {law.name for labels in (True, False) for law in subject.laws(labels)} <= set(problem.laws)
        count = subject.data.prices.shape[1]
        assert sorted(i for part in problem.priced.values() for i in range(count)[part]) == list(range(count))
        assert {len(range(count)[part]) for part in problem.priced.values()} == {len(problem.nodes)}
        for name in [*problem.present(subject.optimum.state), *problem.priced, "objective"]:
            assert name in problem.units
        assert set(problem.reported(subject.data.state)) == set(QUANTITIES[problem.kind])
        if problem.kind in NAMES:
            assert NAMES[problem.kind].keys() >= {*problem.controls, *QUANTITIES[problem.kind]}
            assert problem.units.keys() >= problem.laws.keys()

    def test_its_optimum_satisfies_every_law_with_room_to_spare(self, subject: Subject) -> None:
        for labels in (True, False):
            found = certify(subject.laws(labels), subject.data.state, subject.batch()).findings
            assert max(finding.max for finding in found) < 1e-6
        assert (subject.data.state.numpy() > subject.problem.lower - 1e-6).all()
        assert (subject.data.state.numpy() < subject.problem.upper + 1e-6).all()

    def test_a_state_that_is_off_breaks_a_law(self, subject: Subject) -> None:
        worst = subject.problem.model.violations(subject.problem.nominal[None], subject.shifted(0.01)[None])
        assert max(nu[0] for nu in worst.values()) > 1e-3

    def test_torch_and_the_solver_agree_on_the_cost(self, subject: Subject) -> None:
        ours = subject.problem.objective(subject.data.state)
        assert torch.allclose(ours, subject.data.objective, rtol=1e-6)
        nominal = float(subject.problem.objective(torch.from_numpy(subject.optimum.state)[None]))
        assert subject.optimum.objective == pytest.approx(nominal, rel=1e-6)

    def test_gradients_of_the_laws_are_those_of_finite_differences(self, subject: Subject) -> None:
        start = torch.from_numpy(np.stack([subject.shifted(0.01, seed) for seed in range(2)]))
        demand = torch.from_numpy(np.tile(subject.problem.nominal, (2, 1)))
        batch = Batch(inputs=demand, demand=demand, states=start + 0.003)
        for labels in (True, False):
            for law in subject.laws(labels):
                weights = torch.randn(
                    law.sigma(start, batch).shape, generator=torch.Generator().manual_seed(0), dtype=F64
                )

                def total(states: Tensor, law=law, weights=weights) -> Tensor:
                    return (law.sigma(states, batch) * weights).sum()

                point = start.clone().requires_grad_()
                slope = torch.autograd.grad(total(point), point)[0]
                along = noise(start.shape, seed=1)
                step = 1e-6
                ahead, behind = (total(start + sign * step * along) for sign in (1, -1))
                found, wanted = float((slope * along).sum()), float((ahead - behind) / (2 * step))
                assert found == pytest.approx(wanted, rel=1e-5, abs=1e-6), law.name

    def test_what_it_saves_is_what_it_loads(self, subject: Subject, tmp_path: Path) -> None:
        subject.problem.save(tmp_path)
        again = load_problem(subject.problem.kind, tmp_path)
        assert again.fingerprint == subject.problem.fingerprint
        assert again.name in (subject.problem.name, *[path.stem for path in tmp_path.iterdir()])
        assert list(again.assumptions) == list(subject.problem.assumptions)
        for name in ("nominal", "loads", "lower", "upper"):
            assert np.array_equal(getattr(again, name), getattr(subject.problem, name))
        assert again.solver().solve().objective == subject.optimum.objective

    def test_a_warm_start_leads_to_the_same_optimum_sooner(self, subject: Subject) -> None:
        solver = subject.problem.solver()
        demand = 1.002 * subject.problem.nominal
        warm, cold = solver.solve(demand, subject.optimum), solver.solve(demand)
        assert warm.solved
        assert warm.objective == pytest.approx(cold.objective, rel=1e-6)
        assert np.abs(warm.state - cold.state).max() < 1e-3
        assert warm.iterations < cold.iterations

    def test_a_demand_beyond_all_means_has_no_solution(self, subject: Subject) -> None:
        assert not subject.problem.solver().solve(100 * subject.problem.nominal).solved

    def test_prices_of_labels_are_what_more_demand_costs(self, subject: Subject) -> None:
        problem, solver, step = subject.problem, subject.problem.solver(), 1e-4
        for demand, prices in zip(subject.data.demand[:2].numpy(), subject.data.prices[:2].numpy(), strict=True):
            for entry in np.flatnonzero(problem.loads >= 0)[[0, 1, 2, -1]]:
                shift = np.zeros(len(problem.nominal))
                shift[entry] = step
                more, less = (solver.solve(demand + sign * shift).objective for sign in (1, -1))
                _, _, factor = problem.entry(entry)
                assert prices[entry] == pytest.approx((more - less) / (2 * step * factor), rel=1e-3, abs=2e-4)

    def test_prices_are_named_by_part_and_node(self, subject: Subject) -> None:
        problem, prices = subject.problem, subject.problem.prices(subject.optimum)
        shown = problem.duals(subject.optimum)
        assert list(shown) == list(problem.priced)
        for name, part in problem.priced.items():
            assert list(shown[name]) == [str(node) for node in problem.nodes]
            assert list(shown[name].values()) == prices[part].tolist()
        for entry in np.flatnonzero(problem.loads >= 0)[:3]:
            place = problem.entry(entry)[0].split()[-1]
            assert shown["prices"][place] == prices[entry]

    def test_a_label_does_not_depend_on_where_labelling_began(self, subject: Subject) -> None:
        origin = Origin(subject.problem.kind, "x", "x", 0, 10, Sampling("independent"))
        labeller = Labeller(subject.problem, origin)
        for row in range(3):
            demand = subject.data.demand[row].numpy()
            found = [
                labeller.solve(demand),
                labeller.solve(demand, subject.optimum),
                subject.problem.solver().solve(demand),
            ]
            for other in found:
                assert other.solved
                assert np.abs(other.state - subject.data.state[row].numpy()).max() < 1e-4

    def test_optima_come_cheapest_first_and_once(self, subject: Subject) -> None:
        found = subject.problem.solver().optima(subject.problem.nominal)
        assert found[0].objective == subject.optimum.objective
        assert len(distinct([*found, *found])) == len(found)
        assert [s.objective for s in found] == sorted(s.objective for s in found)

    def test_with_a_hot_start_earlier_states_are_optimal_too(self, subject: Subject, tmp_path: Path) -> None:
        label(subject.problem, 12, Sampling("shared", hot_start=0.01), tmp_path, workers=1, progress=False)
        data = dataset.load(tmp_path)
        assert data.hot
        batch = Batch(inputs=data.earlier_demand, demand=data.earlier_demand, states=data.earlier_state)
        assert max(f.max for f in certify(subject.laws(), data.earlier_state, batch).findings) < 1e-6
        ratio = data.demand.sum(1) / data.earlier_demand.sum(1)
        assert (ratio - 1).abs().max() <= 0.01 + 1e-12
        done = train(data, "MCD", RECIPES["tuned"], epochs=1, progress=False)
        assert torch.isfinite(done.predict(data.demand)).all()

    def test_labels_themselves_are_perfect(self, subject: Subject) -> None:
        scores = evaluate(subject.data.state, subject.data)
        assert max(scores.errors.values()) == 0
        assert max(scores.worst.values()) < 1e-6
        assert scores.gap < 1e-4

    def test_every_model_of_every_recipe_trains(self, subject: Subject, runs: Runs) -> None:
        _, test = subject.data.split()
        constant = evaluate(baselines(subject.data)["mean"](test), test).errors
        for (recipe, model), run in runs.items():
            assert (run.facts["recipe"], run.facts["model"]) == (recipe, model)
            found = run.proxy.predict(Rows.of(test))
            assert torch.isfinite(found).all()
            if recipe == "tuned":
                scores = evaluate(found, test)
                assert all(error < constant[name] / 3 for name, error in scores.errors.items())
                assert (found >= torch.from_numpy(subject.problem.lower)).all()
                assert (found <= torch.from_numpy(subject.problem.upper)).all()

    def test_predicted_prices_beat_a_constant_whatever_the_recipe(self, subject: Subject, runs: Runs) -> None:
        problem, priced = subject.problem, subject.data.priced()
        _, test = priced.split()
        constant = price_errors(problem, baselines(priced)["mean"](test), test.state)
        assert list(constant) == list(problem.priced)
        first = runs["tuned", "MCD"].predict_prices(test.demand)
        found = price_errors(problem, first, test.state)
        assert all(found[name] < 0.7 * constant[name] for name in constant), (found, constant)
        for run in runs.values():
            assert torch.equal(run.predict_prices(test.demand), first)

    def test_what_is_trained_is_what_is_loaded(
        self, subject: Subject, runs: dict[tuple[str, str], Trained], tmp_path
    ) -> None:
        run = runs["tuned", "MCD"]
        run.save(tmp_path)
        again = Trained.load(tmp_path)
        assert torch.equal(again.predict(subject.data.demand), run.predict(subject.data.demand))
        assert torch.equal(again.predict_prices(subject.data.demand), run.predict_prices(subject.data.demand))
        assert again.problem.fingerprint == subject.problem.fingerprint

    def test_a_demand_unlike_the_training_rows_is_named(
        self, subject: Subject, runs: dict[tuple[str, str], Trained]
    ) -> None:
        run, entry = runs["tuned", "MCD"], int(np.flatnonzero(subject.problem.loads >= 0)[1])
        demand = subject.data.demand[:2].clone()
        demand[1, entry] *= 3
        name, unit, factor = subject.problem.entry(entry)
        fine, odd = run.outside(demand)
        assert fine is None
        assert odd.startswith(f"{name} is {float(demand[1, entry]) * factor:.4g} {unit}, trained between ")

    @pytest.mark.parametrize("size", [1e-4, 0.01])
    def test_repair_makes_a_prediction_feasible(self, subject: Subject, size: float) -> None:
        problem, solver = subject.problem, subject.problem.solver()
        certifier, prediction = Certifier(problem, PROJECTED), subject.shifted(size)
        before = certifier.answer(problem.nominal, prediction, Untouched())
        assert (before.status, before.repair) == ("uncertified", "none")
        answer = certifier.answer(problem.nominal, prediction, Projection(solver), optimum=subject.optimum.objective)
        assert (answer.status, answer.repair) == ("certified", "projection")
        assert set(answer.moved) == set(problem.controls)
        assert 0 < max(answer.moved.values()) < 300 * size * math.sqrt(len(prediction))
        assert answer.gap > -1e-3
        distance = solver.project(problem.nominal, prediction).objective
        moved = [
            answer.state[problem.quantities[q]] - prediction[problem.quantities[q]] for q in problem.controls.values()
        ]
        assert distance == pytest.approx(sum(float(part @ part) for part in moved), rel=1e-6)
        best = [
            subject.optimum.state[problem.quantities[q]] - prediction[problem.quantities[q]]
            for q in problem.controls.values()
        ]
        assert distance <= sum(float(part @ part) for part in best) * (1 + 1e-6), (
            "the optimum is feasible, and no nearer"
        )

    def test_repair_leaves_the_optimum_where_it_is(self, subject: Subject) -> None:
        problem = subject.problem
        answer = Certifier(problem, PROJECTED).answer(
            problem.nominal, subject.optimum.state, Projection(problem.solver())
        )
        assert answer.status == "certified"
        assert max(answer.moved.values()) < 1e-3

    def test_an_unsolvable_demand_gets_no_certificate(self, subject: Subject) -> None:
        problem = subject.problem
        answer = Certifier(problem, PROJECTED).answer(
            100 * problem.nominal, subject.optimum.state, Projection(problem.solver())
        )
        assert answer.status == "unsolvable"

    def test_a_state_that_is_no_number_gets_no_certificate(self, subject: Subject) -> None:
        state = subject.optimum.state.copy()
        state[3] = math.nan
        answer = Certifier(subject.problem, PROJECTED).answer(subject.problem.nominal, state, Untouched())
        assert answer.status == "uncertified"

    @pytest.mark.parametrize("suffix", [".csv", ".parquet"])
    def test_files_of_demands_and_answers(self, subject: Subject, tmp_path: Path, suffix: str) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        problem = subject.problem
        entry = int(np.flatnonzero(problem.loads >= 0)[0])
        name, _, factor = problem.entry(entry)
        column = name.split()[-1]
        value = 0.9 * float(problem.nominal[entry]) * factor
        path = tmp_path / f"demands{suffix}"
        if suffix == ".csv":
            path.write_text(f"{column}\n{value!r}\n")
        else:
            parquet.write_table(pa.table({column: [value]}), path)
        wanted = read_demands(path, problem)
        assert wanted.shape == (1, len(problem.nominal))
        assert wanted[0, entry] == pytest.approx(0.9 * problem.nominal[entry])
        others = [i for i in range(len(problem.nominal)) if problem.loads[i] != problem.loads[entry]]
        assert np.array_equal(wanted[0, others], problem.nominal[others])
        answer = Certifier(problem, PROJECTED).answer(wanted[0], subject.optimum.state, Projection(problem.solver()))
        out = tmp_path / f"answers{suffix}"
        write_answers(out, problem, [answer])
        if suffix == ".csv":
            with out.open() as file:
                row = next(csv.DictReader(file))
        else:
            row = parquet.read_table(out).to_pylist()[0]
        assert row["status"] == "certified"
        for quantity, part in problem.present(answer.state).items():
            for number, shown in part.items():
                assert float(row[f"{quantity}{number}"]) == pytest.approx(shown)

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ({"no such place": [1.0]}, "no such place"),
            ({"{place}": [math.nan]}, "row 1"),
            ({"{place}": [1.0], " {place} ": [2.0]}, "the same demand"),
        ],
    )
    def test_bad_columns_are_refused(self, subject: Subject, columns: dict, message: str) -> None:
        place = subject.problem.entry(int(np.flatnonzero(subject.problem.loads >= 0)[0]))[0].split()[-1]
        with pytest.raises(ValueError, match=message):
            subject.problem.demands({name.format(place=place): values for name, values in columns.items()}, 1)

    def test_a_plot_shows_prediction_and_repair(self, subject: Subject, tmp_path: Path) -> None:
        path = tmp_path / "plot.png"
        wanted = subject.shifted(0.01), subject.optimum.state, subject.problem.nominal, path, "a title"
        if subject.problem.kind == "dc":
            with pytest.raises(NotImplementedError, match=r"'dc' have no plot: define DC\.draw"):
                subject.problem.draw(*wanted)
            return
        subject.problem.draw(*wanted)
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 10_000

    def test_the_command_line_goes_from_labels_to_certificates(self, subject: Subject, tmp_path: Path) -> None:
        kind, case = subject.problem.kind, CASES[subject.problem.kind]

        def run(*arguments: str) -> str:
            done = inside(*arguments, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            return done.stdout

        found = json.loads(run("solve", kind, case, "--json"))
        assert found["status"] == "optimal"
        assert found["objective"] == pytest.approx(subject.optimum.objective, rel=1e-9)
        assert found["state"].keys() == subject.problem.present(subject.optimum.state).keys()
        shown = run("solve", kind, case)
        assert f"objective {subject.problem.units['objective']}" in shown
        assert all(line in shown for line in subject.problem.assumptions)
        run("label", kind, case, "-n", "30", "--sampling", "independent", "--workers", "1", "--out", "data")
        run("train", kind, "data", "--epochs", "2", "--out", "run")
        scores = json.loads(run("evaluate", "run", "--json"))
        assert list(scores) == ["mean", "linear", "MCD"]
        assert tuple(scores["MCD"]["errors"]) == QUANTITIES[kind]
        assert all(tuple(found["prices"]) == tuple(subject.problem.priced) for found in scores.values())
        place = subject.problem.entry(int(np.flatnonzero(subject.problem.loads >= 0)[0]))[0].split()[-1]
        (tmp_path / "demands.csv").write_text(f"{place}\n20\n21\n")
        answered = run("predict", "run", "--demands", "demands.csv", "--out", "answers.csv")
        assert answered.startswith("2 certified at 0.0001 in answers.csv (")
        assert run("doctor", "run").startswith(f"MCD, tuned recipe, {case}\n")

    def test_another_kind_of_data_is_refused(self, subject: Subject, tmp_path: Path) -> None:
        other = next(kind for kind in CASES if kind != subject.problem.kind)
        done = inside("train", other, str(subject.folder), "--out", str(tmp_path / "run"))
        assert done.returncode == 1
        assert f"has labels of kind {subject.problem.kind}, not {other}" in done.stderr
