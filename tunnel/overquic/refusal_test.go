// Tests of what a peer is told that is refused.

package overquic

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func TestHeardToTheEnd(t *testing.T) { tunneltest.RunHeardToTheEnd(t, overLoopback) }

func TestRefusals(t *testing.T) { tunneltest.RunRefusals(t, overLoopback) }

// The CONNECTION_CLOSE says why as well: what was written before it may be lost on the
// way, or there was nothing to write it on. Streams are lost, and not refused.
func TestDismiss(t *testing.T) {
	long := "retry after 30s: " + strings.Repeat("node was revoked ", 100)
	a, b := overLoopback(t, tunnel.Options{})
	near, _ := open(t, a, b)
	if err := b.Dismiss(&tunnel.Goodbye{Code: tunnel.Revoked, Text: long}); err != nil {
		t.Error(err)
	}
	<-a.Context().Done()
	var bye *tunnel.Goodbye
	if err := context.Cause(a.Context()); !errors.As(err, &bye) || bye.Code != tunnel.Revoked || bye.Text != long[:maxReason] {
		t.Errorf("the peer was told %v", err)
	}
	if _, err := near.Read(make([]byte, 1)); tunnel.CodeOf(err) != tunnel.Lost {
		t.Errorf("read: %v", err)
	}
	if _, _, err := tunnel.Greet(t.Context(), a, tunnel.Hello{Node: "n"}); tunnel.CodeOf(err) != tunnel.Revoked {
		t.Errorf("greet: %v", err)
	}
	if err := context.Cause(b.Context()); !errors.Is(err, tunnel.ErrSessionClosed) {
		t.Errorf("the end that closed it: %v", err)
	}
}
