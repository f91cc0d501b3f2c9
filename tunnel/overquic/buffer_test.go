package overquic

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// TestReadBufferUnderDeadlines: while another goroutine moves the deadline, ReadBuffer returns
// what the peer has written, in order and to its end.
func TestReadBufferUnderDeadlines(t *testing.T) {
	a, b := pair(t, tunnel.Options{})
	near, far := open(t, a, b)
	sent := make([]byte, 8<<20)
	for i := range sent {
		sent[i] = byte(i % 251)
	}
	stop := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		if _, err := near.Write(sent); err != nil {
			t.Error(err)
			return
		}
		_ = near.CloseWrite() // the reader sees whether it fails
	})
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = far.SetReadDeadline(past)
				_ = far.SetReadDeadline(time.Time{})
			}
		}
	})
	defer others.Wait()
	defer close(stop)
	defer near.Close() // ends its Write
	defer far.Close()
	var buf tunnel.Buffer
	for got := 0; ; {
		n, err := far.(tunnel.BufferReader).ReadBuffer(&buf)
		if n > 0 {
			if p := buf.Take(n)[:n]; !bytes.HasPrefix(sent[got:], p) {
				t.Fatalf("%d bytes after %d are not those that were sent", n, got)
			}
			got += n
		}
		buf.Free()
		switch {
		case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
		case errors.Is(err, io.EOF) && got == len(sent):
			return
		default:
			t.Fatalf("after %d bytes: %v", got, err)
		}
	}
}
