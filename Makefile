# The specs whose packages are committed under generated/.
SPECS := spec/models/gpt2.yaml spec/models/llama-3.2-1b.yaml $(wildcard spec/samples/*.yaml) $(wildcard bench/*.yaml)

build/shardgen: FORCE
	CGO_ENABLED=0 go build -trimpath -o $@ ./cmd/shardgen

FORCE:

.PHONY: generate
generate: build/shardgen
	rm -rf generated
	build/shardgen generate $(SPECS)

.PHONY: test
test:
	go vet ./...
	go test ./...
