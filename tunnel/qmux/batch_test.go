package qmux

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A wrapped is a connection that counts what is written, and which nothing may be written past.
type wrapped struct {
	*net.TCPConn
	written int
}

func (g *wrapped) Write(p []byte) (int, error) {
	g.written += len(p)
	return g.TCPConn.Write(p)
}
func (g *wrapped) NetConn() net.Conn         { return g.TCPConn }
func (g *wrapped) InnerReader() tunnel.Inner { return tunnel.Inner{} }
func (g *wrapped) InnerWriter() tunnel.Inner { return tunnel.Inner{} }

// What a wrapper wants to see is not written to the socket below it, though that would
// take it at once.
func TestBatchRespectsWrappers(t *testing.T) {
	c, _ := overLoopback(t)
	g := &wrapped{TCPConn: c}
	b := newBatch(g).(*batch)
	b.hold()
	if _, err := b.Write([]byte("record")); err != nil {
		t.Fatal(err)
	}
	if all, err := b.flush(false); all || err != nil {
		t.Errorf("it was written past the wrapper: %v, %v", all, err)
	}
	if _, err := b.flush(true); err != nil || g.written != len("record") {
		t.Errorf("the wrapper has seen %d bytes, %v", g.written, err)
	}
}

// overLoopback is the two ends of a TCP connection.
func overLoopback(t *testing.T) (near, far *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = accepted.Close() })
	return c.(*net.TCPConn), accepted.(*net.TCPConn)
}

// fill writes to a connection until its peer would have to read, and returns how much that was.
func fill(t *testing.T, c *net.TCPConn) (filled int) {
	t.Helper()
	for last := -1; last != filled; {
		last = filled
		_ = c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)) // it does not fail
		n, err := c.Write(make([]byte, 64<<20))
		if filled += n; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	}
	_ = c.SetWriteDeadline(time.Time{}) // likewise
	return filled
}

// What TLS writes by itself waits for no peer: it has TLS locked, which the next turn needs. It
// leaves in order, and the connection is lost once too much of it waits.
func TestAnswersDoNotBlock(t *testing.T) {
	for name, socket := range map[string]bool{"socket": true, "wrapped": false} {
		t.Run(name, func(t *testing.T) {
			near, far := overLoopback(t)
			below := net.Conn(near)
			if !socket {
				below = &wrapped{TCPConn: near}
			}
			b := newBatch(below).(*batch)
			b.joined = true
			filled := fill(t, near)
			answer := bytes.Repeat([]byte("a"), maxAnswers/4)
			var want []byte
			write := func(p []byte) {
				t.Helper()
				done := make(chan error, 1)
				go func() { _, err := b.Write(p); done <- err }()
				select {
				case err := <-done:
					if err != nil {
						t.Fatal(err)
					}
				case <-time.After(patience):
					t.Fatal("it waits for the peer")
				}
				want = append(want, p...)
			}
			for range 4 {
				write(answer)
			}
			b.hold()
			write([]byte("turn"))
			if _, err := b.flush(false); err != nil {
				t.Fatal(err)
			}
			flushed := make(chan error, 1)
			go func() { _, err := b.flush(true); flushed <- err }()
			<-time.After(50 * time.Millisecond) // until it waits for the socket
			write([]byte("meanwhile"))
			got := make(chan []byte, 1)
			_ = far.SetReadDeadline(time.Now().Add(patience)) // it does not fail
			go func() {
				p := make([]byte, filled+len(want))
				n, _ := io.ReadFull(far, p)
				got <- p[:n]
			}()
			if err := <-flushed; err != nil {
				t.Error(err)
			}
			if _, err := b.flush(true); err != nil {
				t.Error(err)
			}
			if p := <-got; !bytes.HasSuffix(p, want) {
				t.Errorf("%d bytes of %d were read, or in another order", len(p), filled+len(want))
			}
			var err error
			for sent := 0; err == nil && sent < 64<<20; sent += len(answer) {
				_, err = b.Write(answer)
			}
			if !errors.Is(err, errUnread) {
				t.Errorf("as many answers as the peer asks for: %v", err)
			}
		})
	}
}
