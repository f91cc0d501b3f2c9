// The token command and the kubeconfig it goes by.

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/cmd/internal/clitest"
)

func TestTokenRefusesWhatItIsNotTold(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	tests := map[string]struct {
		kubeconfig string // $KUBECONFIG
		args       []string
		want       string // in the error; empty means none
	}{
		"alone":                {"", nil, ""},
		"no such subcommand":   {"", []string{"list"}, `unknown command "list" for "hawser token"`},
		"argument too many":    {"", []string{"create", "x"}, `unknown command "x"`},
		"negative":             {"", []string{"create", "--ttl", "-1h"}, "--ttl -1h0m0s is negative"},
		"site with a capital":  {"", []string{"create", "--site", "Berlin"}, `--site "Berlin": want`},
		"site with a comma":    {"", []string{"create", "--site", "a,system:masters"}, `--site "a,system:masters": want`},
		"site that is long":    {"", []string{"create", "--site", strings.Repeat("a", 64)}, "at most 63"},
		"environment misleads": {missing, []string{"create"}, "KUBECONFIG " + missing},
		"flag misleads":        {"", []string{"create", "--kubeconfig", missing}, missing},
		"nothing given":        {"", []string{"create"}, "no kubeconfig: give --kubeconfig FILE or set KUBECONFIG"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			clitest.Refused(t, clitest.Run(t, newRoot(), tt.kubeconfig, append([]string{"token"}, tt.args...)...), tt.want)
		})
	}
}
