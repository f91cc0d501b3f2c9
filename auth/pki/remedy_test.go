package pki

// What is said of an authority that cannot be used, and that it helps.

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

func TestLostKeyOfAnAuthority(t *testing.T) {
	c := config(t)
	p := ensure(t, c)
	if err := os.Remove(p.Path(CA, true)); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(c); err == nil || !strings.HasSuffix(err.Error(), ": restore the pair from a backup") || !strings.Contains(err.Error(), p.Path(CA, true)) {
		t.Errorf("got %v", err)
	}
}

// TestExpiredAuthority: each that has expired is made anew for its key once its certificate is
// not there.
func TestExpiredAuthority(t *testing.T) {
	c := config(t)
	p := ensure(t, c)
	key := read(t, p.Path(CA, true))
	c.Now = func() time.Time { return time.Now().Add(caLife + time.Hour) }
	for _, name := range []string{ClientCA, KubeletCA, FrontProxyCA, CA} {
		file := p.Path(name, false)
		if _, err := Ensure(c); err == nil || !strings.Contains(err.Error(), file+" expired on ") || !strings.HasSuffix(err.Error(), ": move that file away, and another is made for its key") {
			t.Fatalf("%s: got %v", name, err)
		}
		if err := os.Rename(file, file+".old"); err != nil {
			t.Fatal(err)
		}
	}
	ensure(t, c)
	if !bytes.Equal(key, read(t, p.Path(CA, true))) {
		t.Error("the key is another")
	}
}
