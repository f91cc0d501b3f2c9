// Tests of what the maker of a connection is told of its handshake.

package carrier

import (
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// A toldConn records what it is told.
type toldConn struct {
	net.Conn
	answered, canceled *atomic.Int32
}

func (c toldConn) Settled(answered bool) {
	if answered {
		c.answered.Add(1)
	} else {
		c.canceled.Add(1)
	}
}

// TestSettledByHandshake: a connection is told of a handshake that has succeeded or was not
// needed, and not of one that has failed.
func TestSettledByHandshake(t *testing.T) {
	ca := tunneltest.NewAuthority(t, "ca")
	var answered, canceled atomic.Int32
	srv := serve(t, tunnel.Options{TLS: ca.Server(t)})
	dial(t, srv.addr, tunnel.Options{TLS: ca.Client(t, "a"), Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := NetDialer(false).DialContext(ctx, network, addr)
		return toldConn{c, &answered, &canceled}, err
	}})
	if answered.Load() != 1 || canceled.Load() != 0 {
		t.Errorf("of a handshake: %d answers, %d cancellations", answered.Load(), canceled.Load())
	}
	for name, tt := range map[string]struct {
		hangUp   bool          // what answers the connection hangs up
		cancel   time.Duration // after that long; zero means never
		canceled int32
		says     string // the error
	}{
		"hung up":  {hangUp: true},
		"silent":   {says: "TLS handshake with pipe: context deadline exceeded"},
		"canceled": {cancel: time.Second, canceled: 1},
	} {
		t.Run(name, func(t *testing.T) {
			conf := ca.Client(t, "a")
			synctest.Test(t, func(t *testing.T) {
				var answered, canceled atomic.Int32
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				if tt.cancel > 0 {
					time.AfterFunc(tt.cancel, cancel)
				}
				_, _, err := dialFirst(ctx, "hub:1", tunnel.Options{TLS: conf, Dial: func(context.Context, string, string) (net.Conn, error) {
					near, far := net.Pipe()
					if tt.hangUp {
						_ = far.Close()
					} else {
						go func() { _, _ = io.Copy(io.Discard, far) }() // ends with near
					}
					return toldConn{near, &answered, &canceled}, nil
				}})
				if err != nil && !strings.Contains(err.Error(), tt.says) {
					t.Errorf("got %q, want %q", err, tt.says)
				}
				if err == nil || answered.Load() != 0 || canceled.Load() != tt.canceled {
					t.Errorf("%v: %d answers, %d cancellations", err, answered.Load(), canceled.Load())
				}
			})
		})
	}
}
