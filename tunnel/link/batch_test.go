package link

import (
	"bytes"
	"io"
	"net"
	"testing"
	"testing/synctest"

	"github.com/hawser-project/hawser/tunnel/memnet"
)

func TestBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
		b := NewBatch(near)
		data := randomBytes(8, 2*batchSize)
		var want, got []byte
		arrived := make(chan []byte, 1)
		go func() { // joined by arrived
			all, _ := io.ReadAll(far)
			arrived <- all
		}()
		put := func(n int) {
			t.Helper()
			want = append(want, data[:n]...)
			if m, err := b.Write(data[:n]); m != n || err != nil {
				t.Fatalf("write: %d, %v", m, err)
			}
		}
		put(10)
		if b.held != nil {
			t.Error("holds without a cork")
		}
		b.cork()
		put(20)
		put(30)
		if b.n != 50 {
			t.Errorf("holds %d", b.n)
		}
		put(batchSize - 40) // too much
		if b.n != batchSize-40 {
			t.Errorf("holds %d", b.n)
		}
		put(batchSize + 1) // more than can be held
		if b.held != nil {
			t.Errorf("holds %d", b.n)
		}
		put(5)
		if err := b.Flush(); err != nil || b.held != nil {
			t.Errorf("flush: %v, holds %d", err, b.n)
		}
		put(6)
		if err := b.CloseWrite(); err != nil {
			t.Errorf("close: %v", err)
		}
		if got = <-arrived; !bytes.Equal(got, want) {
			t.Errorf("%d bytes arrived of %d", len(got), len(want))
		}
		_ = b.Close()
		b.cork()
		if _, err := b.Write(data[:1]); err != nil {
			t.Errorf("write: %v", err)
		}
		if err := b.Flush(); err == nil || b.held != nil {
			t.Errorf("flush of a closed connection: %v", err)
		}
	})
	if batchBelow(&net.TCPConn{}) != nil {
		t.Error("a batch where there is none")
	}
}
