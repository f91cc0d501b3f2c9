// How a store that is full takes writes again.

package etcd

import (
	"context"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
)

const (
	// firstLooks is how often a full store is looked at before the member counts as ready: a
	// control plane cannot start on a store that refuses writes.
	firstLooks = 10
	// fullEvery is how often it is logged that a store is full.
	fullEvery = time.Minute
)

// keepRoom opens a full store for writes again, whenever it can be, until ctx is done or stop is
// called, which waits.
//
// A member that has reached its quota refuses writes until somebody has removed old versions,
// given their pages back, and taken the alarm away (etcd's operations guide, "Space quota").
// The API server cannot begin with that, for it notes by a write which versions it removes.
// Objects can still be deleted, if they have no finalizers.
func (s *Server) keepRoom(ctx context.Context, m *etcdserver.EtcdServer) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	tick := time.NewTicker(s.look)
	var told time.Time
	next := func() {
		if full(m) {
			told = s.makeRoom(ctx, m, told)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	for n := 0; n < firstLooks && full(m) && ctx.Err() == nil; n++ {
		next()
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer tick.Stop()
		for ctx.Err() == nil {
			next()
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// full reports whether the member refuses writes for want of space.
func full(m *etcdserver.EtcdServer) bool {
	return slices.ContainsFunc(m.Alarms(), func(a *etcdserverpb.AlarmMember) bool { return a.Alarm == etcdserverpb.AlarmType_NOSPACE })
}

// makeRoom opens the store if a fifth of its quota is not in use, and has old versions removed
// otherwise, which takes a while. told is when it was last logged that the store is full.
func (s *Server) makeRoom(ctx context.Context, m *etcdserver.EtcdServer, told time.Time) time.Time {
	// What is removed counts as free after one more commit, and nothing writes any more.
	m.Backend().ForceCommit()
	used := m.Backend().SizeInUse()
	tell := func(text string, args ...any) time.Time {
		if time.Since(told) < fullEvery {
			return told
		}
		s.cfg.Log.Error(text, append(args, "used", used, "quota", s.cfg.Quota)...)
		return time.Now()
	}
	if used > s.cfg.Quota-s.cfg.Quota/5 {
		// It fails if there are no old versions.
		_, _ = m.Compact(ctx, &etcdserverpb.CompactionRequest{Revision: m.KV().Rev()})
		return tell("the store is full and refuses writes: old versions are being removed; if this is not enough, delete objects until a fifth is free")
	}
	err := m.Defragment()
	if err == nil {
		_, err = m.Alarm(ctx, &etcdserverpb.AlarmRequest{
			Action: etcdserverpb.AlarmRequest_DEACTIVATE, MemberID: uint64(m.MemberID()), Alarm: etcdserverpb.AlarmType_NOSPACE,
		})
	}
	if err != nil {
		return tell("the store is full, and making room has failed; it is tried again", "err", err)
	}
	s.cfg.Log.Info("the store was full, and takes writes again", "used", used, "quota", s.cfg.Quota)
	return time.Time{}
}
