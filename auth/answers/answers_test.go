package answers

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
)

type answering string

func (a answering) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{Body: io.NopCloser(strings.NewReader(string(a)))}, nil
}

// TestBound: a question of n bytes may have an answer of 16 MiB and 4n.
func TestBound(t *testing.T) {
	const most = 16<<20 + 4*1000
	for _, tt := range []struct {
		size int
		ok   bool
	}{{0, true}, {most, true}, {most + 1, false}} {
		rt := Bound(answering(strings.Repeat("x", tt.size)))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://x", bytes.NewReader(make([]byte, 1000)))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := rt.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		all, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if (err == nil) != tt.ok || len(all) > most || tt.ok && len(all) != tt.size {
			t.Errorf("%d bytes: %d, %v", tt.size, len(all), err)
		}
	}
}
