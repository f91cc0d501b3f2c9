// The agent runs on every node, so what it is made of is a promise.

package main

import (
	"os/exec"
	"strings"
	"testing"
)

// maxPackages is how many packages outside the standard library the agent may
// link. It only ever goes down: who adds a dependency takes another away, or
// argues for the new number in the commit. The last six are clientcmd, which reads a
// kubeconfig, and what it is made of; and auth/spdyframes, which the API server uses too.
const maxPackages = 326

// forbidden packages, with the reason. A path stands for all below it.
var forbidden = map[string]string{
	"k8s.io/apiserver":                              "a node serves no API but its own",
	"k8s.io/kubernetes":                             "it is not a library",
	"k8s.io/kubectl":                                "a node is not an operator",
	"k8s.io/client-go/kubernetes":                   "it has every version of every API group; auth/apiclient has a node's",
	"go.etcd.io/etcd":                               "a node stores nothing",
	"google.golang.org/grpc":                        "nothing that a node speaks needs it",
	"github.com/google/cel-go":                      "a node evaluates no policies",
	"cel.dev/expr":                                  "a node evaluates no policies",
	"testing":                                       "tests stay in tests",
	"github.com/hawser-project/hawser/server":       "a node is not a server",
	"github.com/hawser-project/hawser/controlplane": "a node is not a control plane",
	"github.com/hawser-project/hawser/e2e":          "tests stay in tests",
}

func TestDependencies(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	outside := 0
	for _, pkg := range strings.Fields(string(out)) {
		for f, why := range forbidden {
			if pkg == f || strings.HasPrefix(pkg, f+"/") {
				t.Errorf("the agent links %s: %s", pkg, why)
			}
		}
		if first, _, _ := strings.Cut(pkg, "/"); strings.Contains(first, ".") {
			outside++
		}
	}
	if outside < 50 {
		t.Fatalf("only %d packages found: the count is broken", outside)
	}
	if outside > maxPackages {
		t.Errorf("the agent links %d packages, more than %d", outside, maxPackages)
	}
	if outside < maxPackages-20 {
		t.Errorf("the agent links only %d packages: lower maxPackages from %d", outside, maxPackages)
	}
}
