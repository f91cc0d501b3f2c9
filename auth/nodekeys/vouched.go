package nodekeys

// With another API server: it decides which certificates are a node's. The keys are
// recorded here, and a revocation here stays in force.
//
// That API server's authority signs for any machine with a join token, for any name, and
// for a node that renews its certificate, for any key. A hub that required more would
// refuse nodes that the cluster has admitted. So a new key of a name is admitted and
// logged, and the deletion of a Node has no effect, since its kubelet registers again. A
// name that an administrator has revoked is refused, also after its Node was deleted,
// until another key takes it after Allow.
//
// A node may have any number of certificates, and only the latest keys are kept. So what is
// read and written because of them is bounded for each name.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

const (
	// showBurst is how many keys of a name may be recorded at once; after that one may be
	// in each showInterval.
	showBurst    = 16
	showInterval = 10 * time.Second
)

// errOften means that more keys have been shown under a name than may be recorded by now.
var errOften = errors.New("the server records no more keys of this node for now: it takes one more in some seconds")

// vouched is Admit for a key that is not in the record yet.
func (k *Keeper) vouched(ctx context.Context, name string, key Key, h *holder) error {
	if h.barred() && !h.record.mayBeTaken(time.Now()) {
		return h.refuse
	}
	s := showing{name, h.bars(key)}
	if !k.mayShow(s, time.Now()) {
		return errOften
	}
	first, err := k.book.Show(ctx, name, key)
	var bad *HeldError
	if errors.As(err, &bad) {
		return &RefusedError{name, bad.Error()}
	}
	if err != nil {
		if !errors.Is(ctx.Err(), context.Canceled) { // a node that goes away may have been recorded
			k.notShown(s)
		}
		return err
	}
	if first {
		k.cfg.Log.Info("a node shows its key", "node", name, "key", key.String())
	} else {
		k.cfg.Log.Warn("another key is shown under a node's name: the node has renewed its certificate, or it is another machine", "node", name, "key", key.String())
	}
	if err := k.read(ctx, name); err != nil {
		return err
	}
	return k.holder(name).verdict(name, key)
}

// A showing is by a key that is not in the name's record. Those which the record bars are
// counted apart, so that a revoked machine does not keep its successor out.
type showing struct {
	name   string
	barred bool
}

// bars reports whether key has lost the name by the memory.
func (h *holder) bars(key Key) bool {
	return h != nil && (slices.Contains(h.record.Barred, key) || h.closed && h.record.Holds(key))
}

// mayShow reports whether the API may be asked now about another showing.
func (k *Keeper) mayShow(s showing, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.shown) >= maxAsked {
		maps.DeleteFunc(k.shown, func(_ showing, until time.Time) bool { return !until.After(now) })
	}
	until := k.shown[s]
	if until.Before(now) {
		until = now
	}
	if until = until.Add(showInterval); until.Sub(now) > showBurst*showInterval {
		return false
	}
	k.shown[s] = until
	return true
}

// notShown takes back what mayShow has counted: the key could not be recorded.
func (k *Keeper) notShown(s showing) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if until, ok := k.shown[s]; ok {
		k.shown[s] = until.Add(-showInterval)
	}
}

// outlived handles the deletion of a name's Node, and reports whether the record is
// deleted too. A record that bars keys stays. The caller holds the turn.
func (k *Keeper) outlived(name string, h *holder) bool {
	if h.record.bars() {
		return false
	}
	next := *h
	next.gone = true
	k.set(name, &next)
	return true
}

// bars reports whether the record bars keys from the name.
func (r *Record) bars() bool { return r.ended() != nil || len(r.Barred) > 0 }

// Show records that a node used k for the name, and reports whether it is the first key.
// It fails with a *HeldError if the name, or the key with it, was revoked.
func (b *Book) Show(ctx context.Context, name string, k Key) (first bool, err error) {
	err = b.change(ctx, name, func(r *Record) (*Record, error) {
		first = r == nil || len(r.Keys) == 0 || r.Revoked != nil
		switch {
		case r == nil:
			return &Record{Name: name, Keys: []Held{{k, stamp(b.now())}}}, nil
		case slices.Contains(r.Barred, k):
			return nil, held("this key of node %q was revoked; remove the agent's DIR/pki, and it gets another one with a join token", name)
		case r.Revoked == nil && r.Holds(k):
			return r, nil
		case r.Revoked == nil:
			return r.shown(k, b.now()), nil
		case r.mayBeTaken(b.now()) && !r.Holds(k):
			return r.succeeded(k, b.now()), nil
		}
		return nil, held("node %q was %s; \"hawser node allow %s\" lets another key take the name", name, r.Revoked.String(), name)
	})
	if err != nil {
		return false, fmt.Errorf("show a key of node %s: %w", name, err)
	}
	return first, nil
}

// shown is the record after another key was used. The oldest keys are dropped.
func (r *Record) shown(k Key, now time.Time) *Record {
	next := *r
	next.Adopt = false
	next.Keys = append(slices.Clone(r.Keys[max(0, len(r.Keys)-maxKeys+1):]), Held{k, stamp(now)})
	return &next
}

// succeeded is the record after a key has taken a revoked name. The former keys are barred
// from it.
func (r *Record) succeeded(k Key, now time.Time) *Record {
	next := r.taken(k, "", now)
	next.Barred = slices.Clone(r.Barred)
	for _, had := range r.Keys {
		next.Barred = append(next.Barred, had.Key)
	}
	next.Barred = next.Barred[max(0, len(next.Barred)-maxBarred):]
	return next
}
