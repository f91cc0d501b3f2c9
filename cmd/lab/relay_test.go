package lab_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/cmd/lab"
)

// relayed is a connection to an echo server through a relay.
func relayed(t *testing.T) (*lab.Relay, func() net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c) // ends with the connection
			})
		}
	})
	r, err := lab.NewRelay(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		_ = ln.Close()
		wg.Wait()
	})
	return r, func() net.Conn {
		c, err := net.Dial("tcp", r.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		return c
	}
}

func TestRelaySlices(t *testing.T) {
	r, dial := relayed(t)
	if err := r.Slice(lab.Both, 2, 0); err != nil {
		t.Fatal(err)
	}
	c := dial()
	want := bytes.Repeat([]byte("slivers "), 500)
	if _, err := c.Write(want); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v, equal: %v", err, bytes.Equal(got, want))
	}
}

func TestRelayLimits(t *testing.T) {
	r, dial := relayed(t)
	if err := r.Limit(lab.In, 1000); err != nil {
		t.Fatal(err)
	}
	c := dial()
	if _, err := c.Write(make([]byte, 5000)); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, c); n != 1000 {
		t.Errorf("%d bytes came through (%v)", n, err)
	}
	if err := r.Clear(); err != nil {
		t.Fatal(err)
	}
	c = dial()
	if _, err := c.Write(make([]byte, 5000)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 5000)); err != nil {
		t.Errorf("with the limit gone: %v", err)
	}
}

func TestRelayCutsAndHangs(t *testing.T) {
	r, dial := relayed(t)
	ping := func(c net.Conn) error {
		if _, err := c.Write([]byte{1}); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}
	c := dial()
	if err := ping(c); err != nil {
		t.Fatal(err)
	}
	if err := r.Cut(); err != nil {
		t.Fatal(err)
	}
	if err := ping(c); err == nil {
		t.Error("a cut connection answers")
	}
	if err := ping(dial()); err != nil {
		t.Errorf("a new one does not: %v", err)
	}
	if err := r.Hang(lab.Out); err != nil {
		t.Fatal(err)
	}
	c = dial()
	if err := c.SetDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	var ne net.Error
	if err := ping(c); !errors.As(err, &ne) || !ne.Timeout() {
		t.Errorf("a connection that should hang: %v", err)
	}
	if err := r.Hang(lab.Out); err == nil {
		t.Error("the same toxic twice is no error")
	}
}
