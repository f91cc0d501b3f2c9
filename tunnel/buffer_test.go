package tunnel_test

import (
	"io"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

var (
	_ tunnel.Aborter = (*tunnel.Tap)(nil)
	_ tunnel.Wrapper = (*tunnel.Tap)(nil)
)

// What wraps a connection waits for something to read as that does, holding nothing, and
// leaves nothing out.
func TestWrappersReadToBuffers(t *testing.T) {
	near, far := memnet.Pipe(memnet.Addr("near"), memnet.Addr("far"))
	defer far.Close()
	counted := 0
	c := &tunnel.Tap{Conn: near, Received: func(n int) { counted += n }}
	defer c.Close()
	all := ""
	read := func() {
		t.Helper()
		var buf tunnel.Buffer
		n, err := tunnel.ReadBuffer(c, &buf)
		if err != nil {
			t.Fatal(err)
		}
		all += string(buf.Take(n)[:n])
		buf.Free()
	}
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		_, _ = io.WriteString(far, "what came") // the reader notices
	}()
	read()
	<-wrote
	if all != "what came" || counted != len(all) {
		t.Errorf("%q, %d counted", all, counted)
	}
}

// What a Buffer gives away is another's, and the Buffer takes other memory.
func TestBufferGivesAway(t *testing.T) {
	before := tunnel.Buffered()
	var buf tunnel.Buffer
	kept := buf.Take(100)
	free := buf.Give()
	if n := tunnel.Buffered() - before; n != 0 {
		t.Errorf("%d bytes are held", n)
	}
	if other := buf.Take(100); &other[0] == &kept[0] {
		t.Error("the same memory again")
	}
	buf.Free()
	free()
}
