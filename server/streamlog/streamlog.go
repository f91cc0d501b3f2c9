// Package streamlog writes who reached which node: one line of JSON for each stream that
// has ended and each dial that failed.
//
// It never holds up a stream. Lines wait in a bounded queue for the one goroutine that
// writes them; what finds no place there, and what cannot be written, is counted in
// hawser_tunnel_audit_dropped_total and lost.
package streamlog

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/strangers"
)

const (
	// defaultQueue is how many lines may wait.
	defaultQueue = 4096
	// maxText bounds what others chose the length of.
	maxText = 300
)

// Config configures a Log. Out is required.
type Config struct {
	// Out gets a Write for each line.
	Out io.Writer
	// Queue is how many lines may wait; zero means 4,096.
	Queue int

	Log     *slog.Logger          // nil means discard
	Metrics prometheus.Registerer // nil means none
}

// A Line is what is written of a stream.
type Line struct {
	Time      time.Time `json:"time"` // at which it was dialed
	User      string    `json:"user"`
	Node      string    `json:"node"`
	Target    string    `json:"target"`
	Transport string    `json:"transport"`
	Seconds   float64   `json:"seconds"` // from the dial to the end
	ToNode    uint64    `json:"bytesToNode"`
	FromNode  uint64    `json:"bytesFromNode"`
	Result    string    `json:"result"` // ok, or the name of the code of Error
	Error     string    `json:"error,omitempty"`
}

// A Log takes what has ended.
type Log struct {
	out     io.Writer
	log     *slog.Logger
	metrics *metrics
	queue   chan server.Ended
	stopped atomic.Bool
	failing strangers.LogLimiter // lines about a log that cannot be written
}

// New checks c. It starts nothing.
func New(c Config) (*Log, error) {
	if c.Out == nil {
		return nil, errors.New("streamlog: Config.Out is required")
	}
	c.Queue = cmp.Or(max(c.Queue, 0), defaultQueue)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return &Log{out: c.Out, log: c.Log, metrics: newMetrics(c.Metrics), queue: make(chan server.Ended, c.Queue)}, nil
}

// Ended is a server.Config.Ended. It does not wait.
func (l *Log) Ended(e server.Ended) {
	if !l.stopped.Load() {
		select {
		case l.queue <- e:
			return
		default:
		}
	}
	l.metrics.dropped.Inc()
}

// Run writes until ctx is done, then what waits still, and returns. It may be called
// once.
func (l *Log) Run(ctx context.Context) {
	for {
		select {
		case e := <-l.queue:
			l.write(e)
		case <-ctx.Done():
			l.stopped.Store(true)
			for {
				select {
				case e := <-l.queue:
					l.write(e)
				default:
					return
				}
			}
		}
	}
}

func (l *Log) write(e server.Ended) {
	line, err := json.Marshal(lineOf(e))
	if err == nil {
		_, err = l.out.Write(append(line, '\n'))
	}
	if err == nil {
		return
	}
	l.metrics.dropped.Inc()
	if more, ok := l.failing.Allow("write"); ok {
		l.log.Error("the tunnel's audit log cannot be written, streams go on", "err", err, "others", more)
	}
}

func lineOf(e server.Ended) Line {
	l := Line{
		Time: e.Began.UTC(), User: clip(e.Caller), Node: clip(e.Node), Target: clip(e.Target), Transport: e.Transport,
		Seconds: e.Took.Seconds(), ToNode: e.ToNode, FromNode: e.FromNode, Result: "ok",
	}
	if e.Err != nil {
		l.Result, l.Error = tunnel.CodeOf(e.Err).Name(), clip(e.Err.Error())
	}
	return l
}

func clip(s string) string {
	if len(s) > maxText {
		return s[:maxText] + "…"
	}
	return s
}
