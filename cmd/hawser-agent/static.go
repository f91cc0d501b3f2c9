// Pods that files of the machine define: their flags, and how they run before it has joined.

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/hawser-project/hawser/auth/bootstrap"
	"github.com/hawser-project/hawser/node"
	"github.com/hawser-project/hawser/node/fence"
	"github.com/hawser-project/hawser/node/staticpods"
)

// Names of the flags, which are the kubelet's.
const (
	manifestPath   = "pod-manifest-path"
	manifestPeriod = "file-check-frequency"
)

// staticOptions are the flags about static pods.
type staticOptions struct {
	manifests       string
	manifestsPeriod time.Duration
}

func (o *staticOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.manifests, manifestPath, "", "a directory of files with a pod each, or one such file, that are run whatever the API says: static pods; containers do not see it")
	f.DurationVar(&o.manifestsPeriod, manifestPeriod, staticpods.DefaultPeriod, "how often the files of --"+manifestPath+" are read")
}

// check refuses what cannot work, naming the flag. A path that does not exist has no pods.
func (o *staticOptions) check() error {
	if o.manifests != "" {
		if !filepath.IsAbs(o.manifests) || filepath.Clean(o.manifests) == "/" {
			return fmt.Errorf("--%s %q: want an absolute path, and not /", manifestPath, o.manifests)
		}
		o.manifests = filepath.Clean(o.manifests)
	}
	if o.manifestsPeriod < 100*time.Millisecond {
		return fmt.Errorf("--%s %s: want 100ms or more", manifestPeriod, o.manifestsPeriod)
	}
	return nil
}

// hidden are the paths that containers do not see: what is written there is run.
func (o *staticOptions) hidden() []string {
	if o.manifests == "" {
		return nil
	}
	return []string{o.manifests}
}

// errNotJoined is why a machine without an identity reaches no API.
var errNotJoined = errors.New("the machine has not joined a cluster yet")

// runStandalone runs the static pods of a machine that belongs to no cluster, until ctx is
// done. It registers nothing.
func runStandalone(ctx context.Context, o *options, c *bootstrap.Config, log *slog.Logger) error {
	if c.Joined() {
		return errors.New("--server is missing: the machine has joined a cluster; for static pods alone take another --data-dir")
	}
	log.Info("running static pods alone: no server is named", "node", o.nodeName, "files", o.manifests)
	return runStatic(ctx, o, log)
}

// joinMeanwhile is join. As long as the machine has to wait for it, its static pods run; they
// go on when the node that the machine becomes takes them over.
func joinMeanwhile(ctx context.Context, o *options, c bootstrap.Config, log *slog.Logger) (*bootstrap.Identity, error) {
	if o.manifests == "" || !o.builtin() || o.given() || c.Joined() {
		return join(ctx, o, c)
	}
	group, ctx := errgroup.WithContext(ctx)
	alone, joined := context.WithCancel(ctx)
	defer joined()
	group.Go(func() error { return runStatic(alone, o, log) })
	var id *bootstrap.Identity
	group.Go(func() (err error) {
		defer joined()
		id, err = join(ctx, o, c)
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return id, nil
}

// runStatic runs a node that reaches no API, and so has static pods alone, until ctx is done.
func runStatic(ctx context.Context, o *options, log *slog.Logger) error {
	p := &parts{fence: &fence.Fence{}}
	var err error
	p.api, p.conns, err = node.NewAPI(node.APIConfig{
		Host: apiTarget,
		TLS:  func() *tls.Config { return &tls.Config{MinVersion: tls.VersionTLS13} },
		Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errNotJoined },
	})
	if err != nil {
		return err
	}
	defer p.conns.Close()
	if err = p.makeNode(o, prometheus.NewRegistry(), log); err != nil {
		return err
	}
	below, stopBelow := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBelow()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.runtime.Run(below) })
	group.Go(func() error {
		defer stopBelow()
		return p.node.Run(ctx)
	})
	return group.Wait()
}
