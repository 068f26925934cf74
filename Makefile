# SPDX-License-Identifier: Apache-2.0
# Needs make and Python 3.11 to 3.13; everything else is installed into .venv.
#
#   make demo    train on handwritten digits, evaluate, export, predict
#   make demo-detection   the same with a Mask R-CNN, on pictures of shapes that it draws
#   make demo-segmentation   the same with a network that finds the class of each pixel, of its tutorial
#   make test    layers, models, weights, training, export and commands, on TensorFlow and JAX, but for what is slow
#   make test-slow   what is slow of them: long runs, whole networks and exports
#   make test-rest   the tests that need more: PyTorch and timm, TF Model Garden on tf_keras, Beam, the TPU compiler, the
#                documentation or a browser
#   make test-user   both, in one session for each backend: a minute less for what .ci/run needs
#   make test-all   all three
#                a part of them: make test TESTFLAGS=tests/layers/attention_test.py, or TESTFLAGS='-k causal tests/layers'
#   make weekly  what is too long for each change: whole tables, all families and chips, long runs, the documentation, the newest
#                packages, and Python without the patches of tests/; a part that has passed is not repeated until `make clean-weekly`
#   make test-newest   layers, models, weights and training with Keras and JAX of constraints-newest.txt, without TensorFlow,
#                where there is a Python 3.12 to 3.14; it is installed into .venv-newest
#   make fuzz    300 random layers on each backend, 45 random streams, and all variants of which the tests have a sample, in
#                minutes
#   make test-plain-cpu   make test-all as on a processor with AVX2 and nothing newer, and TensorFlow's part with oneDNN
#   make test-tensorflow-2.21   layers, models and training with TensorFlow 2.21, in .venv-2.21
#   make coverage   make test-all, and the lines of the library that it ran: at least 95 %
#   make check   lint, and the tests nearest to what changed, in a minute; before each commit
#   make lint    ruff, mypy, the limits in pyproject.toml, and whether generated pages are current
#   make docs    the documentation, as static pages in docs/_build; the tutorials are run
#   make tables  write the tables of the README and the documentation, and the pages of the model families
#   make figures  draw the plots of the README and the documentation
#   make results PAGE=speed   run the commands on a page of docs/results, which write the files it shows, and record the commit
#   make format  format the code with ruff
#   make lock    write the versions of all packages to constraints.txt and constraints-newest.txt, with UPGRADE=--upgrade the
#                newest
#   make hooks   run lint on what is committed, and check the subject, at each `git commit`
#   make release-check   build the packages, and install and try each in an empty environment
#   make clean   remove all of these outputs, .venv included
#
# The versions of all packages are those in constraints.txt; `make CONSTRAINTS= ...` installs the newest that setup.cfg allows.
# `make VENV=FOLDER ...` installs into another folder than .venv.

# The first Python found for which TensorFlow 2.20 has a package; make PYTHON=... names another.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3 python; do \
	"$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo "$$python" && break; done)

VENV ?= .venv
BIN := $(VENV)/bin
CONSTRAINTS ?= constraints.txt
# uv installs all packages: it is as fast as a disk, and builds in isolation, whichever pip Python comes with. In an empty home
# and behind a proxy it needs --system-certs.
UV := $(shell sed -n 's/^uv==//p' constraints.txt)
UV_INSTALL := $(BIN)/uv pip install --quiet --system-certs
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
endif
# PyTorch without CUDA, a tenth of the size, where its index answers at one of three attempts.
TORCH_INDEX := https://download.pytorch.org/whl/cpu/torch/
TORCH_BACKEND = $(shell for seconds in 5 10 20; do \
	$(BIN)/python -c "import urllib.request; urllib.request.urlopen('$(TORCH_INDEX)', timeout=$$seconds)" 2>/dev/null \
	&& echo --torch-backend=cpu && exit; done; \
	echo "$(TORCH_INDEX) does not answer: PyTorch from PyPI has 4.5 GB of CUDA on Linux" >&2)
EXPORT := $(BIN)/lambdanet export --model_dir=demo/digits --out=demo/saved_model --overwrite
# What is tested on JAX too, by the marker of its tests, and what is on JAX and PyTorch in `make test-rest`.
ON_JAX := $(shell grep -rlw --include='*_test.py' 'mark\.jax' tests)
ON_ALL := $(patsubst %,tests/%_test.py,backend/engines backend/masks backend/numbers explain/networks explain/outputs layers/abilities)
REST_ON_JAX := $(ON_ALL) $(patsubst %,tests/training/run/%_test.py,devices losses multi_worker optimizers)
ON_TORCH := $(ON_ALL) tests/layers/fuzz_layers_test.py
# About a hundred tests of layers, a run, an export and commands.
PLAIN := $(patsubst %,tests/%_test.py,layers/lambda_layer models/unet training/train training/serving/predict training/serving/export)
# On each backend, and on TensorFlow alone.
FUZZ := tests/layers/fuzz_layers_test.py tests/backend/masks_test.py
FUZZ_MORE := $(patsubst %,tests/%_test.py,layers/padding models/fuzz_streams ops/position_lambdas ops/reference)
PYTEST = $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=8 --dist=loadfile --no-loadscope-reorder $(COVERAGE)
DETECTION := $(BIN)/python -m lambdanet.detection
SHAPES := $(DETECTION).shapes --out=demo/shapes
SEGMENTATION := $(CURDIR)/docs/tutorials/segment_pictures.md
SHAPES_RUN := $(DETECTION).train --experiment=maskrcnn_lambda_resnet_shapes --mode=train \
	--model_dir=demo/shapes_run --config_file=demo/shapes/config.yaml
SHAPES_EXPORT := $(DETECTION).export --model_dir=demo/shapes_run --out=demo/shapes_model --overwrite

# JAX 0.11 and later need Python 3.12. The names in pyenv's folder of shims need not run.
NEWEST_PYTHON ?= $(shell for python in python3.14 ~/.pyenv/versions/3.14*/bin/python python3.13 ~/.pyenv/versions/3.13*/bin/python \
	python3.12 ~/.pyenv/versions/3.12*/bin/python; do "$$python" -c '' 2>/dev/null && echo "$$python" && break; done)
# pytest in .venv-newest, with two devices, and without the XLA flags of tests/conftest.py, which JAX 0.12 rejects.
NEWEST_VENV ?= .venv-newest
NEWEST_CONSTRAINTS := $(if $(CONSTRAINTS),constraints-newest.txt)
NEWEST_PACKAGES := keras jax hypothesis pytest pytest-xdist
NEWEST_PYTEST := PYTHONPATH=tests KERAS_BACKEND=jax JAX_PLATFORMS=cpu XLA_FLAGS="--xla_force_host_platform_device_count=2 \
	--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true" \
	$(NEWEST_VENV)/bin/python -m pytest --noconftest -p times --numprocesses=2

.PHONY: demo demo-detection demo-segmentation docs docs-time tables figures test test-slow test-rest test-all fuzz \
	test-tensorflow test-jax test-slow-tensorflow test-slow-jax test-rest-tensorflow test-rest-jax test-rest-torch \
	test-user test-user-tensorflow test-user-jax install-newest test-newest test-plain-cpu test-tensorflow-2.21 weekly \
	clean-weekly coverage check lint lint-code lint-types lint-limits lint-pages format results lock hooks release-check clean

# Every step can be repeated: training resumes, or prints that it is finished; the export is repeated if it is older than
# the training.
demo: $(VENV)/demo.stamp
	@mkdir -p demo
	$(BIN)/lambdanet train --recipe=digits --model_dir=demo/digits
	$(BIN)/lambdanet evaluate --model_dir=demo/digits
	@test demo/saved_model/saved_model.pb -nt demo/digits/history.csv || \
		{ echo "$(EXPORT)" && $(EXPORT); }
	@test -d demo/images || TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -c "$$WRITE_IMAGES"
	$(BIN)/lambdanet predict --saved_model=demo/saved_model --out=demo/predictions --overwrite --top=3 demo/images/*.png
	@echo "$$WHAT_NOW"

# Can be repeated likewise.
demo-detection: $(VENV)/detection.stamp
	@mkdir -p demo
	@test -d demo/shapes || { echo "$(SHAPES)" && $(SHAPES); }
	$(SHAPES_RUN)
	@test demo/shapes_model/saved_model.pb -nt demo/shapes_run/checkpoint || \
		{ echo "$(SHAPES_EXPORT)" && $(SHAPES_EXPORT); }
	$(DETECTION).evaluate --saved_model=demo/shapes_model --images=demo/shapes/val \
		--annotations=demo/shapes/annotations/instances_val.json
	$(DETECTION).predict --saved_model=demo/shapes_model --out=demo/shapes_found --overwrite --min_confidence=0.8 \
		demo/shapes/val/00000[1-9].jpg
	@echo "$$WHAT_NOW_DETECTION"

# The program and the commands of its tutorial, but for the installation and the reader's own pictures. A run goes on.
demo-segmentation: $(VENV)/demo.stamp
	@mkdir -p demo/segmentation
	@sed -n '/^```python$$/,/^```$$/{/^```/!p}' $(SEGMENTATION) > demo/segmentation/draw_shapes.py
	@cd demo/segmentation && PATH="$(CURDIR)/$(BIN):$$PATH" TF_CPP_MIN_LOG_LEVEL=3 bash -euxc \
		"$$(sed -n '/^```bash$$/,/^```$$/{/^```/!p}' $(SEGMENTATION) | grep -v 'pip install\|my_pictures')"

# A process has one backend.
ifdef TESTFLAGS
test test-slow: $(VENV)/test.stamp
	$(PYTEST) $(TESTFLAGS)

test-rest: $(VENV)/dev.stamp
	$(PYTEST) $(TESTFLAGS)
else
test: test-tensorflow test-jax

test-slow: test-slow-tensorflow test-slow-jax

test-rest: test-rest-tensorflow test-rest-jax test-rest-torch
endif

test-user: test-user-tensorflow test-user-jax

test-all: test test-slow test-rest

test-tensorflow: $(VENV)/test.stamp
	$(PYTEST) -m "not slow and not rest and not weekly" tests

test-jax: $(VENV)/test.stamp
	KERAS_BACKEND=jax $(PYTEST) -m "jax and not slow and not rest and not weekly" $(ON_JAX)

test-slow-tensorflow: $(VENV)/test.stamp
	$(PYTEST) -m "slow and not rest and not weekly" tests

test-slow-jax: $(VENV)/test.stamp
	KERAS_BACKEND=jax $(PYTEST) -m "jax and slow and not rest and not weekly" $(ON_JAX)

test-user-tensorflow: $(VENV)/test.stamp
	$(PYTEST) -m "not rest and not weekly" tests

test-user-jax: $(VENV)/test.stamp
	KERAS_BACKEND=jax $(PYTEST) -m "jax and not rest and not weekly" $(ON_JAX)

test-rest-tensorflow: $(VENV)/dev.stamp
	$(PYTEST) -m "rest and not weekly" tests

test-rest-jax: $(VENV)/dev.stamp
	KERAS_BACKEND=jax $(PYTEST) -m "not weekly" $(REST_ON_JAX)

test-rest-torch: $(VENV)/dev.stamp
	KERAS_BACKEND=torch $(PYTEST) -m "not weekly" $(ON_TORCH)

# Each part is a target with a stamp, so a run that was ended goes on with the parts that are missing.
weekly: $(addprefix .build/weekly/,tensorflow jax plain newest docs)

.build/weekly/tensorflow: $(VENV)/dev.stamp
	$(PYTEST) -m weekly tests
	@mkdir -p $(@D) && touch $@

.build/weekly/jax: $(VENV)/dev.stamp
	KERAS_BACKEND=jax $(PYTEST) -m weekly $(ON_JAX) $(REST_ON_JAX)
	@mkdir -p $(@D) && touch $@

# As a user's Python, without the patches in tests/conftest.py and tests/quick_python.py.
.build/weekly/plain: $(VENV)/dev.stamp
	LAMBDANET_PLAIN=1 $(PYTEST) -m "not weekly" $(PLAIN)
	@mkdir -p $(@D) && touch $@

# In an environment of its own, as that of `make test-newest` is pinned.
.build/weekly/newest:
	$(MAKE) test-newest CONSTRAINTS= NEWEST_VENV=.build/venv-newest
	@mkdir -p $(@D) && touch $@

# Likewise, with the extra `docs` alone.
.build/weekly/docs:
	$(MAKE) docs VENV=.build/venv-docs
	@mkdir -p $(@D) && touch $@

clean-weekly:
	rm -rf .build/weekly .build/venv-newest .build/venv-docs

fuzz: $(VENV)/dev.stamp
	LAMBDANET_FUZZ=7.5 $(PYTEST) --dist=load $(FUZZ) $(FUZZ_MORE)
	LAMBDANET_FUZZ=7.5 KERAS_BACKEND=jax $(PYTEST) --dist=load $(FUZZ)
	LAMBDANET_FUZZ=7.5 KERAS_BACKEND=torch $(PYTEST) --dist=load $(FUZZ)

test-plain-cpu: $(VENV)/dev.stamp
	TF_ENABLE_ONEDNN_OPTS=0 $(BIN)/python tests/plain_cpu.py $(MAKE) test-all
	TF_ENABLE_ONEDNN_OPTS=1 $(BIN)/python tests/plain_cpu.py $(MAKE) test-tensorflow test-slow-tensorflow test-rest-tensorflow

coverage: $(VENV)/dev.stamp
	rm -f .coverage .coverage.*
	$(MAKE) test-all COVERAGE="--cov --cov-append --cov-report="
	$(BIN)/python -m coverage report --skip-covered --fail-under=95

# In float64, layers equal loops over their queries to the digits that those tests expect.
install-newest: $(if $(NEWEST_PYTHON),$(NEWEST_VENV)/stamp)

test-newest: install-newest
ifeq ($(NEWEST_PYTHON),)
	@echo "test-newest is skipped: there is no Python 3.12 to 3.14"
else
	$(NEWEST_PYTEST) tests/newest.py tests/models/weights/hub_test.py tests/models/weights/fuzz_weights_test.py
	JAX_ENABLE_X64=1 LAMBDANET_FUZZ=0.1 $(NEWEST_PYTEST) tests/layers/fuzz_layers_test.py
endif

check: lint
	$(PYTEST) --seconds=20 -m "not slow and not weekly" $$($(BIN)/python tests/changed.py)

# TF Model Garden, and so detection, needs TensorFlow 2.20; a process with TensorFlow 2.21 and the Triton of torch crashes.
test-tensorflow-2.21: .venv-2.21/stamp
	.venv-2.21/bin/python -m pytest --numprocesses=auto --dist=loadfile -m "not weekly" tests/layers tests/models $(ON_JAX)

lint: $(VENV)/dev.stamp
	@$(MAKE) --no-print-directory --jobs=2 --output-sync --keep-going lint-code lint-types lint-limits lint-pages

lint-code:
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check

lint-types:
	$(BIN)/python -m mypy

lint-limits:
	$(BIN)/python tests/limits.py

# The table that needs TF Model Garden: tests/project/docs_test.py, weekly.
lint-pages:
	@cd docs && TF_CPP_MIN_LOG_LEVEL=3 ../$(BIN)/python -m generate --check

format: $(VENV)/dev.stamp
	$(BIN)/python -m ruff check --fix
	$(BIN)/python -m ruff format

# The notebooks of the tutorials are executed.
docs: docs-time $(VENV)/docs.stamp
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -m sphinx --fail-on-warning --keep-going --tag=execute docs docs/_build

docs-time:
	@echo "building the documentation in docs/_build, in about five minutes on two cores: the tutorials are run"

tables: $(VENV)/docs.stamp
	cd docs && ../$(BIN)/python -m generate

figures: $(VENV)/docs.stamp
	$(BIN)/python docs/figures/plots.py

# The commands are in the console blocks of the page.
results: docs/results/$(PAGE).md $(VENV)/dev.stamp
	PATH="$(CURDIR)/$(BIN):$$PATH" bash -euxc "$$(sed -n '/^```console$$/,/^```$$/{/^```/!p}' docs/results/$(PAGE).md)"
	cd docs && ../$(BIN)/python -m generate.measured $(PAGE) && ../$(BIN)/python -m generate

lock: $(VENV)/dev.stamp
	$(BIN)/uv pip compile --quiet --universal --python-version=3.11 --extra=dev --no-annotate \
		--custom-compile-command="make lock" $(UPGRADE) --output-file=constraints.txt setup.cfg
	printf '%s\n' $(NEWEST_PACKAGES) | $(BIN)/uv pip compile --quiet --universal --python-version=3.12 --no-annotate \
		--custom-compile-command="make lock" $(UPGRADE) --output-file=constraints-newest.txt setup.cfg --extra=jax -

hooks: $(VENV)/dev.stamp
	$(BIN)/pre-commit install

release-check: $(VENV)/dev.stamp
	@test -z "$(TAG)" || test "$(TAG)" = "v$$($(BIN)/python -c 'import lambdanet; print(lambdanet.__version__)')" || \
		{ echo "the tag $(TAG) is not the version in lambdanet/__init__.py" >&2; exit 1; }
	rm -rf dist
	$(BIN)/python -m build --outdir=dist >/dev/null
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python .ci/try_packages.py dist/*

clean:
	rm -rf .venv .venv-* .build .coverage .coverage.* docs/_build docs/_generated docs/reference/api \
		docs/reference/commands dist lambdanet.egg-info demo .hypothesis .mypy_cache .pytest_cache .ruff_cache

# Each stamp file marks a completed install, which is repeated when the requirements change. All install the TensorFlow that
# TF Model Garden needs, so that no target replaces the TensorFlow of another.
$(addprefix $(VENV)/,$(addsuffix .stamp,demo detection docs test dev)): $(VENV)/%.stamp: setup.cfg pyproject.toml constraints.txt \
		| $(BIN)/uv
	@echo "installing lambdanet[$*] into $(VENV) (minutes the first time)"
	@$(UV_INSTALL) --python=$(BIN)/python $(if $(filter dev,$*),$(TORCH_BACKEND)) $(addprefix --constraint=,$(CONSTRAINTS)) \
		--editable '.[$*]' 'tensorflow~=2.20.0'
	@touch $@

# With `CONSTRAINTS=` without an upper bound on any version.
$(NEWEST_VENV)/stamp: setup.cfg pyproject.toml $(NEWEST_CONSTRAINTS) | $(BIN)/uv
	@echo "installing lambdanet[jax] into $(NEWEST_VENV)"
	@"$(NEWEST_PYTHON)" -m venv $(NEWEST_VENV)
	@$(UV_INSTALL) --python=$(NEWEST_VENV)/bin/python --upgrade $(addprefix --constraint=,$(NEWEST_CONSTRAINTS)) \
		--editable '.[jax]' $(NEWEST_PACKAGES)
	@touch $@

.venv-2.21/stamp: setup.cfg pyproject.toml | $(BIN)/uv
	@echo "installing lambdanet[train] with TensorFlow 2.21 into .venv-2.21"
	@"$(PYTHON)" -m venv .venv-2.21
	@$(UV_INSTALL) --python=.venv-2.21/bin/python --editable '.[train,onnx,jax]' 'tensorflow~=2.21.0' 'tf-keras~=2.21.0' \
		hypothesis pytest pytest-xdist
	@touch $@

# Also in an environment that pip made before.
$(BIN)/uv: | $(BIN)/python
	@$(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet uv==$(UV)

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11, 3.12 or 3.13 found; name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "creating $(VENV)"
	@"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

define WRITE_IMAGES
import os, tensorflow_datasets as tfds
from PIL import Image
from lambdanet.training.data import sources  # registers the digits
os.makedirs('demo/images.partial', exist_ok=True)
for number, example in enumerate(tfds.as_numpy(tfds.load('digits', split='test[:3]')), 1):
    path = f'demo/images.partial/{number}_is_a_{example["label"]}.png'
    Image.fromarray(example['image'][..., 0]).save(path)
os.rename('demo/images.partial', 'demo/images')
endef
export WRITE_IMAGES

define WHAT_NOW

Done. The results are in demo/:
  digits/       the run: recipe.json, checkpoints/, history.csv, and logs/ for TensorBoard
  saved_model/  the exported model: takes pictures of any size, needs only TensorFlow
  images/       three digits that were not used for training
  predictions/  the same with the model's predictions
The dataset is in the folder of TensorFlow Datasets, ~/tensorflow_datasets by default.

What to try next:
  $(BIN)/lambdanet predict --saved_model=demo/saved_model --out=demo/predictions YOUR_DIGIT.png
  $(BIN)/tensorboard --logdir=demo/digits/logs
  $(BIN)/lambdanet train --recipe=digits --model_dir=demo/longer --set=epochs=60
  $(BIN)/lambdanet list
  make test
endef
export WHAT_NOW

define WHAT_NOW_DETECTION

Done. The results are in demo/:
  shapes/        pictures of shapes in the format of COCO, with TFRecords: train and val
  shapes_run/    the run: params.yaml, checkpoints, and what TensorBoard reads
  shapes_model/  the exported detector: takes pictures of any size, needs only TensorFlow
  shapes_found/  pictures that were not used for training, with detections, and predictions.json

What to try next:
  $(DETECTION).predict --saved_model=demo/shapes_model --out=demo/shapes_found YOUR_PICTURE.png
  $(DETECTION).shapes --out=demo/more_shapes --train=10000
  $(DETECTION).train --help
endef
export WHAT_NOW_DETECTION
