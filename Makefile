# Every target is one line of go, so that this file is documentation, not logic.
GO       ?= go
FUZZTIME ?= 20s
FUZZED   ?= ./...
BENCH    ?= .
COUNT    ?= 5
VULNDB   ?= https://vuln.go.dev
PROGRAMS  = ./cmd/hawser ./cmd/hawser-agent ./cmd/hawser-ccm
# Without debugging tables (a third of the size), and with a version that kubectl can parse.
LDFLAGS  ?= -s -w -X k8s.io/component-base/version.gitVersion=v1.37.2
# The commands of kubectl wait for servers, and need no inlining. Without it they take 0.6 MB less,
# and kustomize, which they link, 0.2 MB.
GCFLAGS  ?= -gcflags k8s.io/kubectl/...=-l -gcflags sigs.k8s.io/kustomize/...=-l

# go test, in its own words, and then what was skipped or has failed.
TESTSUM   = $$($(PLAIN) $(GO) tool -n -modfile=.tools/go.mod gotestsum) --format standard-quiet
# Three packages at a time, as tests wait; those that take longest first (the others in reverse
# order, so that tunnel/qmux is early), as they would run last and alone.
# The end-to-end tests run after the others, alone and five at a time: each starts a cluster, and
# their bounds are those of people who wait. More at a time take all of two cores, and as long.
RACE      = $(GO) test -json -race -trimpath -vet=off -shuffle=on
NAMESPACES = if [ "$$(id -u)" != 0 ] || ! command -v nft >/dev/null || ! command -v ip >/dev/null; then \
  echo "SKIPPING the network namespace tests: they need root and the packages iproute2 and nftables"; fi
# Linters read packages as the tests compile them: once. Tools are compiled as the programs are,
# with which they share the standard library and more.
RACED     = GOFLAGS="$$($(GO) env GOFLAGS) -trimpath -race"
PLAIN     = CGO_ENABLED=0 GOFLAGS="$$($(GO) env GOFLAGS) -trimpath"

.PHONY: all build demo test check e2e kubectls kubernetes kwok lint vuln bench bench-outside bench-konnectivity fuzz generate licences dist dist-check units cover tidy clean

all: lint test build

build: ## the programs, into bin/; without cgo, whose dynamic symbols would cost 30 MiB of memory
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=auto $(GCFLAGS) -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

demo: build ## the guided tour: a cluster, a pod on a node behind NAT, logs, exec, port-forward
	./bin/hawser demo

test: ## everything: unit, conformance, integration, end to end; skipped tests are counted and listed at the end
	@$(NAMESPACES)
	$(TESTSUM) --raw-command -- sh -c '$(RACE) -p 3 -parallel 2 -timeout 30m ./controlplane/apiserver ./controlplane $$($(GO) list ./... | grep -v "/e2e$$" | sort -r); rest=$$?; \
	  $(RACE) -parallel 5 -timeout 60m ./e2e && exit $$rest'

check: ## unit and conformance tests, without the race detector, in three to four minutes on two cores
	$(TESTSUM) -- -short -vet=off -shuffle=on -p 4 -parallel 4 $$($(GO) list ./... | grep -v '/e2e\|/cmd/fleet\|/cmd/lab')

e2e: ## the end-to-end tests alone, with those of simulated fleets and of network namespaces
	@$(NAMESPACES)
	$(TESTSUM) -- -race -vet=off -shuffle=on -parallel 4 -timeout 60m ./e2e/... ./cmd/fleet/... ./cmd/lab/...

kubectls: ## the tests of people, scripts, streams and exchanged servers with kubectl 1.27 to 1.33, each built in CACHE
	./.ci/kubectls

kubernetes: ## the tests with an API server and a kubelet of Kubernetes itself, built in CACHE; those with a kubelet need root, containerd, runc, busybox and the CNI plugins
	./.ci/kubernetes

kwok: ## the test with a thousand nodes that KWOK plays, built in CACHE
	./.ci/kwok

lint: ## the linters of .golangci.yml, go vet's among them
	linter=$$($(PLAIN) $(GO) tool -n -modfile=.tools/go.mod golangci-lint) && $(RACED) $$linter run

vuln: ## vulnerabilities that are known in what the programs call; skipped, in one line, where VULNDB is out of reach
	@code=0; $(PLAIN) $(GO) tool -modfile=.tools/go.mod govulncheck -db $(VULNDB) $(PROGRAMS) >.vuln 2>&1 || code=$$?; \
	if grep -q '^govulncheck: fetching vulnerabilities: \(HTTP \)\?G[Ee][Tt] ' .vuln; then \
	  echo "SKIPPED govulncheck: the vulnerability database cannot be reached: $$(tail -n 1 .vuln)"; code=0; else cat .vuln; fi; \
	rm -f .vuln; exit $$code

bench: ## every benchmark, COUNT times, into bench-new.txt for benchstat
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) ./... | tee bench-new.txt

bench-outside: build ## the programs beside a bare TLS relay, measured by the harness in HARNESS, into bench-outside.json
	HARNESS='$(HARNESS)' ./.ci/bench-outside

bench-konnectivity: build ## the programs beside konnectivity's server and agent, through konnectivity's gRPC, into bench-konnectivity.json
	./.ci/bench-konnectivity

fuzz: ## every fuzz target of FUZZED for FUZZTIME each
	@set -e; for p in $$($(GO) list $(FUZZED)); do for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
	  echo "$$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$p; done; done

generate: licences ## generated code and NOTICE anew; fails if they were not up to date
	$(PLAIN) $(GO) generate ./...
	git diff --exit-code

licences: ## NOTICE anew: the modules in the programs and their licences; fails on one that Apache-2.0 cannot be shipped with
	@$(PLAIN) $(GO) -C .tools test ./licences
	@$(PLAIN) $(GO) -C .tools run ./licences .. $(PROGRAMS) >.NOTICE && mv .NOTICE NOTICE

dist: build ## what is released, into bin/dist: Debian packages, container images, bills of materials, checksums
	$(GO) -C .tools run ./dist ..

dist-check: ## two clones of the commit make the same bytes, and the packages work in a Debian that boots (root, mmdebstrap, systemd-container); in minutes
	$(GO) -C .tools test -count 1 -timeout 40m -v ./dist/...

units: ## systemd takes the unit files of the packages
	$(PLAIN) $(GO) -C .tools test -count 1 -v ./dist/debian

cover: ## statement coverage of all packages by all tests, as HTML
	$(GO) test -coverpkg=./... -coverprofile=cover.out -timeout 30m ./...
	$(GO) tool cover -html=cover.out -o cover.html

tidy:
	$(GO) mod tidy

clean:
	rm -rf bin cover.out cover.html bench-new.txt bench-outside.json bench-konnectivity.json
