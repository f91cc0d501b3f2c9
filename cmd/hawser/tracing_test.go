// Tests of which dials have spans.

package main

import (
	"context"
	"net"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/server/streamlog"
)

// TestOwnDialsHaveNoSpan: the server's own probes are no spans, whether there is a log of
// streams or not, and the dials of others are.
func TestOwnDialsHaveNoSpan(t *testing.T) {
	for _, streams := range []*streamlog.Log{nil, {}} {
		spans := tracetest.NewSpanRecorder()
		tunnels := &tunnels{streams: streams, traces: &traces{tracer: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer(service)}}
		dialed := tunnels.traces.dialed()
		dial := func(ctx context.Context, _, addr string) (net.Conn, error) {
			dialed(ctx, server.Dialed{Addr: addr, Code: "ok"})
			return nil, nil
		}
		for _, d := range []struct {
			dial dialFunc
			addr string
		}{{tunnels.own(dial), "probed"}, {tunnels.forUser(dial), "of a user"}, {tunnels.named("x", dial), "of a part"}} {
			_, _ = d.dial(t.Context(), "tcp", d.addr)
		}
		var targets []string
		for _, s := range spans.Ended() {
			for _, a := range s.Attributes() {
				if a.Key == "hawser.target" {
					targets = append(targets, a.Value.AsString())
				}
			}
		}
		if len(targets) != 2 || targets[0] != "of a user" || targets[1] != "of a part" {
			t.Errorf("spans of dials %q", targets)
		}
	}
}
