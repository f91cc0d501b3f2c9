// A TCP relay with toxics: what happens to connections rather than to packets.

package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// A Relay stands between a TCP client and its server, as load balancers and proxies
// do, and does to connections what a packet filter cannot: it cuts the stream of
// bytes into slivers, stops after so many of them, ends one side late, or keeps a
// connection open that leads nowhere. It needs no root. All methods may be called at
// the same time.
//
// The work is done by github.com/Shopify/toxiproxy, whose word for such a fault is
// toxic. A toxic holds for the connections that there are and for those that come,
// until Clear.
type Relay struct {
	proxy *toxiproxy.Proxy

	mu    sync.Mutex // guards names
	names map[string]bool
}

// NewRelay listens on a port of loopback and relays to a TCP address. The caller
// closes it.
func NewRelay(upstream string) (*Relay, error) {
	// Some toxics narrate to the library's global log, whatever logger they get.
	zerolog.SetGlobalLevel(zerolog.Disabled)
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	r := &Relay{proxy: toxiproxy.NewProxy(server, "relay", "127.0.0.1:0", upstream), names: map[string]bool{}}
	if err := r.proxy.Start(); err != nil {
		return nil, fmt.Errorf("relay to %s: %w", upstream, err)
	}
	return r, nil
}

// Addr is where the relay listens.
func (r *Relay) Addr() string { return r.proxy.Listen }

// Close ends the relay and its connections.
func (r *Relay) Close() { r.proxy.Stop() }

// Slice passes bytes on in pieces of about size, with a pause after each.
func (r *Relay) Slice(d Direction, size int, pause time.Duration) error {
	return r.add("slicer", d, map[string]int64{"average_size": int64(size), "delay": pause.Microseconds()})
}

// Limit closes each connection, in the orderly way, once that many bytes have
// passed.
func (r *Relay) Limit(d Direction, bytes int64) error {
	return r.add("limit_data", d, map[string]int64{"bytes": bytes})
}

// Reset passes nothing on and closes each connection with a TCP reset after so
// long.
func (r *Relay) Reset(d Direction, after time.Duration) error {
	return r.add("reset_peer", d, map[string]int64{"timeout": after.Milliseconds()})
}

// Hang leaves each connection open and passes nothing on: the half-open connection
// of a peer whose machine has lost its power.
func (r *Relay) Hang(d Direction) error {
	return r.add("timeout", d, map[string]int64{"timeout": 0})
}

// SlowClose delays the news that one side has closed.
func (r *Relay) SlowClose(d Direction, by time.Duration) error {
	return r.add("slow_close", d, map[string]int64{"delay": by.Milliseconds()})
}

// Throttle passes on that many KiB a second.
func (r *Relay) Throttle(d Direction, kib int64) error {
	return r.add("bandwidth", d, map[string]int64{"rate": kib})
}

// Latency delays what passes.
func (r *Relay) Latency(d Direction, by, jitter time.Duration) error {
	return r.add("latency", d, map[string]int64{"latency": by.Milliseconds(), "jitter": jitter.Milliseconds()})
}

// Cut closes every connection there is. New ones are taken.
func (r *Relay) Cut() error {
	r.proxy.Stop()
	if err := r.proxy.Start(); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	return nil
}

// Clear takes all toxics away.
func (r *Relay) Clear() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.names {
		if err := r.proxy.Toxics.RemoveToxic(context.Background(), name); err != nil {
			return fmt.Errorf("relay: take away %s: %w", name, err)
		}
		delete(r.names, name)
	}
	return nil
}

// add puts a toxic in, for each direction that d has. A direction has at most one
// of a kind.
func (r *Relay) add(kind string, d Direction, attributes map[string]int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, way := range []struct {
		direction Direction
		stream    string
	}{{Out, "upstream"}, {In, "downstream"}} {
		if d&way.direction == 0 {
			continue
		}
		toxic, err := json.Marshal(map[string]any{"type": kind, "stream": way.stream, "attributes": attributes})
		if err != nil {
			return err
		}
		made, err := r.proxy.Toxics.AddToxicJson(bytes.NewReader(toxic))
		if err != nil {
			return fmt.Errorf("relay: %s: %w", kind, err)
		}
		r.names[made.Name] = true
	}
	return nil
}
