package nodekeys

// Keys that do not hold their name by the memory, which may be behind: the record is read.

import (
	"context"
	"errors"
	"time"
)

// An asking is one reading of the API about a key that does not hold its name by the memory.
type asking struct {
	at   time.Time
	done chan struct{} // closed once it is over
	// Set before that.
	err  error
	lost bool // the caller that read has gone: another one reads
}

// recheck reads the record of a key that does not hold its name by the memory: a node may
// use its new certificate before the watch has delivered the record. Only a record that was read
// refuses a key. Callers that come while it is being read wait for that, and share its error.
func (k *Keeper) recheck(ctx context.Context, name string, key Key, h *holder) error {
	if h != nil && h.gone {
		return h.verdict(name, key)
	}
	for q := (question{name, key}); ; {
		a, mine := k.ask(q, time.Now())
		if mine {
			a.err = k.readFor(ctx, name, key, h)
			if a.lost = ctx.Err() != nil; a.lost {
				k.drop(q, a)
			}
			close(a.done)
		}
		select {
		case <-a.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if a.lost && !mine {
			continue
		}
		var bad *HeldError
		switch {
		case errors.Is(a.err, ErrUnknown):
			return refusedUnknown(name)
		case errors.As(a.err, &bad):
			return h.verdict(name, key)
		case a.err != nil:
			return a.err
		}
		return k.holder(name).verdict(name, key)
	}
}

// readFor reads the record of name, which the key takes if the first one does.
func (k *Keeper) readFor(ctx context.Context, name string, key Key, h *holder) error {
	err := k.read(ctx, name)
	if err != nil || h == nil || !h.adopts() {
		return err
	}
	if err = k.book.Adopt(ctx, name, key); err != nil {
		return err
	}
	k.cfg.Log.Info("a node from before the identities were kept shows its key", "node", name, "key", key.String())
	return k.read(ctx, name)
}

// ask is the asking about q that is under way or was less than readInterval ago; if there is
// none it is the caller's to do.
func (k *Keeper) ask(q question, now time.Time) (a *asking, mine bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if a = k.asked[q]; a != nil && now.Sub(a.at) < readInterval {
		return a, false
	}
	if len(k.asked) >= maxAsked {
		clear(k.asked)
	}
	a = &asking{at: now, done: make(chan struct{})}
	k.asked[q] = a
	return a, true
}

func (k *Keeper) drop(q question, a *asking) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.asked[q] == a {
		delete(k.asked, q)
	}
}
