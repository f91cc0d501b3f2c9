package qmux

import (
	"net"
	"testing"

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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	g := &wrapped{TCPConn: c.(*net.TCPConn)}
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
