// One identity, one hub: what tells two hubs apart that run with copies of one data
// directory.

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/hawser-project/hawser/auth/nodekeys"
)

const (
	// soleEvery is how often the Lease is renewed and looked at, and soleFor how long one
	// that is not renewed counts.
	soleEvery, soleFor = 5 * time.Second, 15 * time.Second
	// soleGoodbye bounds giving it back.
	soleGoodbye = 2 * time.Second
)

// A sole keeps a Lease that is called after the identity in the data directory. A hub
// that sees another one renew it has a double: it says so and ends. One that was killed
// leaves a Lease that nobody renews.
type sole struct {
	leases coordinationclient.LeaseInterface
	name   string
	me     string // this process
	dir    string
	log    *slog.Logger
	clear  chan struct{} // closed once nobody else is known to have the identity

	held  bool
	other string    // the holder that was seen last, with the time of its renewal
	since time.Time // when
}

func newSole(o *serverOptions, api kubernetes.Interface, log *slog.Logger) (*sole, error) {
	id, err := keptIdentity(o.dataDir)
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return &sole{
		leases: api.CoordinationV1().Leases(nodekeys.Namespace), name: "hub-" + strings.ToLower(id),
		me:  host + " at " + net.JoinHostPort(o.advertise.String(), strconv.Itoa(o.securePort)) + ", process " + rand.Text()[:8],
		dir: o.dataDir, log: log, clear: make(chan struct{}),
	}, nil
}

// run keeps the Lease until ctx is done. The error says who else has the identity.
func (s *sole) run(ctx context.Context) error {
	tick := time.NewTicker(soleEvery)
	defer tick.Stop()
	failures, cleared := 0, false
	for {
		err := s.look(ctx)
		var double *doubleError
		if errors.As(err, &double) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			if failures++; failures == 2 {
				s.log.Warn("cannot tell whether another hub runs with a copy of this data directory", "lease", nodekeys.Namespace+"/"+s.name, "err", err)
			}
		} else {
			failures = 0
		}
		if (s.held || failures >= 2) && !cleared {
			close(s.clear)
			cleared = true
		}
		select {
		case <-ctx.Done():
			s.giveBack(context.WithoutCancel(ctx))
			return nil
		case <-tick.C:
		}
	}
}

// A doubleError says who else has the identity of this hub.
type doubleError struct{ other, dir, lease string }

func (e *doubleError) Error() string {
	return fmt.Sprintf("another hub runs with the identity that --data-dir %s has, on %s (Lease %s): give each hub a data directory of its own, not a copy", e.dir, e.other, e.lease)
}

// look renews the Lease, or finds out whether its holder lives.
func (s *sole) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, soleEvery)
	defer cancel()
	lease, err := s.leases.Get(ctx, s.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: s.name}}
		s.fill(&lease.Spec)
		_, err = s.leases.Create(ctx, lease, metav1.CreateOptions{})
		s.held = err == nil
		return err
	}
	if err != nil {
		return err
	}
	holder := ""
	if lease.Spec.HolderIdentity != nil {
		holder = *lease.Spec.HolderIdentity
	}
	if holder != "" && holder != s.me {
		s.held = false
		seen := holder
		if lease.Spec.RenewTime != nil {
			seen += lease.Spec.RenewTime.String()
		}
		switch {
		case s.other == "" || !strings.HasPrefix(s.other, holder):
			s.other, s.since = seen, time.Now()
			return nil
		case s.other != seen:
			return &doubleError{holder, s.dir, nodekeys.Namespace + "/" + s.name}
		case time.Since(s.since) < soleFor:
			return nil
		}
	}
	s.fill(&lease.Spec)
	_, err = s.leases.Update(ctx, lease, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		return nil // somebody was faster: the next look tells who
	}
	s.held = err == nil
	return err
}

func (s *sole) fill(l *coordinationv1.LeaseSpec) {
	now, seconds := metav1.NowMicro(), int32(soleFor/time.Second)
	l.HolderIdentity, l.RenewTime, l.LeaseDurationSeconds = &s.me, &now, &seconds
}

// giveBack lets the next process of this data directory begin at once.
func (s *sole) giveBack(ctx context.Context) {
	if !s.held {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, soleGoodbye)
	defer cancel()
	lease, err := s.leases.Get(ctx, s.name, metav1.GetOptions{})
	if err == nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity == s.me {
		none := ""
		lease.Spec.HolderIdentity = &none
		_, err = s.leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		s.log.Debug("the lease was not given back; it will expire", "lease", s.name, "err", err)
	}
}
