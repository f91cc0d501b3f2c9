package nodeipam

// Which node holds what.

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A member is what is known of a node.
type member struct {
	uid    types.UID
	blocks []netip.Prefix // counted in the pools; none while it waits
	told   bool           // the node has heard of its blocks

	complained string    // the last event about it
	at         time.Time // when that was
}

// A ledger is the pools and the nodes that hold parts of them. It has no lock of
// its own.
type ledger struct {
	pools   []*pool
	members map[string]*member
	waiting map[string]bool // nodes that found a pool empty
	freed   bool            // something has been given back since this was last cleared
	metrics *metrics
}

func newLedger(pools []*pool, m *metrics) *ledger {
	for _, p := range pools {
		m.size(p)
	}
	return &ledger{pools: pools, members: make(map[string]*member), waiting: make(map[string]bool), metrics: m}
}

// parse reads what a node holds. All of it should be parts of the cluster's ranges:
// the error is about the first that is not, and comes with those that are. A range
// around one of the cluster's, or one that is all of it, would leave nothing for the
// others; it is not counted.
func (l *ledger) parse(held []string) (good []netip.Prefix, bad error) {
	for _, text := range held {
		c, err := netip.ParsePrefix(text)
		switch {
		case err == nil && slices.ContainsFunc(l.pools, func(p *pool) bool { return p.part(c) }):
			good = append(good, c)
		case bad != nil:
		case err != nil:
			bad = fmt.Errorf("pod range %q cannot be read", text)
		case slices.ContainsFunc(l.pools, func(p *pool) bool { return p.all.Overlaps(c) }):
			bad = fmt.Errorf("pod range %s is all of --cluster-cidr", c)
		default:
			bad = fmt.Errorf("pod range %s is no part of --cluster-cidr", c)
		}
	}
	return good, bad
}

// member returns what is known of the node of this uid. What another of its name
// held is released.
func (l *ledger) member(name string, uid types.UID) *member {
	m := l.members[name]
	if m != nil && m.uid != uid {
		l.forget(name)
		m = nil
	}
	if m == nil {
		m = &member{uid: uid}
		l.members[name] = m
	}
	return m
}

// hold notes what a node holds by its own account, in place of all that was known
// before. It tells whether another node holds part of it too.
func (l *ledger) hold(name string, uid types.UID, blocks []netip.Prefix) (shared bool) {
	m := l.member(name, uid)
	delete(l.waiting, name)
	m.told = true
	if slices.Equal(m.blocks, blocks) {
		return false
	}
	l.giveBack(m)
	m.blocks = blocks
	for _, c := range blocks {
		for _, p := range l.pools {
			fresh, others := p.hold(c)
			shared = shared || others
			l.metrics.took(p, fresh)
		}
	}
	return shared
}

// reserve takes a block of each pool for a node that has none. If one of the
// pools is empty it takes nothing and returns that pool's range.
func (l *ledger) reserve(name string, m *member) (empty netip.Prefix, ok bool) {
	for _, p := range l.pools {
		c, tries, ok := p.take()
		l.metrics.tried(p, tries)
		if !ok {
			l.release(m) // which is no news to those who wait: the pool is as empty as it was
			l.waiting[name] = true
			return p.all, false
		}
		l.metrics.took(p, 1)
		m.blocks = append(m.blocks, c)
	}
	delete(l.waiting, name)
	return netip.Prefix{}, true
}

// release takes away what m holds and tells whether any of it is free now.
func (l *ledger) release(m *member) (free bool) {
	for _, c := range m.blocks {
		for _, p := range l.pools {
			n := p.release(c)
			free = free || n > 0
			l.metrics.freed(p, n)
		}
	}
	m.blocks = nil
	return free
}

// giveBack releases what m holds for others to have.
func (l *ledger) giveBack(m *member) {
	free := l.release(m)
	l.freed = l.freed || free
}

// forget gives back all that a node holds.
func (l *ledger) forget(name string) {
	delete(l.waiting, name)
	if m := l.members[name]; m != nil {
		delete(l.members, name)
		l.giveBack(m)
	}
}
