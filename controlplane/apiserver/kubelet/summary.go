package kubelet

// What a node says that it and its pods use.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// maxSummary bounds a node's answer, in bytes. A node with 110 pods of four containers
// each says about 400 KiB.
const maxSummary = 4 << 20

// Summaries returns a func that asks a node what it and its pods use, by the kubelet
// API's /stats/summary. An answer of more than 4 MiB is an error, and so is one that is
// no summary. The func may be called from several goroutines; ctx bounds each call.
//
// Of o it needs Nodes, a way to dial and TLS.
func Summaries(o Options) func(ctx context.Context, node string) (*stats.Summary, error) {
	o = o.complete()
	b := &backend{Options: o, transports: newTransports(o)}
	return b.summary
}

func (b *backend) summary(ctx context.Context, node string) (*stats.Summary, error) {
	// Disks are not wanted: a kubelet may take long over them.
	u, err := b.kubeletURL(ctx, node, []string{"stats", "summary"}, url.Values{"only_cpu_and_memory": {"true"}})
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	answer, err := b.kubelet.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("ask node %s for its statistics: %w", node, err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask node %s for its statistics: %s", node, answer.Status)
	}
	s, err := readSummary(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("statistics of node %s: %w", node, err)
	}
	return s, nil
}

// readSummary reads all of an answer.
func readSummary(r io.Reader) (*stats.Summary, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxSummary+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxSummary {
		return nil, fmt.Errorf("more than %d bytes", maxSummary)
	}
	s := new(stats.Summary)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, errors.New("not a summary") // the node's own words are not repeated
	}
	return s, nil
}
