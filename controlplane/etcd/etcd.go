// Package etcd is the store below the API server: one etcd member run inside
// this process, or a client of a cluster run elsewhere.
//
// The embedded member has no peers, and its clients are function calls: the API
// server talks to it without a socket. The one socket there is, DIR/etcd.sock in
// a directory only its owner may enter, is for the operator's own tools (a backup
// with etcdctl); there is no TCP port and no authentication to get wrong.
//
// Every write is fsynced before it is acknowledged. Old revisions are compacted
// by the API server's storage layer, not by etcd, because only the former knows
// how far back watches may reach.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"github.com/hawser-project/hawser/auth/privatedir"
)

// SocketName is the name of the operator's socket in the data directory.
const SocketName = "etcd.sock"

const (
	memberName = "hawser"
	memberDir  = "member-data"

	// defaultQuota is etcd's own recommended ceiling.
	defaultQuota = 8 << 30

	// maxSocketPath is what fits into sockaddr_un with its terminating zero.
	maxSocketPath = 107

	// A member alone in its cluster elects itself after one election timeout
	// and never hears from another, so the timeouts can be short: they only
	// bound how long a start takes.
	tickMillis, electionMillis = 50, 500
)

// ErrLocked is wrapped by the error of Run when another process has the data
// directory open.
var ErrLocked = errors.New("already in use by another process")

// Config says where an embedded member keeps its data.
type Config struct {
	// Dir is the data directory, required. It is made, with its parents, if it
	// does not exist, and is given mode 0700.
	Dir string

	// Quota is the size in bytes the database may reach before writes are
	// refused. 0 means 8 GiB. It takes writes again by itself once a fifth of
	// Quota is free of what is in use: old versions do not count.
	Quota int64

	// StartTimeout bounds the wait for the member to become ready. 0 means 1 min,
	// which leaves room for replaying a long log on a slow disk.
	StartTimeout time.Duration

	// Log gets etcd's own warnings and errors. nil means discard.
	Log *slog.Logger
}

// A Server is one embedded etcd member.
type Server struct {
	cfg   Config
	look  time.Duration // how often it is looked whether the store is full
	ready chan struct{}

	mu     sync.Mutex
	client *clientv3.Client // set once, before ready is closed
}

// New checks cfg. It touches nothing on disk.
func New(cfg Config) (*Server, error) {
	if cfg.Dir == "" {
		return nil, errors.New("etcd: data directory not set")
	}
	if cfg.Quota == 0 {
		cfg.Quota = defaultQuota
	}
	if cfg.Quota < 0 {
		return nil, fmt.Errorf("etcd: quota of %d bytes is negative", cfg.Quota)
	}
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = time.Minute
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{cfg: cfg, look: time.Second, ready: make(chan struct{})}, nil
}

// Ready is closed once the member answers.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Client is the in-process client, nil before Ready is closed. The Server owns
// it: it works until Run's context ends and must not be closed.
func (s *Server) Client() *clientv3.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.client
}

// Run runs the member until ctx is done, then stops it and returns nil. It
// returns an error if the member does not start or stops by itself. Run may be
// called once.
func (s *Server) Run(ctx context.Context) error {
	if err := privatedir.Make(s.cfg.Dir); err != nil {
		return fmt.Errorf("etcd: data directory: %w", err)
	}
	unlock, err := lock(filepath.Join(s.cfg.Dir, "lock"))
	if err != nil {
		return fmt.Errorf("etcd: data directory %s: %w", s.cfg.Dir, err)
	}
	defer unlock()

	if err = checkSpace(s.cfg.Dir, newSpace()); err != nil {
		return fmt.Errorf("etcd: data directory %s: %w", s.cfg.Dir, err)
	}
	member, err := embed.StartEtcd(s.embedConfig(ctx))
	if err != nil {
		return fmt.Errorf("etcd: start: %w", err)
	}
	defer member.Close()

	start := time.NewTimer(s.cfg.StartTimeout)
	defer start.Stop()
	select {
	case <-member.Server.ReadyNotify():
	case err := <-member.Err():
		return fmt.Errorf("etcd: start: %w", err)
	case <-member.Server.StopNotify():
		return errors.New("etcd: start: the member stopped")
	case <-start.C:
		return fmt.Errorf("etcd: start: not ready after %v", s.cfg.StartTimeout)
	case <-ctx.Done():
		return nil
	}

	client := v3client.New(member.Server)
	defer func() { _ = client.Close() }() // it has no connection that could fail to close
	defer s.keepRoom(ctx, member.Server)()
	s.mu.Lock()
	s.client = client
	s.mu.Unlock()
	close(s.ready)

	select {
	case err := <-member.Err():
		return fmt.Errorf("etcd: %w", err)
	case <-member.Server.StopNotify():
		return errors.New("etcd: the member stopped by itself")
	case <-ctx.Done():
		return nil
	}
}

// embedConfig is the member's configuration. The peer URL is a name, not an
// address: nothing listens on it, a member without peers needs none.
func (s *Server) embedConfig(ctx context.Context) *embed.Config {
	c := embed.NewConfig()
	c.Name = memberName
	c.Dir = filepath.Join(s.cfg.Dir, memberDir)
	c.ListenPeerUrls = nil
	c.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "localhost:2380"}}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.ListenClientUrls, c.AdvertiseClientUrls = nil, nil
	if path := s.socketPath(); path != "" {
		u := []url.URL{{Scheme: "unix", Path: path}}
		c.ListenClientUrls, c.AdvertiseClientUrls = u, u
	}
	c.EnableGRPCGateway = false
	c.QuotaBackendBytes = s.cfg.Quota
	c.TickMs, c.ElectionMs = tickMillis, electionMillis
	// Bounds what the log holds in memory beyond the last snapshot.
	c.SnapshotCount, c.SnapshotCatchUpEntries = 10_000, 1_000
	// A busy machine is not worth a warning for every read of it.
	c.WarningApplyDuration, c.WarningUnaryRequestDuration = time.Second, time.Second
	c.WatchProgressNotifyInterval = 5 * time.Second
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapLogger(ctx, s.cfg.Log, func() error {
		if err := checkFree(s.cfg.Dir, commitSpace); err != nil {
			return fmt.Errorf("data directory %s: %w", s.cfg.Dir, err)
		}
		return nil
	}))
	return c
}

// socketPath is where the operator's socket goes, or "" if the data directory's
// name is too long for one: the server itself does not need it.
func (s *Server) socketPath() string {
	path, err := filepath.Abs(filepath.Join(s.cfg.Dir, SocketName))
	if err != nil || len(path) > maxSocketPath {
		s.cfg.Log.Info("no socket for etcdctl: the data directory's path is too long", "dir", s.cfg.Dir, "max", maxSocketPath)
		return ""
	}
	return path
}
