# thaw. `make run` and `make test` need Go, make and git, nothing else.
# `make` alone checks format, vet and lint, tests and builds; .ci/run does the same and decides
# whether a change lands. .ci/full runs everything else.

# Some machines pin GOTOOLCHAIN to "local" with an older Go; the module needs this one.
export GOTOOLCHAIN := go1.27.3

GO        ?= go

# Without -trimpath the folder goes into what is compiled, and every clone compiles
# everything once more.
export GOFLAGS := $(strip $(filter-out -trimpath,$(shell $(GO) env GOFLAGS)) -trimpath)

ADDR      ?= 127.0.0.1:8080
DATA      ?= data
FUNCTIONS ?= functions/shipped

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -X github.com/thaw-dev/thaw/platform/cli.Version=$(VERSION)

# The race detector needs cgo, and cgo a C compiler: used where both are present.
RACE := $(shell [ "$$($(GO) env CGO_ENABLED)" = 1 ] && command -v "$$($(GO) env CC)" >/dev/null 2>&1 && echo -race)

# More flags for go test, such as -json or -run.
TESTFLAGS ?=

.PHONY: all run switchboard build thaw thaw-knative thaw-bench test test-llamacpp simulate-faults cluster cluster-kwok cluster-down cluster-test chart-test board-test e2e bench-knative lint vet fmt fmt-check cross schema clean help
.DEFAULT_GOAL := all

all: fmt-check vet lint test build ## format check, vet, lint, test, build

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

build: thaw thaw-knative ## bin/thaw and bin/thaw-knative, with Go alone

thaw: ## bin/thaw
	@mkdir -p bin
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/thaw ./platform/thaw

thaw-knative: ## bin/thaw-knative, for Kubernetes, static: a minute of processor time the first time
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/thaw-knative ./platform/thaw-knative

thaw-bench: ## bin/thaw-bench, developers' benchmarks
	@mkdir -p bin
	cd bench/thaw-bench && $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(CURDIR)/bin/thaw-bench .

run: thaw ## the platform with the shipped model on ADDR, at zero replicas
	@echo
	@echo "  thaw serves on http://$(ADDR); the model \"tiny\" is at rest. In another terminal:"
	@echo
	@echo "  curl -N http://$(ADDR)/v1/chat/completions -H 'Content-Type: application/json' \\"
	@echo "    -d '{\"model\":\"tiny\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"What is thaw?\"}]}'"
	@echo
	@echo "  or: bin/thaw --server http://$(ADDR) run tiny 'What is thaw?'    (Ctrl-C here stops everything)"
	@echo "  or open http://$(ADDR)/ui in a browser"
	@echo
	@exec bin/thaw serve --addr $(ADDR) --data $(DATA) --functions $(FUNCTIONS)

switchboard: thaw ## the shipped model with two adapters and a Router between them (deploy/example/switchboard)
	@echo
	@echo "  curl -N http://$(ADDR)/v1/chat/completions -H 'Content-Type: application/json' \\"
	@echo "    -d '{\"model\":\"auto\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Where is my invoice?\"}]}'"
	@echo
	@exec bin/thaw serve --addr $(ADDR) --data $(DATA) --functions deploy/example/switchboard

test: ## every test that needs nothing but Go; with a C compiler, the race detector where it pays
	@.ci/tests

test-llamacpp: ## the engines' contract on llama.cpp: THAW_ENGINE_LLAMACPP is a Python with llama-cpp-python[server], or a llama-server
	@[ -n "$$THAW_ENGINE_LLAMACPP" ] || { echo "set THAW_ENGINE_LLAMACPP: python3 -m venv V && V/bin/pip install 'llama-cpp-python[server]==0.3.36' (six minutes), then V/bin/python"; exit 1; }
	$(GO) test $(RACE) -count 1 -v -run 'TestConformance/llamacpp' ./runtime/replica

.PHONY: full test-race test-real test-vllm test-cluster test-conformance test-scenes test-charts test-behaviours fuzz bench-quick
full: ## the parts of the full run below, and cross, release-check, vulnerabilities, simulate-faults
	.ci/full

test-race: ## every test under the race detector
	.ci/full race

test-real: ## tests with real components, which it installs (node, npm, python3 are needed)
	.ci/full real

test-vllm: ## tests with a real vLLM, which it installs
	.ci/full vllm

test-cluster: ## the suite on a cluster that it starts and ends (Linux, root)
	.ci/full cluster

test-conformance: ## Knative's own tests of ingress classes, on a cluster that it starts and ends
	.ci/full conformance

test-scenes: ## scenes, classes, many nodes, vLLM in pods, on a cluster that it starts and ends
	.ci/full scenes

test-charts: ## the tests of deploy/cluster, of the Helm chart, and of the board and alerts
	.ci/full charts

fuzz: ## every fuzz test for FUZZ_TIME=6s, or those of FUZZ_PACKAGES=./functions/openai
	.ci/full fuzz

bench-quick: ## run every benchmark briefly; the results are not kept
	.ci/full benches

# The number of behaviours of an engine, and the first seed; 0 chooses one.
BEHAVIOURS ?= 1000000
BEHAVIOUR_SEED ?= 0

test-behaviours: ## BEHAVIOURS=1000000 random behaviours of an engine that writes bytes no request asked for
	.ci/tests -race=false -timeout=90m -run='^TestStrayBytes$$' ./activator/upstream -args -behaviours=$(BEHAVIOURS) -behaviour-seed=$(BEHAVIOUR_SEED)

# The number of seeds.
SEEDS ?= 1000

simulate-faults: ## SEEDS=1000 experiments with faults in the simulator, and known bugs, each of which they must find
	$(GO) test $(TESTFLAGS) -count 1 -timeout 40m -v -run 'TestSeeds|TestExperiments|TestMutants' ./platform/simulate -seeds $(SEEDS) -mutants

cluster: ## real Kubernetes with real Knative, in namespaces of its own (Linux, root; deploy/cluster/README.md)
	@deploy/cluster/up --check
	@deploy/cluster/build
	@deploy/cluster/up

cluster-kwok: ## 500 simulated GPU nodes (KWOK) on the cluster; NODES=N for another number, 0 removes them
	@deploy/cluster/kwok $(NODES)

cluster-down: ## stop the cluster and delete its data
	@deploy/cluster/down

# On the cluster's own network, where the API server is. The image is of static
# programs, and so are those that the tests run.
RUN ?= ^TestCluster
# test2json turns the tests' output into events, for .ci/tests.
ON_CLUSTER = $(CURDIR)/deploy/cluster/in $(if $(findstring -json,$(TESTFLAGS)),$(GO) tool test2json -t -p $(1)) sh -c 'exec env THAW_CLUSTER_KUBECONFIG="$$KUBECONFIG" \
	THAW_CLUSTER_INGRESS=http://10.88.0.1/ THAW_ROUTE_DOMAIN=example.com THAW_PROGRAMS=$(CURDIR)/bin/e2e "$$0" "$$@"' \
	$(CURDIR)/bin/e2e/$(1).test -test.v$(if $(findstring -json,$(TESTFLAGS)),=test2json) -test.timeout 30m -test.run '$(RUN)'

# CLUSTER_TESTS are the packages whose tests run on a cluster.
CLUSTER_TESTS ?= thaw-knative knative/e2e knative/autoscale knative/schedulerhint

e2e: e2e-programs ## the suite on the cluster that make cluster made: RUN=TestCluster/Name for one of it
	@$(MAKE) --no-print-directory e2e-images
	@$(MAKE) --no-print-directory e2e-run

e2e-run: # with the programs and images already built
	@code=0; $(foreach package,$(CLUSTER_TESTS),(cd platform/$(package) && $(call ON_CLUSTER,$(notdir $(package)))) || code=1;) exit $$code

# It brings a controller of its own, beside which no other may serve the class.
conformance: e2e-programs ## Knative's own tests of ingress classes, on a cluster that make cluster made and thaw is not installed on
	@$(MAKE) --no-print-directory e2e-images
	@$(MAKE) --no-print-directory conformance-run

conformance-run: RUN = ^TestConformance
conformance-run:
	deploy/cluster/conformance
	cd platform/thaw-knative && THAW_CONFORMANCE=$${CLUSTER_PROGRAMS:-$(CURDIR)/bin/cluster}/conformance/ingress.test $(call ON_CLUSTER,thaw-knative)

.PHONY: e2e-programs e2e-images e2e-run conformance conformance-run
e2e-programs:
	@mkdir -p bin/e2e
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/e2e/ ./platform/thaw ./platform/thaw-knative
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/e2e/shim ./platform/thaw-knative/testdata/shim
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/e2e/scene ./platform/knative/e2e/testdata/scene
	CGO_ENABLED=0 $(GO) test -c -ldflags=-w -o bin/e2e/ ./platform/thaw-knative ./platform/knative/e2e ./platform/knative/autoscale ./platform/knative/schedulerhint

e2e-images:
	deploy/cluster/image dev.local/shim:test bin/e2e/shim
	deploy/cluster/image dev.local/scene:test bin/e2e/scene
	deploy/cluster/image dev.local/thaw:test bin/e2e/thaw=/thaw bin/e2e/thaw-knative=/thaw-knative

# Each figure by itself: RUN='^TestBench$$/^wake$$', warm, evict, many or vllm; STARTS is
# how many of each. Alone on the machine wake takes six minutes with 20, vllm twelve.
STARTS ?= 20
bench-knative: e2e-programs e2e-images ## thaw beside Knative's own classes on the cluster that make cluster made, into bench/results
	@mkdir -p bench/results
	cd platform/knative/e2e && $(call ON_CLUSTER,e2e) -test.run '$(if $(filter ^TestCluster,$(RUN)),^TestBench$$,$(RUN))' -test.timeout 60m -bench-out $(CURDIR)/bench/results -bench-starts $(STARTS) -bench-commit $(shell git rev-parse --short=12 HEAD)

# 400 models on 500 nodes: KWOK_NODES and KWOK_MODELS (of each of four teams) set other numbers.
KWOK_NODES ?= 500
KWOK_MODELS ?= 100
bench-kwok: e2e-programs e2e-images ## measure thaw with 500 simulated nodes on the cluster of make cluster, into bench/results
	@mkdir -p bench/results
	cd platform/knative/e2e && $(call ON_CLUSTER,e2e) -test.run '^TestClusterKwok$$' -test.timeout 60m -kwok-nodes $(KWOK_NODES) -kwok-models $(KWOK_MODELS) -bench-out $(CURDIR)/bench/results -bench-commit $(shell git rev-parse --short=12 HEAD)

.PHONY: bench-kwok
cluster-test: ## vet and test deploy/cluster
	cd deploy/cluster && CGO_ENABLED=0 $(GO) vet -trimpath ./... && CGO_ENABLED=0 $(GO) test -count=1 -trimpath ./...

# IMAGE=NAME@sha256:… puts the image's digest into the chart; ARCH=amd64,arm64 builds for both.
ARCH ?= $(shell $(GO) env GOARCH)
release: ## the programs, lists of what they link (SPDX), the chart, and checksums, in bin/release
	$(GO) run ./deploy/release -version '$(VERSION)' -arch '$(ARCH)' -out bin/release $(if $(IMAGE),-image '$(IMAGE)')

# Compiled packages come from the build cache in both; FRESH=1 compiles all of it again.
release-check: release ## build the release twice, once in a clone, and compare the bytes
	@again=$$(mktemp -d) && trap 'chmod -R u+w "$$again"; rm -rf "$$again"' EXIT && git clone -q . "$$again/clone" && \
	if [ -n "$(FRESH)" ]; then export GOCACHE="$$again/cache"; fi && \
	$(MAKE) --no-print-directory -C "$$again/clone" release VERSION='$(VERSION)' ARCH='$(ARCH)' IMAGE='$(IMAGE)' && \
	diff -r bin/release "$$again/clone/bin/release" && echo "both have the same bytes:" && cat bin/release/SHA256SUMS

# Skipped where the database of known vulnerabilities cannot be reached.
GOVULNCHECK ?= golang.org/x/vuln/cmd/govulncheck@v1.9.0
vulnerabilities: ## govulncheck on both programs
	@if ! curl -fsS -m 20 -o /dev/null "$${GOVULNDB:-https://vuln.go.dev}/index/modules.json"; then \
	  echo "skipped: the database of vulnerabilities does not answer"; exit 0; fi; \
	CGO_ENABLED=0 $(GO) run $(GOVULNCHECK) ./platform/thaw ./platform/thaw-knative

.PHONY: release release-check vulnerabilities
chart-test: ## the Helm chart renders the same objects as kustomize
	cd deploy/helm && CGO_ENABLED=0 $(GO) vet ./... && CGO_ENABLED=0 $(GO) test -count=1 ./...

board-test: ## Grafana's board and the alert rules, by Prometheus' engine on the metrics of a running thaw
	cd deploy/grafana && CGO_ENABLED=0 $(GO) vet ./... && CGO_ENABLED=0 $(GO) test -count=1 ./...

# Everything is checked without cgo, as the cluster's programs are built; packages with
# files for cgo are checked with it as well.
WITH_CGO = $$(git grep -lE '^//go:build.*\bcgo\b' -- '*.go' | xargs -r -n1 dirname | sort -u | sed 's|^|./|')

vet:
	CGO_ENABLED=0 $(GO) vet ./...
	$(GO) vet $(WITH_CGO)
	cd bench/thaw-bench && GOWORK=off $(GO) list -deps -test ./... >/dev/null && CGO_ENABLED=0 $(GO) vet ./...

lint: ## staticcheck, at the version go.mod pins
	CGO_ENABLED=0 $(GO) tool staticcheck ./...
	$(GO) tool staticcheck $(WITH_CGO)
	cd bench/thaw-bench && CGO_ENABLED=0 $(GO) tool staticcheck ./...

fmt: ## format everything
	gofmt -w $$(git ls-files '*.go')

fmt-check:
	@bad=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$bad" ] || { echo "not gofmt-ed (run make fmt):"; echo "$$bad"; exit 1; }

cross: ## builds for every system we ship to
	@for os in linux darwin; do for arch in amd64 arm64; do \
	  echo "build $$os/$$arch"; for program in thaw thaw-knative; do \
	  CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch $(GO) build -o /dev/null ./platform/$$program || exit 1; done; done; done

# What the console takes from npm, with its versions; the script modules are the packages' own.
PREACT ?= 11.2.0
HTM    ?= 3.1.1

.PHONY: console-vendor test-console bench-console
test-console: ## the console in a real browser, which it installs (Debian, root, npm)
	.ci/full console

bench-console: ## what the console takes, and the way from a clone to an answer, into bench/results/console.md (chromium); COLD=1 compiles all for it
	cd testkit/browser && CGO_ENABLED=0 $(GO) test -count=1 -timeout 20m -v -run '^TestFigures$$' . -args -figures $(CURDIR)/bench/results/console.md $(if $(COLD),-cold)

console-vendor: ## platform/console/assets/npm from npm, at the versions PREACT= and HTM= (needs npm)
	@new=$$(mktemp -d) && trap 'rm -rf "$$new"' EXIT && into=platform/console/assets/npm && \
	for package in preact@$(PREACT) htm@$(HTM); do name=$${package%@*} && mkdir "$$new/$$name" && \
	  npm pack --silent --pack-destination "$$new/$$name" "$$package" >/dev/null && \
	  tar xzf "$$new/$$name"/*.tgz -C "$$new/$$name" --strip-components=1 || exit 1; done && \
	put() { sed -e 's|from"preact"|from"./preact.mjs"|' -e '/^\/\/# sourceMappingURL/d' "$$new/$$1" >"$$into/$$2"; } && \
	put preact/dist/preact.mjs preact.mjs && put preact/hooks/dist/hooks.mjs hooks.mjs && put htm/dist/htm.module.js htm.mjs && \
	cp "$$new/preact/LICENSE" $$into/LICENSE-preact.txt && cp "$$new/htm/LICENSE" $$into/LICENSE-htm.txt && \
	printf 'preact %s, MIT: preact.mjs, hooks.mjs (its import is made relative)\nhtm %s, Apache-2.0: htm.mjs\n' $(PREACT) $(HTM) >$$into/VERSIONS.txt && cat $$into/VERSIONS.txt

schema: ## functions/schema.json from the types
	$(GO) generate ./functions

clean:
	rm -rf bin
