// The transports, and how auto chooses among them.

package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overh2"
	"github.com/hawser-project/hawser/tunnel/overquic"
	"github.com/hawser-project/hawser/tunnel/overyamux"
)

// quicPatience is how long auto lets a QUIC handshake take. Where UDP is
// dropped, that is what finding it out costs, once.
const quicPatience = 3 * time.Second

// transports are the values of --transport.
func transports() map[string]tunnel.Transport {
	table := make(map[string]tunnel.Transport)
	for _, t := range []tunnel.Transport{
		overyamux.Transport(), overh2.Transport(), overquic.Transport(),
		choose(overquic.Transport(), overyamux.Transport(), quicPatience),
	} {
		table[t.Name] = t
	}
	return table
}

// choose is a transport that dials by first and, if that has not worked out
// within patience, by second. What has worked out is tried first the next time:
// second alone, until it fails too.
func choose(first, second tunnel.Transport, patience time.Duration) tunnel.Transport {
	var settled atomic.Bool // for second
	return tunnel.Transport{
		Name: "auto",
		Dial: func(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
			if !settled.Load() {
				fctx, cancel := context.WithTimeout(ctx, patience)
				s, err := first.Dial(fctx, addr, o)
				cancel()
				if err == nil || ctx.Err() != nil {
					return s, err
				}
			}
			// Why first failed is of no interest: if second fails as well its
			// error says more, because TCP is told what UDP is not.
			s, err := second.Dial(ctx, addr, o)
			settled.Store(err == nil)
			return s, err
		},
	}
}
