package tunnel

// Tests of how the end of a connection is told from a reset.

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"
)

func tcpPair(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	near, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near.(*net.TCPConn), far.(*net.TCPConn)
}

// A target that has read all, answers and closes has answered completely, though the client sends
// more, which the target's system answers by a reset. A target that closes with unread data has not.
func TestEndBeforeReset(t *testing.T) {
	want := bytes.Repeat([]byte("answer "), 10_000)
	for name, complete := range map[string]bool{"complete": true, "cut": false} {
		t.Run(name, func(t *testing.T) {
			for write := range 3 { // how many writes come after the reset
				back, target := tcpPair(t)
				e := newEnd(back)
				if !complete {
					_, _ = back.Write([]byte("unread"))
					_, _ = io.ReadFull(target, make([]byte, 1))
				}
				_, _ = target.Write(want) // what is missing shows
				_ = target.Close()
				if complete {
					_, _ = back.Write([]byte("more")) // the answer is a reset
				}
				awaitClosed(t, back)
				var failed error
				for range write {
					if _, err := back.Write([]byte("more")); failed == nil {
						failed = err
					}
				}
				if write > 0 {
					e.wrote(failed)
				}
				got, err := io.ReadAll(back)
				if reset := err != nil || e.wasReset(); reset == complete || !bytes.Equal(got, want) {
					t.Errorf("%d writes: %d bytes of %d, %v; reset: %t", write, len(got), len(want), err, reset)
				}
			}
		})
	}
}

// awaitClosed waits until the system has closed c, whose peer is to reset it.
func awaitClosed(t *testing.T, c *net.TCPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for range 10_000 {
		closed := false
		if err := raw.Control(func(fd uintptr) { closed = isClosed(int(fd)) }); err != nil {
			t.Fatal(err)
		}
		if closed {
			return
		}
		<-time.After(time.Millisecond)
	}
	t.Fatal("no reset has come")
}
