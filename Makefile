# `make playground`, `make demo` and `make test` do all the set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGING := tools/rig/packaging
# What this repository builds: the device, the reference server, the rig with the kit.
PROJECTS := pyproject.toml $(PACKAGING)/cloud/pyproject.toml $(PACKAGING)/rig/pyproject.toml
# Workers of the test run: one more than two cores, as tests of daemons often wait.
JOBS ?= 3

.PHONY: help messages demo playground test test-long test-all smoke fuzz power soak simulate lint unit bench evaluate quality train train-hand hand-weights model mutate lock clean reference figures deb deb-test hil image image-test release release-test pictures fuzz-ends bench-board clients
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/ready ## one palm becomes a signed verdict on the cable, and the cloud knows it
	$(BIN)/palmctl demo

playground: $(VENV)/ready ## a gate, its service and its people on one page, to try everything; RUN=FILE replays a run
	$(BIN)/palmctl playground $(RUN)

test: lint unit ## everything that must hold (eight to ten minutes on two cores)

lint: $(VENV)/ready ## style, types, and the walls between the packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(VENV)/ready ## the tests alone
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m "not long"

test-long: $(VENV)/ready ## what takes long or tests our own tools: both demos, whole key rotations, software on trial, benches, broken devices
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m long

test-all: test test-long ## both, and the cloud's tests on PostgreSQL as well (Debian's package postgresql)
	PALM_TEST_ENGINE=postgresql $(BIN)/pytest tests/cloud_client tests/device/syncd/test_carrier_with_server.py \
	  -n $(JOBS) --dist worksteal

# For another Python: make smoke PYTHON=python3.13 VENV=build/venv-3.13
smoke: $(VENV)/ready ## every module of a gate imports, a package builds, and one palm becomes a verdict (a minute)
	$(BIN)/pytest -n 0 -q tests/packaging/test_distributions.py tests/packaging/test_package.py tests/test_units.py
	$(BIN)/palmctl demo

# MINUTES=60 for longer, TARGET=deltas for one alone; KEEP=--keep renews the corpus in the repository.
fuzz: MINUTES = 10
fuzz: $(VENV)/ready build/atheris/ready ## every parser of every boundary, by inputs that learn what reaches new code (ten minutes for each of 32)
	PYTHONPATH=build/atheris $(BIN)/python -m tests.fuzz.learn --minutes $(MINUTES) $(KEEP) $(TARGET)

# Nothing else needs atheris: it lies in a folder of its own.
build/atheris/ready: $(PACKAGING)/lock/fuzz.txt $(VENV)/ready
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --only-binary :all: --upgrade --target build/atheris -r $<
	touch $@

fuzz-ends: $(VENV)/ready ## a million generated and mutated inputs through the cable's decoder, envelope and both ends in every state
	$(BIN)/python -m tests.link1.fuzz 1000000

# The generators lie in folders of their own; without npm only Python's is tried.
CLIENTS := tests/cloud_client/clients
clients: build/clients/python/ready $(if $(shell command -v npm),build/clients/node/ready) ## clients in Python and TypeScript, generated from the served OpenAPI document, do a back office's work (a minute; node, npm)
	PALM_CLIENTS_TEST=1 $(BIN)/pytest $(CLIENTS) -n 0

build/clients/python/ready: $(PACKAGING)/lock/clients.txt $(VENV)/ready
	rm -rf $(@D)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --only-binary :all: --target $(@D) -r $<
	touch $@

build/clients/node/ready: $(CLIENTS)/package.json $(CLIENTS)/package-lock.json
	mkdir -p $(@D)
	cp $^ $(@D)
	npm ci --prefix $(@D) --ignore-scripts --no-audit --no-fund --loglevel error
	touch $@

power: $(VENV)/ready ## the power goes at every moment of a device's life and of an installation, in over 5,400 crash states; files damaged too (root; needs strace; eight minutes)
	$(BIN)/python -m tests.power.power_sweep --at-least 5000 --every 2 --flips 12
	$(BIN)/python -m tests.power.update_sweep --ways 12 --starts 8 --at-least 400

model: $(VENV)/ready ## LINK/1 in a model checker, with every rule left out once; an attacker in the cable (two minutes; spin, gcc)
	$(BIN)/python -m tools.rig.model

# SHARE=1 takes every fault, SEED=2 others.
SHARE ?= 0.25
SEED ?= 1
mutate: $(VENV)/ready ## a quarter of all small faults in the cores, of which the quick tests must find nine tenths (half an hour)
	$(BIN)/python -m tools.rig.mutate --share $(SHARE) --seed $(SEED)

# How long the soak lasts: `make soak MINUTES=240` for half a night.
soak: MINUTES = 10
soak: $(VENV)/ready ## a busy gate at which cable, camera, server, clock and disk fail in turn, and an audit (root for the disk)
	$(BIN)/python -m tools.rig.soak --minutes $(MINUTES) --out build/soak.json

# HOURS=8 for a night; the seeds that it tries are printed, and a failing one is made short.
simulate: HOURS = 0
simulate: $(VENV)/ready ## both ends of the cable, the carrier and the service in one process, under faults and 58 invariants (two minutes; gcc)
	$(BIN)/python -m tools.rig.simulation --hours $(HOURS) --minutes 2

bench: $(VENV)/ready ## figures and ratios, also written to build/bench.json
	$(BIN)/palmctl bench --out build/bench.json

quality: $(VENV)/ready ## fit the quality scale to the shipped model, show that it and sharpness predict, count liveness errors (about ten minutes)
	$(BIN)/python -m models.training.calibrate_quality
	$(BIN)/python -m models.training.quality_curve --picture docs/images/quality-curve.svg
	$(BIN)/python -m models.training.spoilt_crops
	$(BIN)/python -m models.training.bona_fide

# BOARDS="--profile pi4 --profile rk3588" for others.
BOARDS ?=
bench-board: $(VENV)/ready ## a whole device on cores as slow as a small board's, beside the plain run (root; 7zip; 15 minutes a board)
	$(BIN)/python -m tools.rig.bench.small_board $(BOARDS) --out build/bench-board.json

evaluate: $(VENV)/ready ## scores of the shipped model on generated people it never saw: one vector each, then as a device
	rm -rf build/generated-crops
	$(BIN)/python -m models.evaluation.generated_people --crops build/generated-crops
	$(BIN)/palmctl evaluate build/generated-crops --kind crops

# MEASURE=--measure makes the figures of the charts and the terminal anew too (some minutes on a quiet machine).
MEASURE ?=
pictures: $(VENV)/ready ## every picture of the documents, anew (the photographs need Debian's package chromium)
	$(BIN)/python -m tools.rig.pictures $(MEASURE)

reference: $(VENV)/ready ## the pages that repeat the code: configuration, commands, health words, metrics, figures
	$(BIN)/python -m tools.rig.reference_pages

messages: $(VENV)/ready ## the Portuguese catalogue of palmctl: take new messages over, name those without a translation
	$(BIN)/python -m tools.rig.messages

# Half an hour on a quiet machine.
figures: $(VENV)/ready ## run every bench and renew the table of figures
	$(BIN)/palmctl bench --out build/figures/bench.json
	$(BIN)/palmctl bench device --out build/figures/device.json
	$(BIN)/palmctl bench link --out build/figures/link.json
	$(BIN)/palmctl bench cloud --out build/figures/cloud.json
	$(BIN)/python -m tools.rig.bench.cloud_scale --json > build/figures/scale.json
	$(BIN)/palmctl bench strangers --out build/figures/strangers.json
	$(BIN)/python -m tools.rig.bench.gallery 100000 > build/figures/gallery.json
	$(BIN)/python -m tools.rig.reference_pages --keep build/figures

deb: $(VENV)/ready ## packages for Debian 12 and 13, amd64 and arm64, into build/deb (dpkg is all it needs)
	$(BIN)/python -m tools.rig.packaging.deb

deb-test: deb ## install, upgrade, roll back, remove and purge them in Debian trees; docs/tutorials/INSTALL.md whole (root; over an hour)
	PALM_DEB_TEST=1 $(BIN)/pytest tests/packaging/trees tests/docs/trees -n 0 --timeout 1800 -x

hil: $(VENV)/ready ## the amd64 package in a virtual machine with a real camera driver and a real USB cable (root; qemu)
	rm -f build/hil/palm-access_*.deb
	$(BIN)/python -m tools.rig.packaging.deb --release 12 --arch amd64 --pkcs11 --out build/hil
	$(BIN)/python -m tools.rig.hil --deb build/hil/palm-access_*_amd64.deb

# KEY=FILE signs (or PALM_RELEASE_KEY); DIRTY=--dirty makes a trial of a checkout with changes.
release: $(VENV)/ready ## a release: packages, wheels, images, bills of materials, apt repository, into build/release/VERSION
	$(BIN)/python -m tools.rig.packaging.release $(if $(KEY),--key $(KEY)) $(DIRTY)

release-test: $(VENV)/ready ## make a release in two places, compare every byte, try what it holds (root; podman, runc; over an hour)
	PALM_RELEASE_TEST=1 $(BIN)/pytest tests/packaging/release -n 0 --timeout 7200 -x

# An image to flash: make image ARCH=arm64 needs qemu-user-static as well.
image: ARCH = amd64
image: $(VENV)/ready ## a card for a board: Debian, the package, provisioning at the first start; build/image (root; mmdebstrap, mtools)
	rm -f build/image/palm-access_*_$(ARCH).deb
	$(BIN)/python -m tools.rig.packaging.deb --release 12 --arch $(ARCH) --out build/image
	$(BIN)/python -m tools.rig.image --arch $(ARCH) --deb build/image/palm-access_*_$(ARCH).deb

image-test: image ## the amd64 image in an emulated board: provisioned by its file, serving, and through ten power cuts (an hour)
	PALM_IMAGE_TEST=1 $(BIN)/pytest tests/packaging/image -n 0 -x -s

# torch lives in an environment of its own: nothing but training needs it. TRAIN_PYTHON names another one.
TRAIN_PYTHON ?= .venv-train/bin/python
train: $(VENV)/ready ## make the palm model anew into build/train (about an hour; torch in its own environment)
	test -x $(TRAIN_PYTHON) || $(PYTHON) $(PACKAGING)/bootstrap.py .venv-train $(PACKAGING)/lock/train.txt
	$(TRAIN_PYTHON) -m models.training.train --minutes 32 --people 4000 --seed 1 \
	  --out build/train/net --cache build/train-cache
	$(TRAIN_PYTHON) -m models.training.fit --net build/train/net --out build/train --cache build/train-cache
	$(BIN)/python -m models.training.publish --run build/train --model-id palm-gen-local --out build/train/model \
	  --agree-least-q 4600 --accept-q 3600 --margin-q 1000

train-hand: $(VENV)/ready ## make the hand finder's networks anew into build/train-hand (about 50 minutes on one core)
	test -x $(TRAIN_PYTHON) || $(PYTHON) $(PACKAGING)/bootstrap.py .venv-train $(PACKAGING)/lock/train.txt
	$(TRAIN_PYTHON) -m models.training.hand_train --net coarse --minutes 25 --out build/train-hand --cache build/train-cache/hand
	$(TRAIN_PYTHON) -m models.training.hand_train --net fine --minutes 22 --out build/train-hand --cache build/train-cache/hand
	$(TRAIN_PYTHON) -m models.training.hand_publish --run build/train-hand --out build/train-hand/model

hand-weights: $(VENV)/ready ## fetch and convert the published weights that find hands, where the set-up could not
	$(BIN)/python -m tools.rig.packaging.hand_weights

# The environment is made from the lock alone, except for the hand weights, without which everything works too: every file is checked against its hash.
$(VENV)/ready: $(PACKAGING)/lock/dev.txt $(PROJECTS) $(PACKAGING)/bootstrap.py
	$(PYTHON) $(PACKAGING)/bootstrap.py $(VENV) $(PACKAGING)/lock/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --no-index \
	  -e . -e $(PACKAGING)/cloud -e $(PACKAGING)/rig
	-$(BIN)/python -m tools.rig.packaging.hand_weights
	touch $@

LOCK := uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate -q
# What the distributions of this repository need of each other is not looked for on an index.
OWN := $(addprefix --no-emit-package palm-access-,device cloud rig)
lock: ## pin the dependencies again (needs uv)
	$(LOCK) pyproject.toml -o $(PACKAGING)/lock/device.txt
	$(LOCK) pyproject.toml --group train -o $(PACKAGING)/lock/train.txt
	$(LOCK) --group convert -o $(PACKAGING)/lock/convert.txt
	$(LOCK) --group fuzz -o $(PACKAGING)/lock/fuzz.txt
	$(LOCK) --group clients -o $(PACKAGING)/lock/clients.txt
	$(LOCK) $(PROJECTS) --group dev $(OWN) -o $(PACKAGING)/lock/dev.txt
	$(LOCK) $(PROJECTS) $(OWN) -c $(PACKAGING)/lock/dev.txt -o $(PACKAGING)/lock/palmctl.txt
	$(BIN)/python -m tools.rig.packaging.release.base
	npm install --prefix $(CLIENTS) --package-lock-only --omit-lockfile-registry-resolved --no-audit --no-fund

clean: ## remove what was made here
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
