package qmux

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
)

// TestHeardToTheEnd: a target that has said all and closes, without having read all that it was
// sent, is heard to the end by a client that goes on writing.
func TestHeardToTheEnd(t *testing.T) {
	n := newNetwork(tunnel.Options{})
	dialer, accepter := n.pair(t, tunnel.Options{})
	defer n.close(t, dialer, accepter)
	near, far := pair(t, dialer, accepter)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	front, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	spliced := make(chan error, 1)
	wg.Go(func() {
		_, err := tunnel.Splice(t.Context(), front, near)
		spliced <- err
	})
	want := bytes.Repeat([]byte("the last words "), 20_000)
	said := make(chan struct{})
	wg.Go(func() {
		_, _ = far.Read(make([]byte, 1)) // the question
		wg.Go(func() {
			_, _ = far.Write(want)
			_ = far.Close()
		})
		close(said)
	})
	if _, err := client.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	<-said
	// The client writes until nothing takes it any more, or much more than there is room for.
	wg.Go(func() {
		for range 1000 {
			if _, err := client.Write(make([]byte, 16<<10)); err != nil {
				return
			}
		}
		_ = tunnel.CloseWrite(client)
	})
	got, err := io.ReadAll(client)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d came: %v", len(got), len(want), err)
	}
	_ = client.Close()
	if err := <-spliced; err != nil {
		t.Errorf("Splice: %v", err)
	}
}
