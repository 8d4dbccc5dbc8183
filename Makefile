.DEFAULT_GOAL := help
export NO_MKDOCS_2_WARNING = 1

help: ## list the verbs
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

install: ## the package and all tools, at the tested versions
	pip install -c constraints.txt -e ".[test]"

format: ## mend what ruff can mend
	ruff check --fix . && ruff format .

check: ## lint, types, tests, strict site build: what CI runs
	ruff check . && ruff format --check . && mypy && pytest -n 2 && mkdocs build --strict

test: ## the tests
	pytest -n 2

slow: ## the tests that take long by their nature: whole experiments, all planted programs
	pytest -n 2 -m slow

records: ## run every lesson's experiments and replace the published records
	python -m repro_tutorial.lessons

stamp: ## note in each Chinese page which English text it follows
	python docs/hooks.py --stamp

site: ## build the site into site/
	mkdocs build --strict

benchmarks: ## measure the ratios that CONTRIBUTING.md states
	for one in tests/benchmarks/*.py; do python $$one || exit 1; done

.PHONY: help install format check test slow records stamp site benchmarks
