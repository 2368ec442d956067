# make demo   trains a small transformer with 1 and with 4 ranks and compares them
# make test   runs everything that CI checks
# make bench  measures what the documentation claims, into bench/results.json
# make generate  makes the packages under generated/ anew
# make cuda-toolchain  fetches the pinned CUDA compilers into build/cuda; with them
#              make test compiles generated kernels, in CI it fetches them itself

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# The specs whose packages are committed under generated/.
SPECS := spec/models/gpt2.yaml spec/models/llama-3.2-1b.yaml $(sort $(wildcard spec/samples/*.yaml)) $(sort $(wildcard bench/*.yaml))

.PHONY: demo test bench generate cuda-toolchain ci-packages
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

generate: build/shardgen
	rm -rf generated
	build/shardgen generate $(SPECS)

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

# The committed packages are what the generator makes of their specs.
check-generated: build/shardgen
	rm -rf build/_committed && cp -r generated build/_committed
	rm -rf generated && build/shardgen generate $(SPECS)
	diff -r build/_committed generated
	@if [[ -n "$${CI:-}" ]]; then changed=$$(git status --porcelain -- generated); test -z "$$changed" || { echo "generating changed the tree: $$changed"; exit 1; }; fi
	build/shardgen check examples/bytelm/model.yaml --out examples/bytelm/bytelm

cuda-toolchain: ci-packages
	cudasrc/toolchain/install.sh build/cuda

# CI installs what is missing for the race detector (gcc), the tests of CUDA
# kernels (g++) and the fetching of their compilers (pip). Elsewhere nothing is
# installed, and what needs them is skipped, or says so.
ci-packages:
	@if [[ -n "$${CI:-}" ]] && ! { command -v gcc && command -v g++ && python3 -m pip --version; } >/dev/null 2>&1; then \
	apt-get update -q && apt-get install -y -q g++ libc6-dev python3-pip; fi

check-tests: $(if $(CI),cuda-toolchain)
	go test ./...

check-race: ci-packages
	@if command -v gcc >/dev/null; then set -x; CGO_ENABLED=1 go test -race ./runtime ./runtime/comm/... ./runtime/device/...; \
	else echo "race check skipped: it needs a C compiler (gcc)"; fi

check-examples:
	cd examples && go test ./...
	$(MAKE) demo DEMO="-steps 8 -text 0"
	@if [[ -n "$${CI:-}" ]]; then changed=$$(git status --porcelain); test -z "$$changed" || { echo "the checks changed the tree: $$changed"; exit 1; }; fi
