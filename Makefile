# Each target sets up what it needs: `make demo` or `make test` on a machine with Python, make and a package index.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: install demo test soak check docs bench clean help

help:
	@echo "make install   .venv with every extra and the development tools"
	@echo "make demo      the main job, end to end, into out/demo"
	@echo "make test      all tests and doctests"
	@echo "make soak      the tests that are slow or repeat what others show"
	@echo "make check     ruff and mypy"
	@echo "make docs      the documentation, into out/site"
	@echo "make bench     a training step, dual rules (quick), the solver of power networks, the labelling of demands and (quick) fair classifiers, beside the peers"
	@echo "make clean     remove .venv and everything made by a run"

install: $(STAMP)

# constraints.txt pins torch, so that pip takes one known build and nothing pulls another.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all,dev]"
	@echo "compiling the solver of power networks, once: about a minute"
	$(BIN)/python -c "from ldf.proxies import open_problem; open_problem('power', 'case14_ieee').solver().prepare('cold', 'check')"
	touch $@

demo: install
	$(BIN)/ldf demo --out out/demo

# Files in the order of tests/conftest.py, the slowest first, so that both processes end together.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: install
	$(PYTEST)

soak: install
	$(PYTEST) -m soak

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "out/site/index.html; to search in it: $(BIN)/python -m http.server -d out/site"

bench: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/problems.py --quick
	$(BIN)/python benchmarks/labelling.py
	$(BIN)/python benchmarks/solver.py --quick --case case30_ieee --case case118_ieee
	$(BIN)/python benchmarks/answers.py --quick --case case30_ieee --case case118_ieee --work out/bench-answers
	$(BIN)/python benchmarks/fairness.py --quick --out out/bench-fairness

clean:
	rm -rf $(VENV) out dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
