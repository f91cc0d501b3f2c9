// The token command and the kubeconfig it goes by.

package main

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
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
			t.Setenv("KUBECONFIG", tt.kubeconfig)
			t.Setenv("HOME", t.TempDir())
			t.Chdir(t.TempDir())
			root := newRoot()
			root.SetArgs(append([]string{"token"}, tt.args...))
			root.SetOut(io.Discard)
			root.SetErr(io.Discard)
			err := root.ExecuteContext(t.Context())
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want %q", err, tt.want)
			case err != nil && strings.Contains(err.Error(), "\n"):
				t.Errorf("more than one line: %v", err)
			}
		})
	}
}
