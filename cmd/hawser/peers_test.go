package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki"
)

// TestServerToken: a data directory keeps its token, and so its server's name.
func TestServerToken(t *testing.T) {
	dir := t.TempDir()
	first, err := keptIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := keptIdentity(dir); err != nil || again != first {
		t.Errorf("%q, %v, want %q", again, err, first)
	}
	if other, err := keptIdentity(t.TempDir()); err != nil || other == first {
		t.Errorf("%q, %v: another directory has the same", other, err)
	}
	id := defaultServerID(first)
	if err := auth.CheckServerID(id); err != nil || !strings.HasSuffix(id, strings.ToLower(first[:8])) {
		t.Errorf("%q: %v", id, err)
	}
	if fi, err := os.Stat(filepath.Join(dir, identityFile)); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
}

// TestServerCertificate: servers that share keys have a certificate each, which no hub
// takes for a node's.
func TestServerCertificate(t *testing.T) {
	keys, err := pki.Ensure(pki.Config{Dir: filepath.Join(t.TempDir(), "pki")})
	if err != nil {
		t.Fatal(err)
	}
	c, err := keys.ServerCertificate("a-1")
	if err != nil {
		t.Fatal(err)
	}
	if id, err := auth.ServerID(c.Leaf); err != nil || id != "a-1" {
		t.Errorf("%q, %v", id, err)
	}
	if name, err := auth.NodeName(c.Leaf); err == nil {
		t.Errorf("it is that of node %s", name)
	}
	if _, err := keys.ServerCertificate("a.b"); err == nil {
		t.Error("made one for a name that is none")
	}
}
