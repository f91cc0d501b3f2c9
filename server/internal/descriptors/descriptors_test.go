package descriptors

import (
	"crypto/tls"
	"net"
	"path/filepath"
	"testing"
)

func TestNumber(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	numbers := make(map[uint64]bool)
	for range 8 {
		c, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		n, ok := number(c)
		if !ok || numbers[n] {
			t.Errorf("%d, %v", n, ok)
		}
		if over, ok := number(tls.Client(c, &tls.Config{MinVersion: tls.VersionTLS13})); !ok || over != n {
			t.Errorf("with TLS on top: %d, %v", over, ok)
		}
		if Scarce(c) {
			t.Errorf("descriptor %d of %d is one of the last", n, limit())
		}
		numbers[n] = true
	}
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	if _, ok := number(near); ok || Scarce(near) {
		t.Error("a pipe in memory has a descriptor")
	}
}
