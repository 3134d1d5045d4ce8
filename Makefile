# `make benchmark` and `make test` do all the set-up that a fresh Debian or Ubuntu machine needs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
VENV := .venv
PYTEST := $(VENV)/bin/python -m pytest

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z -]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z -]+):.*## /  make \1\t/' | expand -t 20

.PHONY: benchmark
benchmark: build ## Train the default model with the stock stack and measure it
	$(VENV)/bin/ljperf benchmark --model deepspeed/llama3-8b

.PHONY: ablation
ablation: build ## Measure what each part brings over the stock stack, in a quarter of an hour and a warm-up
	$(VENV)/bin/cnp ablate --model deepspeed/llama3-8b --budget 15m

.PHONY: test
test: build ## Run every test but the slow ones
	ctest --test-dir build/release --output-on-failure -LE slow
	$(PYTEST) -m "not slow"

.PHONY: test-slow
test-slow: build ## Run the slow tests (an hour or more)
	@tools/set_up_cluster.sh $(VENV)
	ctest --test-dir build/release --output-on-failure -L slow
	$(PYTEST) -m slow
	$(MAKE) asan tsan

.PHONY: set-up
set-up: ## Install what this machine lacks
	@tools/set_up.sh $(VENV)

.PHONY: build
build: set-up ## Build, and install ljperf and ljtrain into .venv
	@tools/build.sh $(VENV)

.PHONY: image-rootfs
image-rootfs: ## Make the image as an OCI archive, without a container engine (root; VARIANT=cuda)
	@tools/image_rootfs.sh --variant $(or $(VARIANT),cpu)

.PHONY: asan tsan
asan tsan: set-up ## Run the C++ tests under sanitizers
	cmake --preset $@
	cmake --build --preset $@
	ctest --preset $@

.PHONY: lint
lint: build ## Check style: clang-format, clang-tidy, ruff, mypy
	@tools/lint.sh $(VENV)

.PHONY: clean
clean: ## Remove what was built; the virtual environment stays
	rm -rf build .make $(VENV)/.built
