package kubeletapi

// Tests of clients that open streams and send what no kubectl does.

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	spdyframe "github.com/moby/spdystream/spdy"
	"golang.org/x/net/websocket"
	"k8s.io/apimachinery/pkg/util/httpstream" //nolint:staticcheck // client-go has its types
	"k8s.io/client-go/transport/spdy"
)

// connection has a request upgraded.
func (g *rig) connection(path string, q url.Values, protocol string) httpstream.Connection {
	g.t.Helper()
	rt, up, err := spdy.RoundTripperFor(g.restConfig())
	if err != nil {
		g.t.Fatal(err)
	}
	conn, _, err := spdy.NewDialer(up, &http.Client{Transport: rt}, http.MethodPost, g.url(path, q)).Dial(protocol)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

// ends waits for the end of a connection.
func ends(t *testing.T, what string, conn httpstream.Connection) {
	t.Helper()
	select {
	case <-conn.CloseChan():
	case <-time.After(patience):
		t.Errorf("%s: the connection goes on", what)
	}
}

// A framed is a connection whose frames the test writes itself, and waits for no reply.
type framed struct {
	*tls.Conn
	from *bufio.Reader
	*spdyframe.Framer
	opened spdyframe.StreamId
}

// framed has a request upgraded.
func (g *rig) framed(path string, q url.Values, protocol string) *framed {
	g.t.Helper()
	conn, err := tls.Dial("tcp", g.addr, g.websocketConfig(path).TlsConfig)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close() })
	f := &framed{Conn: conn, from: bufio.NewReader(conn)}
	_, err = fmt.Fprintf(conn, "POST %s?%s HTTP/1.1\r\nHost: node-1\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: %s\r\n\r\n", path, q.Encode(), protocol)
	if err != nil {
		g.t.Fatal(err)
	}
	resp, err := http.ReadResponse(f.from, nil)
	if err == nil && resp.StatusCode != http.StatusSwitchingProtocols {
		err = errors.New(resp.Status)
	}
	if err == nil {
		f.Framer, err = spdyframe.NewFramer(conn, f.from)
	}
	if err != nil {
		g.t.Fatal(err)
	}
	return f
}

// open opens a stream.
func (f *framed) open(t *testing.T, kind string) {
	t.Helper()
	if err := f.WriteFrame(&spdyframe.SynStreamFrame{StreamId: 2*f.opened + 1, Headers: headers("streamType", kind)}); err != nil {
		t.Fatal(err)
	}
	f.opened++
}

// ends waits for the end of the connection.
func (f *framed) ends(t *testing.T, what string) {
	t.Helper()
	_ = f.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, f.from); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s: the connection goes on", what)
	}
}

// TestStreamTooMany: a stream more than the request asks for, of which the library would never let
// go, ends the connection, in each protocol; and so do streams that do not come. No goroutine is
// left, which TestMain checks.
func TestStreamTooMany(t *testing.T) {
	g := newRig(t, func(c *Config) { c.StreamCreationTimeout = time.Second })
	g.start(g.addPod("p", "c"), "c", 0, idle)
	var all sync.WaitGroup
	defer all.Wait()
	for protocol, sizes := range map[string]bool{"v4.channel.k8s.io": true, "v3.channel.k8s.io": true, "v2.channel.k8s.io": false, "channel.k8s.io": false} {
		for path, q := range map[string]url.Values{
			"/exec/default/p/c":   {"command": {"sleep", "1000"}, "input": {"1"}, "output": {"1"}, "tty": {"1"}},
			"/attach/default/p/c": {"output": {"1"}},
		} {
			what := path + " by " + protocol
			kinds := []string{"error", "stdout"}
			if q.Has("tty") {
				kinds = append(kinds, "stdin")
				if sizes {
					kinds = append(kinds, "resize")
				}
			}
			f := g.framed(path, q, protocol)
			for _, kind := range append(kinds, "error") {
				f.open(t, kind)
			}
			all.Go(func() { f.ends(t, what) })
			few := g.framed(path, q, protocol)
			few.open(t, "neither")
			all.Go(func() { few.ends(t, what+" without its streams") })
		}
	}
}

// TestWebSocketTooMuch: a terminal size without an end and a large frame end the connection, and the
// third port of a request may send as much as it likes.
func TestWebSocketTooMuch(t *testing.T) {
	g := newRig(t)
	g.start(g.addPod("shell", "c"), "c", 0, idle)
	port := g.echo()
	forward := fmt.Sprintf("/portForward/default/p?port=%d&port=%d&port=%d", port, port, port)
	exec := "/exec/default/shell/c?command=sleep&command=1000&output=1"
	send := func(path string, channel byte, size, times int) *websocket.Conn {
		ws := g.websocket(path)
		t.Cleanup(func() { _ = ws.Close() })
		for range times {
			if websocket.Message.Send(ws, append([]byte{channel}, strings.Repeat("[", size)...)) != nil {
				break
			}
		}
		_ = ws.SetReadDeadline(time.Now().Add(patience))
		return ws
	}
	for what, ws := range map[string]*websocket.Conn{
		"a size of an exec":             send(exec, 4, 100, 20),
		"a size of an attach":           send("/attach/default/shell/c?output=1", 4, 100, 20),
		"a large frame of an exec":      send(exec+"&input=1", 0, 16<<20, 1),
		"a large frame of a forwarding": send(forward, 0, 16<<20, 1),
	} {
		if _, err := io.Copy(io.Discard, ws); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection goes on", what)
		}
	}
	const size, times = 1000, 10
	ws := send(forward, 4, size, times)
	for got := 0; got < size*times; {
		var b []byte
		if err := websocket.Message.Receive(ws, &b); err != nil {
			t.Fatalf("%v, after %d bytes", err, got)
		}
		if b[0] == 4 {
			got += len(b) - 1
		}
	}
}

// TestForwardTooMany: connections beyond the bound of a request fail, and later ones do not; what
// is sent on a stream that takes nothing ends the connection.
func TestForwardTooMany(t *testing.T) {
	g := newRig(t)
	port := strconv.Itoa(g.echo())
	conn := g.connection("/portForward/default/p", nil, "portforward.k8s.io")
	pair := func(id int) (errs, data httpstream.Stream) {
		t.Helper()
		h := headers("port", port, "requestID", strconv.Itoa(id), "streamType", "error")
		errs, err := conn.CreateStream(h)
		if err != nil {
			t.Fatal(id, err)
		}
		if err := errs.Close(); err != nil {
			t.Fatal(err)
		}
		h.Set("streamType", "data")
		if data, err = conn.CreateStream(h); err != nil {
			t.Fatal(id, err)
		}
		return errs, data
	}
	all := make([]httpstream.Stream, maxForwarded)
	for i := range all {
		_, all[i] = pair(i)
		if _, err := io.ReadFull(all[i], writing(t, all[i], "x")); err != nil {
			t.Fatal(i, err)
		}
	}
	// One more ends without an error, upon which kubectl would end all of them.
	errs, data := pair(maxForwarded)
	if b, _ := io.ReadAll(data); len(b) > 0 {
		t.Errorf("one more: %q", b)
	}
	if b, _ := io.ReadAll(errs); len(b) > 0 {
		t.Errorf("one more: error %q", b)
	}
	// Many more at once end likewise, and those that are there go on.
	more := make([]httpstream.Stream, maxForwarded)
	for i := range more {
		_, more[i] = pair(2*maxForwarded + i)
	}
	for i, data := range more {
		if b, _ := io.ReadAll(data); len(b) > 0 {
			t.Errorf("%d more: %q", i, b)
		}
	}
	if _, err := io.ReadFull(all[1], writing(t, all[1], "y")); err != nil {
		t.Errorf("beside them: %v", err)
	}
	if err := all[0].Close(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(all[0]); string(b) != "bye" {
		t.Errorf("%q, %v", b, err)
	}
	deadline := time.Now().Add(patience)
	for id := maxForwarded + 1; ; id++ {
		_, data := pair(id)
		_, _ = io.WriteString(data, "x") // it may be over already
		_ = data.Close()
		if b, _ := io.ReadAll(data); string(b) == "xbye" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("there is no room again")
		}
	}

	h := headers("port", port, "requestID", "last", "streamType", "error")
	silent, err := conn.CreateStream(h)
	if err != nil {
		t.Fatal(err)
	}
	h.Set("streamType", "data") // the library waits for it for a while, and TestMain does not
	if _, err := conn.CreateStream(h); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(silent, "x") // the connection may be over
	ends(t, "data on a stream for errors", conn)
	cfg := g.websocketConfig("/portForward/default/p?" + url.Values{"port": strings.Split(strings.Repeat("1 ", maxForwardedPorts)+"1", " ")}.Encode())
	if _, err := cfg.DialContext(g.ctx); err == nil || !strings.Contains(err.Error(), "bad status") {
		t.Errorf("65 ports: %v", err)
	}
}

// writing says something and returns as much room.
func writing(t *testing.T, w io.Writer, text string) []byte {
	t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	return make([]byte, len(text))
}
