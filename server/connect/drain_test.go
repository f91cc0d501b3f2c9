// Requests that were taken before the drain began.

package connect

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// A dial that is under way when the drain begins ends as it would have, with an answer.
func TestDrainLetsDialsEnd(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		status int
	}{
		"reached":     {nil, http.StatusOK},
		"not reached": {errors.New("no such port"), http.StatusBadGateway},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				far, near := memnet.Pipe(memnet.Addr("target"), memnet.Addr("server"))
				defer far.Close()
				dialed := make(chan error, 1)
				s, err := New(Config{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
					select {
					case err := <-dialed:
						return near, err
					case <-ctx.Done():
						return nil, context.Cause(ctx)
					}
				}})
				if err != nil {
					t.Fatal(err)
				}
				var network tunneltest.Network
				l, err := network.Listen(t.Context(), "tcp", "front")
				if err != nil {
					t.Fatal(err)
				}
				ctx, drain := context.WithCancel(context.Background())
				ended := make(chan error, 1)
				go func() { ended <- s.Serve(ctx, l) }()
				conn, err := network.Dial(t.Context(), "tcp", "front")
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if _, err := io.WriteString(conn, connectRequest); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				drain()
				synctest.Wait()
				dialed <- c.err
				r := bufio.NewReader(conn)
				resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
				if err != nil || resp.StatusCode != c.status {
					t.Fatalf("%v, %v", resp, err)
				}
				if c.err == nil {
					go func() { _, _ = io.WriteString(far, "hello") }()
					expect(t, r, "hello")
				} else if b, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(b), c.err.Error()) {
					t.Errorf("%q, %v", b, err)
				}
				_ = conn.Close()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
