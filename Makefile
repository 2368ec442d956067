# make demo   trains a small transformer with 1 and with 4 ranks and compares them
# make test   runs everything that CI checks
# make bench  measures what the documentation claims, into bench/results.json
# make generate  makes the committed packages anew, under generated/ and in examples
# make cuda-toolchain  fetches the pinned CUDA compilers into build/cuda; with them
#              make generate and make test compile kernels, in CI they are fetched
#              without asking
# make gpu-check  builds build/gpucheck, which runs on any machine with NVIDIA's driver,
#              and runs it where there is a GPU

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# The specs whose packages are committed under generated/.
SPECS := spec/models/gpt2.yaml spec/models/llama-3.2-1b.yaml $(sort $(wildcard spec/samples/*.yaml)) $(sort $(wildcard bench/*.yaml))

# Where their packages are, and that of the example.
PACKAGES := generated examples/bytelm/bytelm

# The pinned nvcc, after make cuda-toolchain.
NVCC := build/cuda/nvidia/cu13/bin/nvcc

.PHONY: demo test bench generate cuda-toolchain gpu-check ci-packages
.PHONY: check-format check-vet check-build check-tests check-race check-examples check-generated FORCE

build/shardgen: FORCE
	CGO_ENABLED=0 go build -trimpath -o $@ ./cmd/shardgen

demo: build/shardgen
	@echo "1. The spec, examples/bytelm/model.yaml, and what follows from it for 4 ranks:"
	build/shardgen plan examples/bytelm/model.yaml --world 4
	@echo && echo "2. The package that shardgen makes of it (unchanged: byte for byte as committed):"
	build/shardgen generate --verbose examples/bytelm/model.yaml --out examples/bytelm/bytelm
	@echo && echo "3. A trainer that imports the package, with 1 rank and with 4:"
	cd examples && go run ./bytelm $(DEMO)

bench:
	go run ./bench

# Makes all packages anew and leaves what was there in build/_committed. With nvcc
# their kernels are compiled from nothing; without it compiled kernels of the same
# source stay as they are.
define regenerate
rm -rf build/_committed && mkdir -p build/_committed
tar -cf - $(PACKAGES) | tar -xf - -C build/_committed
rm -rf $(PACKAGES)
if [[ -x $(NVCC) ]]; then export SHARDGEN_NVCC=$(NVCC); cuda=require; \
else (cd build/_committed && find . -name zz_kernels.fatbin | tar -cf - -T -) | tar -xf -; cuda=auto; fi; \
build/shardgen generate --cuda $$cuda $(SPECS); \
build/shardgen generate --cuda $$cuda examples/bytelm/model.yaml --out examples/bytelm/bytelm
endef

generate: build/shardgen
	$(regenerate)

test: check-format check-vet check-build check-generated check-tests check-race check-examples
	@echo "all checks passed"

check-format:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "gofmt differs: $$unformatted"; exit 1; }

check-vet:
	go vet ./...
	cd examples && go vet ./...

# Everything builds without cgo, on the architectures that are not this one too.
check-build:
	CGO_ENABLED=0 go build ./...
	GOARCH=386 CGO_ENABLED=0 go build ./...
	GOARCH=arm64 CGO_ENABLED=0 go build ./...

# The committed packages are what the generator makes of their specs, and with
# nvcc what it compiles.
check-generated: build/shardgen $(if $(CI),cuda-toolchain)
	$(regenerate)
	for package in $(PACKAGES); do diff -r build/_committed/$$package $$package; done
	@if [[ -n "$${CI:-}" ]]; then changed=$$(git status --porcelain -- $(PACKAGES)); test -z "$$changed" || { echo "generating changed the tree: $$changed"; exit 1; }; fi

cuda-toolchain: ci-packages
	cudasrc/toolchain/install.sh build/cuda

build/gpucheck: FORCE
	CGO_ENABLED=0 go build -trimpath -o $@ ./cmd/gpucheck

# Status 3 says that there is no GPU, which is no fault of the build.
gpu-check: build/gpucheck
	build/gpucheck $(GPUCHECK) || { status=$$?; [[ $$status == 3 ]] && echo "build/gpucheck is built; run it on a machine with a GPU" || exit $$status; }

# CI installs what is missing for the race detector (gcc), the tests of CUDA
# kernels (g++) and the fetching of their compilers (pip). Elsewhere nothing is
# installed, and what needs them is skipped, or says so.
ci-packages:
	@if [[ -n "$${CI:-}" ]] && ! { command -v gcc && command -v g++ && python3 -m pip --version; } >/dev/null 2>&1; then \
	apt-get update -q && apt-get install -y -q g++ libc6-dev python3-pip; fi

check-tests: $(if $(CI),cuda-toolchain)
	go test ./...

check-race: ci-packages
	@if command -v gcc >/dev/null; then set -x; CGO_ENABLED=1 go test -race ./runtime/...; \
	else echo "race check skipped: it needs a C compiler (gcc)"; fi

check-examples:
	cd examples && go test ./...
	$(MAKE) demo DEMO="-steps 8 -text 0"
	@if [[ -n "$${CI:-}" ]]; then changed=$$(git status --porcelain); test -z "$$changed" || { echo "the checks changed the tree: $$changed"; exit 1; }; fi
