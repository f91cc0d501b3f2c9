// Package usage serves metrics.k8s.io, which kubectl top and autoscalers read: what
// nodes, pods and containers use of processors and memory.
//
// A node is asked when somebody asks for it, and what it said is good for Fresh: a
// fleet behind slow links pays for statistics only while somebody wants them. A use
// of processors is a rate between two answers. The first time, and after a pause of
// more than a minute, a node that does not reckon rates by itself is asked again a
// second later.
//
// A node is believed about itself and about the containers of pods bound to it, as
// far as the numbers can be. A node that cannot be reached, or does not answer in
// AskTimeout, is left out of a list, as metrics-server does, and asked no more until
// Fresh is over.
//
// What it is not: nothing is stored, and nobody can watch it.
package usage

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apiserver/pkg/registry/rest"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Bounds on what nodes are asked.
const (
	Fresh       = 15 * time.Second // how long an answer, or the want of one, is good
	AskTimeout  = 5 * time.Second  // of one question to one node
	ListTimeout = 20 * time.Second // of all the questions that one request leads to
	MaxAsked    = 32               // nodes asked at a time, for all requests together
)

// again is when a node is asked a second time for a rate.
const again = 1100 * time.Millisecond

// A Source asks a node for its statistics. It may be called from several goroutines.
type Source func(ctx context.Context, node string) (*stats.Summary, error)

// Config configures what Storages returns. All but Log are required.
type Config struct {
	Ask Source
	// Nodes and Pods list what the cluster has, the pods those of the namespace that ctx
	// carries, or all. The objects are the caller's to read only.
	Nodes func(ctx context.Context, o *metainternalversion.ListOptions) (*corev1.NodeList, error)
	Pods  func(ctx context.Context, o *metainternalversion.ListOptions) (*corev1.PodList, error)
	Log   *slog.Logger // nil means discard
}

// Storages returns the resources of metrics.k8s.io/v1beta1, keyed "nodes" and "pods".
func Storages(c Config) map[string]rest.Storage {
	s := newSampler(c.complete())
	return map[string]rest.Storage{"nodes": &nodeREST{s}, "pods": &podREST{s}}
}

// complete is c with what it leaves out.
func (c Config) complete() Config {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}
