package overquic

import (
	"bytes"
	"net"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// TestResetsOfServers: a server that is back gives a stray packet the same answer, so that the
// client believes it. Another one with the same certificate does not.
func TestResetsOfServers(t *testing.T) {
	token := func(server string) []byte {
		t.Helper()
		l, _ := listen(t, tunnel.Options{Link: tunnel.LinkOptions{Server: server}})
		c, err := net.Dial("udp4", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err = c.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		stray := make([]byte, 100)
		stray[0] = 0x40 // a short header (RFC 9000, 17.3), and a connection ID of zeros
		if _, err = c.Write(stray); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 100)
		n, err := c.Read(answer)
		if err != nil || n < 21 {
			t.Fatalf("%d bytes in answer: %v", n, err)
		}
		return answer[n-16 : n] // RFC 9000, 10.3
	}
	first := token("a")
	if !bytes.Equal(token("a"), first) {
		t.Error("a server that is back resets no connection of its former life")
	}
	if bytes.Equal(token("b"), first) {
		t.Error("another server resets its connections")
	}
}
