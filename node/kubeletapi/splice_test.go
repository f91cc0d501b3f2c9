package kubeletapi

// Tests of copying between a client's stream and a pod.

import (
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// A halfStream is a stream of a client, of which Close ends one half.
type halfStream struct {
	io.Reader
	io.Writer
}

func (halfStream) Close() error         { return nil }
func (halfStream) Reset() error         { return nil }
func (halfStream) Headers() http.Header { return nil }
func (halfStream) Identifier() uint32   { return 1 }

// TestPortForwardReadsOn: what a client sends to a server that has closed is read on: unread, it
// would hold up the other streams of the connection.
func TestPortForwardReadsOn(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = server.Close()
	r, w := io.Pipe()
	spliced, sent := make(chan error, 1), make(chan error, 1)
	go func() { spliced <- splice(conn, halfStream{r, io.Discard}) }()
	go func() {
		_, err := w.Write(make([]byte, 8<<20))
		sent <- errors.Join(err, w.Close())
	}()
	select {
	case err := <-sent:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("what the client sends is not read")
		_ = r.Close()
	}
	<-spliced
}
