.DEFAULT_GOAL := help
PY := .venv/bin/python
ZENSICAL := .tools/docs/bin/zensical
PAGES := diagram errors_page problem_pages cli_page stores_page api_page decisions_page metrics_page dashboard
PORT ?= 8000
N ?= 4
COVERAGE_TESTS := tests/unit tests/contract tests/web tests/operations
COVERAGE_SELECT := not (postgres or mysql or mariadb or mongo or redis or valkey or dynamo or duckdb or leaves_what_is_slow or crowd)
unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes: each would compile everything anew

help:           ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup-demo    ## the demo in your browser, on http://127.0.0.1:8000 (PORT= and STORE= change it, RESET=1 starts over)
	@exec $(PY) -m retrysafe.cli.main demo --port $(PORT) $(if $(STORE),--store $(STORE)) $(if $(RESET),--reset)

test: setup     ## the whole suite, on real servers that it starts and stops by itself
	@$(PY) -m pytest -n $(N) --dist loadgroup

coverage: setup ## how much of core, engine and web the tests without servers run, with a floor for each; some minutes
	@$(PY) -m coverage erase
	-@$(PY) -m coverage run -m pytest -q -n $(N) --dist loadgroup --timeout 300 $(COVERAGE_TESTS) -k "$(COVERAGE_SELECT)"
	@$(PY) -m coverage combine -q
	@$(PY) tools/coverage_floor.py

check: setup lint type    ## everything CI checks beside the tests
	@for page in $(PAGES); do $(PY) -m tools.$$page --check || exit 1; done
	@$(PY) tools/prose.py
	@$(PY) -m pytest -q tests/docs/test_settings_are_documented.py tests/docs/test_anchors.py tests/docs/test_seam.py
	@$(PY) tools/fragments.py --check
	@$(PY) -m tools.invariants --check
	@$(PY) -m tools.async_to_sync --check

fmt: setup      ## format the code
	@.venv/bin/ruff format src distributions tests tools examples benchmarks
	@.venv/bin/ruff check --fix -q src distributions tests tools examples benchmarks

lint: setup     ## ruff
	@.venv/bin/ruff format --check -q src distributions tests tools examples benchmarks
	@.venv/bin/ruff check -q src distributions tests tools examples benchmarks

type: setup     ## mypy, strict
	@.venv/bin/mypy

bench: setup    ## what an operation costs, as ratios: every part, about ten minutes (PARTS= chooses)
	@$(PY) -m benchmarks $(PARTS)

bench-quick: setup  ## does every benchmark still run; about a minute, figures without meaning
	@$(PY) -m benchmarks --quick $(PARTS)

bench-full: setup   ## longer slices, more rounds, ten million records; 45 minutes on a quiet machine
	@$(PY) -m benchmarks --full $(PARTS)

bench-page: setup   ## the speed page and its charts, from the newest results
	@$(PY) -m benchmarks --page

pages: setup    ## write the generated pages of docs/ anew
	@for page in $(PAGES) walks; do $(PY) -m tools.$$page || exit 1; done

pictures: setup ## take the pictures of the demo for README and docs, in a real browser
	@RETRYSAFE_PICTURES=docs/pictures $(PY) -m pytest -q tests/browser/test_demo.py -k pictures

docs: setup-docs    ## build the documentation site in build/site; a warning is an error
	@$(ZENSICAL) build --strict --clean

docs-serve: setup-docs  ## serve the documentation site on http://127.0.0.1:8001 and rebuild it with each change (DOCS_PORT=)
	@exec $(ZENSICAL) serve --dev-addr 127.0.0.1:$(or $(DOCS_PORT),8001)

twins: setup    ## write the sync twins of async modules anew
	@$(PY) -m tools.async_to_sync

soak: setup     ## the worker for five minutes: twenty topics, one hangs, one kills, one has no publisher (SECONDS=)
	@RETRYSAFE_SOAK_SECONDS=$(or $(SECONDS),300) $(PY) -m pytest -m campaign tests/worker/test_soak.py

proof: setup    ## the long campaigns: more races, more kills, more cuts, ten million malformed keys and webhooks
	@RETRYSAFE_RACE_KEYS=1000 $(PY) -m pytest -n $(N) --dist loadgroup tests/races
	@$(PY) -m pytest -n $(N) --dist loadgroup -m campaign
	@RETRYSAFE_CLIENT_OPERATIONS=10000 $(PY) -m pytest -n $(N) --dist loadgroup tests/client/test_campaign.py
	@$(PY) tools/fuzz.py keys --count 10000000
	@$(PY) tools/fuzz.py webhooks --count 10000000
	@$(PY) tools/fuzz.py speedups --count 10000000
	@$(PY) tools/sanitize_speedups.py --count 1000000

proof-quick: setup  ## simulated histories: kept seeds, fresh ones, a sample of ablations; under four minutes
	@$(PY) -m tests.simulation --quick --jobs $(or $(JOBS),2)

proof-simulation: setup  ## a million simulated histories, resumable (SEEDS=, FIRST=, JOBS=)
	@$(PY) -m tests.simulation --seeds $(or $(SEEDS),1000000) --first $(or $(FIRST),0) --jobs $(or $(JOBS),2) \
		--resume .simulation.json

proof-ablations: setup  ## seeds to discovery of each ablation: 20 runs of 20,000 at most, resumable; writes the page (RUNS=, JOBS=)
	@$(PY) -m tests.simulation.ablations --runs $(or $(RUNS),20) --max 20000 --jobs $(or $(JOBS),2) \
		--notes .simulation-ablations.json --write

proof-straight: setup  ## straight way against flows: 100,000 exchanges per store, compared (EXCHANGES=, FIRST=, STORES= choose)
	@RETRYSAFE_STRAIGHT_EXCHANGES=$(or $(EXCHANGES),100000) RETRYSAFE_FIRST_SEED=$(or $(FIRST),0) $(PY) -m pytest \
		-n $(N) --dist loadgroup -m campaign -rA tests/web/test_both_ways.py $(if $(STORES),-k '$(STORES)')

proof-stores: setup  ## every store: 64 claimers for 2,000 keys, and 200 kills under load (KEYS=, KILLS=, STORES= choose)
	@RETRYSAFE_HEAT_KEYS=$(or $(KEYS),2000) RETRYSAFE_KILLS=$(or $(KILLS),200) $(PY) -m pytest -n $(N) --dist loadgroup \
		-rA tests/races/test_heats.py tests/faults/test_kills.py $(if $(STORES),-k '$(STORES)')

proof-steady: setup  ## tests that fail by chance: Redis' connections 50 times beside a load of 8 (RUNS=, LOAD=; SUITE=1 all tests)
	@$(PY) tools/steady.py --runs $(or $(RUNS),50) --load $(or $(LOAD),8) $(if $(SUITE),--suite)

release-check:  ## build wheel and sdist, and try them in empty environments on every Python of the classifiers
	@python3 tools/release_check.py

lock: setup     ## write the hashed locks anew
	@python3 tools/bootstrap.py lock

setup:
	@python3 tools/bootstrap.py test

setup-docs:
	@python3 tools/bootstrap.py docs

setup-demo:
	@python3 tools/bootstrap.py demo

.PHONY: help demo test coverage check fmt lint type bench bench-quick bench-full bench-page pages pictures docs docs-serve twins soak proof proof-quick proof-simulation proof-ablations proof-straight proof-stores proof-steady release-check lock setup setup-docs setup-demo
