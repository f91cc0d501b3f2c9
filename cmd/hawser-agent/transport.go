// The transports that --transport chooses from.

package main

import (
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overh2"
	"github.com/hawser-project/hawser/tunnel/overquic"
	"github.com/hawser-project/hawser/tunnel/overyamux"
)

// transports are the values of --transport. auto is the cheapest one: until a
// session can move between transports without losing its streams, starting on
// QUIC would mean paying for it (twice the CPU for a byte) on every network, for
// the sake of those that lose packets.
func transports() map[string]tunnel.Transport {
	table := map[string]tunnel.Transport{"auto": overyamux.Transport()}
	for _, t := range []tunnel.Transport{overyamux.Transport(), overh2.Transport(), overquic.Transport()} {
		table[t.Name] = t
	}
	return table
}
