// How current the hub's list of nodes is.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/tunnel"
)

// A nodeList knows whether the list of nodes, by which addresses lead to nodes, may be out of date. It
// is safe for concurrent use.
type nodeList struct {
	mu      sync.Mutex    // guards the following
	version func() string // of the list; nil until it is followed
	at      string        // the version when it failed
	since   time.Time     // when it failed first at that version; zero if it did not
}

// watch has it learn when nodes fails. It must be called before nodes runs.
func (l *nodeList) watch(nodes cache.SharedIndexInformer) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.version = nodes.LastSyncResourceVersion
	err := nodes.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		l.failed(err, time.Now())
		cache.DefaultWatchErrorHandler(ctx, r, err)
	})
	if err != nil {
		return fmt.Errorf("follow nodes: %w", err)
	}
	return nil
}

// failed records that the list or the watch of nodes has failed. A watch that ends is begun again at
// once, and so is one that is too old.
func (l *nodeList) failed(err error, now time.Time) {
	if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if version := l.version(); l.since.IsZero() || l.at != version {
		l.at, l.since = version, now
	}
}

// explain adds to the error of a dial to an address that no node has, that the list may be out of date.
func (l *nodeList) explain(addr string, err error) error {
	var d *tunnel.DialError
	host, _, _ := net.SplitHostPort(addr) // of another form it is no IP address
	if _, ip := netip.ParseAddr(host); ip != nil || !errors.As(err, &d) || d.Code != tunnel.NoNode {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.IsZero() || l.at != l.version() {
		return err
	}
	more := *d
	more.Text += "; the hub's list of nodes is not current, as it could not be read at " + l.since.UTC().Format(time.RFC3339) + " and was not since"
	return &more
}
