// Closing a connection that takes nothing more.

package carrier

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// TestCloseInsideTLS: a connection that goes through the TLS of a proxy is closed at once, also when
// its socket is full. Whoever closes it may hold a lock.
func TestCloseInsideTLS(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan net.Conn, 1)
	go func() {
		defer close(served)
		c, err := l.Accept()
		if err != nil {
			return
		}
		if err = tls.Server(c, tunneltest.TLS(t)).HandshakeContext(t.Context()); err == nil {
			served <- c // nothing more is read from it
		}
	}()
	tcp, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	config := tunneltest.TLS(t)
	config.ServerName = "server"
	outer := tls.Client(tcp, config)
	if err := outer.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	far, ok := <-served
	if !ok {
		t.Fatal("no handshake")
	}
	defer far.Close()
	for _, size := range []int{64 << 10, 1} {
		for err = nil; err == nil; {
			_ = tcp.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
			_, err = tcp.Write(make([]byte, size))
		}
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = (&dialedConn{Conn: outer}).Close()
	}()
	select {
	case <-closed:
	case <-time.After(3 * time.Second): // crypto/tls waits for 5
		t.Error("it waits for the socket")
		<-closed
	}
}
