package main

import (
	"net"
	"os"
	"testing"

	"github.com/hawser-project/hawser/tunnel/strangers"
)

// TestLocalSource: a loopback connection is the user's who made it, and one whose socket is
// gone is nobody's, not root's.
func TestLocalSource(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", at)
		if err != nil {
			t.Logf("no %s here: %v", at, err)
			continue
		}
		defer l.Close()
		client, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if got, want := localSource(c), strangers.UserSource(uint32(os.Getuid())); got != want {
			t.Errorf("%s: %+v, want %+v", at, got, want)
		}
		_ = client.Close()
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Fatal("the client sent something")
		}
		if got, want := localSource(c), strangers.SourceOf(c.RemoteAddr()); got != want {
			t.Errorf("%s, after it was closed: %+v, want %+v", at, got, want)
		}
	}
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	if got := localSource(near); got != (strangers.Source{}) {
		t.Errorf("a pipe: %+v", got)
	}
}
