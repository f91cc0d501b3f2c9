// Traces: what a collector is sent of requests and of dials.

package e2e

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A collector takes spans by OTLP.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer

	mu    sync.Mutex
	spans []*tracev1.Span
}

// Export implements collectorv1.TraceServiceServer.
func (c *collector) Export(_ context.Context, r *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// find returns a span for which right says yes, and all spans as text.
func (c *collector) find(right func(*tracev1.Span) bool) (found *tracev1.Span, all string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var text strings.Builder
	for _, s := range c.spans {
		if right(s) {
			found = s
		}
		_, _ = fmt.Fprintln(&text, s)
	}
	return found, text.String()
}

func startCollector(t *testing.T) (c *collector, addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	c, s := &collector{}, grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(s, c)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return c, l.Addr().String()
}

// said is what a span says of a dial.
func said(s *tracev1.Span) map[string]string {
	m := map[string]string{}
	for _, a := range s.Attributes {
		m[a.Key] = a.Value.GetStringValue()
	}
	return m
}

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	spanID  = "b7ad6b7169203331"
)

// Dials have spans that belong to the trace of the CONNECT request, API requests have
// theirs, and nothing in them is a secret.
func TestTraces(t *testing.T) {
	t.Parallel()
	spans, addr := startCollector(t)
	dir := shortTempDir(t)
	conf, socket := filepath.Join(dir, "traces"), filepath.Join(dir, "connect")
	must(t, os.WriteFile(conf, fmt.Appendf(nil, "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: %s\nsamplingRatePerMillion: 1000000\n", addr), 0o600))
	c := startUp(t, "--nodes=1", "--server-arg=--tracing-config-file="+conf, "--server-arg=--connect-uds="+socket)
	for target, code := range map[string]string{"node-1:10250": "ok", "node-9:10250": "no_node"} {
		status := connectTraced(t, socket, target)
		if (status == http.StatusOK) != (code == "ok") {
			t.Errorf("%s: status %d", target, status)
		}
		eventually(t, "the dial to "+target+" has a span", func() error {
			s, all := spans.find(func(s *tracev1.Span) bool {
				return said(s)["hawser.target"] == target && hex.EncodeToString(s.TraceId) == traceID
			})
			if s == nil {
				return errors.New(all)
			}
			host, _, _ := strings.Cut(target, ":")
			if m := said(s); s.Name != "dial" || m["hawser.code"] != code || m["hawser.node"] != host || m["network.transport"] != "tcp" || hex.EncodeToString(s.ParentSpanId) != spanID || s.EndTimeUnixNano < s.StartTimeUnixNano {
				t.Errorf("span %v", s)
			}
			return nil
		})
	}
	_, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	c.pod(t, "traced", "", "sleep", "10000")
	c.mustKubectl(t, "", "exec", "traced", "--", "true")
	eventually(t, "an exec's dial is part of its request", func() error {
		s, all := spans.find(func(s *tracev1.Span) bool {
			return said(s)["hawser.node"] == "node-1" && hex.EncodeToString(s.TraceId) != traceID && len(s.ParentSpanId) > 0
		})
		if s == nil {
			return errors.New(all)
		}
		return nil
	})
	token, err := os.ReadFile(filepath.Join(c.dir, "join-token"))
	must(t, err)
	_, secret, _ := strings.Cut(strings.TrimSpace(string(token)), ".")
	if _, all := spans.find(func(*tracev1.Span) bool { return false }); strings.Contains(all, secret) {
		t.Error("the join token is in a span")
	}
}

// connectTraced makes a CONNECT request of a trace, and returns the status.
func connectTraced(t *testing.T, socket, target string) int {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	must(t, err)
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\nTraceparent: 00-%s-%s-01\r\n\r\n", target, target, traceID, spanID)
	must(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
	must(t, err)
	return resp.StatusCode
}
