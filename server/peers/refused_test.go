// Tests of sessions of other servers that are refused.

package peers

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/tunnel"
)

// TestRefused: a server with this server's ID is not answered, and one too many not served. Each
// such session is counted, and logged once a minute for each server.
func TestRefused(t *testing.T) {
	f := newFleet(t, "a")
	a := f.servers["a"]
	var log bytes.Buffer
	a.peers.log = slog.New(slog.NewTextHandler(&log, nil))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	try := func(id string) error {
		s, err := f.dial(ctx, a.addr, f.client(auth.ServerUserPrefix+id, auth.ServersGroup), nil, ends)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		_, err = tunnel.Connect(ctx, s, sessionsNetwork, sessionsAddr)
		return err
	}
	for range 2 {
		if err := try("a"); !errors.Is(err, tunnel.Invalid) {
			t.Errorf("its own ID: %v", err)
		}
	}
	for range maxServed {
		a.peers.served <- struct{}{}
	}
	for range 2 {
		if err := try("b"); !errors.Is(err, tunnel.Lost) {
			t.Errorf("one too many: %v", err)
		}
	}
	for range maxServed {
		<-a.peers.served
	}
	if err := try("b"); err != nil {
		t.Error(err)
	}
	if n := a.metric("hawser_peer_refused_total"); n != 4 {
		t.Errorf("%v refused sessions counted, want 4", n)
	}
	a.stop() // nothing is logged any more
	for _, line := range []string{"server=a addr=127.0.0.1:", "server=b addr=127.0.0.1:", "reason=same_id", "reason=too_many"} {
		if n := strings.Count(log.String(), line); n != 1 {
			t.Errorf("%d lines with %q:\n%s", n, line, log.String())
		}
	}
}
